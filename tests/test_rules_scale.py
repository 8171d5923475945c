"""Configurations for more nodes than one Prometheus takes: valid, and every node goes to exactly one shard."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.prometheus.build import HERE
from tests.end_to_end.processes import eventually
from tests.monitoring import prometheus_of
from tests.tools import require

SCALE = HERE / "scale"
NODES = [f"gpu-node-{k}:9777" for k in range(40)]


@pytest.mark.parametrize("file", sorted(path.name for path in SCALE.glob("*.yml")))
def test_a_configuration_is_valid(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text((SCALE / file).read_text(encoding="utf-8"), encoding="utf-8")
    nodes(tmp_path)
    agent = ["--agent"] if file.startswith("agent-") else []
    command = [require("promtool"), "check", "config", *agent, file]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "WARNING" not in checked.stdout


def nodes(folder: Path) -> None:
    (folder / "nodes").mkdir()
    (folder / "nodes" / "all.yml").write_text(json.dumps([{"targets": NODES}]), encoding="utf-8")


def test_every_node_goes_to_exactly_one_shard_under_its_name(tmp_path: Path) -> None:
    text = (SCALE / "shard.yml").read_text(encoding="utf-8")
    assert text.count("modulus: 4") == 1
    text = text.replace("http://mimir.example.invalid", "http://127.0.0.1:1")
    seen: list[str] = []
    for shard in range(4):
        folder = tmp_path / str(shard)
        folder.mkdir()
        nodes(folder)
        config = text.replace('regex: "0"', f'regex: "{shard}"').replace('shard: "0"', f'shard: "{shard}"')
        with prometheus_of(folder, config) as server:
            def names(server=server) -> list[str]:  # type: ignore[no-untyped-def]
                return [t["labels"]["instance"] for t in server.get("/api/v1/targets?state=active")["activeTargets"]]

            mine = eventually(names, 20, "targets are found")
        assert 2 <= len(mine) <= 20  # no shard takes all
        seen += mine
    assert sorted(seen) == sorted(node.partition(":")[0] for node in NODES)
