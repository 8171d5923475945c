"""Where a runbook can be read: in Grafana, as a panel of the dashboard "Overlap / Runbooks", or among pages of your own.

The dashboard comes with the others and holds the text of deploy/runbooks, so that links work in any network and need no
setting. `build.py` and the dashboards ask here.
"""

from __future__ import annotations

from pathlib import Path

from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.rule import Alert

FOLDER = Path(__file__).parent.parent / "runbooks"
DASHBOARD = "overlap-runbooks"
# In the order of the alerts. The list of them is the first panel of the dashboard.
NAMES = tuple(rule.name for group in ALERTS for rule in group.rules if isinstance(rule, Alert))


def panel_of(name: str) -> int:
    """The number of a runbook's panel."""
    return NAMES.index(name) + 2


def runbook_url(name: str, base: str = "") -> str:
    """A runbook in Grafana, by its path; with `base`, the page NAME.md below that address.

    The name in the path is for people and for what replaces the address (the chart does): Grafana passes over it.

    >>> runbook_url("OverlapSerialized"), runbook_url("GpuLost", "https://wiki.example.com/runbooks/")
    ('/d/overlap-runbooks/OverlapSerialized?viewPanel=2', 'https://wiki.example.com/runbooks/GpuLost.md')
    """
    return f"{base.rstrip('/')}/{name}.md" if base else f"/d/{DASHBOARD}/{name}?viewPanel={panel_of(name)}"
