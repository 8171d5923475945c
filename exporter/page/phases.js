// The phases of a job: their letters as the exporter sends them, and the colours of the style sheet.

/** @type {Record<string, string>} */
export const PHASES = { o: "overlapped", e: "exposed", c: "compute", s: "stall", w: "wait", i: "idle", u: "unknown" };

/** @param {string} name @returns {string} a custom property of the style sheet */
export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @returns {Record<string, string>} colour by letter, in the palette of the moment */
export function phaseColours() {
  return Object.fromEntries(Object.entries(PHASES).map(([letter, name]) => [letter, css(`--phase-${name}`)]));
}

/**
 * Shares of the readings by letter, largest first.
 * @param {string} letters
 * @returns {[string, number][]}
 */
export function shares(letters) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const letter of letters) counts.set(letter, (counts.get(letter) ?? 0) + 1);
  return [...counts].map(([letter, count]) => /** @type {[string, number]} */ ([letter, count / letters.length])).sort((a, b) => b[1] - a[1]);
}
