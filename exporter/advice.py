"""What to change, and what each change costs: one catalogue in English and Chinese, keyed by what findings carry.

The page, the report, `top` and the runbooks show it; which findings carry which keys, and in which order, stands in
`rules.py`. Only texts live here. Names of parameters, commands and log lines stay as they are typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """One text in both languages."""

    en: str
    zh: str

    def of(self, language: str) -> str:
        """The text for a language tag such as "zh-CN"; English for any other.

        >>> Text("wait", "等待").of("zh-CN"), Text("wait", "等待").of("fr")
        ('等待', 'wait')
        """
        return self.zh if language.lower().startswith("zh") else self.en


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, and what it costs."""

    action: Text
    cost: Text


def _advice(en: str, zh: str, cost_en: str, cost_zh: str) -> Advice:
    return Advice(Text(en, zh), Text(cost_en, cost_zh))


_COMMUNICATION: Mapping[str, Advice] = {
    "ddp_bucket_cap": _advice(
        "DDP: raise bucket_cap_mb from 25 to 50, then to 100, and keep the value with the smallest exposed share.",
        "DDP：把 bucket_cap_mb 从 25 提高到 50，再到 100，保留暴露通信占比最小的那个值。",
        "Memory of one larger bucket. A bucket that is too large is ready late and overlaps less.",
        "多占一个更大 bucket 的显存；bucket 过大则就绪太晚，重叠反而变少。"),
    "ddp_first_bucket": _advice(
        "DDP: let the first bucket be larger than 1 MiB too: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, set before the "
        "model is wrapped.",
        "DDP：第一个 bucket 默认只有 1 MiB，可在包装模型之前调大 torch.distributed._DEFAULT_FIRST_BUCKET_BYTES。",
        "The first reduction starts a little later. The name is private to PyTorch: check it after every upgrade.",
        "第一次规约会稍晚开始；该变量是 PyTorch 的私有名称，每次升级后都要确认它仍然有效。"),
    "zero3_buckets": _advice(
        "DeepSpeed ZeRO-3: set overlap_comm to true; raise stage3_prefetch_bucket_size (5e7) and reduce_bucket_size (5e8) "
        "step by step.",
        "DeepSpeed ZeRO-3：将 overlap_comm 设为 true，并逐步调大 stage3_prefetch_bucket_size（默认 5e7）和 "
        "reduce_bucket_size（默认 5e8）。",
        "With overlap_comm the buffers take about 4.5 times the bucket: some 9 GB at 5e8 elements in 16 bit.",
        "开启 overlap_comm 后缓冲区约为 bucket 的 4.5 倍：16 位、5e8 个元素时约 9 GB 显存。"),
    "fsdp_prefetch": _advice(
        "FSDP2: give each block the next one or two with set_modules_to_forward_prefetch and "
        "set_modules_to_backward_prefetch. FSDP1: forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE.",
        "FSDP2：用 set_modules_to_forward_prefetch 和 set_modules_to_backward_prefetch 让每个 block 预取后面一到两个 block。"
        "FSDP1：forward_prefetch=True，backward_prefetch=BackwardPrefetch.BACKWARD_PRE。",
        "Memory for the whole weights of each block that is fetched ahead.",
        "每多预取一个 block，就多占该 block 完整参数的显存。"),
    "fsdp_reshard": _advice(
        "FSDP2: reshard_after_forward=False for the blocks whose weights fit, the last ones first: the backward pass then "
        "needs no second all-gather.",
        "FSDP2：在显存允许的 block 上（从最后几个开始）设 reshard_after_forward=False，反向时就不必再做一次 all-gather。",
        "Their whole weights stay in memory until the backward pass.",
        "这些 block 的完整参数会一直占用显存，直到反向结束。"),
    "fsdp_larger_units": _advice(
        "FSDP: wrap whole transformer blocks or pairs of them (fully_shard, auto_wrap_policy), never single layers.",
        "FSDP：以整个 transformer block（或两个一组）为单位调用 fully_shard 或设置 auto_wrap_policy，不要逐层包装。",
        "Memory for the whole weights of a larger unit.",
        "更大的单元意味着更大的完整参数显存峰值。"),
    "gradient_accumulation": _advice(
        "Raise the gradient accumulation steps and skip the reduction in between: no_sync() with DDP, "
        "set_requires_gradient_sync(False) with FSDP2.",
        "增加梯度累积步数，中间步骤跳过规约：DDP 用 no_sync()，FSDP2 用 set_requires_gradient_sync(False)。",
        "A larger effective batch: the learning rate may need tuning. FSDP keeps unsharded gradients meanwhile.",
        "有效 batch 变大，学习率可能需要重新调整；FSDP 在此期间会保留未切分的梯度。"),
    "hybrid_shard": _advice(
        "Shard inside the node and replicate across nodes (HSDP: fully_shard over a two-dimensional DeviceMesh; ZeRO++ hpZ).",
        "节点内切分、节点间复制（HSDP：在二维 DeviceMesh 上调用 fully_shard；DeepSpeed 对应 ZeRO++ hpZ）。",
        "Each node holds all weights and optimizer states once: much more memory on each GPU.",
        "每个节点都要保存一份完整的参数和优化器状态，单卡显存占用明显增加。"),
    "gradient_16bit": _advice(
        "Reduce gradients in 16 bit: bf16_compress_hook with DDP, MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) with "
        "FSDP2.",
        "用 16 位规约梯度：DDP 用 bf16_compress_hook，FSDP2 用 MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)。",
        "Rounding in the sum: compare the loss over some thousand steps before keeping it.",
        "求和会引入舍入误差，正式启用前请对比数千步的 loss 曲线。"),
}

