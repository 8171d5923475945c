"""Pods: a real gRPC server on a unix socket is asked, and its device ids become GPUs. Faults of the kubelet stay its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import kubelet
from exporter.model import Device, GpuPod, SourceError
from exporter.pods import Allocation, decode, list_allocations, owners, ports_of_pods
from tests.fake_kubelet import Claimed, FakeKubelet, Pod, encode

UUIDS = tuple(f"GPU-{k:08x}-0000-4000-8000-{k:012x}" for k in range(4))
MIGS = ("MIG-11111111-2222-3333-4444-555555555555", "MIG-66666666-7777-8888-9999-aaaaaaaaaaaa")
MINORS = (2, 3, 0, 1)  # of the device files: the driver numbers boards as it finds them, NVML by their place on the bus
GPUS = tuple(
    Device("gpu", f"GPU-{k}", index=k, uuid=uuid,
           info={"minor": str(MINORS[k])} | ({"mig_uuids": ",".join(MIGS)} if k == 3 else {}))
    for k, uuid in enumerate(UUIDS)
)  # fmt: skip
CLAIM = "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(tmp_path / "kubelet.sock") as running:
        yield running


def ask(path: Path, timeout_s: float = 5.0) -> tuple[Allocation, ...]:
    return list_allocations(str(path), time.monotonic, timeout_s)


def reason_of(path: Path, timeout_s: float = 5.0) -> str:
    with pytest.raises(SourceError) as error:
        ask(path, timeout_s)
    assert str(error.value)
    return error.value.reason


def test_pods_of_a_real_grpc_server_come_with_all_their_devices(server: FakeKubelet) -> None:
    server.pods = [
        Pod("ml", "train-0", {"main": {"nvidia.com/gpu": UUIDS[:2], "rdma/hca": ("3",)}, "sidecar": {}}),
        Pod("web", "nginx", {"nginx": {}}),
        Pod("研究", "作业-1", {"main": {"nvidia.com/gpu": (UUIDS[2],)}}),
    ]
    assert ask(server.path) == (
        Allocation("ml", "train-0", "main", "nvidia.com/gpu", UUIDS[:2]),
        Allocation("ml", "train-0", "main", "rdma/hca", ("3",)),
        Allocation("研究", "作业-1", "main", "nvidia.com/gpu", (UUIDS[2],)),
    )


def test_claims_of_a_real_grpc_server_come_with_all_that_names_their_devices(server: FakeKubelet) -> None:
    server.pods = [
        Pod("ml", "train-0", {"main": {"rdma/hca": ("3",)}, "sidecar": {}}, {"main": (
            Claimed("gpu.nvidia.com", "gpu-0", (CLAIM + "gpu-0",)), Claimed("gpu.nvidia.com", "gpu-1"),
            Claimed("compute-domain.nvidia.com", "channel-0"))}),
        Pod("ml", "old", {"main": {}}, {"main": (Claimed("", "", ("k8s.gpu.nvidia.com/device=gpu-2",)),)}),
    ]  # fmt: skip
    found = ask(server.path)
    assert found == (
        Allocation("ml", "train-0", "main", "rdma/hca", ("3",)),
        Allocation("ml", "train-0", "main", "gpu.nvidia.com", ("gpu-0", CLAIM + "gpu-0")),
        Allocation("ml", "train-0", "main", "gpu.nvidia.com", ("gpu-1",)),
        Allocation("ml", "train-0", "main", "compute-domain.nvidia.com", ("channel-0",)),
        Allocation("ml", "old", "main", "", ("k8s.gpu.nvidia.com/device=gpu-2",)),  # a kubelet before 1.31
    )
    assert [(row.gpu_id, row.pod) for row in owners(found, GPUS)] == [
        ("GPU-2", "train-0"), ("GPU-3", "train-0"), ("GPU-0", "old"),
    ]  # fmt: skip


def test_a_node_without_pods_is_an_answer_too(server: FakeKubelet) -> None:
    assert ask(server.path) == ()


def test_an_answer_of_sixteen_mebibytes_is_read_whole(server: FakeKubelet) -> None:
    server.pods = [Pod("ml", f"p{k}", {"main": {"vendor/thing": tuple(f"{k}-{i}-{'x' * 100}" for i in range(150))}})
                   for k in range(1000)]  # fmt: skip
    assert len(encode(server.pods)) > 15 << 20
    found = ask(server.path, 30.0)
    assert len(found) == 1000
    assert found[999].device_ids == server.pods[999].containers["main"]["vendor/thing"]


def test_an_answer_beyond_all_measure_is_refused(server: FakeKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "LARGEST_ANSWER_BYTES", 1000)
    server.pods = [Pod("ml", "p" * 2000, {"main": {"nvidia.com/gpu": UUIDS}})]
    assert reason_of(server.path) == "protocol"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "protocol"),
        (grpc.StatusCode.PERMISSION_DENIED, "permission_denied"),
        (grpc.StatusCode.UNAVAILABLE, "connection"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"),
        (grpc.StatusCode.INTERNAL, "other"),
    ],
)
def test_a_grpc_status_becomes_a_reason(server: FakeKubelet, status: grpc.StatusCode, reason: str) -> None:
    server.status = status
    assert reason_of(server.path) == reason


def test_a_kubelet_of_another_interface_is_told_by_its_status(server: FakeKubelet) -> None:
    with pytest.raises(SourceError, match="gRPC status 12"):
        kubelet.call(str(server.path), "/v9.Nothing/List", b"", time.monotonic, 5.0)


def test_a_missing_socket_and_a_file_in_its_place_have_their_reasons(tmp_path: Path) -> None:
    assert reason_of(tmp_path / "absent.sock") == "missing"
    (tmp_path / "file").write_text("no socket")
    assert reason_of(tmp_path / "file") == "connection"


def test_a_socket_that_this_user_may_not_open_is_a_matter_of_permission(server: FakeKubelet) -> None:
    server.path.chmod(0o600)  # as the kubelet's own is
    user = os.geteuid()
    if user == 0:
        os.seteuid(10001)  # root without its rights, in all threads, until it is taken back
    else:
        server.path.chmod(0)
    try:
        assert reason_of(server.path) == "permission_denied"
    finally:
        os.seteuid(user)


@contextmanager
def peer(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[Path]:
    """A server that is no gRPC server: takes one connection and does as it likes."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            taken, _ = listening.accept()
            with taken:
                behave(taken)

        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        thread.join(10)
        assert not thread.is_alive()


