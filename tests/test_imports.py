"""Who may import whom: the rules that keep a reader small and the analysis free of the machine. Every module has its row."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "exporter"


def name_of(path: Path) -> str:
    """Name of a module as the tables below write it: "history", "sources/nvml", "sources" for a folder's own file."""
    return "/".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("/__init__") or "__init__"


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
SIGNALS = " ".join(m for m in MODULES if m.startswith("signals/"))
DEVICES = ("sources/nvml sources/nvml_binding sources/nvml_calls sources/nvml_events sources/nvml_lanes sources/nvml_links "
           "sources/nvml_mig sources/nvml_pci sources/nvml_power sources/nvml_boards sources/nvml_fields "
           "sources/nvml_names sources/nvml_gpu sources/nvml_slow sources/vpd sources/gpm "
           "sources/net sources/rdma sources/rdma_drivers sources/rdma_ports sources/rdma_reserve sources/rdma_bonds "
           "sources/nic sources/host sources/topology sources/ethtool sources/files sources/sysfs")  # fmt: skip
SIMULATION = ("sources/simulator sources/simulated_node sources/simulated_waveform sources/sensors sources/scenarios "
              "sources/jobs sources/job_levels")  # fmt: skip
JUDGING = "analysis rhythm resolution readings memories shares verdict routes mixtures resolved traffic"
READER = "reader reader_crew reader_ledger reader_outlet reader_rounds reader_turns reader_volleys"
SUPERVISOR = "supervisor supervisor_child supervisor_patience supervisor_reader"
WEB = "server answer endpoints loopback stream watches api connections credentials listening web_config"

# Modules -> what of the project they may import (besides each other); "*" is anything.
RULES = {
    "__init__ signals": "",
    "__main__": "cli",
    "cli app offline live daemon session recorder doctor doctor_look doctor_checks doctor_gpus doctor_verdict": "*",
    "model clock quantities advice": "",
    "wire history channels pairing": "model ring",
    "kubelet jobs": "model",
    "pods": "model kubelet",
    "workloads": "model clock pods jobs",
    "announcements logs": "",
    "config": "model",
    "processes": "model",
    "playback": "model clock quantities",
    "meanings reasons": "advice",
    "wording": "advice meanings model",
    "trace trace_header": "model quantities",
    SIGNALS: "",
    JUDGING: "model signals reasons",
    "transport carriers": "model signals channels",
    "diagnosis rules symptoms": "model channels signals/rates",
    "sources": "model",
    DEVICES: "model quantities clock sources",
    SIMULATION: "model quantities sources",
    READER: "model clock wire announcements sources sources/nvml sources/net",
    SUPERVISOR: "model clock wire announcements",
    "metrics self_metrics family labels": "__init__ model quantities",
    "collector": "metrics family labels model",
    "release heap ring": "",
    "waveform": "model",
    "scope": "model waveform signals",
    "trend": "model",
    "top": "model clock advice meanings reasons wording",
    "report report_plots": "__init__ model advice meanings reasons wording session trend scope waveform",
    "flight": "model history trace",
    "incidents": "model history flight",
    WEB: (
        "__init__ collector model quantities config history meanings reasons advice wording release waveform scope trend flight"
    ),
}

# Third-party packages and the only modules through which they come in.
DOORS = {
    "pynvml": "sources/nvml_binding",
    "psutil": "processes",
    "prometheus_client": "collector",
    "yaml": "config",
    "tornado": "server answer endpoints",
    "bcrypt": "web_config credentials",
    "h2": "kubelet",
    "rich": "offline recorder top doctor",
    "time": "clock",
}

# What runs in a reader, and what the supervisor needs to start one, loads no numpy; nor does `--help`.
WITHOUT_NUMPY = (f"__init__ __main__ cli model clock quantities wire announcements pairing config logs sources "
                 f"{DEVICES} {READER} {SUPERVISOR}")  # fmt: skip


def imports(module: str) -> set[str]:
    """Modules of the project by their names above, other packages by their first name, at any depth of the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            inner = {n for n in within if n.removeprefix("exporter.").replace(".", "/") in MODULES}
            found |= inner if len(inner) == len(within) else {*inner, str(node.module)}
    return {n.removeprefix("exporter.").replace(".", "/") if n.startswith("exporter.") else
            "__init__" if n == "exporter" else n.split(".")[0] for n in found}  # fmt: skip


ROW_OF = {module: (row.split(), allowed) for row, allowed in RULES.items() for module in row.split()}


def test_every_module_has_a_row_and_every_row_its_modules() -> None:
    assert sorted(ROW_OF) == sorted(MODULES)
    assert {m for door in DOORS.values() for m in door.split()} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_what_their_row_allows(module: str) -> None:
    together, allowed = ROW_OF[module]
    if allowed == "*":
        return
    may = {*together, *allowed.split(), *(SIGNALS.split() if "signals" in allowed.split() else ())}
    assert {n for n in imports(module) if n in MODULES} <= may


@pytest.mark.parametrize("module", MODULES)
def test_third_party_packages_come_in_through_their_door_alone(module: str) -> None:
    for package in imports(module):
        assert module in DOORS.get(package, module).split(), f"{package} comes in through {DOORS[package]}"


@pytest.mark.parametrize("module", WITHOUT_NUMPY.split())
def test_what_a_reader_loads_is_without_numpy(module: str) -> None:
    assert "numpy" not in imports(module)


def test_gpu_and_network_sources_know_nothing_of_each_other() -> None:
    gpu = {m for m in DEVICES.split() if m.startswith(("sources/nvml", "sources/gpm"))}
    shared = {"sources/sysfs", "sources/files"}
    for module in DEVICES.split():
        others = imports(module) & set(DEVICES.split())
        assert others <= (gpu | shared if module in gpu else set(DEVICES.split()) - gpu), module


# Folders beside the package, which imports none of them -> what of the project they may import, and their own packages.
BESIDE = {
    "dashboards": ("dashboards deploy.prometheus exporter.metrics exporter.quantities exporter.meanings",
                   "grafana_foundation_sdk"),
    "deploy/prometheus": ("deploy.prometheus", ""),
}  # fmt: skip
OURS = ("exporter", "deploy", "dashboards", "docs", "tests", "benchmarks")


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("folder", BESIDE)
def test_dashboards_and_rules_know_names_and_words_and_nothing_that_reads_or_judges(folder: str) -> None:
    allowed, packages = BESIDE[folder]
    files = sorted((ROOT.parent / folder).glob("*.py"))
    assert len(files) > 3
    for file in files:
        for name in imported(file):
            first = name.split(".")[0]
            if first in OURS:
                assert any(name == a or name.startswith(f"{a}.") for a in allowed.split()), f"{file.name}: {name}"
            else:
                assert first in sys.stdlib_module_names or first in packages.split(), f"{file.name}: {name}"


@pytest.mark.parametrize("module", MODULES)
def test_the_package_stands_without_the_folders_beside_it(module: str) -> None:
    assert not {name.split(".")[0] for name in imported(MODULES[module])} & ({*OURS, "grafana_foundation_sdk"} - {"exporter"})