_TRANSPORT: Mapping[str, Advice] = {
    "nccl_debug": _advice(
        "Start the job once with NCCL_DEBUG=INFO (NCCL_DEBUG_SUBSYS=INIT,NET) and read what each rank says: \"NET/IB : "
        "Using\" is RDMA, "
        "\"NET/Socket : Using\" is TCP, \"NET/OFI Selected provider is efa\" is EFA. The lines before it say why.",
        "用 NCCL_DEBUG=INFO（NCCL_DEBUG_SUBSYS=INIT,NET）启动一次作业，查看各 rank 的日志："
        "出现 “NET/IB : Using” 表示走 RDMA，"
        "“NET/Socket : Using” 表示走 TCP，“NET/OFI Selected provider is efa” 表示走 EFA；前面几行会说明原因。",
        "One restart, and a longer log.",
        "需要重启一次作业，日志会变长。"),
    "nccl_variables": _advice(
        "Look for NCCL_IB_DISABLE=1, NCCL_NET=Socket or FI_PROVIDER=tcp in the image, the launcher and /etc/nccl.conf, and "
        "remove them.",
        "检查镜像、启动脚本和 /etc/nccl.conf 中是否有 NCCL_IB_DISABLE=1、NCCL_NET=Socket 或 FI_PROVIDER=tcp，有则删除。",
        "One restart.",
        "需要重启一次作业。"),
    "nccl_ib_hca": _advice(
        "Set NCCL_IB_HCA to the ports that doctor pairs with the GPUs, with \"=\" for exact names: =mlx5_0,mlx5_1 "
        "(mlx5_1 alone also takes mlx5_10 to mlx5_19).",
        "把 NCCL_IB_HCA 设为 doctor 为各 GPU 配对的端口，并用 “=” 精确匹配：=mlx5_0,mlx5_1"
        "（只写 mlx5_1 会把 mlx5_10 到 mlx5_19 也匹配进来）。",
        "One restart. The list is per node type: keep it with the node's image, not with the job.",
        "需要重启一次作业；该列表随机型而变，应放在节点镜像里，而不是写在作业里。"),
    "pod_infiniband": _advice(
        "Give the pod the RDMA devices: /dev/infiniband/uverbs* must exist in it (an RDMA or SR-IOV device plugin, the EFA "
        "plugin on AWS).",
        "让 Pod 拿到 RDMA 设备：容器内必须能看到 /dev/infiniband/uverbs*（RDMA 或 SR-IOV device plugin，"
        "AWS 上用 EFA plugin）。",
        "A change of the pod template; a device plugin on the cluster, once.",
        "需要修改 Pod 模板；集群上要一次性部署相应的 device plugin。"),
    "memlock": _advice(
        "Lift the limit on locked memory: ulimit -l unlimited in the container, LimitMEMLOCK=infinity for the container "
        "runtime; "
        "older set-ups also need CAP_IPC_LOCK.",
        "放开锁定内存限制：容器内 ulimit -l 应为 unlimited，容器运行时设置 LimitMEMLOCK=infinity；"
        "较老的环境还需要 CAP_IPC_LOCK。",
        "The container runtime has to be restarted on each node.",
        "需要在每个节点上重启容器运行时。"),
    "rdma_libraries": _advice(
        "Install the user-space part in the image: libibverbs with its providers (rdma-core); on AWS aws-ofi-nccl with "
        "libfabric.",
        "在镜像中安装用户态组件：libibverbs 及其 provider（rdma-core）；AWS 上安装 aws-ofi-nccl 和 libfabric。",
        "A new image, some 20 MB larger.",
        "需要重新构建镜像，体积约增加 20 MB。"),
    "roce_gid": _advice(
        "RoCE: take a RoCE v2 address with NCCL_IB_GID_INDEX (often 3; show_gids lists them), the same on all nodes.",
        "RoCE：用 NCCL_IB_GID_INDEX 选定 RoCE v2 的 GID（常见为 3，可用 show_gids 查看），所有节点保持一致。",
        "One restart. Indices move when addresses are added: check after network changes.",
        "需要重启一次作业；新增 IP 后索引可能变化，网络变更后要重新确认。"),
    "nccl_socket_ifname": _advice(
        "While TCP has to do: bind it to the fastest interface with NCCL_SOCKET_IFNAME, and use more sockets "
        "(NCCL_SOCKET_NTHREADS=4, NCCL_NSOCKS_PERTHREAD=4).",
        "暂时只能用 TCP 时：用 NCCL_SOCKET_IFNAME 绑定最快的网卡，并增加连接数"
        "（NCCL_SOCKET_NTHREADS=4，NCCL_NSOCKS_PERTHREAD=4）。",
        "CPU time for the copies; still several times slower than RDMA.",
        "会消耗 CPU 做数据拷贝，而且仍比 RDMA 慢数倍。"),
}

