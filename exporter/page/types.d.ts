// What the exporter sends, and what the modules of the page hand each other. Read by the type check alone, never served.

type Path = "rdma" | "nvlink" | "tcp";
type Language = "en" | "zh";
type Maybe = number | null | undefined;

interface Analysis {
  gpu: string; window_s: number; at_s: number; state: string; reason: string | null;
  health: number | null; exposed: number | null; exposed_low: number | null; exposed_high: number | null;
  communication: number | null; stall: number | null; wait: number | null; exposed_or_wait: number | null;
  correlation: number | null; anticorrelation: number | null; observability: number | null; step_period_s: number | null;
  resolution_s: number | null; power_median_watts: number | null; traffic_median_bytes_per_s: number | null;
}
interface Measured { name: string; value: number | null; unit: string; threshold: number | null }
interface Finding { finding: string; gpu: string | null; since_s: number; evidence: Measured[]; advice: string[] }
interface Device {
  id: string; index: number | null; uuid: string | null; name: string | null; driver: string | null;
  rate_bytes_per_s: number | null; info: Record<string, string>; readings: Record<string, number>;
}
interface Link { device: string; path: Path; reason: string; weight: number }
interface Gpu extends Device {
  gone: boolean; quarantined: string | null; power_source: string | null; power_limit_watts: number | null;
  power_refresh_s: number | null; analyses: Analysis[]; phases: Record<string, number>; links: Link[]; findings: Finding[];
}
interface Source {
  source: string; kind: string; up: boolean; reason: string | null; reads: number; errors: Record<string, number>;
  missed_ticks: number; restarts: number; interval_s: number | null; silent_s: number | null;
}
interface Refresh { kind: string; id: string; quantity: string; refresh_s: number }
interface Spark { watts: (number | null)[]; path: Path | null; bytes_per_s: (number | null)[] }
interface Snapshot {
  t_s: number; wall_s: number; started_unix_s: number; host: string; version: string; mode: string; transport: string;
  verdict_window_s: number; config_reload_ok: boolean; gpus: Gpu[]; ports: Device[]; nics: Device[]; node_findings: Finding[];
  sources: Source[]; refresh: Refresh[]; counted_gpus: { pci: number | null; nvml: number | null };
  quarantined: { kind: string; id: string; reason: string; since_s: number }[];
  sparks?: { seconds: number; gpus: Record<string, Spark> };
}
type Traffic = { t0_s: number; step_s: number } & Partial<Record<Path, (number | null)[]>>;
interface Live { gpu: string; power: { t_s: number[]; watts: number[] }; traffic: Traffic }
interface Fold extends Partial<Record<Path, (number | null)[]>> {
  period_s: number; steps: number; phase_s: number[]; watts: (number | null)[];
}
interface Picture {
  gpu?: string; at_s: number; path: Path | null; lag_s: number; middle_watts: number | null; middle_bytes_per_s: number | null;
  readings: { t_s: number[]; watts: (number | null)[]; bytes_per_s: (number | null)[]; phases: string };
  fold: Fold | null;
}
interface Scope extends Live { at_s: number; picture: Picture }
interface Trend {
  gpu: string; every_s: number; t_s: number[]; health: (number | null)[]; exposed: (number | null)[];
  correlation: (number | null)[]; state: string[];
}
interface Pulse { live: "connecting" | "waiting" | "live" | "stale" | "lost"; seconds: number }
type Word =
  "language" | "themeAuto" | "themeDark" | "themeLight" | "themeTitle" | "live" | "waiting" | "lost" | "lostNotice" |
  "demo" | "replay" | "demoNotice" | "replayNotice" | "noGpus" | "noGpusHint" | "health" | "healthHint" | "exposed" |
  "exposedHint" | "observability" | "observabilityHint" | "step" | "stepHint" | "comm" | "commHint" | "stall" |
  "stallHint" | "wait" | "waitHint" | "evidence" | "advice" | "threshold" | "close" | "node" | "none" | "power" |
  "traffic" | "sourcesDown" | "quarantined" | "gone" | "now" | "transport" | "configBad" |
  "scope" | "scopeHint" | "pause" | "resume" | "paused" | "resetZoom" | "download" | "downloadHint" | "verdict" |
  "findings" | "noFinding" | "scatter" | "scatterHint" | "scatterAxes" | "noDots" | "foldTitle" | "trend" | "noTrend"
  | "correlation" | "correlationHint" | "pairing" | "noLinks" | "device" | "path" | "why" | "linkUp" | "linkDown" |
  "sources" | "source" | "sourceState" | "age" | "interval" | "refresh" | "trouble" | "up" | "down" | "fewerSources" |
  "noReadings" | "keys";
interface Sentences {
  stale(s: number): string;
  staleNotice(s: number): string;
  facts(gpus: number, ports: number, nics: number): string;
  between(a: string, b: string): string;
  window(s: number): string;
  secondsAgo(s: string): string;
  countMismatch(pci: number, nvml: number): string;
  zoomed(span: string | null): string;
  spanName(s: number): string;
  since(t: string | null): string;
  foldOf(n: number, t: string | null): string;
  sharedBy(n: number): string;
  missed(n: number): string;
  restarts(n: number): string;
  moreSources(n: number): string;
  readingsOld(t: string | null): string;
}
/** The words of one language. Both languages have every one of them. */
interface Words extends Record<Word, string>, Sentences {
  transports: Record<string, string>;
  paths: Record<string, string>;
  states: Record<string, string>;
  kinds: Record<string, string>;
  reasons: Record<string, string>;
  phases: Record<string, string>;
  quadrants: Record<string, string>;
  noFold: Record<string, string>;
  pairs: Record<string, string>;
}
