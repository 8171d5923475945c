"""The runbooks in Grafana: what each alert means, how to confirm it, what to change. The text is that of deploy/runbooks.

A page of its own for each, by `viewPanel`: links of alerts and findings work wherever the dashboards are, with no other server.
"""

from __future__ import annotations

import re

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import prose
from dashboards.variables import TAG, links
from deploy.prometheus.runbooks import DASHBOARD, FOLDER, NAMES, panel_of


def _text(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def _list() -> str:
    """The list of the folder's README, with links to panels. They are relative, as Grafana may live below a path; its text
    panels keep no address that begins otherwise."""
    table = re.search(r"^\|.*\|$", _text("README"), re.MULTILINE | re.DOTALL)
    assert table is not None
    return re.sub(r"\((\w+)\.md\)", lambda m: f"(./d/{DASHBOARD}?viewPanel={panel_of(m[1])})", table[0])


def runbooks() -> dashboard.Dashboard:
    """Runbooks dashboard."""
    d = dashboard.Dashboard("Overlap / Runbooks").uid(DASHBOARD).tags([TAG]).editable().links([*links(DASHBOARD)])
    d.description("A runbook for each alert: what it means, how to confirm it, what to change in which order, when not to.")
    d.with_panel(prose("Runbooks", "The alerts of this project. Click one for its runbook.", _list(), (24, 13)))
    for name in NAMES:
        title, _, text = _text(name).partition("\n")
        assert title == f"# {name}", f"{name}.md has the title {title!r}"
        d.with_panel(prose(name, f"Runbook of the alert {name}.", text.strip() + "\n", (12, 16)))
    return d