_INPUT: Mapping[str, Advice] = {
    "loader_workers": _advice(
        "DataLoader: raise num_workers until the stall is gone or the CPUs are busy; persistent_workers=True keeps them "
        "between epochs.",
        "DataLoader：逐步增大 num_workers，直到停顿消失或 CPU 占满；"
        "persistent_workers=True 可避免每个 epoch 重新拉起 worker。",
        "CPU cores and host memory for each worker.",
        "每个 worker 都要占用 CPU 核和主机内存。"),
    "loader_prefetch": _advice(
        "DataLoader: prefetch_factor=4 or more evens out slow samples.",
        "DataLoader：prefetch_factor 设为 4 或更大，可以抹平个别慢样本。",
        "Host memory: batches times workers.",
        "占用主机内存：预取的 batch 数乘以 worker 数。"),
    "loader_pinned": _advice(
        "DataLoader: pin_memory=True, and copy with .to(device, non_blocking=True), so that the copy runs beside the "
        "compute.",
        "DataLoader：设 pin_memory=True，并用 .to(device, non_blocking=True) 拷贝，使拷贝与计算并行。",
        "Locked host memory for the batches under way.",
        "传输中的 batch 会占用锁页主机内存。"),
    "checkpoint_async": _advice(
        "If bytes are written during the stall: save checkpoints asynchronously (torch.distributed.checkpoint.async_save, "
        "or to local NVMe first) or less often.",
        "如果停顿期间在写数据：改用异步 checkpoint（torch.distributed.checkpoint.async_save，或先写本地 NVMe），"
        "或降低保存频率。",
        "Host memory for one copy of the states; a crash loses the steps since the last complete one.",
        "主机内存要多放一份状态；若中途崩溃，会丢失上一个完整 checkpoint 之后的步数。"),
    "dataset_local": _advice(
        "If a network file system is read during the stall: stage the data set on local NVMe, or pack small files into "
        "shards "
        "(WebDataset, MosaicML StreamingDataset).",
        "如果停顿期间在读网络文件系统：把数据集预先放到本地 NVMe，或把小文件打包成分片（WebDataset、"
        "MosaicML StreamingDataset）。",
        "Local disk space, and a preparation step before each job.",
        "需要本地磁盘空间，并且每个作业前要多一个准备步骤。"),
    "loader_offline": _advice(
        "Move costly work out of the loader: tokenize once and store the result, decode images on the GPU (DALI, torchvision "
        "on CUDA).",
        "把开销大的处理移出 DataLoader：提前完成分词并保存结果，图像解码放到 GPU 上做（DALI、torchvision 的 CUDA 解码）。",
        "A change of the data pipeline; storage for the prepared data.",
        "需要改造数据流水线，并为预处理结果准备存储空间。"),
}

