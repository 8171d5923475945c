"""THE table of RDMA drivers: where each keeps its bytes, in which unit, how often it may be asked, and its event counters.

`rdma.py` reads by it; nothing here touches a file. The key is the name of the driver that the device is bound to
(`<device>/driver` in sysfs), never the name of the RDMA device: udev renames those. Byte counters cannot be guessed from
file names: hfi1 counts 8-byte flits in the very files where InfiniBand counts 4-byte words.

A file is written as place and name. Places: counters, hw_counters (below the port, or below the device where the port has
none), counters_ext, device (hw_counters below the device), netdev (the Ethernet interface of the port), ethtool (the
driver's own counters of that interface; every name that matches the pattern is added). "a|b" are spellings of one counter:
the first that exists is read. Files in a tuple are added.

provenance: captured (numbers published from a machine), published (names read in the driver's source or its
documentation), constructed (from descriptions only, never seen).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from exporter.sources import PAIRED, SLOW, Plan

# The names of overlap_rdma_events_total, in the order in which they are read.
EVENTS = (
    "ecn_marked_rx", "cnp_tx", "cnp_rx", "out_of_order_rx", "seq_nak_rx", "ack_timeout", "retransmit", "rnr", "rate_limited",
    "peer_dead", "credit_stall", "drops", "link_error", "link_down", "pfc_pause",
)

Files = tuple[str, ...]
Events = Mapping[str, Files]


@dataclass(frozen=True, slots=True)
class ByteSource:
    """One way to count the bytes of a port. factor: bytes per unit. refresh_s: known period of new values, None: at once.
    plan: how often it is read (in pairs further apart where the kernel answers from memory for a while, see Plan.beyond).

    bits: width of the files; 32 where it may be 32, which shows in a value that never goes beyond. freezes: it may stop
    without an error while lesser sources of the row go on.
    """

    transmit: Files
    receive: Files
    factor: int = 1
    refresh_s: float | None = None
    bits: int = 64
    freezes: bool = False
    plan: Plan = PAIRED


@dataclass(frozen=True, slots=True)
class Driver:
    """One row. `byte_sources` best first; none: the driver counts no bytes of its own.

    software: its bytes are the bytes of a network interface, counted there. shortest_interval_s: what one read costs the
    device allows no faster rate. signature: files that no other driver has, for trees that do not show the driver link.
    event_bits: width of what stands in hw_counters. errors_wrap: of the files in counters, see NARROW.
    """

    name: str
    byte_sources: tuple[ByteSource, ...]
    provenance: str
    events: Events = field(default_factory=lambda: MappingProxyType({}))
    shortest_interval_s: float = 0.0
    software: bool = False
    also: tuple[str, ...] = ()  # other drivers of the same family
    vendor: str | None = None  # PCI vendor, where it makes only this kind of RDMA device
    signature: Files = ()
    event_bits: int = 64
    errors_wrap: bool = False
    note: str = ""


_WORDS = ByteSource(("counters/port_xmit_data",), ("counters/port_rcv_data",), factor=4)
_SHORT_WORDS = replace(_WORDS, bits=32)  # where the device does not announce the extended counters
_PLAIN = ByteSource(("hw_counters/tx_bytes",), ("hw_counters/rx_bytes",))
_ROCE_ONLY = ByteSource(
    ("hw_counters/tx_roce_only_bytes",), ("hw_counters/rx_roce_good_bytes|hw_counters/rx_roce_only_bytes",)
)
_PENSANDO = ByteSource(
    ("hw_counters/tx_rdma_ucast_bytes", "hw_counters/tx_rdma_mcast_bytes"),
    ("hw_counters/rx_rdma_ucast_bytes", "hw_counters/rx_rdma_mcast_bytes"),
)
_OCTETS = ByteSource(
    ("hw_counters/ip4OutOctets", "hw_counters/ip6OutOctets"), ("hw_counters/ip4InOctets", "hw_counters/ip6InOctets")
)
_ELASTIC = ByteSource(
    ("hw_counters/tx_bytes_cnt|hw_counters/hw_tx_bytes_cnt",), ("hw_counters/rx_bytes_cnt|hw_counters/hw_rx_bytes_cnt",)
)

_LINK: Events = {
    "link_error": ("counters/link_error_recovery", "counters/symbol_error", "counters/port_rcv_errors"),
    # On Ethernet the interface counts; the port's file stays 0 there, or counts the same event a second time.
    "link_down": ("netdev/carrier_down_count|counters/link_downed",),
}
_ETHERNET_LINK: Events = {"link_down": _LINK["link_down"]}
_INFINIBAND: Events = {
    "credit_stall": ("counters/port_xmit_wait",),  # ticks of a length of the device's own
    "drops": ("counters/port_xmit_discards",),
    **_LINK,
}

DRIVERS: tuple[Driver, ...] = (
    Driver(
        "mlx5_core", (_WORDS,), "captured",
        {
            **_INFINIBAND,
            "ecn_marked_rx": ("hw_counters/np_ecn_marked_roce_packets",),
            "cnp_tx": ("hw_counters/np_cnp_sent",),
            "cnp_rx": ("hw_counters/rp_cnp_handled", "hw_counters/rp_cnp_ignored"),
            "out_of_order_rx": ("hw_counters/out_of_sequence",),
            "seq_nak_rx": ("hw_counters/packet_seq_err", "hw_counters/implied_nak_seq_err"),
            "ack_timeout": ("hw_counters/local_ack_timeout_err",),
            "retransmit": ("hw_counters/roce_adp_retrans", "hw_counters/roce_adp_retrans_to"),
            "rnr": ("hw_counters/rnr_nak_retry_err", "hw_counters/out_of_buffer"),
            # Its siblings _cnps and _trans count the same restarts again, and _cnps mirrors other counters in captures.
            "rate_limited": ("hw_counters/roce_slow_restart",),
            "peer_dead": ("hw_counters/req_cqe_error", "hw_counters/req_cqe_flush_error"),
            "pfc_pause": ("ethtool/rx_prio*_pause",),
        },
        signature=("hw_counters/out_of_buffer", "hw_counters/np_cnp_sent"), event_bits=32,
        note="Every byte file is one firmware command. Bytes are in counters only; IPoIB is inside them.",
    ),
    Driver(
        "mlx4_core",
        (ByteSource(("counters_ext/port_xmit_data_64",), ("counters_ext/port_rcv_data_64",), factor=4), _SHORT_WORDS),
        "captured", _INFINIBAND,
        note="Two ports on one device. A virtual function prints N/A (no PMA). Old kernels may count 32 bit.",
    ),
    Driver(
        "bnxt_en",
        # When the firmware once fails to answer, the driver goes on with its last answer for ever (bnxt_re/hw_counters.c).
        (replace(_ROCE_ONLY, freezes=True), replace(_WORDS, freezes=True), replace(_PLAIN, refresh_s=1.0, plan=SLOW)),
        "captured",
        {
            **_ETHERNET_LINK,
            "ecn_marked_rx": ("hw_counters/rx_ecn_marked_pkts|hw_counters/np_ecn_marked_roce_packets",),
            "cnp_tx": ("hw_counters/tx_cnp_pkts|hw_counters/np_cnp_pkts",),
            "cnp_rx": ("hw_counters/rx_cnp_pkts|hw_counters/rp_cnp_handled",),
            "out_of_order_rx": ("hw_counters/oos_drop_count|hw_counters/out_of_sequence",),
            "seq_nak_rx": ("hw_counters/seq_err_naks_rcvd",),
            "ack_timeout": ("hw_counters/to_retransmits", "hw_counters/missing_resp"),
            "retransmit": ("hw_counters/to_retransmits",),
            "rnr": ("hw_counters/rnr_naks_rcvd", "hw_counters/rx_out_of_buffer"),
            "rate_limited": ("hw_counters/pacing_alerts",),
            "peer_dead": ("hw_counters/max_retry_exceeded",),
            "drops": ("hw_counters/rx_roce_discards", "hw_counters/tx_roce_discards"),
            "pfc_pause": ("ethtool/rx_pfc_ena_frames_pri*",),
        },
        signature=("hw_counters/rx_roce_discards",), errors_wrap=True,
        note="tx_bytes and rx_bytes come from memory that the device fills once a second; the roce_only files ask it.",
    ),
    Driver(
        "ice", (_OCTETS,), "published",
        {
            **_ETHERNET_LINK,
            "ecn_marked_rx": ("hw_counters/RxECNMrkd",),
            "cnp_tx": ("hw_counters/cnpSent",),
            "cnp_rx": ("hw_counters/cnpHandled", "hw_counters/cnpIgnored"),
            "retransmit": ("hw_counters/tcpRetransSegs",),
            "drops": ("hw_counters/ip4InDiscards", "hw_counters/ip6InDiscards"),
            "pfc_pause": ("ethtool/rx_priority_*_xoff*|ethtool/port.rx_priority_*_xoff*",),
        },
        also=("i40e", "idpf"), signature=("hw_counters/ip4OutOctets",),
        note="irdma and i40iw. Octets of IP packets, headers included. No counters directory.",
    ),
    Driver(
        "efa", (_PLAIN,), "captured",
        {
            "ack_timeout": ("hw_counters/retrans_timeout_events",),
            "retransmit": ("hw_counters/retrans_pkts",),
            "rnr": ("hw_counters/rx_drops",),
            "rate_limited": ("hw_counters/impaired_remote_conn_events",),
            "peer_dead": ("hw_counters/unresponsive_remote_events",),
            "drops": ("hw_counters/rx_drops",),
        },
        shortest_interval_s=0.25, vendor="0x1d0f",
        signature=("hw_counters/rdma_read_resp_bytes", "hw_counters/unresponsive_remote_events"),
        note="A refresh is five admin commands. State and rate are constants: they never show a bad link.",
    ),
    Driver(
        "erdma", (_ELASTIC,), "published",
        {
            **_ETHERNET_LINK,
            "rate_limited": (
                "hw_counters/rx_bps_limit_drop_cnt|hw_counters/hw_rx_bps_limit_drop_cnt",
                "hw_counters/rx_pps_limit_drop_cnt|hw_counters/hw_rx_pps_limit_drop_cnt",
                "hw_counters/tx_bps_limit_drop_cnt|hw_counters/hw_bps_limit_drop_cnt",
                "hw_counters/tx_pps_limit_drop_cnt|hw_counters/hw_pps_limit_drop_cnt",
            ),
            "drops": ("hw_counters/rx_disable_drop_cnt|hw_counters/hw_rx_disable_drop_cnt",),
        },
        signature=("hw_counters/tx_bytes_cnt|hw_counters/hw_tx_bytes_cnt",),
    ),
    Driver(
        "mana", (_PLAIN,), "published",
        {
            **_ETHERNET_LINK,
            "ecn_marked_rx": ("device/received_ecns",),
            "cnp_tx": ("device/sent_cnps",),
            "cnp_rx": ("hw_counters/received_cnps",),
            "out_of_order_rx": ("hw_counters/responder_oos",),
            "seq_nak_rx": ("hw_counters/requester_oos_nak",),
            "ack_timeout": ("hw_counters/requester_timeout",),
            "rnr": ("hw_counters/requester_rnr_nak",),
            "peer_dead": ("hw_counters/requester_retries_exceeded",),
        },
        signature=("hw_counters/requester_oos_nak",),
        note="Bytes only where host and kernel speak the second version of the message.",
    ),
    Driver(
        "ionic", (_PENSANDO,), "published",
        {
            **_ETHERNET_LINK,
            "ecn_marked_rx": ("hw_counters/rx_rdma_ecn_pkts",),
            "cnp_tx": ("hw_counters/tx_rdma_cnp_pkts",),
            "cnp_rx": ("hw_counters/rx_rdma_cnp_pkts",),
            "out_of_order_rx": ("hw_counters/req_rx_pkt_seq_err",),
            "retransmit": ("hw_counters/tx_rdma_retx_pkts",),
            "rnr": ("hw_counters/resp_rx_outof_buf",),
            "drops": ("hw_counters/rx_rdma_mtu_discard_pkts",),
            "pfc_pause": ("ethtool/frames_rx_pripause*",),
        },
        vendor="0x1dd8", signature=("hw_counters/tx_rdma_ucast_bytes",),
        note="The firmware names the counters; one that cannot be decoded is all ones.",
    ),
    Driver(
        "hfi1",
        (ByteSource(_WORDS.transmit, _WORDS.receive, factor=8),),
        "captured",
        {
            **_LINK,
            "out_of_order_rx": ("hw_counters/RcSeqNak",),
            "seq_nak_rx": ("hw_counters/RcSeqNak",),
            "ack_timeout": ("hw_counters/RcTimeOut",),
            "retransmit": ("hw_counters/RcResend",),
            "credit_stall": ("counters/port_xmit_wait",),
            "drops": ("hw_counters/PktDrop",),
        },
        signature=("hw_counters/RcSeqNak",),
        note="Omni-Path: flits of 8 bytes (drivers/infiniband/hw/hfi1/mad.c passes them on unchanged).",
    ),
    Driver("ib_qib", (_SHORT_WORDS,), "constructed", _INFINIBAND, also=("qib",)),
    Driver("hns3", (), "published", _ETHERNET_LINK, note="hns_roce counts packets only."),
    Driver("qede", (), "constructed", _ETHERNET_LINK, note="qedr counts nothing in sysfs."),
    Driver("cxgb4", (), "published", _ETHERNET_LINK, note="iw_cxgb4 counts TCP segments only."),
    Driver("gve", (), "published", note="No verbs device: everything is in the interface."),
    Driver("cxi_core", (), "constructed", also=("cxi_ss1",), note="Slingshot has telemetry elsewhere; its interface is read."),
    Driver("rxe", (), "published", software=True, signature=("hw_counters/sent_pkts",),
           note="Its bytes are ordinary UDP of the interface below it."),
    Driver("siw", (), "constructed", software=True, note="Its bytes are ordinary TCP of the interface below it."),
)  # fmt: skip

# A driver that is not in the table: one source, by the kernel's own description of the files (Documentation/ABI/stable/
# sysfs-class-infiniband gives port_*_data in words of 4 bytes), else whichever plain byte files there are. What is shown
# so is not judged: a unit that nobody checked proves nothing.
UNKNOWN = Driver(
    "unknown", (_SHORT_WORDS, _ROCE_ONLY, _PLAIN, _PENSANDO, _OCTETS, _ELASTIC), "constructed", _INFINIBAND,
    note="Bytes by the kernel's description of the files, unchecked for this driver.",
)  # fmt: skip

# Bits of files in counters that are narrower than 64 (drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR). By the InfiniBand
# specification they stay at their highest value; a driver may cut off the higher bits of a wider counter instead.
NARROW: Mapping[str, int] = MappingProxyType({
    "symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16, "port_xmit_discards": 16,
    "port_xmit_wait": 32,
})


def width(row: Driver, place: str, name: str) -> tuple[int, bool]:
    """Bits of an event counter, and whether it stays at its highest value.

    >>> width(driver_row("mlx5_core"), "counters", "symbol_error"), width(driver_row("efa"), "hw_counters", "rx_drops")
    ((16, True), (64, False))
    """
    if place == "counters" and name in NARROW:
        return NARROW[name], not row.errors_wrap
    return (row.event_bits, False) if place in ("hw_counters", "device") else (64, False)


_BY_NAME: Mapping[str, Driver] = MappingProxyType({name: row for row in DRIVERS for name in (row.name, *row.also)})
_BY_VENDOR: Mapping[str, Driver] = MappingProxyType({row.vendor: row for row in DRIVERS if row.vendor is not None})


def driver_row(name: str | None, vendor: str | None = None, files: frozenset[str] = frozenset()) -> Driver:
    """The row for a driver; without its name, by PCI vendor or by files that only one driver has ("hw_counters/RcSeqNak").

    >>> driver_row("mlx5_core").byte_sources[0].factor, driver_row("hfi1").byte_sources[0].factor
    (4, 8)
    >>> driver_row("brand_new").name, driver_row(None, "0x1d0f").name
    ('unknown', 'efa')
    """
    if name is not None:
        return _BY_NAME.get(name, UNKNOWN)
    if vendor is not None and vendor in _BY_VENDOR:
        return _BY_VENDOR[vendor]
    for row in DRIVERS:
        if any(spelling in files for file in row.signature for spelling in file.split("|")):
            return row
    return UNKNOWN
