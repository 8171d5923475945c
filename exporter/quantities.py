"""THE table of raw things measured: what a channel may be called, and which metric it becomes.

A new raw metric is one row here, one line in its source, one golden diff. The catalogue of metrics (`metrics.py`) takes
its raw families from this table; sources name their channels by `key`; the trace format carries the keys as they stand.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """One raw quantity of one kind of device.

    key: name within a channel "<device id>/<key>". With `label`, channels are "<device id>/<key>/<value of label>".
    per_device: False for node-wide witnesses, whose series carry no device label.
    """

    key: str
    device_kind: str
    metric: str
    kind: str  # gauge or counter
    help: str
    origin: str
    label: str | None = None
    per_device: bool = True


_PMA = "/sys/class/infiniband/<dev>/ports/<n>"
_NET = "/sys/class/net/<if>"

QUANTITIES: tuple[Quantity, ...] = (
    Quantity("power_watts", "gpu", "overlap_gpu_power_watts", "gauge",
             "Power of the board, by the source named on overlap_gpu_info.", "nvmlDeviceGetFieldValues 186, then fallbacks"),
    Quantity("power_limit_watts", "gpu", "overlap_gpu_power_limit_watts", "gauge",
             "Power limit in force.", "nvmlDeviceGetEnforcedPowerLimit"),
    Quantity("energy_joules_total", "gpu", "overlap_gpu_energy_joules_total", "counter",
             "Energy used since the driver was loaded.", "nvmlDeviceGetFieldValues 83"),
    Quantity("utilization_ratio", "gpu", "overlap_gpu_utilization_ratio", "gauge",
             "Share of the driver's last sample period with a kernel resident. Counts a waiting NCCL kernel as busy.",
             "nvmlDeviceGetUtilizationRates"),
    Quantity("kernel_busy_ratio", "gpu", "overlap_gpu_kernel_busy_ratio", "gauge",
             "Share of time since the read before with a kernel resident (GPM, Hopper and later).", "nvmlGpmMetricsGet 1"),
    Quantity("sm_utilization_ratio", "gpu", "overlap_gpu_sm_utilization_ratio", "gauge",
             "Share of SM time in use since the read before (GPM, Hopper and later).", "nvmlGpmMetricsGet 2"),
    Quantity("tensor_utilization_ratio", "gpu", "overlap_gpu_tensor_utilization_ratio", "gauge",
             "Share of tensor core cycles in use since the read before (GPM, Hopper and later).", "nvmlGpmMetricsGet 5"),
    Quantity("temperature_celsius", "gpu", "overlap_gpu_temperature_celsius", "gauge",
             "Temperature of the GPU core.", "nvmlDeviceGetTemperatureV, nvmlDeviceGetTemperature"),
    Quantity("sm_clock_hertz", "gpu", "overlap_gpu_sm_clock_hertz", "gauge",
             "Clock of the SMs.", "nvmlDeviceGetClockInfo NVML_CLOCK_SM"),
    Quantity("nvlink_transmit_bytes_total", "gpu", "overlap_gpu_nvlink_transmit_bytes_total", "counter",
             "Bytes sent over all NVLinks of the GPU.", "nvmlDeviceGetFieldValues 138, or 202 per link"),
    Quantity("nvlink_receive_bytes_total", "gpu", "overlap_gpu_nvlink_receive_bytes_total", "counter",
             "Bytes received over all NVLinks of the GPU.", "nvmlDeviceGetFieldValues 139, or 204 per link"),
    Quantity("throttled_seconds_total", "gpu", "overlap_gpu_throttled_seconds_total", "counter",
             "Time with clocks held down, by reason.", "nvmlDeviceGetFieldValues 74 to 79", label="reason"),
    Quantity("xid_errors_total", "gpu", "overlap_gpu_xid_errors_total", "counter",
             "XID events since the exporter started, by code.", "nvmlEventSetWait_v2", label="xid"),
    Quantity("transmit_bytes_total", "rdma_port", "overlap_rdma_transmit_bytes_total", "counter",
             "Bytes sent by the port, from the file named on overlap_rdma_port_info.", f"{_PMA}/counters/port_xmit_data"),
    Quantity("receive_bytes_total", "rdma_port", "overlap_rdma_receive_bytes_total", "counter",
             "Bytes received by the port, from the file named on overlap_rdma_port_info.", f"{_PMA}/counters/port_rcv_data"),
    Quantity("up_ratio", "rdma_port", "overlap_rdma_port_up", "gauge",
             "1 while the port is ACTIVE.", f"{_PMA}/state"),
    Quantity("rate_bytes_per_second", "rdma_port", "overlap_rdma_port_rate_bytes_per_second", "gauge",
             "Line rate of the port, one direction.", f"{_PMA}/rate"),
    Quantity("events", "rdma_port", "overlap_rdma_events_total", "counter",
             "Congestion, loss and link events of the port, one list of names for all drivers.",
             f"{_PMA}/hw_counters/*, {_PMA}/counters/*", label="counter"),
    Quantity("transmit_bytes_total", "nic", "overlap_nic_transmit_bytes_total", "counter",
             "Bytes sent by the network interface.", f"{_NET}/statistics/tx_bytes"),
    Quantity("receive_bytes_total", "nic", "overlap_nic_receive_bytes_total", "counter",
             "Bytes received by the network interface.", f"{_NET}/statistics/rx_bytes"),
    Quantity("up_ratio", "nic", "overlap_nic_up", "gauge",
             "1 while the interface is up.", f"{_NET}/operstate"),
    Quantity("rate_bytes_per_second", "nic", "overlap_nic_speed_bytes_per_second", "gauge",
             "Line rate of the interface, one direction.", f"{_NET}/speed"),
    Quantity("read_bytes_total", "disk", "overlap_host_disk_read_bytes_total", "counter",
             "Bytes read from the node's physical disks.", "/proc/diskstats", per_device=False),
    Quantity("written_bytes_total", "disk", "overlap_host_disk_written_bytes_total", "counter",
             "Bytes written to the node's physical disks.", "/proc/diskstats", per_device=False),
    Quantity("network_filesystem_read_bytes_total", "disk", "overlap_host_network_filesystem_read_bytes_total", "counter",
             "Bytes read from network file systems.", "/proc/1/mountstats, /proc/fs/lustre", per_device=False),
    Quantity("cpu_iowait_seconds_total", "disk", "overlap_host_cpu_iowait_seconds_total", "counter",
             "CPU time spent waiting for input or output, all CPUs.", "/proc/stat", per_device=False),
)

BY_KIND_AND_KEY: dict[tuple[str, str], Quantity] = {(q.device_kind, q.key): q for q in QUANTITIES}


def split_channel(channel: str, device_ids: frozenset[str] | set[str]) -> tuple[str, str] | None:
    """Device id and quantity of a channel; None where no known device stands in it.

    Ids may hold slashes ("mlx5_0/1"), and so may quantities ("events/cnp_rx"): the longest known id wins.

    >>> split_channel("mlx5_0/1/events/cnp_rx", {"mlx5_0/1"})
    ('mlx5_0/1', 'events/cnp_rx')
    """
    end = len(channel)
    while (end := channel.rfind("/", 0, end)) > 0:
        if channel[:end] in device_ids:
            return channel[:end], channel[end + 1 :]
    return None


def quantity_of(device_kind: str, key: str) -> tuple[Quantity, str | None] | None:
    """The table row for a quantity as it stands in a channel, and the value of its label; None where unknown.

    >>> q, value = quantity_of("rdma_port", "events/cnp_rx")
    >>> q.metric, value
    ('overlap_rdma_events_total', 'cnp_rx')
    """
    if (row := BY_KIND_AND_KEY.get((device_kind, key))) is not None and row.label is None:
        return row, None
    head, _, tail = key.partition("/")
    row = BY_KIND_AND_KEY.get((device_kind, head))
    return (row, tail) if row is not None and row.label is not None and tail else None
