// Numbers as people read them. null and undefined become null: the caller shows a dash.

const missing = (value) => value === null || value === undefined || !Number.isFinite(value);

export function percent(value) {
  if (missing(value)) return null;
  const shown = value * 100;
  return shown > 0 && shown < 1 ? "<1 %" : `${Math.round(shown)} %`;
}

export function seconds(value) {
  if (missing(value)) return null;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

export function watts(value) {
  return missing(value) ? null : `${Math.round(value)} W`;
}

const PREFIXES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [0, "B/s"]];

export function bytesPerSecond(value) {
  if (missing(value)) return null;
  const [factor, unit] = PREFIXES.find(([least]) => value >= least) ?? PREFIXES.at(-1);
  const shown = value / (factor || 1);
  return `${shown >= 100 || shown === 0 ? Math.round(shown) : Number(shown.toPrecision(2))} ${unit}`;
}

// The next number whose half reads well too: the top of an axis with a line in the middle.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.9999) * power;
}
