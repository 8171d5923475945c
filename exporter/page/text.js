// The words of the page itself, in both languages; those for findings, advice and states come from words.json. A key that is missing in one language fails a test.

/** @type {Record<Language, Words>} */
export const TEXT = {
  en: {
    language: "中文", themeAuto: "Auto", themeDark: "Dark", themeLight: "Light", themeTitle: "Colours: follow the system, dark, light",
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
    between: (a, b) => `${a} – ${b}`, none: "–", window: (s) => `last ${s} s`, power: "Power", traffic: "Traffic",
    paths: { rdma: "RDMA", nvlink: "NVLink", tcp: "TCP" }, sourcesDown: "Missing", quarantined: "left alone",
    gone: "gone", now: "now", secondsAgo: (s) => `−${s} s`, transport: "Transport",
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
    scope: "scope", scopeHint: "Move over the plot for values; drag or wheel to zoom; double click, or Esc, goes back to now.",
    pause: "Pause", resume: "Go on", paused: "paused", resetZoom: "Back to now", zoomed: (span) => `zoomed to ${span}`,
    spanName: (s) => (s < 60 ? `${s} s` : `${s / 60} min`), download: "Download trace",
    downloadHint: "The last ten minutes of all readings, as a trace for “analyze” and “replay”",
    phases: { overlapped: "overlapped", exposed: "exposed", compute: "compute", stall: "stall", wait: "wait", idle: "idle", unknown: "cannot be told" },
    verdict: "Verdict", findings: "Causes and what to do", noFinding: "No finding: no rule names a cause.", since: (t) => `for ${t}`,
    scatter: "Power against traffic", scatterHint: "A dot per reading of the last minute. Overlap lies top right; taking turns lies on the falling diagonal.",
    scatterAxes: "power → , traffic ↑", noDots: "no readings of power and traffic together",
    quadrants: { overlapped: "both", compute: "compute only", exposed: "traffic only", neither: "neither" },
    foldTitle: "One step, folded", foldOf: (n, t) => `mean of ${n} steps of ${t}`,
    noFold: {
      idle: "No job is running, so there is no step.", compute_only: "Nothing is exchanged, so there is no step to be seen.",
      no_data: "No readings.", unobservable: "There is no verdict on this job, so its steps are not folded.",
      other: "Nothing repeats that the sensors resolve: traffic is even, or the steps are too short, too long or too uneven.",
    },
    trend: "The last hour", noTrend: "The trend begins with the second verdict.", correlation: "Correlation",
    correlationHint: "Of power and traffic, −1 to 1: −1 is one instead of the other; absent when either is flat",
    pairing: "Pairing", noLinks: "No port, NVLink or interface is paired with this GPU: its traffic cannot be seen.",
    device: "Device", path: "Path", why: "Why", linkUp: "up", linkDown: "down", sharedBy: (n) => `shared by ${n} GPUs`,
    pairs: {
      PIX: "below the same PCIe switch", PXB: "across PCIe switches", PHB: "below the same root complex", NODE: "on the same NUMA node",
      SYS: "on another NUMA node", config: "by the settings", guess: "by its number: the PCIe tree is hidden", node: "all GPUs of the node share it",
      nvlink: "its own links", trace: "as the trace says", symmetry: "carries as much in both directions as a collective does", rhythm: "its traffic has the rhythm of the GPU",
    },
    sources: "Sources", source: "Source", sourceState: "State", age: "Last sample", interval: "Read every", refresh: "Sensor refresh, measured", trouble: "Trouble",
    up: "up", down: "down", missed: (n) => `${n} late reads left out`, restarts: (n) => `${n} restarts`,
    moreSources: (n) => `Show ${n} more`, fewerSources: "Show those of this GPU alone", readingsOld: (t) => `No power readings for ${t}`, noReadings: "No readings: the device is left alone",
    keys: "Keys: ← → GPU · space pause · 1–4 span · + − zoom · [ ] move · Esc now · L language · T colours",
  },
  zh: {
    language: "English", themeAuto: "自动", themeDark: "深色", themeLight: "浅色", themeTitle: "配色：跟随系统、深色、浅色",
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
    between: (a, b) => `${a} – ${b}`, none: "–", window: (s) => `最近 ${s} 秒`, power: "功耗", traffic: "流量",
    paths: { rdma: "RDMA", nvlink: "NVLink", tcp: "TCP" }, sourcesDown: "缺失", quarantined: "已隔离",
    gone: "已消失", now: "现在", secondsAgo: (s) => `−${s} 秒`, transport: "传输",
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
    scope: "示波器", scopeHint: "移动鼠标查看数值；拖动或滚轮缩放；双击或 Esc 回到现在。",
    pause: "暂停", resume: "继续", paused: "已暂停", resetZoom: "回到现在", zoomed: (span) => `已放大到 ${span}`,
    spanName: (s) => (s < 60 ? `${s} 秒` : `${s / 60} 分钟`), download: "下载轨迹",
    downloadHint: "最近十分钟的全部读数，可用于 analyze 与 replay",
    phases: { overlapped: "重叠", exposed: "暴露", compute: "计算", stall: "停顿", wait: "等待", idle: "空闲", unknown: "无法判断" },
    verdict: "判断", findings: "原因与对策", noFinding: "没有发现问题：没有规则指出原因。", since: (t) => `已持续 ${t}`,
    scatter: "功耗与流量", scatterHint: "最近一分钟的每个读数是一个点。重叠在右上角；交替出现则落在下降的对角线上。",
    scatterAxes: "功耗 → ，流量 ↑", noDots: "没有同时的功耗与流量读数",
    quadrants: { overlapped: "同时进行", compute: "只有计算", exposed: "只有通信", neither: "都没有" },
    foldTitle: "一步的平均波形", foldOf: (n, t) => `${n} 步的平均，每步 ${t}`,
    noFold: {
      idle: "没有作业在运行，因此没有步。", compute_only: "没有通信，因此看不到步。",
      no_data: "没有读数。", unobservable: "对该作业没有判断，因此不叠加各步。",
      other: "没有传感器能分辨的重复：流量平稳，或步太短、太长、太不均匀。",
    },
    trend: "最近一小时", noTrend: "从第二次判断开始显示趋势。", correlation: "相关系数",
    correlationHint: "功耗与流量的相关系数，−1 到 1：−1 表示此消彼长；任一平稳时没有数值",
    pairing: "配对", noLinks: "没有端口、NVLink 或网卡与该 GPU 配对：看不到它的流量。",
    device: "设备", path: "路径", why: "依据", linkUp: "正常", linkDown: "断开", sharedBy: (n) => `${n} 块 GPU 共用`,
    pairs: {
      PIX: "同一 PCIe 交换机之下", PXB: "跨 PCIe 交换机", PHB: "同一根复合体之下", NODE: "同一 NUMA 节点",
      SYS: "另一 NUMA 节点", config: "由设置指定", guess: "按编号：看不到 PCIe 拓扑", node: "节点上所有 GPU 共用",
      nvlink: "自身的链路", trace: "按轨迹所记", symmetry: "两个方向的流量与集合通信一样对称", rhythm: "其流量与 GPU 节奏一致",
    },
    sources: "数据源", source: "数据源", sourceState: "状态", age: "最近样本", interval: "读取间隔", refresh: "实测刷新周期", trouble: "异常",
    up: "正常", down: "不可用", missed: (n) => `略过 ${n} 次过晚的读取`, restarts: (n) => `重启 ${n} 次`,
    moreSources: (n) => `再显示 ${n} 个`, fewerSources: "只显示该 GPU 的", readingsOld: (t) => `已有 ${t} 没有功耗读数`, noReadings: "没有读数：设备已隔离",
    keys: "按键：← → 切换 GPU · 空格 暂停 · 1–4 时长 · + − 缩放 · [ ] 平移 · Esc 现在 · L 语言 · T 配色",
  },
};

