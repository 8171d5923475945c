"""The page of machines is what the table of machines, their golden files and the table of power sensors say."""

from __future__ import annotations

import re

from docs import machines_table
from exporter.sources.nvml_boards import ARCHITECTURES
from tests.field_machines import FIELD_MACHINES


def test_the_page_of_machines_is_what_the_tables_give() -> None:
    assert machines_table.PAGE.read_text(encoding="utf-8") == machines_table.page(), "run: python -m docs.machines_table"


def test_every_machine_and_every_way_to_read_power_stands_on_the_page() -> None:
    page = machines_table.page()
    assert all(f"| {machine.about} |" in page for machine in FIELD_MACHINES)
    for source in ("instant", "usage", "energy", "module", "average"):
        assert f"| `{source}` |" in page
        assert re.search(rf"^\| .* \| `{source}`, \d+ ms \|", page, re.MULTILINE), f"no machine reads {source}"
    assert [name for name in ARCHITECTURES.values() if name in ("Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")
            and name not in page] == []  # fmt: skip


def test_no_two_machines_share_a_name_or_a_description() -> None:
    assert len({m.name for m in FIELD_MACHINES}) == len({m.about for m in FIELD_MACHINES}) == len(FIELD_MACHINES)
