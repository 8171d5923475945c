// Power against traffic: a dot per reading of the last minute. Compute and communication at once lie top right, one instead
// of the other on the falling diagonal. Draws what it is given.

import { bytesPerSecond, percent, watts } from "./format.js";
import { css, phaseColours } from "./phases.js";
import { ready } from "./spark.js";

const EDGE = { top: 10, right: 12, bottom: 32, left: 58 };
const FONT = '11px Inter, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';

/**
 * @param {HTMLCanvasElement} canvas @param {Picture | null} picture @param {Words} text
 * @returns {Record<string, number> | null} share of the readings in each quadrant
 */
export function scatter(canvas, picture, text) {
  const on = ready(canvas);
  if (!on) return null;
  const { pen, width, height } = on;
  pen.font = FONT;
  const { watts: power = [], bytes_per_s: rates = [], phases = "" } = picture?.readings ?? {};
  const dots = power.map((w, i) => ({ w, b: rates[i], phase: phases[i] }))
    .filter((d) => d.w !== null && d.b !== null && d.b !== undefined);
  if (!picture || !dots.length) {
    pen.fillStyle = css("--faint");
    pen.textAlign = "center";
    pen.fillText(text.noDots, width / 2, height / 2);
    return null;
  }
  const box = { x: EDGE.left, y: EDGE.top, w: width - EDGE.left - EDGE.right, h: height - EDGE.top - EDGE.bottom };
  const mostWatts = Math.max(...dots.map((d) => d.w ?? 0)) * 1.15, mostRate = Math.max(...dots.map((d) => d.b ?? 0), 1e6) * 1.25;
  const x = (/** @type {number} */ w) => box.x + (box.w * w) / mostWatts;
  const y = (/** @type {number} */ b) => box.y + box.h * (1 - b / mostRate);
  pen.strokeStyle = css("--grid");
  pen.strokeRect(box.x + 0.5, box.y + 0.5, box.w, box.h);
  const mw = picture.middle_watts, mb = picture.middle_bytes_per_s;
  /** @type {Record<string, number>} */
  const counts = { overlapped: 0, compute: 0, exposed: 0, neither: 0 };
  for (const { w, b } of dots) {
    const high = mw !== null && (w ?? 0) >= mw, sends = mb !== null && (b ?? 0) >= mb;
    counts[high ? (sends ? "overlapped" : "compute") : sends ? "exposed" : "neither"] += 1;
  }
  if (mw !== null) {
    const ym = mb === null ? box.y : y(Math.min(mb, mostRate));
    pen.setLineDash([4, 4]);
    pen.strokeStyle = css("--faint");
    pen.beginPath();
    pen.moveTo(x(mw), box.y);
    pen.lineTo(x(mw), box.y + box.h);
    if (mb !== null) {
      pen.moveTo(box.x, ym);
      pen.lineTo(box.x + box.w, ym);
    }
    pen.stroke();
    pen.setLineDash([]);
  }
  const colours = { ...phaseColours(), u: css("--sub") };
  pen.globalAlpha = 0.55;
  for (const { w, b, phase } of dots) {
    pen.fillStyle = /** @type {Record<string, string>} */ (colours)[phase] ?? css("--sub");
    pen.beginPath();
    pen.arc(x(w ?? 0), y(b ?? 0), 2.4, 0, 2 * Math.PI);
    pen.fill();
  }
  pen.globalAlpha = 1;
  if (mw !== null) {
    corner("left", "top", text.quadrants.exposed, counts.exposed, "--phase-exposed");
    corner("right", "top", text.quadrants.overlapped, counts.overlapped, "--phase-overlapped");
    corner("right", "bottom", text.quadrants.compute, counts.compute, "--phase-compute");
    corner("left", "bottom", text.quadrants.neither, counts.neither, "--phase-wait");
  }
  pen.fillStyle = css("--power-text");
  for (const share of [0, 0.5, 1]) {
    pen.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
    pen.fillText(watts(share * mostWatts) ?? "", box.x + box.w * share, box.y + box.h + 15);
  }
  pen.fillStyle = css("--traffic-text");
  pen.textAlign = "right";
  for (const share of [0, 0.5, 1]) pen.fillText(share ? bytesPerSecond(share * mostRate) ?? "" : "0", box.x - 6, box.y + box.h * (1 - share) + (share === 1 ? 10 : 4));
  pen.fillStyle = css("--faint");
  pen.textAlign = "center";
  pen.fillText(text.scatterAxes, box.x + box.w / 2, height - 3);
  return mw === null ? null : counts;

  /** @param {"left" | "right"} side @param {"top" | "bottom"} end @param {string} name @param {number} count @param {string} tone */
  function corner(side, end, name, count, tone) {
    const label = `${name} ${percent(count / dots.length) ?? ""}`;
    pen.textAlign = side;
    const at = { x: side === "left" ? box.x + 7 : box.x + box.w - 7, y: end === "top" ? box.y + 16 : box.y + box.h - 8 };
    // Over dots it has a ground of its own, and lets them through.
    const wide = pen.measureText(label).width;
    pen.fillStyle = css("--card");
    pen.globalAlpha = 0.7;
    pen.fillRect(side === "left" ? at.x - 3 : at.x - wide - 3, at.y - 11, wide + 6, 15);
    pen.globalAlpha = 1;
    pen.fillStyle = css(tone);
    pen.fillText(label, at.x, at.y);
  }
}
