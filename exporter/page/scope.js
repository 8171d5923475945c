// The scope: power and traffic of the chosen GPU on one axis of time at full rate, the phases in colour under it. Follows the
// present, or stands still (paused, zoomed) while more comes in.

import { axis, bytesAxis, chart, fromZero, powerSeries, trafficSeries, wattsAxis } from "./chart.js";
import { bytesPerSecond, seconds, watts } from "./format.js";
import { css, phaseColours, PHASES } from "./phases.js";
import { PATHS, Wave, lowerBound } from "./wave.js";
import { TEXT, word } from "./text.js";

export const SPANS = [10, 30, 60, 300];
const BAND_PX = 12;
const NARROWEST_S = 0.25;
const STEPS_S = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60];

export class ScopePlot {
  /**
   * @param {HTMLElement} box @param {HTMLElement} readout @param {() => void} changed called when it pauses, goes on, or zooms
   */
  constructor(box, readout, changed) {
    this.box = box;
    this.readout = readout;
    this.changed = changed;
    /** @type {Wave | null} */
    this.wave = null;
    /** @type {Wave | null} */
    this.frozen = null;
    /** @type {[number, number] | null} */
    this.view = null; // what is zoomed to; null: the last `span` seconds
    this.span = 10;
    this.limit = 0;
    /** @type {uPlot | null} */
    this.plot = null;
    this.drawn = { paths: "", from: 0, to: 0, at: 0, text: TEXT.en };
    this.text = TEXT.en;
    this.due = false;
  }

  get paused() {
    return this.frozen !== null;
  }

  /** @param {Wave | null} wave @param {number | null} limit */
  show(wave, limit) {
    this.limit = limit ?? 0;
    if (wave === this.wave) return;
    this.wave = wave;
    this.follow();
  }

  /** The same GPU with more of what was read. @param {Wave} wave */
  replace(wave) {
    this.wave = wave;
    if (!this.paused) this.draw();
  }

  pause() {
    if (this.frozen) this.follow();
    else if (this.wave) {
      this.frozen = this.wave.copy();
      this.changed();
    }
  }

  /** Back to the present. */
  follow() {
    this.frozen = null;
    this.view = null;
    this.changed();
    this.draw();
  }

  /** @param {number} span */
  setSpan(span) {
    this.span = span;
    this.view = null;
    this.changed();
    this.draw();
  }

  /** @param {number} from @param {number} to */
  zoom(from, to) {
    if (!this.wave || !(to - from >= NARROWEST_S)) return;
    this.frozen ??= this.wave.copy();
    this.view = [from, to];
    this.changed();
    this.draw();
  }

