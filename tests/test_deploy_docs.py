"""docs/deploy.md says what the manifests, the unit and doctor say: sizes, checks, reasons, addresses."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from exporter import doctor_gpus
from exporter.doctor_checks import _OTHER_REMEDIES, CHECKS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_troubleshooting_has_a_row_for_every_check_of_doctor_in_its_order() -> None:
    named = [name for name in re.findall(r"^\| (?:`([\w ]+)`)? \|", section("Troubleshooting"), re.MULTILINE) if name]
    assert named == [check.name for check in CHECKS]


def test_reasons_in_troubleshooting_are_those_that_doctor_gives() -> None:
    rows = dict.fromkeys(re.findall(r"`([a-z]+_[a-z_]+|missing|protocol)`", section("Troubleshooting")))
    known = {*doctor_gpus._NVML_REMEDIES, *(reason for _, reason in _OTHER_REMEDIES), "no_rdma_devices", "counters_not_visible"}
    assert rows.keys() - known == set()
    assert len(rows) >= 10


def test_requests_and_limits_on_the_page_are_those_of_the_manifests() -> None:
    base = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "base" / "daemonset.yaml").read_text(encoding="utf-8"))
    (container,) = base["spec"]["template"]["spec"]["containers"]
    resources = container["resources"]
    unit = (ROOT / "deploy" / "systemd" / "overlap-exporter.service").read_text(encoding="utf-8")
    words = " ".join(PAGE.split())
    assert "({cpu}, {memory})".format(**resources["requests"]) in words
    assert "(one core, {memory}; 512 MB under systemd)".format(**resources["limits"]) in words
    assert resources["limits"]["cpu"] == "1"
    assert "MemoryMax=512M" in unit


PATTERNS = ("docs/*.md", "deploy/**/*.md", "deploy/**/*.y*ml", "dashboards/*.json", "README*.md")


def test_no_text_leads_to_an_address_that_nobody_has() -> None:
    """The project has no public address so far: links lead into the repository, into Grafana, to loopback or to examples."""
    for path in (path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        for host in re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8")):
            known = host == "127.0.0.1" or "." not in host or host.endswith((".example.com", ".example.invalid"))
            assert known, f"{path.name}: {host}"
