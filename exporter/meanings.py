"""What the words of a verdict mean, in English and Chinese: findings, states, transports and their reasons.

The page, the report and `top` show them; the runbooks quote them. Only texts live here: when a finding appears stands in
`rules.py`, what to do about it in `advice.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.advice import Text


@dataclass(frozen=True, slots=True)
class Meaning:
    """A title of a few words, and what it means in one or two sentences."""

    title: Text
    meaning: Text


def _meaning(title_en: str, title_zh: str, en: str, zh: str) -> Meaning:
    return Meaning(Text(title_en, title_zh), Text(en, zh))


FINDINGS: Mapping[str, Meaning] = {
    "exposed_communication": _meaning(
        "Communication is not hidden", "通信未被计算掩盖",
        "The GPU waits while its data is on the wire. The exposed share is the part of the running time that is lost to it.",
        "数据在网络上传输时 GPU 在空等。暴露通信占比就是因此损失的运行时间比例。"),
    "tcp_fallback": _meaning(
        "Gradients move over TCP", "梯度走了 TCP",
        "RDMA ports of this node are up, but the job's traffic goes through an ordinary network interface. NCCL decided so "
        "when the job started.",
        "本节点的 RDMA 端口是正常的，但作业流量走的是普通网卡。这是 NCCL 在作业启动时做出的选择，运行中不会改变。"),
    "input_stall": _meaning(
        "The GPU waits for data or storage", "GPU 在等数据或存储",
        "No kernel runs and nothing moves on the network: the next batch is not there yet, a checkpoint is being written, or "
        "the job has just been started again.",
        "GPU 上没有 kernel 在运行，网络上也没有流量：下一个 batch 还没准备好，正在写 checkpoint，或者作业刚刚重启。"),
    "straggler_wait": _meaning(
        "The other GPUs wait for this one", "其他 GPU 都在等这块 GPU",
        "The GPUs of this node stand in a collective without traffic; this one hardly ever does: it arrives last, step after "
        "step.",
        "本节点其他 GPU 停在集合通信里却没有流量，而这块几乎不等：它每一步都最后才到。"),
    "small_buckets": _meaning(
        "Traffic comes in many small pieces", "通信被切得太碎",
        "Each step sends many short bursts that never fill the line: each pays the start-up time of a collective anew.",
        "每一步都发送大量短促的突发流量，始终跑不满带宽：每一次都要重新付出集合通信的启动开销。"),
    "link_degraded": _meaning(
        "A link is slower than it should be", "链路降速或出错",
        "A port runs below its own or its peers' rate, went down, or counts link errors. The slowest link decides for the "
        "whole job.",
        "某个端口的速率低于它自身或同类端口的水平、发生过断链，或在累计链路错误。整个作业的速度由最慢的链路决定。"),
    "congestion": _meaning(
        "The network is congested", "网络拥塞",
        "Packets are marked, paused, lost or sent again more often than a healthy fabric does for this amount of traffic.",
        "就当前流量而言，报文被标记、暂停、丢失或重传的比例高于健康网络应有的水平。"),
    "power_capped": _meaning(
        "Power is at its limit", "功耗已到上限",
        "The board holds its clocks down to stay within the power limit. Good overlap looks like this too; compute itself is "
        "slower than it could be.",
        "板卡为了不超过功耗上限而降频。重叠良好的作业也会如此，只是计算本身没有达到最快。"),
    "sensor_too_slow": _meaning(
        "The sensors cannot resolve this job", "传感器分辨不出该作业的节奏",
        "The power sensor averages over a longer time than the job's rhythm takes. No verdict is better than a wrong one.",
        "功耗传感器的平均窗口比作业的节奏还长，无法判断。宁可没有结论，也不给错误的结论。"),
    "shared_node": _meaning(
        "Several jobs share the network ports", "多个作业共用网络端口",
        "Bytes of a port cannot be told apart by job, so there is no verdict on overlap for the GPUs concerned.",
        "端口上的字节数无法按作业区分，因此相关 GPU 给不出重叠结论。"),
}

STATES: Mapping[str, Text] = {
    "overlapped": Text("Communication is hidden behind compute.", "通信基本被计算掩盖。"),
    "partial": Text("A part of the communication is hidden, the rest costs time.",
                    "通信只有一部分被掩盖，其余部分在消耗时间。"),
    "serialized": Text("Compute and communication take turns: hardly any of it is hidden.",
                       "计算与通信交替进行，通信几乎没有被掩盖。"),
    "compute_only": Text("The GPU computes and does not communicate.", "GPU 只在计算，没有通信。"),
    "stalled": Text("The GPU often has nothing to do: it waits for data or storage.", "GPU 经常无事可做：在等数据或存储。"),
    "idle": Text("No job is running on this GPU.", "这块 GPU 上没有作业在运行。"),
    "unobservable": Text("The job runs, but the sensors cannot tell whether its communication is hidden.",
                         "作业在运行，但凭现有传感器无法判断通信是否被掩盖。"),
    "no_data": Text("Too few readings for a verdict.", "读数太少，无法给出结论。"),
}

TRANSPORTS: Mapping[str, Text] = {
    "rdma": Text("The job's traffic goes over RDMA.", "作业流量走 RDMA。"),
    "tcp": Text("The job's traffic goes over TCP.", "作业流量走 TCP。"),
    "mixed": Text("The job's traffic goes over RDMA and TCP.", "作业流量同时走 RDMA 和 TCP。"),
    "none": Text("The job sends nothing over the network.", "作业没有网络流量。"),
    "unknown": Text("It cannot be told which way the job's traffic goes.", "无法判断作业流量走哪条路径。"),
}

TRANSPORT_REASONS: Mapping[str, Text] = {
    "rdma_moves": Text("RDMA ports move the bytes.", "字节数由 RDMA 端口承载。"),
    "nic_carries": Text("RDMA ports are silent, and an interface moves two-way traffic in the rhythm of the GPUs.",
                        "RDMA 端口没有流量，而某个网卡上有与 GPU 节奏一致的双向流量。"),
    "ipoib_carries": Text("Nearly all bytes of the InfiniBand ports are IPoIB: TCP over InfiniBand.",
                          "InfiniBand 端口上的字节几乎全是 IPoIB，即在 InfiniBand 上跑 TCP。"),
    "no_rdma_ports": Text("There is no RDMA port, and an interface moves two-way traffic in the rhythm of the GPUs.",
                          "没有 RDMA 端口，某个网卡上有与 GPU 节奏一致的双向流量。"),
    "both_move": Text("RDMA ports and an interface both move bytes of the job.", "RDMA 端口和网卡都在承载作业流量。"),
    "quiet": Text("Neither RDMA ports nor interfaces move bytes of the job.", "RDMA 端口和网卡上都没有作业流量。"),
    "gpus_idle": Text("The GPUs are idle.", "GPU 处于空闲状态。"),
    "bytes_missing": Text("Byte counters are missing or stale.", "字节计数器缺失或已停止更新。"),
    "ipoib_unread": Text("An InfiniBand port moves bytes, but its IPoIB interface is not read: they may be TCP.",
                         "InfiniBand 端口有流量，但没有读取其 IPoIB 接口，因此这些流量可能是 TCP。"),
    "activity_unknown": Text("An interface moves two-way traffic, but it is not known whether the GPUs work.",
                             "网卡上有双向流量，但不知道 GPU 是否在工作。"),
    "no_interfaces": Text("No network interface is read, so silent RDMA ports prove nothing.",
                          "没有读取任何网卡，因此 RDMA 端口没有流量并不能说明问题。"),
    "settling": Text("Not enough time has passed for a verdict.", "观察时间还不够，暂无结论。"),
}

# The numbers that a finding carries, by the last word of their name; what stands before it is the device.
EVIDENCE: Mapping[str, Text] = {
    "exposed": Text("exposed communication", "暴露通信占比"),
    "health": Text("health", "重叠健康度"),
    "communication": Text("communication", "通信占比"),
    "rdma_ports_up": Text("RDMA ports that are up", "处于 up 状态的 RDMA 端口"),
    "tcp": Text("over TCP", "TCP 流量"),
    "rdma": Text("over RDMA", "RDMA 流量"),
    "stall": Text("stall", "停顿占比"),
    "disk_read": Text("read from disks", "磁盘读取"),
    "disk_written": Text("written to disks", "磁盘写入"),
    "network_filesystem_read": Text("read from network file systems", "网络文件系统读取"),
    "cpu_iowait": Text("CPUs waiting for input or output", "CPU 等待 I/O"),
    "others_wait_longer": Text("time that the others wait for this GPU", "其他 GPU 等这块 GPU 的时间占比"),
    "wait_of_others": Text("wait of the other GPUs", "其他 GPU 的等待占比"),
    "own_wait": Text("wait of this GPU", "这块 GPU 的等待占比"),
    "power_cap_time": Text("time held down by the power limit", "因功耗上限降频的时间"),
    "at_power_limit_time": Text("time at the power limit", "功耗处于上限的时间"),
    "power_median": Text("median power", "功耗中位数"),
    "line_fill": Text("share of the line rate while sending", "发送时占线路速率的比例"),
    "scatter": Text("scatter of the rate while sending", "发送时速率的离散程度"),
    "observability": Text("observability", "可观测度"),
    "resolution": Text("shortest rhythm that can be seen", "能分辨的最短节奏"),
    "step_period": Text("period of the job", "作业的周期"),
    "jobs": Text("jobs", "作业数"),
    "shared_devices": Text("devices that they share", "共用的设备数"),
    "up": Text("up", "up 状态"),
    "rate": Text("line rate", "线路速率"),
    "link_error": Text("link errors", "链路错误"),
    "link_down": Text("times the link went down", "断链次数"),
    "cnp_rx": Text("congestion notifications received", "收到的拥塞通知（CNP）"),
    "ecn_marked_rx": Text("packets marked by switches", "被交换机标记的报文（ECN）"),
    "retransmit": Text("packets sent again", "重传的报文"),
    "drops": Text("packets dropped", "丢弃的报文"),
    "seq_nak_rx": Text("requests to send again", "收到的重发请求（NAK）"),
    "ack_timeout": Text("timeouts of acknowledgements", "确认超时"),
    "pfc_pause": Text("pause frames", "PFC 暂停帧"),
}
