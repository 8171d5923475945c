// One waveform on a canvas: traffic as an area on the right axis, power as a line on the left. Draws what it is given.

import { bytesPerSecond, roundUp, watts } from "./format.js";

const EDGE = { top: 8, right: 56, bottom: 17, left: 44 };
const PATHS = ["rdma", "tcp", "nvlink"];

// The path that is drawn: the network where it carries bytes, else NVLink.
export function mainPath(waveform) {
  const present = PATHS.filter((path) => waveform?.traffic[path]);
  return present.find((path) => waveform.traffic[path].some((rate) => rate > 0)) ?? present[0] ?? null;
}

// The mean of the last second: what "now" means where power and traffic alternate. null where nothing was read.
export function lastSecond(times, values) {
  if (!values?.length) return null;
  const recent = values.filter((value, i) => value !== null && times[i] > times.at(-1) - 1);
  return recent.length ? recent.reduce((sum, value) => sum + value, 0) / recent.length : null;
}

export function draw(canvas, waveform, limitWatts, text) {
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  pen.font = `10.5px ${getComputedStyle(canvas).fontFamily}`;
  const box = { x: EDGE.left, y: EDGE.top, w: width - EDGE.left - EDGE.right, h: height - EDGE.top - EDGE.bottom };
  const path = mainPath(waveform);
  const rates = path ? waveform.traffic[path] : [];
  const power = waveform?.power ?? { t_s: [], watts: [] };
  const topWatts = roundUp(Math.max(limitWatts ?? 0, ...power.watts, 1) * 1.02);
  const mostRate = Math.max(...rates.map((rate) => rate ?? 0), 0);
  const topRate = roundUp(mostRate * 1.02);

  grid(pen, box, colour, topWatts, path ? (mostRate > 0 ? topRate : 0) : null, waveform, text);
  if (!waveform || (!power.watts.length && !path)) {
    pen.fillStyle = colour("--faint");
    pen.textAlign = "center";
    pen.fillText(text.noWaveform, box.x + box.w / 2, box.y + box.h / 2 + 4);
    return;
  }
  const x = (t) => box.x + (box.w * (t - waveform.start_s)) / (waveform.end_s - waveform.start_s);
  const y = (share) => box.y + box.h * (1 - share);
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y - 2, box.w, box.h + 4);
  pen.clip();
  if (path) area(pen, box, waveform.traffic.t_s.map((t, i) => [x(t), rates[i] === null ? null : y(rates[i] / topRate)]), colour);
  if (limitWatts) {
    pen.strokeStyle = colour("--power");
    pen.globalAlpha = 0.5;
    pen.setLineDash([2, 4]);
    line(pen, [[box.x, y(limitWatts / topWatts)], [box.x + box.w, y(limitWatts / topWatts)]], 1);
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }
  pen.strokeStyle = colour("--power");
  line(pen, withGaps(power.t_s.map((t, i) => [x(t), y(power.watts[i] / topWatts)]), power.t_s), 1.5);
  pen.restore();
}

function grid(pen, box, colour, topWatts, topRate, waveform, text) {
  pen.strokeStyle = colour("--grid");
  pen.lineWidth = 1;
  for (const share of [0, 0.5, 1]) {
    const at = Math.round(box.y + box.h * (1 - share)) + 0.5;
    pen.beginPath();
    pen.moveTo(box.x, at);
    pen.lineTo(box.x + box.w, at);
    pen.stroke();
    pen.textAlign = "right";
    pen.fillStyle = colour("--power-text");
    pen.fillText(watts(topWatts * share), box.x - 6, at + 3.5);
    if (topRate > 0 || (topRate === 0 && share === 0)) {
      pen.textAlign = "left";
      pen.fillStyle = colour("--traffic-text");
      pen.fillText(share === 0 ? "0" : bytesPerSecond(topRate * share), box.x + box.w + 6, at + 3.5);
    }
  }
  if (!waveform) return;
  pen.fillStyle = colour("--faint");
  const span = Math.round(waveform.end_s - waveform.start_s);
  for (const [share, align, label] of [[0, "left", text.secondsAgo(span)], [0.5, "center", text.secondsAgo(span / 2)], [1, "right", text.now]]) {
    pen.textAlign = align;
    pen.fillText(label, box.x + box.w * share, box.y + box.h + 14);
  }
}

// A reading that is missing for a second breaks the line: it is not drawn across.
function withGaps(points, times) {
  return points.flatMap((point, i) => (i && times[i] - times[i - 1] > 1 ? [null, point] : [point]));
}

function line(pen, points, width) {
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.beginPath();
  let drawing = false;
  for (const point of points) {
    if (point === null) { drawing = false; continue; }
    if (drawing) pen.lineTo(point[0], point[1]);
    else pen.moveTo(point[0], point[1]);
    drawing = true;
  }
  pen.stroke();
}

function area(pen, box, points, colour) {
  const bottom = box.y + box.h;
  const runs = [[]];
  for (const point of points) {
    if (point[1] === null) runs.push([]);
    else runs.at(-1).push(point);
  }
  const shade = pen.createLinearGradient(0, box.y, 0, bottom);
  shade.addColorStop(0, colour("--traffic-fill"));
  shade.addColorStop(1, colour("--traffic-fill-low"));
  for (const run of runs.filter((points) => points.length > 1)) {
    pen.beginPath();
    pen.moveTo(run[0][0], bottom);
    for (const point of run) pen.lineTo(point[0], point[1]);
    pen.lineTo(run.at(-1)[0], bottom);
    pen.closePath();
    pen.fillStyle = shade;
    pen.fill();
    pen.strokeStyle = colour("--traffic");
    line(pen, run, 1.25);
  }
}
