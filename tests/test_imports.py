"""Who may import whom: the rules that keep a reader small and the analysis free of the machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "exporter"
MODULES = {
    ".".join(("exporter", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# Third-party packages and the only modules through which they come in (regular expressions on the module's name).
DOORS = {
    "pynvml": r"exporter\.sources\.(nvml|nvml_\w+|gpm|xid)",
    "psutil": r"exporter\.(sources\.host|processes)",
    "prometheus_client": r"exporter\.(collector|server)",
    "yaml": r"exporter\.config",
    "tornado": r"exporter\.(server|answer|endpoints)",
    "bcrypt": r"exporter\.(web_config|credentials|web_\w+)",
    "rich": r"exporter\.(offline|app|top|doctor|recorder|tables?)",
    "time": r"exporter\.clock",
}

# Whatever a reader process loads stays without numpy (an end-to-end test looks at the process itself, too).
WITHOUT_NUMPY = r"exporter(\.(__main__|cli|clock|config|logs|model|quantities|reader\w*|supervisor|wire|announcements|pairing|diagnosis|metrics|self_metrics|family|labels|collector|sources(\.(sysfs|files|nvml\w*|gpm|xid|rdma\w*|nic|host|net))?))?"

# Modules of the project that a module may import; None: no rule. The first pattern that fits decides.
ALLOWED = (
    (r"exporter\.(model|clock|advice)", ()),
    (r"exporter\.quantities", ()),
    (r"exporter\.signals\.\w+", ("signals",)),
    (r"exporter\.wire", ("model",)),
    (r"exporter\.history", ("model",)),
    (r"exporter\.trace\w*", ("model", "quantities", "clock", "trace_header")),
    (r"exporter\.channels", ("model",)),
    (r"exporter\.symptoms", ("model", "channels")),
    (r"exporter\.meanings", ("advice",)),
    (r"exporter\.(transport|carriers)", ("signals", "model", "channels", "carriers")),
    (r"exporter\.(pairing|diagnosis|rules\w*)", ("model", "rules", "diagnosis", "advice", "pairing", "channels", "symptoms")),
    (r"exporter\.(analysis|readings|memories|shares|verdict)", ("signals", "model", "readings", "memories", "shares", "verdict")),
    (r"exporter\.reader\w*", ("sources", "model", "clock", "wire", "announcements", "reader")),
    (r"exporter\.supervisor\w*", ("model", "clock", "wire", "announcements", "supervisor")),
    (r"exporter\.sources(\.\w+)?", ("model", "quantities", "clock", "sources")),
    (r"exporter\.(metrics|self_metrics)", ("model", "quantities", "labels", "family", "self_metrics", "__init__")),
    (r"exporter\.(family|labels)", ("model", "quantities", "labels")),
    (r"exporter\.collector", ("metrics", "model")),
)
# Within sources/ only these may be shared: no source imports another.
SHARED_SOURCES = r"exporter\.sources(\.(sysfs|files|rdma_drivers|rdma_ports|nvml_\w+|gpm|xid|jobs|sensors|scenarios|scenario_\w+|job_\w+|simulat\w+))?"


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {name if (name := f"{node.module}.{a.name}") in MODULES else node.module for a in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return found


@pytest.mark.parametrize("module", MODULES)
def test_third_party_packages_come_in_through_their_door_alone(module: str) -> None:
    for name in imports(MODULES[module]):
        door = DOORS.get(name.split(".")[0])
        assert door is None or re.fullmatch(door, module), f"{module} imports {name}, whose door is {door}"


@pytest.mark.parametrize("module", [m for m in MODULES if re.fullmatch(WITHOUT_NUMPY, m)])
def test_what_a_reader_loads_is_without_numpy(module: str) -> None:
    assert not any(name.split(".")[0] == "numpy" for name in imports(MODULES[module]))


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_what_stands_below_them(module: str) -> None:
    rule = next((allowed for pattern, allowed in ALLOWED if re.fullmatch(pattern, module)), None)
    if rule is None:
        return
    for name in imports(MODULES[module]):
        if not name.startswith("exporter"):
            continue
        room = name.split(".")[1] if "." in name else "__init__"
        assert any(room == r or room.startswith(f"{r}_") for r in rule), f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("exporter.sources.")])
def test_sources_never_import_each_other(module: str) -> None:
    if module == "exporter.sources.net":
        return  # opens the network's sources, and is none itself
    for name in imports(MODULES[module]):
        if name.startswith("exporter.sources"):
            assert re.fullmatch(SHARED_SOURCES, name), f"{module} imports {name}"


def test_every_rule_still_has_a_module_that_it_speaks_of() -> None:
    for pattern, _ in ALLOWED:
        assert any(re.fullmatch(pattern, m) for m in MODULES), pattern
