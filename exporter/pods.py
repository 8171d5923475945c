"""Which pod was given which GPU: the kubelet's own list, asked over its pod-resources socket.

`workloads.py` asks in a thread of its own; `doctor` may ask once. Understands the device ids of NVIDIA's device plugin
(UUIDs, time slices, MIG devices, indices), of GKE's, and the names by which claims (dynamic resource allocation) give GPUs
out: NVIDIA's driver calls them after the minor number of their device file. An id that belongs to no GPU seen here gives no
row, never a guess.

Interface: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, service v1.PodResourcesLister; fields that are not named here
are passed over, as protobuf has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.kubelet import call
from exporter.model import Device, GpuPod, SourceError

LIST = "/v1.PodResourcesLister/List"
LARGEST_PODS = 512  # rows of one node; more is no pod list but an accident

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of the messages.
_POD_RESOURCES = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_CLAIMS = 1, 2, 5
_DEVICES_RESOURCE, _DEVICES_IDS = 1, 2
_CLAIM_RESOURCES = 4
_CLAIMED_CDI_DEVICES, _CLAIMED_DRIVER, _CLAIMED_DEVICE = 1, 2, 4
_CDI_NAME = 1

_GKE = re.compile(r"nvidia(\d+)(?:/(?:gi|vgpu)\d+)*")
_BY_INDEX = re.compile(r"(\d+)(?::\d+)?")  # DEVICE_ID_STRATEGY=index of NVIDIA's plugin; 0:1 is a MIG device of GPU 0
# NVIDIA's driver of claims: gpu-3, or gpu-3-mig-1g18gb-19-0 for a MIG device of it; its CDI devices put the claim before that.
_CLAIMED_GPU = re.compile(r"(?:k8s\.gpu\.nvidia\.com/(?:device|claim)=(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-)?)?"
                          r"gpu-(\d+)(?:-mig-[0-9a-z-]+)?")  # fmt: skip
_GPU_CLAIMS = "gpu.nvidia.com"
_PCI_NAME = re.compile(r"(?:pci-)?([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])")  # an address as a name in Kubernetes
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/\d+/\d+")  # drivers before 470


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of one resource, or of one claim's driver, that the kubelet gave to one container."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


def list_allocations(path: str, mono_s: Callable[[], float], timeout_s: float = 5.0) -> tuple[Allocation, ...]:
    """All devices that pods of this node hold; SourceError where the kubelet does not say."""
    return decode(call(path, LIST, b"", mono_s, timeout_s))


def decode(message: bytes) -> tuple[Allocation, ...]:
    """A ListPodResourcesResponse; SourceError("protocol") where it is none.

    >>> devices = bytes([10, 14]) + b"nvidia.com/gpu" + bytes([18, 5]) + b"GPU-6"
    >>> container = bytes([10, 1]) + b"c" + bytes([18, len(devices)]) + devices
    >>> pod = bytes([10, 1]) + b"p" + bytes([18, 1]) + b"n" + bytes([26, len(container)]) + container
    >>> decode(bytes([10, len(pod)]) + pod)[0].device_ids
    ('GPU-6',)
    """
    found: list[Allocation] = []
    try:
        for pod in _all(message, _POD_RESOURCES):
            name, namespace = _text(pod, _POD_NAME), _text(pod, _POD_NAMESPACE)
            for container in _all(pod, _POD_CONTAINERS):
                inside = _text(container, _CONTAINER_NAME)
                for devices in _all(container, _CONTAINER_DEVICES):
                    ids = tuple(i.decode() for i in _all(devices, _DEVICES_IDS))
                    found.append(Allocation(namespace, name, inside, _text(devices, _DEVICES_RESOURCE), ids))
                for claim in _all(container, _CONTAINER_CLAIMS):
                    given = _all(claim, _CLAIM_RESOURCES)
                    found += [Allocation(namespace, name, inside, *_claimed(resource)) for resource in given]
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise SourceError("protocol", f"the pod list is not understood: {error}") from None
    return tuple(found)


def _claimed(resource: bytes) -> tuple[str, tuple[str, ...]]:
    """The driver of a claim's device, and what the device is called: by the driver, and in container runtimes."""
    cdi = (_text(device, _CDI_NAME) for device in _all(resource, _CLAIMED_CDI_DEVICES))
    names = dict.fromkeys(name for name in (_text(resource, _CLAIMED_DEVICE), *cdi) if name)
    return _text(resource, _CLAIMED_DRIVER), tuple(names)


def _all(message: bytes, number: int) -> Iterator[bytes]:
    return (value for field, value in _fields(message) if field == number)


