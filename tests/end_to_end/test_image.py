"""The Dockerfile, built once and run as in a cluster: user 10001, no capability, read-only, the node's sysfs as a mount."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter import __version__
from tests.end_to_end.image import Container, build_image, described, mounted
from tests.end_to_end.processes import eventually
from tests.fake_kubelet import FakeKubelet
from tests.machines import Machine, Running
from tests.sysfs_tree import Node
from tests.tools import require, require_root

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    for command in ("buildah", "runc", "mmdebstrap"):
        require(command)
    require_root()
    return build_image(tmp_path_factory.mktemp("image"), __version__)


@pytest.fixture(scope="module")
def config(image: str) -> dict[str, object]:
    return described(image)


@pytest.fixture(scope="module")
def root(image: str) -> Iterator[Path]:
    with mounted(image) as path:
        yield path


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Running]:
    tmp_path.chmod(0o755)
    with Machine("node", (), Node(0, 2, 1), flat_bytes_per_s=1e9).running(tmp_path / "machine") as running:
        yield running


def test_the_image_runs_as_nobody_and_says_what_it_is(config: dict[str, object]) -> None:
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["/opt/overlap-exporter/bin/overlap-exporter"]
    assert config["Cmd"] == ["serve"]
    assert config["ExposedPorts"] == {"9777": {}} or config["ExposedPorts"] == {"9777/tcp": {}}
    labels = config["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    environment = config["Env"]
    assert isinstance(environment, list)
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} <= set(environment)
    health = config["Healthcheck"]
    assert isinstance(health, dict)
    assert health["Test"][0] == "CMD", "no shell is needed"


def test_the_image_holds_bytecode_and_neither_pip_nor_tests(root: Path) -> None:
    (packages,) = (root / "opt/overlap-exporter/lib").glob("python3.*/site-packages")
    assert list((packages / "exporter" / "__pycache__").glob("server.*.pyc"))
    assert not [*packages.glob("pip*"), *packages.glob("setuptools*"), *(root / "build").glob("*")]
    assert (packages / "exporter" / "page" / "index.html").is_file()


class Service:
    """What a running container answers."""

    def __init__(self, container: Container) -> None:
        self.container = container

        def address() -> str | None:
            assert container.process.poll() is None, container.log.read_text()
            line = next((line for line in container.log.read_text().splitlines() if " is at http" in line), None)
            return line and line.split(" is at ")[1].split(",")[0].rstrip("/")

        self.url = str(eventually(address, 20, "it says its address"))

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {(s.name, frozenset(s.labels.items())): s.value
                for family in text_string_to_metric_families(text) for s in family.samples}  # fmt: skip

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def running(
    folder: Path, root: Path, config: dict[str, object], mounts: dict[str, Path], arguments: Sequence[str] = (),
    user: int = 10001,
) -> Iterator[Service]:  # fmt: skip
    """The image under runc on a free port of loopback, until the block ends."""
    for place in mounts:
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)  # runc cannot make it on a read-only root
    command = ["serve", "--web.listen-address", "127.0.0.1:0", "--path.sysfs", "/host/sys", *arguments]
    container = Container(folder, root, command, mounts, config, user)
    try:
        yield Service(container)
    finally:
        container.remove()


def test_it_serves_a_nodes_sysfs_without_any_right_and_stops_at_once_when_told(
    root: Path, config: dict[str, object], machine: Running, tmp_path: Path
) -> None:
    sysfs = Path(machine.arguments[machine.arguments.index("--path.sysfs") + 1])
    with running(tmp_path, root, config, {"/host/sys": sysfs}) as service:
        container = service.container
        eventually(service.ready, 30, "it is ready")
        ports = {dict(labels)["device"] for name, labels in service.metrics() if name == "overlap_rdma_receive_bytes_total"}
        assert ports == {"mlx5_0", "mlx5_1"}
        status = container.inside("/opt/overlap-exporter/bin/python", "-c", (
            "import os, pathlib; s = pathlib.Path('/proc/1/status').read_text(); print(s)\n"
            "for p in ('/probe', '/opt/overlap-exporter/probe', '/host/sys/probe', '/tmp/probe'):\n"
            "    try: pathlib.Path(p).write_text('x'); print('WRITABLE', p)\n"
            "    except OSError: pass\n"
        ))  # fmt: skip
        assert "WRITABLE" not in status
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        assert facts["Uid"].split() == ["10001"] * 4
        assert {facts[k].strip() for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert facts["NoNewPrivs"].strip() == "1"
        health = config["Healthcheck"]
        assert isinstance(health, dict)
        code = str(health["Test"][3]).replace("os.environ['HEALTH_URL']", f"'{service.url}/-/healthy'")
        container.inside(*health["Test"][1:3], code)

        container.kill("TERM")
        assert container.process.wait(5) == 0, container.log.read_text()
        assert "stopping" in container.log.read_text()


@pytest.mark.parametrize(("user", "up"), [(0, 1.0), (10001, 0.0)])
def test_user_0_without_a_capability_may_ask_the_kubelet_and_nobody_else(
    user: int, up: float, root: Path, config: dict[str, object], machine: Running, tmp_path: Path
) -> None:
    sysfs = Path(machine.arguments[machine.arguments.index("--path.sysfs") + 1])
    sockets, settings = tmp_path / "pod-resources", tmp_path / "settings"
    sockets.mkdir(0o750)  # as the kubelet makes it
    settings.mkdir()
    (settings / "overlap-exporter.yml").write_text("pods: {socket: /host/pod-resources/kubelet.sock, interval_seconds: 1}\n")
    mounts = {"/host/sys": sysfs, "/host/pod-resources": sockets, "/etc/overlap-exporter": settings}
    with FakeKubelet(sockets / "kubelet.sock") as kubelet:
        kubelet.path.chmod(0o660)
        arguments = ["--config.file=/etc/overlap-exporter/overlap-exporter.yml"]
        with running(tmp_path, root, config, mounts, arguments, user) as service:
            eventually(service.ready, 30, "it is ready")
            assert service.metrics()["overlap_source_up", frozenset({("source", "pods")})] == up
            refused = frozenset({("source", "pods"), ("reason", "permission_denied")})
            assert (service.metrics()["overlap_source_errors_total", refused] > 0) is (user != 0)
