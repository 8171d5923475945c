// Two charts that change each second at most: the folded step, and the last hour of verdicts. Each says why when it is empty.

import { axis, bytesAxis, chart, colour, fromZero, powerSeries, trafficSeries, wattsAxis } from "./chart.js";
import { element } from "./element.js";
import { bytesPerSecond, clockTime, correlation, percent, seconds, watts } from "./format.js";
import { css } from "./phases.js";
import { TEXT, word } from "./text.js";
import { PATHS } from "./wave.js";

/** A chart in a box that may have nothing to show. */
class Curve {
  /** @param {HTMLElement} box @param {HTMLElement} readout */
  constructor(box, readout) {
    this.box = box;
    this.readout = readout;
    /** @type {uPlot | null} */
    this.plot = null;
    this.key = "";
    this.rest = "";
    this.text = TEXT.en;
  }

  /** @param {string} why */
  empty(why) {
    this.plot?.destroy();
    this.plot = null;
    this.key = "";
    this.readout.textContent = "";
    this.box.replaceChildren(element("p", { class: "nothing" }, why));
  }

  /** @param {string} key made anew when it changes @param {() => Omit<uPlot.Options, "width" | "height">} options @param {uPlot.AlignedData} data */
  fill(key, options, data) {
    if (!this.plot || key !== this.key) {
      this.plot?.destroy();
      this.box.replaceChildren();
      const made = options();
      made.hooks = { ...made.hooks, setCursor: [() => this.tell()] };
      this.plot = chart(this.box, made, data);
      this.key = key;
    } else this.plot.setData(data);
    this.tell();
  }

  tell() {
    const row = this.plot?.cursor.idx;
    this.readout.textContent = this.plot && row !== null && row !== undefined && (this.plot.cursor.left ?? -1) >= 0 ? this.row(row) : this.rest;
  }

  /** @param {number} _row @returns {string} */
  row(_row) {
    return "";
  }

  redraw() {
    this.plot?.redraw(false);
  }
}

export class FoldPlot extends Curve {
  /** @param {Picture | null} picture @param {string} state @param {Words} text */
  show(picture, state, text) {
    const fold = picture?.fold;
    if (!fold) return this.empty(text.noFold[state] ?? text.noFold.other);
    this.text = text;
    this.fold = fold;
    this.rest = text.foldOf(fold.steps, seconds(fold.period_s));
    const paths = PATHS.filter((path) => fold[path]?.some((rate) => rate));
    const data = /** @type {uPlot.AlignedData} */ ([fold.phase_s, fold.watts, ...paths.map((path) => fold[path])]);
    this.fill(`${paths} ${fold.period_s > 1} ${text.power}`, () => ({
      padding: [8, 0, 0, 0],
      scales: { x: { time: false }, W: fromZero(() => 1), B: fromZero(() => 1e6) },
      axes: [axis({ size: 24, values: (_, ticks) => ticks.map((t) => (t === 0 ? "0" : seconds(t) ?? "")) }), wattsAxis(), bytesAxis()],
      series: [{}, { ...powerSeries(text.power, false), spanGaps: true }, ...paths.map((path) => ({ ...trafficSeries(path, word(text.paths, path)), spanGaps: true }))],
      cursor: { y: false, drag: { x: false, y: false } },
    }), data);
    return undefined;
  }

  /** @param {number} row */
  row(row) {
    const { fold, text } = this;
    if (!fold) return "";
    const rates = PATHS.filter((path) => fold[path]?.some((rate) => rate)).map((path) => `${word(text.paths, path)} ${bytesPerSecond(fold[path]?.[row]) ?? text.none}`);
    return [seconds(fold.phase_s[row]), `${text.power} ${watts(fold.watts[row]) ?? text.none}`, ...rates].join("   ·   ");
  }
}

export class TrendPlot extends Curve {
  /** @param {Trend | null} trend @param {number} startedUnix @param {Words} text @param {Language} language */
  show(trend, startedUnix, text, language) {
    if (!trend || trend.t_s.length < 2) return this.empty(text.noTrend);
    this.trend = trend;
    this.text = text;
    this.at = (/** @type {number} */ row) => clockTime(startedUnix + (trend.t_s[row] ?? 0), language);
    const data = /** @type {uPlot.AlignedData} */ ([trend.t_s, trend.health, trend.exposed, trend.correlation]);
    this.fill(`${language}`, () => ({
      padding: [8, 8, 0, 0],
      scales: { x: { time: false }, R: { range: () => [-1.05, 1.05] } },
      axes: [
        axis({ size: 30, gap: 10, space: 80, values: (_, ticks) => ticks.map((t) => clockTime(startedUnix + t, language).slice(0, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 8 : 5)) }),
        axis({ scale: "R", size: 44, values: (_, ticks) => ticks.map((v) => String(v).replace("-", "−")), splits: [-1, -0.5, 0, 0.5, 1] }),
      ],
      series: [
        {}, { scale: "R", label: text.health, stroke: colour("--good"), width: 2, points: { show: false } },
        { scale: "R", label: text.exposed, stroke: colour("--poor"), width: 1.5, points: { show: false } },
        { scale: "R", label: text.correlation, stroke: colour("--calm"), width: 1.25, dash: [4, 3], points: { show: false } },
      ],
      cursor: { y: false, drag: { x: false, y: false } },
      hooks: { draw: [(plot) => this.states(plot)] },
    }), data);
    return undefined;
  }

  /** A band of states under the curves. @param {uPlot} plot */
  states(plot) {
    const { ctx, bbox } = plot, scale = window.devicePixelRatio || 1, trend = this.trend;
    if (!trend) return;
    ctx.save();
    trend.state.forEach((state, i) => {
      const from = plot.valToPos(trend.t_s[i] - trend.every_s, "x", true), to = plot.valToPos(trend.t_s[i], "x", true);
      if (to <= bbox.left) return;
      ctx.fillStyle = css(`--state-${state}`);
      ctx.fillRect(Math.max(from, bbox.left), bbox.top + bbox.height + 2 * scale, to - Math.max(from, bbox.left) + 0.5, 6 * scale);
    });
    ctx.restore();
  }

  /** @param {number} row */
  row(row) {
    const { trend, text } = this;
    if (!trend || !this.at) return "";
    return [this.at(row), word(text.states, trend.state[row]), `${text.health} ${percent(trend.health[row]) ?? text.none}`,
      `${text.exposed} ${percent(trend.exposed[row]) ?? text.none}`, `r ${correlation(trend.correlation[row]) ?? text.none}`].join("   ·   ");
  }
}
