// The words of the page itself, in both languages; those for findings, advice and states come from words.json. A key that is missing in one language fails a test.

export const TEXT = {
  en: {
    language: "中文", spanTitle: "Length of the waveforms", themeAuto: "Auto", themeDark: "Dark", themeLight: "Light", themeTitle: "Colours: follow the system, dark, light",
    live: "live", waiting: "waiting for the first data", stale: (s) => `no news for ${s} s`, lost: "connection lost",
    staleNotice: (s) => `No news from the exporter for ${s} s. What you see is old.`,
    lostNotice: "The exporter does not answer. What you see is old; the page reconnects by itself.",
    demo: "SIMULATED", replay: "REPLAY", demoNotice: "Simulated node: nothing here was measured.",
    replayNotice: "Recorded data: this is a trace, not the present.",
    noGpus: "No GPU can be read on this node.", noGpusHint: "The exporter serves what there is. “overlap-exporter doctor” says what to change.",
    facts: (gpus, ports, nics) => `${gpus} GPU${gpus === 1 ? "" : "s"} · ${ports} RDMA port${ports === 1 ? "" : "s"} · ${nics} NIC${nics === 1 ? "" : "s"}`,
    health: "Health", healthHint: "Share of communication time hidden behind compute",
    exposed: "Exposed", exposedHint: "Share of running time lost to exposed communication",
    observability: "Observability", observabilityHint: "How well the sensors resolve the job's rhythm; below 50 % there is no verdict",
    step: "Step", stepHint: "Period of the job's rhythm", comm: "Comm.", commHint: "Share of running time with traffic",
    stall: "Stall", stallHint: "Share of running time waiting for input or storage", wait: "Wait", waitHint: "Share of running time waiting for other GPUs",
    evidence: "What was measured", advice: "What to do, least effort first", threshold: "threshold", close: "Close", node: "This node",
    between: (a, b) => `${a} – ${b}`, none: "–", window: (s) => `last ${s} s`, power: "Power", traffic: "Traffic", limit: "limit",
    rdma: "RDMA", nvlink: "NVLink", tcp: "TCP", noWaveform: "no readings", sourcesDown: "Missing", quarantined: "left alone",
    gone: "gone", now: "now", span: (s) => `${s} s`, secondsAgo: (s) => `-${s} s`, transport: "Transport",
    transports: { rdma: "RDMA", tcp: "TCP", mixed: "RDMA and TCP", none: "no traffic", unknown: "unknown" },
    configBad: "The configuration file was not taken at its last reading; the settings before it are in force.",
    countMismatch: (pci, nvml) => `The PCI bus has ${pci} GPUs, NVML sees ${nvml}.`,
    states: {
      overlapped: "Overlapped", partial: "Partial", serialized: "Serialized", compute_only: "Compute only", stalled: "Stalled",
      idle: "Idle", unobservable: "Unobservable", no_data: "No data",
    },
    kinds: { nvml: "GPU sensors (NVML)", gpm: "GPU activity (GPM)", rdma: "RDMA ports", nic: "Network interfaces", host: "Host counters", xid: "XID events", pods: "Pods", jobs: "Jobs" },
    reasons: {
      library_not_found: "the NVIDIA library was not found", no_rdma_devices: "no RDMA devices", driver_not_loaded: "the driver is not loaded",
      counters_not_visible: "counters not visible in this container", no_procfs: "/proc cannot be read", gpu_lost: "GPU lost",
      hang: "does not answer", crash: "crashed the reader", no_permission: "not permitted", permission_denied: "not permitted",
      unsupported: "not supported here", unknown: "reason unknown",
    },
    sentences: [],
  },
  zh: {
    language: "English", spanTitle: "波形长度", themeAuto: "自动", themeDark: "深色", themeLight: "浅色", themeTitle: "配色：跟随系统、深色、浅色",
    live: "实时", waiting: "等待首批数据", stale: (s) => `${s} 秒无更新`, lost: "连接中断",
    staleNotice: (s) => `已有 ${s} 秒未收到采集器的数据，当前显示的是旧数据。`,
    lostNotice: "采集器无响应，当前显示的是旧数据；页面会自动重连。",
    demo: "模拟数据", replay: "回放", demoNotice: "这是模拟节点，所有数值均非实测。",
    replayNotice: "这是录制的轨迹，不是当前状态。",
    noGpus: "本节点没有可读取的 GPU。", noGpusHint: "采集器只展示确实存在的数据。运行“overlap-exporter doctor”可查看需要调整什么。",
    facts: (gpus, ports, nics) => `${gpus} 块 GPU · ${ports} 个 RDMA 端口 · ${nics} 块网卡`,
    health: "健康度", healthHint: "通信时间中被计算掩盖的比例", exposed: "暴露", exposedHint: "运行时间中因通信未被掩盖而损失的比例",
    observability: "可观测度", observabilityHint: "传感器能否分辨作业的节奏；低于 50 % 不作判断",
    step: "步时", stepHint: "作业节奏的周期", comm: "通信", commHint: "运行时间中有流量的比例",
    stall: "停顿", stallHint: "运行时间中等待输入或存储的比例", wait: "等待", waitHint: "运行时间中等待其他 GPU 的比例",
    evidence: "测到的数值", advice: "可以怎么做（由易到难）", threshold: "阈值", close: "关闭", node: "本节点",
    between: (a, b) => `${a} – ${b}`, none: "–", window: (s) => `最近 ${s} 秒`, power: "功耗", traffic: "流量", limit: "上限",
    rdma: "RDMA", nvlink: "NVLink", tcp: "TCP", noWaveform: "没有读数", sourcesDown: "缺失", quarantined: "已隔离",
    gone: "已消失", now: "现在", span: (s) => `${s} 秒`, secondsAgo: (s) => `-${s} 秒`, transport: "传输",
    transports: { rdma: "RDMA", tcp: "TCP", mixed: "RDMA 与 TCP", none: "无流量", unknown: "未知" },
    configBad: "配置文件上次读取未通过，仍在使用之前的设置。",
    countMismatch: (pci, nvml) => `PCI 总线上有 ${pci} 块 GPU，NVML 只看到 ${nvml} 块。`,
    states: {
      overlapped: "重叠良好", partial: "部分重叠", serialized: "串行", compute_only: "仅计算", stalled: "停顿",
      idle: "空闲", unobservable: "无法判断", no_data: "无数据",
    },
    kinds: { nvml: "GPU 传感器 (NVML)", gpm: "GPU 活动 (GPM)", rdma: "RDMA 端口", nic: "网卡", host: "主机计数器", xid: "XID 事件", pods: "Pod", jobs: "作业" },
    reasons: {
      library_not_found: "未找到 NVIDIA 库", no_rdma_devices: "没有 RDMA 设备", driver_not_loaded: "驱动未加载",
      counters_not_visible: "容器内看不到计数器", no_procfs: "无法读取 /proc", gpu_lost: "GPU 丢失",
      hang: "无响应", crash: "导致读取进程崩溃", no_permission: "没有权限", permission_denied: "没有权限",
      unsupported: "不受支持", unknown: "原因未知",
    },
    sentences: [
      [/^no power readings in this window$/, "该窗口内没有功耗读数"],
      [/^power was read for (\S+) s of (\S+) s only$/, "$2 秒中只读到 $1 秒的功耗"],
      [/^no job is running on this GPU$/, "该 GPU 上没有作业"],
      [/^no byte readings from (.+)$/, "$1 没有字节读数"],
      [/^no traffic source is paired with this GPU$/, "没有与该 GPU 配对的流量来源"],
      [/^no communication in this window$/, "该窗口内没有通信"],
      [/^judged without (.+), which gives no byte readings$/, "判断未计入 $1：它没有字节读数"],
      [/^power sensor averages over (\S+) s: rhythms below (\S+) s cannot be seen$/, "功耗传感器按 $1 秒取平均：快于 $2 秒的节奏看不到"],
      [/^power and traffic are flat at (\S+) W, below half of the limit of (\S+) W: may be a fast alternation$/,
        "功耗与流量平稳在 $1 W，低于上限 $2 W 的一半：可能是快速交替"],
    ],
  },
};

let shared = { findings: {}, advice: {}, states: {}, transports: {} };

export async function loadWords() {
  shared = await (await fetch("/page/words.json")).json();
}

// A text of the shared catalogue, such as say("zh", "findings", "congestion", "title"); the key made readable where it has none.
export function say(language, ...path) {
  const found = path.reduce((table, key) => table?.[key], shared);
  return found?.[language] ?? String(path[1]).replaceAll("_", " ");
}

const KEY = "overlap-exporter.language";

export function storedLanguage() {
  const kept = localStorage.getItem(KEY);
  if (kept in TEXT) return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function keepLanguage(language) {
  localStorage.setItem(KEY, language);
}

// Why there is no verdict: the exporter says it in English; what it can say is known.
export function reason(text, given) {
  for (const [pattern, translated] of text.sentences) if (pattern.test(given)) return given.replace(pattern, translated);
  return word(text.reasons, given);
}

// A word for a machine's key: from the catalogue, or the key itself made readable.
export function word(table, key) {
  return table[key] ?? String(key ?? "").replaceAll("_", " ");
}