_STRAGGLER: Mapping[str, Advice] = {
    "straggler_clocks": _advice(
        "Compare the GPU that is named with its neighbours under load: clocks, temperature, power limit, throttle reasons "
        "(nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE).",
        "在负载下把被点名的 GPU 与同节点其他 GPU 对比：频率、温度、功耗上限、降频原因"
        "（nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE）。",
        "A few minutes; nothing is changed.",
        "几分钟即可，不改动任何配置。"),
    "straggler_xid": _advice(
        "Look for XID errors in the kernel log, remapped rows (nvidia-smi -q -d ROW_REMAPPER) and a PCIe link that trained "
        "down "
        "(current_link_speed below max_link_speed under load).",
        "检查内核日志中的 XID 错误、显存行重映射（nvidia-smi -q -d ROW_REMAPPER），以及负载下 PCIe 链路是否降速"
        "（current_link_speed 低于 max_link_speed）。",
        "A few minutes; what is found may need a reset or a drain of the node.",
        "几分钟即可；若发现问题，可能需要重置 GPU 或排空节点。"),
    "straggler_host": _advice(
        "Look for another process on the GPU or on its CPU cores, and bind each rank to the NUMA node of its GPU "
        "(numactl, torchrun --numa-binding, Slurm --gpu-bind).",
        "检查该 GPU 及其对应 CPU 核上是否有其他进程，并把每个 rank 绑定到其 GPU 所在的 NUMA 节点"
        "（numactl、torchrun --numa-binding、Slurm --gpu-bind）。",
        "One restart.",
        "需要重启一次作业。"),
    "straggler_data": _advice(
        "If another GPU is named after each restart: the work is uneven. Sort or pack sequences by length, balance experts "
        "or stages.",
        "如果每次重启后被点名的 GPU 都不同：说明负载不均。按长度排序或打包序列，均衡各 expert 或各流水线 stage。",
        "A change of the sampler; the order of samples changes.",
        "需要修改采样器，样本顺序会随之改变。"),
    "straggler_replace": _advice(
        "If the same GPU stays slow in another job: drain the node and have the GPU tested (dcgmi diag -r 3).",
        "如果换一个作业后仍是同一块 GPU 慢：排空节点并检测该 GPU（dcgmi diag -r 3）。",
        "A node less for the time of the test.",
        "检测期间集群少一个节点。"),
}

_NETWORK: Mapping[str, Advice] = {
    "link_inspect": _advice(
        "Look at the port that is named: ibstat, mlxlink -d <device> -m -c (speed, width, bit errors, optical power); "
        "compare with its peers.",
        "检查被点名的端口：ibstat、mlxlink -d <设备> -m -c（速率、通道数、误码、光功率），并与其他端口对比。",
        "A few minutes; nothing is changed.",
        "几分钟即可，不改动任何配置。"),
    "link_exclude": _advice(
        "Until it is repaired, keep jobs away from the port (NCCL_IB_HCA with ^ in front) or from the node.",
        "修复之前，让作业避开该端口（NCCL_IB_HCA 前加 ^ 排除）或避开该节点。",
        "The GPUs beside it share the remaining ports.",
        "相邻 GPU 只能共用剩余端口的带宽。"),
    "link_reseat": _advice(
        "Clean and reseat cable and transceiver, then let the link train again (mlxlink -d <device> -a TG).",
        "清洁并重新插拔线缆和光模块，然后让链路重新协商（mlxlink -d <设备> -a TG）。",
        "Hands in the data centre; the job on this node has to stop.",
        "需要机房人员操作，且要先停掉该节点上的作业。"),
    "link_replace": _advice(
        "If errors come back: swap cable, transceiver and switch port one after the other, the adapter last.",
        "若错误再次出现：依次更换线缆、光模块、交换机端口，最后才更换网卡。",
        "Spare parts and a drained node.",
        "需要备件，并排空节点。"),
    "roce_lossless": _advice(
        "RoCE: check PFC and ECN end to end: one priority, trust mode DSCP, the same on adapter (mlnx_qos) and switch; "
        "set NCCL_IB_TC to that class (106 for DSCP 26).",
        "RoCE：端到端检查 PFC 和 ECN：同一优先级、信任模式为 DSCP，网卡（mlnx_qos）与交换机配置一致；"
        "并把 NCCL_IB_TC 设为对应的流量类别（DSCP 26 对应 106）。",
        "A change on all switches of the path: plan it with the network team.",
        "需要改动整条路径上的交换机配置，须与网络团队一起规划。"),
    "nccl_spread": _advice(
        "Spread each flow over more paths: NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=0; adaptive routing "
        "on InfiniBand.",
        "让流量分散到更多路径：NCCL_IB_QPS_PER_CONNECTION=4 且 NCCL_IB_SPLIT_DATA_ON_QPS=0；InfiniBand 上启用自适应路由。",
        "One restart; a little memory for each queue pair.",
        "需要重启一次作业；每个 QP 会多占少量内存。"),
    "placement": _advice(
        "Place the job under as few leaf switches as possible (Slurm topology/tree, topology-aware scheduling), away from "
        "storage traffic.",
        "让作业尽量集中在少数几台 leaf 交换机下（Slurm topology/tree、拓扑感知调度），并与存储流量隔离。",
        "Jobs may wait longer in the queue.",
        "作业排队时间可能变长。"),
}

