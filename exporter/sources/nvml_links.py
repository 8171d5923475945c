"""Where a GPU counts the bytes of its NVLinks: one field for all of them, or two fields per link.

`nvml_lanes.py` asks when it opens a GPU and adds the entries to its batch.
"""

from __future__ import annotations

import ctypes

from exporter.sources.nvml_calls import Calls, probe_fields

# NVML_FI_DEV_NVLINK_*: up to generation 4 KiB with a scope for all links, from generation 5 on bytes per link
LINK_COUNT, DATA_TX, DATA_RX, XMIT_BYTES, RCV_BYTES = 91, 138, 139, 202, 204
ALL_LINKS = 0xFFFFFFFF


class NvLink:
    """Where the bytes of all links together stand: one field for all (up to NVLink 4, KiB), or one per link (bytes)."""

    def __init__(self, entries: tuple[tuple[int, int], ...], transmit: int, bytes_per_unit: float) -> None:
        self.entries = entries  # transmit first, then receive
        self.transmit = transmit  # how many of them
        self.bytes_per_unit = bytes_per_unit


def find_nvlink(calls: Calls, handle: ctypes.c_void_p) -> NvLink | None:
    """Fields 138 and 139 with the scope of all links, else 202 and 204 of each link that answers; None without NVLink.

    Where the sums stand at 0 (boards of the fifth generation have answered so), links that have counted are believed.
    """
    both = ((DATA_TX, ALL_LINKS), (DATA_RX, ALL_LINKS))
    count, *sums = probe_fields(calls, handle, ((LINK_COUNT, 0), *both))
    in_one = NvLink(both, 1, 1024.0) if None not in sums else None
    if in_one is not None and any(sums):
        return in_one
    links = range(min(64, int(count or 0)))
    if not links:
        return in_one
    sent = tuple((XMIT_BYTES, link) for link in links)
    received = tuple((RCV_BYTES, link) for link in links)
    answers = probe_fields(calls, handle, sent + received)
    live = [i for i in links if answers[i] is not None and answers[len(links) + i] is not None]
    if not live or (in_one is not None and not any(answers[i] for i in live)):
        return in_one
    return NvLink(tuple(sent[i] for i in live) + tuple(received[i] for i in live), len(live), 1.0)