def _text(message: bytes, number: int) -> str:
    return (list(_all(message, number)) or [b""])[-1].decode()  # of a field that should stand once the last counts


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of the length-delimited fields of a message; numbers and fixed words are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field is longer than its message")
            yield key >> 3, message[at : at + length]
            at += length
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A base-128 number, and where it ends.

    >>> _varint(bytes([172, 2]), 0)
    (300, 2)
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")


def owners(allocations: Sequence[Allocation], gpus: Sequence[Device]) -> tuple[GpuPod, ...]:
    """A row per container and GPU (or MIG device); the slices of a GPU that is shared by time are one GPU.

    >>> slices = Allocation("ml", "train-0", "main", "nvidia.com/gpu", ("GPU-6a::0", "GPU-6a::3"))
    >>> [(row.gpu_id, row.pod) for row in owners([slices], [Device("gpu", "GPU-0", index=0, uuid="GPU-6a")])]
    [('GPU-0', 'train-0')]
    """
    known = _Known(gpus)
    rows: dict[GpuPod, None] = {}
    for given in allocations:
        for device_id in given.device_ids:
            if (found := known.gpu_of(device_id, given.resource)) is not None and len(rows) < LARGEST_PODS:
                rows[GpuPod(found[0], given.namespace, given.pod, given.container, found[1])] = None
    return tuple(rows)


class _Known:
    """GPUs by everything that a device id may call them."""

    def __init__(self, gpus: Sequence[Device]) -> None:
        self._by_uuid = {g.uuid.lower(): g.id for g in gpus if g.uuid}
        self._by_index = {g.index: g.id for g in gpus if g.index is not None}
        self._by_minor = {int(g.info["minor"]): g.id for g in gpus if g.info.get("minor", "").isdecimal()}
        self._by_mig = {mig.lower(): (g.id, mig) for g in gpus for mig in g.info.get("mig_uuids", "").split(",") if mig}

    def gpu_of(self, device_id: str, resource: str) -> tuple[str, str] | None:
        """Id of the GPU and UUID of its MIG device ("" for a whole GPU, a slice of it, and where a claim does not tell);
        None for what is no GPU here."""
        device_id = device_id.split("::", 1)[0]  # what follows counts the replicas of time slicing and MPS
        name = device_id.rpartition("=")[2].lower()  # of a CDI device, vendor/class=name; names of claims are in lower case
        if (gpu := self._by_uuid.get(name)) is not None:
            return gpu, ""
        if (part := self._by_mig.get(name)) is not None:
            return part
        if (resource == _GPU_CLAIMS or "=" in device_id) and (match := _CLAIMED_GPU.fullmatch(device_id)):
            gpu = self._by_minor.get(int(match[1]))
            return None if gpu is None else (gpu, "")
        if match := _OLD_MIG.fullmatch(device_id):
            gpu = self._by_uuid.get(match[1].lower())
            return None if gpu is None else (gpu, device_id)
        pattern = _BY_INDEX if resource.startswith("nvidia.com/") else None
        if match := _GKE.fullmatch(device_id) or (pattern and pattern.fullmatch(device_id)):
            gpu = self._by_index.get(int(match[1]))
            return None if gpu is None else (gpu, "")
        return None


def ports_of_pods(allocations: Sequence[Allocation], ports: Sequence[Device]) -> Mapping[str, frozenset[str]]:
    """Pod ("namespace/name") -> ids of the RDMA ports that it was given, where its plugin names them: by PCI address
    (SR-IOV, also as a claim) or by device (EFA plugin). The shared device plugin hands out mere numbers, which say nothing."""
    named: dict[str, list[str]] = {}
    for port in ports:
        for name in (port.id.split("/", 1)[0], (port.pci_path or "").rsplit("/", 1)[-1]):
            if name:
                named.setdefault(name, []).append(port.id)
    found: dict[str, set[str]] = {}
    for given in allocations:
        held = {port for device_id in given.device_ids for port in named.get(_pci_address(device_id), ())}
        if held:
            found.setdefault(f"{given.namespace}/{given.pod}", set()).update(held)
    return {pod: frozenset(held) for pod, held in found.items()}


def _pci_address(name: str) -> str:
    """The PCI address that a claim's device is named after; any other name as it is.

    >>> _pci_address("pci-0000-3b-00-2"), _pci_address("rdmap16s27")
    ('0000:3b:00.2', 'rdmap16s27')
    """
    match = _PCI_NAME.fullmatch(name)
    return "{}:{}:{}.{}".format(*match.groups()) if match else name
