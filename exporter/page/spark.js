// The small picture of a card: traffic as an area, power as a line, each on its own scale from zero. Draws what it is given.

import { css } from "./phases.js";

/** The mean of the last points: what "now" means where power and traffic alternate. @param {(number | null)[] | undefined} values */
export function lastOf(values) {
  const recent = (values ?? []).filter((v) => v !== null).slice(-10);
  return recent.length ? recent.reduce((sum, v) => sum + v, 0) / recent.length : null;
}

/**
 * A canvas ready to draw on, in CSS pixels; null where it is not shown.
 * @param {HTMLCanvasElement} canvas
 * @returns {{ pen: CanvasRenderingContext2D, width: number, height: number } | null}
 */
export function ready(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d");
  if (!width || !height || !pen) return null;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  pen.scale(scale, scale);
  return { pen, width, height };
}

/** @param {HTMLCanvasElement} canvas @param {Spark | undefined} drawn @param {number | null} limit */
export function spark(canvas, drawn, limit) {
  const on = ready(canvas);
  if (!on || !drawn) return;
  const { pen, width, height } = on;
  const trace = (/** @type {(number | null)[]} */ values, /** @type {number} */ top, /** @type {boolean} */ filled) => {
    pen.beginPath();
    let drawing = false;
    values.forEach((value, i) => {
      if (value === null) return; // between two readings: the line goes on
      const x = (width * (i + 0.5)) / values.length, y = height - 1 - (height - 4) * Math.min(1, value / top);
      if (filled) pen.rect(x - width / values.length / 2, y, width / values.length + 0.5, height - y);
      else if (drawing) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      drawing = true;
    });
  };
  const most = Math.max(...drawn.bytes_per_s.map((v) => v ?? 0), 0);
  if (most > 0) {
    trace(drawn.bytes_per_s, Math.max(most, 1), true);
    pen.fillStyle = css("--traffic-fill");
    pen.fill();
  }
  const top = Math.max(limit ?? 0, ...drawn.watts.map((v) => v ?? 0), 1);
  trace(drawn.watts, top, false);
  pen.strokeStyle = css("--power");
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  pen.stroke();
}