def trickle(stream: socket.socket) -> None:
    """SETTINGS, then one PING each 50 ms: alive, and never an answer."""
    stream.sendall(b"\0\0\0\4\0\0\0\0\0")
    for _ in range(200):
        try:
            stream.sendall(b"\0\0\x08\6\0\0\0\0\0" + bytes(8))
        except OSError:
            return
        time.sleep(0.05)


def silence(stream: socket.socket) -> None:
    while stream.recv(1 << 16):
        pass


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (silence, "timeout"),
        (trickle, "timeout"),
        (lambda s: None, "connection"),
        (lambda s: (s.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), silence(s)), "protocol timeout"),
        (lambda s: (s.recv(1 << 16), s.sendall(b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\7\0\0\0\0\0" + bytes(8))), "connection"),
    ],
    ids=["silent", "trickling", "closing", "http1", "going away"],
)
def test_a_peer_that_is_no_kubelet_costs_no_more_than_the_time_limit(
    behave: Callable[[socket.socket], None], reason: str, tmp_path: Path
) -> None:
    with peer(tmp_path / "peer.sock", behave) as path:
        assert reason_of(path, 0.5) in reason.split()


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_pods_or_an_error_of_the_protocol(data: bytes) -> None:
    try:
        found = decode(data)
    except SourceError as error:
        found = ()
        reason = error.reason
    else:
        reason = "protocol"
    assert reason == "protocol"
    assert all(isinstance(a, Allocation) for a in found)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


DEVICES = st.dictionaries(NAMES, st.lists(NAMES, max_size=3).map(tuple), max_size=3)
CLAIMED = st.lists(st.builds(Claimed, NAMES, NAMES, st.lists(NAMES, max_size=2).map(tuple)), max_size=2).map(tuple)


@given(st.lists(st.tuples(NAMES, NAMES, st.dictionaries(NAMES, st.tuples(DEVICES, CLAIMED), max_size=3)), max_size=4))
def test_what_protobuf_writes_is_what_is_read(
    drawn: list[tuple[str, str, dict[str, tuple[dict[str, tuple[str, ...]], tuple[Claimed, ...]]]]]
) -> None:
    pods = [Pod(namespace, name, {c: devices for c, (devices, _) in inside.items()}, {c: of for c, (_, of) in inside.items()})
            for namespace, name, inside in drawn]  # fmt: skip
    expected = []
    for p in pods:
        for container, devices in p.containers.items():
            expected += [Allocation(p.namespace, p.name, container, resource, ids) for resource, ids in devices.items()]
            for of in p.claims[container]:
                names = tuple(dict.fromkeys(name for name in (of.device, *of.cdi) if name))
                expected.append(Allocation(p.namespace, p.name, container, of.driver, names))
    assert decode(encode(pods)) == tuple(expected)


@pytest.mark.parametrize(
    ("device_id", "resource", "gpu", "mig"),
    [
        (UUIDS[1], "nvidia.com/gpu", "GPU-1", ""),
        (UUIDS[1] + "::7", "nvidia.com/gpu.shared", "GPU-1", ""),
        (UUIDS[2], "example.com/renamed-gpu", "GPU-2", ""),
        (MIGS[1], "nvidia.com/mig-1g.10gb", "GPU-3", MIGS[1]),
        (MIGS[0] + "::2", "nvidia.com/mig-1g.10gb.shared", "GPU-3", MIGS[0]),
        (f"MIG-{UUIDS[2]}/1/0", "nvidia.com/mig-3g.20gb", "GPU-2", f"MIG-{UUIDS[2]}/1/0"),
        ("nvidia1", "nvidia.com/gpu", "GPU-1", ""),
        ("nvidia2/gi5", "nvidia.com/gpu", "GPU-2", ""),
        ("nvidia0/vgpu1", "nvidia.com/gpu", "GPU-0", ""),
        ("2", "nvidia.com/gpu", "GPU-2", ""),
        ("3:1", "nvidia.com/mig-1g.10gb", "GPU-3", ""),
        ("0::1", "nvidia.com/gpu", "GPU-0", ""),
        ("gpu-2", "gpu.nvidia.com", "GPU-0", ""),
        ("gpu-0", "gpu.nvidia.com", "GPU-2", ""),
        ("gpu-1-mig-1g18gb-19-0", "gpu.nvidia.com", "GPU-3", ""),
        ("gpu-1-mig-9-4-4", "gpu.nvidia.com", "GPU-3", ""),
        (CLAIM + "gpu-3", "", "GPU-1", ""),
        (CLAIM + "gpu-1-mig-1g18gb-19-0", "", "GPU-3", ""),
        ("k8s.gpu.nvidia.com/device=gpu-0", "", "GPU-2", ""),
        (f"nvidia.com/gpu={UUIDS[1]}", "gpu.example.com", "GPU-1", ""),
        (f"nvidia.com/mig={MIGS[0]}", "gpu.example.com", "GPU-3", MIGS[0]),
        (UUIDS[2].lower(), "gpu.example.com", "GPU-2", ""),
    ],
)
def test_every_known_form_of_a_device_id_finds_its_gpu(device_id: str, resource: str, gpu: str, mig: str) -> None:
    assert owners([Allocation("ml", "a", "main", resource, (device_id,))], GPUS) == (GpuPod(gpu, "ml", "a", "main", mig),)


@pytest.mark.parametrize(
    ("device_id", "resource"),
    [("GPU-ffffffff", "nvidia.com/gpu"), ("MIG-unknown", "nvidia.com/mig-1g.10gb"), ("9", "nvidia.com/gpu"), ("2", "rdma/hca"),
     ("0000:3b:00.2", "nvidia.com/sriov"), ("nvidia77", "nvidia.com/gpu"), ("", "nvidia.com/gpu"),
     ("gpu-7", "gpu.nvidia.com"), ("gpu-0", "gpu.example.com"), ("gpu-vfio-0", "gpu.nvidia.com"),
     ("channel-0", "compute-domain.nvidia.com"), ("gpu-0", "nvidia.com/gpu"), ("gpu.example.com/card=gpu-0", "gpu.example.com"),
     (CLAIM, "gpu.nvidia.com")],
)  # fmt: skip
def test_an_id_that_is_no_gpu_here_gives_no_row_and_no_guess(device_id: str, resource: str) -> None:
    assert owners([Allocation("ml", "a", "main", resource, (device_id,))], GPUS) == ()


def test_a_claim_names_no_gpu_where_the_driver_does_not_tell_minor_numbers() -> None:
    gpus = [Device("gpu", "GPU-0", index=0, uuid=UUIDS[0])]
    assert owners([Allocation("ml", "a", "main", "gpu.nvidia.com", ("gpu-0", CLAIM + "gpu-0"))], gpus) == ()


def test_slices_of_one_gpu_in_one_container_are_one_row_and_two_pods_are_two() -> None:
    slices = tuple(f"{UUIDS[0]}::{k}" for k in range(3))
    given_out = [
        Allocation("ml", pod, "main", "nvidia.com/gpu", ids) for pod, ids in (("a", slices[:2]), ("b", slices[2:]))
    ]
    assert owners(given_out, GPUS) == (GpuPod("GPU-0", "ml", "a", "main"), GpuPod("GPU-0", "ml", "b", "main"))


def test_rdma_ports_are_found_by_device_name_and_by_pci_address_and_never_by_number() -> None:
    ports = [
        Device("rdma_port", "rdmap16s27/1"), Device("rdma_port", "mlx5_4/1", pci_path="pci0000:3a/0000:3a:00.0/0000:3b:00.2"),
    ]  # fmt: skip
    given_out = [
        Allocation("ml", "a", "main", "vpc.amazonaws.com/efa", ("rdmap16s27",)),
        Allocation("ml", "b", "main", "nvidia.com/sriov_rdma", ("0000:3b:00.2",)),
        Allocation("ml", "c", "main", "rdma/hca_shared_devices_a", ("0", "1")),
        Allocation("ml", "d", "main", "sriovnetwork.k8snetworkplumbingwg.io", ("0000-3b-00-2",)),
        Allocation("ml", "e", "main", "dra.net", ("pci-0000-3b-00-2",)),
        Allocation("ml", "f", "main", "dra.net", ("pci-0000-3b-00-3",)),
    ]
    assert ports_of_pods(given_out, ports) == {
        "ml/a": {"rdmap16s27/1"}, "ml/b": {"mlx5_4/1"}, "ml/d": {"mlx5_4/1"}, "ml/e": {"mlx5_4/1"},
    }  # fmt: skip
