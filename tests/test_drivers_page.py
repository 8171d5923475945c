"""The page of RDMA drivers is what the table of drivers says, row by row."""

from __future__ import annotations

from docs import drivers_table
from exporter.sources.rdma_drivers import DRIVERS, EVENTS
from tests.field_machines import FIELD_MACHINES
from tests.test_rdma import MANIFESTS


def test_the_page_of_drivers_is_what_the_table_gives() -> None:
    assert drivers_table.PAGE.read_text(encoding="utf-8") == drivers_table.page(), "run: python -m docs.drivers_table"


def test_every_driver_source_and_event_stands_on_the_page() -> None:
    page = drivers_table.page()
    for row in DRIVERS:
        assert all(f"`{name}`" in page for name in (row.name, *row.also))
        for source in row.byte_sources:
            assert all(spelling in page for f in (*source.transmit, *source.receive) for spelling in f.split("|"))
    assert all(f"| `{event}` |" in page for event in EVENTS)


def test_what_is_said_to_be_tested_is_tested() -> None:
    """Each driver with bytes of its own has a manifest with a golden file, or is on a machine that is played."""
    manifest_of = {
        "mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "bnxt_en": "bnxt_re", "ice": "irdma", "efa": "efa", "erdma": "erdma",
        "mana": "mana", "ionic": "ionic", "hfi1": "hfi1",
    }  # fmt: skip
    played = {port.driver for machine in FIELD_MACHINES for port in machine.ports}
    for row in DRIVERS:
        if row.byte_sources and row.provenance != "constructed":
            assert manifest_of[row.name] in MANIFESTS
    assert {"mlx5_core", "efa", "bnxt_en", "ice", "hfi1"} <= played
