"""What the net reader opens: RDMA ports, network interfaces, the host, a topology file. The one place where they meet.

The reader calls `open_net` at its start and whenever devices may have changed. A kind that is missing is a status with a
reason, never an error: a node without RDMA is a normal node.
"""

from __future__ import annotations

from exporter.sources import Announce, NetSettings, Opened, unannounced
from exporter.sources.host import open_host
from exporter.sources.nic import open_nics
from exporter.sources.rdma import open_rdma
from exporter.sources.topology import open_topology

_OPENERS = (open_rdma, open_nics, open_host, open_topology)


def open_net(settings: NetSettings, announce: Announce = unannounced) -> Opened:
    """Everything the settings let through. Lists and probes at once; lanes open their files when they are first read."""
    found = [opener(settings, announce) for opener in _OPENERS]
    return Opened(
        devices=tuple(device for opened in found for device in opened.devices),
        lanes=tuple(lane for opened in found for lane in opened.lanes),
        statuses=tuple(status for opened in found for status in opened.statuses),
        extra={key: value for opened in found for key, value in opened.extra.items()},
        lost={key: value for opened in found for key, value in opened.lost.items()},
    )
