// Numbers as people read them. null and undefined become null: the caller shows a dash.

/** @param {Maybe} value @returns {value is null | undefined} */
const missing = (value) => value === null || value === undefined || !Number.isFinite(value);

/** @param {Maybe} value */
export function percent(value) {
  if (missing(value)) return null;
  const shown = value * 100;
  return shown > 0 && shown < 1 ? "<1 %" : `${Math.round(shown)} %`;
}

/** @param {Maybe} value */
export function seconds(value) {
  if (missing(value)) return null;
  if (value < 0.0095) return `${(value * 1000).toPrecision(2)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  return value < 300 ? `${value.toFixed(0)} s` : `${(value / 60).toFixed(0)} min`;
}

/** @param {Maybe} value */
export function watts(value) {
  return missing(value) ? null : `${Math.round(value)} W`;
}

/** @type {[number, string][]} */
const PREFIXES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [0, "B/s"]];

/** @param {Maybe} value */
export function bytesPerSecond(value) {
  if (missing(value)) return null;
  const [factor, unit] = PREFIXES.find(([least]) => value >= least) ?? [0, "B/s"];
  const shown = value / (factor || 1);
  return `${shown >= 100 || shown === 0 ? Math.round(shown) : Number(shown.toPrecision(2))} ${unit}`;
}

/** @param {Maybe} value */
export function correlation(value) {
  return missing(value) ? null : (Math.round(value * 100) / 100).toFixed(2).replace("-", "−");
}

/** @param {number} wall_s @param {Language} language */
export function clockTime(wall_s, language) {
  return new Date(wall_s * 1000).toLocaleTimeString(language === "zh" ? "zh-CN" : "en-GB", { hour12: false });
}
