// uPlot in the colours of the page: what every chart shares. The library is loaded before the modules, as a global.

import { bytesPerSecond, watts } from "./format.js";
import { css } from "./phases.js";

const FONT = '11px Inter, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif';

/** @type {Record<Path | "power", string>} */
export const COLOURS = { power: "--power", rdma: "--traffic", nvlink: "--nvlink", tcp: "--tcp" };

/** @param {string} name @param {string} [alpha] two hexadecimal digits */
export const colour = (name, alpha = "") => () => css(name) + alpha;

/** @param {Partial<uPlot.Axis>} more @returns {uPlot.Axis} */
export function axis(more) {
  return {
    stroke: colour("--sub"), font: FONT, labelFont: FONT, gap: 4, size: 52,
    grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, ...more,
  };
}

/** @returns {uPlot.Axis} */
export const wattsAxis = () => axis({
  scale: "W", stroke: colour("--power-text"), space: 34, values: (_, ticks) => ticks.map((v) => watts(v) ?? ""),
});

/** @returns {uPlot.Axis} */
export const bytesAxis = () => axis({
  scale: "B", side: 1, size: 62, stroke: colour("--traffic-text"), grid: { show: false }, space: 34,
  values: (_, ticks) => ticks.map((v) => (v === 0 ? "0" : bytesPerSecond(v) ?? "")),
});

/** A scale from zero with a little room above. @param {() => number} least @returns {uPlot.Scale} */
export const fromZero = (least) => ({ range: (_, __, most) => [0, Math.max(least(), (most ?? 0) * 1.06)] });

/**
 * @param {Path} path @param {string} label
 * @returns {uPlot.Series}
 */
export function trafficSeries(path, label) {
  return {
    label, scale: "B", stroke: colour(COLOURS[path]), width: 1.25, points: { show: false },
    ...(path === "nvlink" ? {} : { fill: colour(COLOURS[path], "30") }),
  };
}

/** @param {string} label @param {boolean} dots @returns {uPlot.Series} */
export function powerSeries(label, dots) {
  return { label, scale: "W", stroke: colour("--power"), width: 1.75, points: { show: dots, size: 4, fill: colour("--power"), stroke: colour("--power") } };
}

/**
 * A chart that fills the width of its box.
 * @param {HTMLElement} box @param {Omit<uPlot.Options, "width" | "height">} options @param {uPlot.AlignedData} data
 */
export function chart(box, options, data) {
  const size = () => ({ width: Math.max(120, box.clientWidth), height: Math.max(80, box.clientHeight) });
  const made = new uPlot({ ...options, ...size(), legend: { show: false } }, data, box);
  new ResizeObserver(() => { if (made.root.isConnected) made.setSize(size()); }).observe(box);
  return made;
}