_NODE: Mapping[str, Advice] = {
    "power_accept": _advice(
        "Nothing, if throughput is as expected: a GPU at its limit is fully used, and overlap is not the matter here.",
        "如果吞吐符合预期，无需处理：功耗到上限说明 GPU 已用满，问题不在通信重叠。",
        "None.",
        "无。"),
    "power_limit": _advice(
        "Compare the limit with the board's default and raise it if it was lowered (nvidia-smi -q -d POWER, nvidia-smi -pl "
        "WATTS).",
        "将功耗上限与板卡默认值比较，若被调低则恢复（nvidia-smi -q -d POWER，nvidia-smi -pl WATTS）。",
        "More power and heat: ask those who look after the racks first.",
        "功耗和发热增加，请先与机房供电、散热负责人确认。"),
    "power_even": _advice(
        "If only some GPUs are held down, cap all of the job alike: the slowest decides the step anyway.",
        "如果只有部分 GPU 被限制，可给整个作业设置相同的上限：反正每步由最慢的 GPU 决定。",
        "None in throughput, and less power.",
        "吞吐不受影响，功耗还会降低。"),
    "sensor_bounds": _advice(
        "Read the bounds instead: overlap_exposed_low_ratio and overlap_exposed_high_ratio hold whatever the rhythm is.",
        "改看上下界：无论节奏快慢，overlap_exposed_low_ratio 和 overlap_exposed_high_ratio 都成立。",
        "None.",
        "无。"),
    "sensor_rate": _advice(
        "Read bytes at 50 Hz and power at 20 Hz (sampling.network_hertz, sampling.gpu_hertz), as far as doctor says that the "
        "devices allow it.",
        "把字节数采样提高到 50 Hz、功耗采样提高到 20 Hz（sampling.network_hertz、sampling.gpu_hertz），"
        "以 doctor 报告的设备能力为限。",
        "A little more CPU time of the exporter.",
        "exporter 会多用一点 CPU。"),
    "sensor_driver": _advice(
        "If power_source on overlap_gpu_info is \"usage\" or \"average\" on a recent board: update the driver (535 or later) "
        "to read instant power; "
        "GPM on Hopper and later.",
        "如果较新的板卡上 overlap_gpu_info 的 power_source 为 usage 或 average：升级驱动（535 及以上）以读取瞬时功耗；"
        "Hopper 及以后的 GPU 可使用 GPM。",
        "A driver update: the node has to be drained.",
        "升级驱动需要排空节点。"),
    "profile_once": _advice(
        "Record a few steps with torch.profiler (schedule with wait, warmup, active=3) and look at the overlap there.",
        "用 torch.profiler 采集几步（schedule 设 wait、warmup、active=3），直接查看重叠情况。",
        "A change of the training script; a few slow steps.",
        "需要改动训练脚本，采集的几步会变慢。"),
    "shared_pairing": _advice(
        "If the jobs use different ports: say so under pairing.links, so that each GPU counts its own port only.",
        "如果各作业使用不同端口：在 pairing.links 中写明，使每块 GPU 只统计自己的端口。",
        "A line of configuration per GPU.",
        "每块 GPU 需要一行配置。"),
    "shared_exclusive": _advice(
        "Give the node to one job while you measure (Slurm --exclusive, one pod with all GPUs).",
        "测量期间让作业独占节点（Slurm --exclusive，或由一个 Pod 占用全部 GPU）。",
        "GPUs that the job does not use stand idle.",
        "作业未使用的 GPU 会闲置。"),
}

ADVICE: Mapping[str, Advice] = {**_COMMUNICATION, **_TRANSPORT, **_INPUT, **_STRAGGLER, **_NETWORK, **_NODE}