  /** In (factor below 1) or out around a moment, by default the middle. @param {number} factor @param {number} [around] */
  scale(factor, around) {
    const [from, to] = this.range();
    const middle = around ?? (from + to) / 2;
    this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  /** @param {number} share of the view, to the right */
  shift(share) {
    const [from, to] = this.range();
    this.zoom(from + (to - from) * share, to + (to - from) * share);
  }

  /** @returns {[number, number]} */
  range() {
    if (this.view) return this.view;
    const end = (this.frozen ?? this.wave)?.end ?? 0;
    return [end - this.span, end];
  }

  /** Draws soon, once, however often it is asked; a long stretch less often than a short one. */
  redraw() {
    if (this.due || this.paused || !this.wave) return;
    const wait = this.span > 60 ? 500 : this.span > 30 ? 200 : 0;
    if (performance.now() - this.drawn.at < wait) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.draw(); });
  }

  draw() {
    const wave = this.frozen ?? this.wave;
    if (!wave || !this.box.clientWidth) return;
    const [from, to] = this.range();
    const { t, power, paths } = wave.between(from - 0.5, to);
    const names = PATHS.filter((path) => paths[path]);
    const data = /** @type {uPlot.AlignedData} */ ([t, power, ...names.map((path) => paths[path])]);
    if (!this.plot || this.drawn.paths !== names.join() || this.drawn.text !== this.text) {
      this.plot?.destroy();
      this.plot = this.make(names);
    }
    this.drawn = { paths: names.join(), from, to, at: performance.now(), text: this.text };
    this.plot.batch((/** @type {uPlot} */ plot) => {
      plot.setData(data, false);
      plot.setScale("x", { min: from, max: to });
    });
    this.box.dataset.points = String(t.length);
    this.box.dataset.span = (to - from).toFixed(2);
    this.tell();
  }

  /** @param {Path[]} names */
  make(names) {
    /** @type {Omit<uPlot.Options, "width" | "height">} */
    const options = {
      padding: [8, 0, 0, 0],
      scales: { x: { time: false, auto: false }, W: fromZero(() => this.limit * 1.03), B: fromZero(() => 1e6) },
      axes: [
        axis({ size: 37, gap: BAND_PX + 7, splits: (plot) => this.ticks(plot.width), values: (_, ticks) => ticks.map((t) => this.ago(t)) }), wattsAxis(), bytesAxis(),
      ],
      series: [{}, powerSeries(this.text.power, false), ...names.map((path) => trafficSeries(path, word(this.text.paths, path)))],
      cursor: {
        y: false, drag: { x: true, y: false, setScale: false, dist: 5 }, points: { show: false },
        bind: { dblclick: () => () => { this.follow(); return null; } },
      },
      hooks: {
        drawClear: [(plot) => this.phases(plot)],
        draw: [(plot) => this.limitLine(plot)],
        setCursor: [() => this.tell()],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 3) return;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        }],
      },
    };
    const plot = chart(this.box, options, [[], [], ...names.map(() => [])]);
    plot.over.addEventListener("wheel", (event) => {
      if (!event.deltaY) return;
      event.preventDefault();
      this.scale(event.deltaY > 0 ? 1.25 : 0.8, plot.posToVal(event.offsetX, "x"));
    }, { passive: false });
    plot.over.addEventListener("mouseleave", () => this.tell());
    return plot;
  }

  /** Moments at round distances from now. @param {number} width */
  ticks(width) {
    const [from, to] = this.range(), end = (this.frozen ?? this.wave)?.end ?? 0;
    const most = Math.max(2, Math.floor(width / 90));
    const step = STEPS_S.find((s) => (to - from) / s <= most) ?? 60;
    /** @type {number[]} */
    const found = [];
    for (let k = Math.ceil((end - to) / step); end - k * step >= from; k += 1) found.unshift(end - k * step);
    return found;
  }

  /** @param {number} t */
  ago(t) {
    const end = (this.frozen ?? this.wave)?.end ?? 0;
    const back = t - end;
    if (Math.abs(back) < 0.005) return this.paused ? "0" : this.text.now;
    const [from, to] = this.range();
    return this.text.secondsAgo(Math.abs(back).toFixed(to - from < 5 ? 2 : to - from < 12 ? 1 : 0).replace(/\.0+$/, ""));
  }

  /** The phases: a band right under the plot, and a tint behind it. @param {uPlot} plot */
  phases(plot) {
    const wave = this.frozen ?? this.wave;
    if (!wave || !wave.phases.t.length) return;
    const { ctx, bbox } = plot, scale = window.devicePixelRatio || 1;
    const colours = phaseColours();
    const [from, to] = this.range();
    const { t, letters } = wave.phases;
    const x = (/** @type {number} */ at) => bbox.left + (bbox.width * (at - from)) / (to - from);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + (BAND_PX + 4) * scale);
    ctx.clip();
    let i = Math.max(0, lowerBound(t, from) - 1);
    while (i < t.length && t[i] < to) {
      // Readings of one phase in a row are one piece; each reaches half way to its neighbours.
      let j = i;
      while (j + 1 < t.length && letters[j + 1] === letters[i] && t[j + 1] - t[j] < 1) j += 1;
      const begin = i && t[i] - t[i - 1] < 1 ? (t[i - 1] + t[i]) / 2 : t[i] - 0.05;
      const end = j + 1 < t.length && t[j + 1] - t[j] < 1 ? (t[j] + t[j + 1]) / 2 : t[j] + 0.05;
      ctx.fillStyle = colours[letters[i]];
      ctx.globalAlpha = 1;
      ctx.fillRect(x(begin), bbox.top + bbox.height + 3 * scale, x(end) - x(begin) + 0.5, BAND_PX * scale);
      if (letters[i] !== "u") {
        ctx.globalAlpha = 0.07;
        ctx.fillRect(x(begin), bbox.top, x(end) - x(begin), bbox.height);
      }
      i = j + 1;
    }
    ctx.restore();
  }

  /** @param {uPlot} plot */
  limitLine(plot) {
    if (!this.limit) return;
    const { ctx, bbox } = plot, y = Math.round(plot.valToPos(this.limit, "W", true));
    ctx.save();
    ctx.strokeStyle = css("--power");
    ctx.globalAlpha = 0.5;
    ctx.setLineDash([3, 5]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  /** What stands under the crosshair, or how to get one. */
  tell() {
    const wave = this.frozen ?? this.wave, left = this.plot?.cursor.left ?? -1;
    if (!this.plot || !wave || left < 0) {
      this.readout.textContent = this.text.scopeHint;
      this.readout.classList.add("sub");
      return;
    }
    const at = this.plot.posToVal(left, "x");
    const parts = [this.ago(at), `${this.text.power} ${watts(near(wave.power.t, wave.power.watts, at + wave.lag, 0.5)) ?? this.text.none}`];
    for (const path of PATHS) {
      const rates = wave.paths[path];
      if (rates) parts.push(`${word(this.text.paths, path)} ${bytesPerSecond(rates[Math.floor(at / wave.step) - wave.first]) ?? this.text.none}`);
    }
    const letter = wave.phaseAt(at);
    if (letter) parts.push(this.text.phases[PHASES[letter]]);
    this.readout.textContent = parts.join("   ·   ");
    this.readout.classList.remove("sub");
  }

  /** How much time is shown. */
  shownSpan() {
    const [from, to] = this.range();
    return seconds(to - from);
  }
}

/** @param {number[]} times @param {number[]} values @param {number} at @param {number} reach */
function near(times, values, at, reach) {
  const after = lowerBound(times, at);
  const i = after && (after === times.length || at - times[after - 1] < times[after] - at) ? after - 1 : after;
  return Math.abs((times[i] ?? Infinity) - at) <= reach ? values[i] : null;
}
