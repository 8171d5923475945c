"""A kubelet for the tests: a real gRPC server on a unix socket that answers v1.PodResourcesLister/List.

    with FakeKubelet(tmp_path / "kubelet.sock") as kubelet:
        kubelet.pods = [Pod("ml", "train-0", {"main": {"nvidia.com/gpu": ("GPU-6a",)}}),
                        Pod("ml", "train-1", {"main": {}}, {"main": (Claimed("gpu.nvidia.com", "gpu-1"),)})]

The messages are made by protobuf from the table below, so that neither side of the contract is our own code. Numbers and
names are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _MESSAGE, _INT64, _UINT64 = 9, 11, 3, 4
# message -> (number, name, type, repeated, message of the field)
_MESSAGES: Mapping[str, tuple[tuple[int, str, int, bool, str], ...]] = {
    "NUMANode": ((1, "ID", _INT64, False, ""),),
    "TopologyInfo": ((1, "nodes", _MESSAGE, True, "NUMANode"),),
    "ContainerDevices": ((1, "resource_name", _TEXT, False, ""), (2, "device_ids", _TEXT, True, ""),
                         (3, "topology", _MESSAGE, False, "TopologyInfo")),
    "ContainerMemory": ((1, "memory_type", _TEXT, False, ""), (2, "size", _UINT64, False, ""),
                        (3, "topology", _MESSAGE, False, "TopologyInfo")),
    "CDIDevice": ((1, "name", _TEXT, False, ""),),
    "ClaimResource": ((1, "cdi_devices", _MESSAGE, True, "CDIDevice"), (2, "driver_name", _TEXT, False, ""),
                      (3, "pool_name", _TEXT, False, ""), (4, "device_name", _TEXT, False, "")),
    "DynamicResource": ((2, "claim_name", _TEXT, False, ""), (3, "claim_namespace", _TEXT, False, ""),
                        (4, "claim_resources", _MESSAGE, True, "ClaimResource")),
    "ContainerResources": ((1, "name", _TEXT, False, ""), (2, "devices", _MESSAGE, True, "ContainerDevices"),
                           (3, "cpu_ids", _INT64, True, ""), (4, "memory", _MESSAGE, True, "ContainerMemory"),
                           (5, "dynamic_resources", _MESSAGE, True, "DynamicResource")),
    "PodResources": ((1, "name", _TEXT, False, ""), (2, "namespace", _TEXT, False, ""),
                     (3, "containers", _MESSAGE, True, "ContainerResources")),
    "ListPodResourcesResponse": ((1, "pod_resources", _MESSAGE, True, "PodResources"),),
}  # fmt: skip


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, rows in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind, repeated, of in rows:
            message.field.add(number=number, name=field_name, type=kind, label=3 if repeated else 1,
                              type_name=f".v1.{of}" if of else None)  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{n}")) for n in _MESSAGES}


MESSAGES = _classes()


@dataclass(frozen=True)
class Claimed:
    """One device of a claim: its driver, its name there, and what container runtimes call it."""

    driver: str
    device: str
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pod:
    """One pod: container -> resource -> device ids; container -> devices of its claim."""

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    claims: Mapping[str, tuple[Claimed, ...]] = field(default_factory=dict)


def encode(pods: list[Pod]) -> bytes:
    """A ListPodResourcesResponse with what a real kubelet says besides: topology, CPUs, memory."""
    answer = MESSAGES["ListPodResourcesResponse"]()
    for pod in pods:
        resources = answer.pod_resources.add(name=pod.name, namespace=pod.namespace)
        for container, devices in pod.containers.items():
            inside = resources.containers.add(name=container, cpu_ids=[0, 1, 300])
            inside.memory.add(memory_type="hugepages-1Gi", size=1 << 40).topology.nodes.add(ID=1)
            for resource, ids in devices.items():
                inside.devices.add(resource_name=resource, device_ids=ids).topology.nodes.add(ID=0)
            if container in pod.claims:
                claim = inside.dynamic_resources.add(claim_name="gpu-claim", claim_namespace=pod.namespace)
                for device in pod.claims[container]:
                    told = claim.claim_resources.add(driver_name=device.driver, pool_name="node", device_name=device.device)
                    for name in device.cdi:
                        told.cdi_devices.add(name=name)
    return bytes(answer.SerializeToString())


class FakeKubelet:
    """The server. `pods` may change at any time; `status` is answered in place of a list, after `delay_s`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: list[Pod] = []
        self.raw: bytes | None = None
        self.status: grpc.StatusCode | None = None
        self.delay_s = 0.0
        self.calls = 0
        self._server: Any = None

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        assert request == b"", "ListPodResourcesRequest has no fields"
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.status is not None:
            context.abort(self.status, "the test says so")
        return encode(self.pods) if self.raw is None else self.raw

    def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)],
            handlers=[grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})],
        )  # fmt: skip
        self._server.add_insecure_port(f"unix://{self.path}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> FakeKubelet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
