"""The GPM lane of one GPU: share of time with a kernel, SM and tensor activity, as means since the read before.

Hopper and later, Linux (nvml.h: nvmlGpmSampleGet, nvmlGpmMetricsGet). Two samples at least 100 ms apart make a reading;
closer pairs give numbers that mean nothing (NVIDIA/DCGM#310). Parallel calls, even on different GPUs, have crashed others
(DataDog/datadog-agent#54458): one thread only. `nvml_gpu.py` makes the lane, the reader ticks it.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence

from exporter.clock import Clock
from exporter.model import Source
from exporter.sources import LaneError
from exporter.sources.nvml_calls import NAN, OK, PERMANENT, Calls, Failures, Tally, ask

REASONS = ("too_close", "implausible", "unsupported", "no_permission", "transient", "gpu_lost", "library")
METRICS = ((1, "kernel_busy_ratio"), (2, "sm_utilization_ratio"), (5, "tensor_utilization_ratio"))  # nvmlGpmMetricId_t
SMALLEST_SPACING_S = 0.100
INTERVAL_S = 0.125  # the smallest spacing and room for a late tick

_HEAD = struct.Struct("=IIQQ")  # version, number of metrics, sample 1, sample 2
_METRIC = struct.Struct("=IidQQQ")  # id, return code, percent, three names
_ROOM = 512  # the length of the metric array differs between drivers (98 to 477) under one version number


class GpmLane:
    """GPM means of one GPU. The first read gives nothing: it takes the sample that the second is held against."""

    device_kind = "gpu"

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, device_id: str, *, interval_s: float, clock: Clock) -> None:
        self._calls = calls
        self._handle = handle
        self._clock = clock
        self.device_id = device_id
        self.errors = Tally(REASONS)
        self._failures = Failures(self.errors)
        self.source = Source(
            f"gpm/{device_id}", tuple(f"{device_id}/{key}" for _, key in METRICS), max(INTERVAL_S, interval_s)
        )
        self._samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in self._samples:
            self._failures.check(ask(calls, "nvmlGpmSampleAlloc", ctypes.byref(sample)))
        self._taken_s: float | None = None  # by when samples[0] was taken; None: not yet
        self._memory = bytearray(_HEAD.size + _ROOM * _METRIC.size)
        self._pointer = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)

    def read(self) -> Sequence[float] | None:
        """Means since the read before; None for the first, and where the pair would be too close together."""
        if self._taken_s is not None and self._clock.mono_s() - self._taken_s < SMALLEST_SPACING_S:
            self.errors.add("too_close")
            return None
        before, after = self._samples
        try:
            self._failures.check(ask(self._calls, "nvmlGpmSampleGet", self._handle, after))
        except LaneError:
            self._taken_s = None
            raise
        first = self._taken_s is None
        self._taken_s = self._clock.mono_s()  # at the latest: a slow call may take its sample at its end
        self._samples.reverse()
        return None if first else self._means(before, after)

    def _means(self, before: ctypes.c_void_p, after: ctypes.c_void_p) -> list[float]:
        _HEAD.pack_into(self._memory, 0, 1, len(METRICS), before.value, after.value)
        for i, (metric, _) in enumerate(METRICS):
            _METRIC.pack_into(self._memory, _HEAD.size + i * _METRIC.size, metric, 0, NAN, 0, 0, 0)
        self._failures.check(ask(self._calls, "nvmlGpmMetricsGet", self._pointer))
        values = []
        for i in range(len(METRICS)):
            _, code, percent, *_ = _METRIC.unpack_from(self._memory, _HEAD.size + i * _METRIC.size)
            if code != OK:
                self._failures.entry(code)
            values.append(self._ratio(percent) if code == OK else NAN)
        return values

    def _ratio(self, percent: float) -> float:
        if 0.0 <= percent <= 101.0:  # rounding of a fully busy chip goes a little above 100
            return min(percent, 100.0) / 100.0
        if not math.isnan(percent):  # NaN is how a chip says that it lacks a metric
            self.errors.add("implausible")
        return NAN

    def close(self) -> None:
        """Free both samples; before the session ends."""
        for sample in self._samples:
            if sample.value:
                ask(self._calls, "nvmlGpmSampleFree", sample)
                sample.value = None


def gpm_supported(calls: Calls, handle: ctypes.c_void_p) -> bool:
    """Whether this GPU has GPM (nvmlGpmQueryDeviceSupport); False before Hopper and in old drivers."""
    support = (ctypes.c_uint * 2)(1, 0)  # version, isSupportedDevice
    code = ask(calls, "nvmlGpmQueryDeviceSupport", handle, support)
    if code != OK and code not in PERMANENT:
        Failures(Tally(REASONS)).check(code)
    return code == OK and bool(support[1])