/** @type {Record<string, any>} */
let shared = {};

export async function loadWords() {
  shared = await (await fetch("/page/words.json")).json();
}

/**
 * A text of the shared catalogue, such as say("zh", "findings", "congestion", "title"); the key made readable where it has none.
 * @param {Language} language @param {...string} path
 * @returns {string}
 */
export function say(language, ...path) {
  const found = path.reduce((/** @type {any} */ table, key) => table?.[key], shared);
  return found?.[language] ?? String(path[1]).replaceAll("_", " ");
}

const KEY = "overlap-exporter.language";

/** @returns {Language} */
export function storedLanguage() {
  const kept = localStorage.getItem(KEY);
  if (kept === "en" || kept === "zh") return kept;
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** @param {Language} language */
export function keepLanguage(language) {
  localStorage.setItem(KEY, language);
}

/**
 * Why there is no verdict: the exporter says it in English, and its catalogue knows all that it can say.
 * @param {Language} language @param {string} given
 * @returns {string}
 */
export function reason(language, given) {
  /** @type {Record<string, string>[]} */
  const known = shared.reasons ?? [];
  const found = known.find(({ pattern }) => new RegExp(pattern).test(given));
  return found ? given.replace(new RegExp(found.pattern), found[language]) : given.replaceAll("_", " ");
}

/**
 * A word for a machine's key: from the catalogue, or the key itself made readable.
 * @param {Record<string, string>} table @param {string | null | undefined} key
 * @returns {string}
 */
export function word(table, key) {
  return table[key ?? ""] ?? String(key ?? "").replaceAll("_", " ");
}
