// The chosen GPU: scope, scatter, folded step, trend and panels, from what the feed brings. One object, one GPU at a time.

import { nameOf, stateOf } from "./card.js";
import { FoldPlot, TrendPlot } from "./curves.js";
import { at, button, element } from "./element.js";
import { ask } from "./feed.js";
import { percent, seconds } from "./format.js";
import { PHASES, shares } from "./phases.js";
import { findingsPanel, pairingPanel, sourcesPanel, verdictPanel } from "./panels.js";
import { scatter } from "./scatter.js";
import { ScopePlot, SPANS } from "./scope.js";
import { TEXT } from "./text.js";
import { Wave } from "./wave.js";

const TREND_EVERY_MS = 10_000;
const AGAIN_MS = 2000;
const OLD_S = 2.5;

export class Detail {
  constructor() {
    this.scope = new ScopePlot(at("scope"), at("readout"), () => this.controls());
    this.fold = new FoldPlot(at("fold"), at("fold-readout"));
    this.trendPlot = new TrendPlot(at("trend"), at("trend-readout"));
    this.canvas = /** @type {HTMLCanvasElement} */ (at("scatter"));
    /** @type {string | null} */
    this.gpuId = null;
    /** @type {Wave | null} */
    this.wave = null;
    /** @type {Picture | null} */
    this.picture = null;
    /** @type {Trend | null} */
    this.trend = null;
    this.trendAt = -Infinity;
    this.askedAt = -Infinity;
    this.missed = false; // a stretch lies between what is here and what came
    /** @type {Snapshot | null} */
    this.snapshot = null;
    this.allSources = false;
    this.panelKeys = new Map();
    this.text = TEXT.en;
    this.labelled = false;
    /** @type {Language} */
    this.language = "en";
    this.spans = SPANS.map((span) => button({ "data-span": span }, "", () => this.scope.setSpan(span)));
    at("spans").replaceChildren(...this.spans);
    at("pause").addEventListener("click", () => this.scope.pause());
    at("reset").addEventListener("click", () => this.scope.follow());
    new ResizeObserver(() => this.drawScatter()).observe(this.canvas);
  }

  /** @returns {Gpu | undefined} */
  get gpu() {
    return this.snapshot?.gpus.find((gpu) => gpu.id === this.gpuId);
  }

  /** @param {string | null} gpuId */
  choose(gpuId) {
    if (gpuId === this.gpuId) return;
    this.gpuId = gpuId;
    this.wave = gpuId === null ? null : new Wave(gpuId);
    this.missed = false;
    this.picture = this.trend = null;
    this.trendAt = this.askedAt = -Infinity;
    this.scope.show(this.wave, this.gpu?.power_limit_watts ?? null);
    this.fill();
    this.refresh();
  }

  /** The whole stretch that the scope can show, in place of what was missed. */
  async fill() {
    if (this.gpuId === null || performance.now() - this.askedAt < AGAIN_MS) return;
    this.askedAt = performance.now();
    const asked = this.gpuId;
    /** @type {Scope | null} */
    const found = await ask("scope", { gpu: asked, seconds: 300 });
    if (!found || asked !== this.gpuId) return;
    const wave = new Wave(asked);
    wave.add(found);
    wave.judge(found.picture);
    if (this.wave) wave.follow(this.wave);
    this.missed = false;
    const recent = found.picture.readings.t_s.findIndex((t) => t > found.at_s - (this.snapshot?.verdict_window_s ?? 60));
    const { t_s, watts, bytes_per_s, phases } = found.picture.readings;
    const from = Math.max(0, recent);
    this.picture = { ...found.picture, readings: { t_s: t_s.slice(from), watts: watts.slice(from), bytes_per_s: bytes_per_s.slice(from), phases: phases.slice(from) } };
    this.wave = wave;
    this.scope.replace(wave);
    this.drawPicture();
  }

  /** @param {Live} live */
  live(live) {
    if (live.gpu !== this.gpuId || !this.wave) return;
    if (!this.wave.add(live)) this.missed = true;
    if (this.missed) this.fill();
    this.scope.redraw();
    this.showAge();
  }

  /** @param {Picture} picture */
  judged(picture) {
    if (picture.gpu !== this.gpuId) return;
    this.picture = picture;
    this.wave?.judge(picture);
    this.drawPicture();
  }

  drawPicture() {
    this.drawScatter();
    const gpu = this.gpu;
    if (!gpu || !this.snapshot) return;
    this.fold.show(this.picture, stateOf(gpu, this.snapshot), this.text);
    const letters = this.picture?.readings.phases ?? "";
    at("phase-legend").replaceChildren(...shares(letters).map(([letter, share]) =>
      element("span", { class: "phase", "data-phase": PHASES[letter] }, `${this.text.phases[PHASES[letter]]} `, element("b", {}, percent(share) ?? ""))));
  }

  drawScatter() {
    const counts = scatter(this.canvas, this.picture, this.text);
    const n = counts ? Object.values(counts).reduce((a, b) => a + b, 0) : 0;
    const said = counts ? ["overlapped", "compute", "exposed", "neither"].map((q) => `${this.text.quadrants[q]} ${percent(counts[q] / n)}`).join(", ") : this.text.scatter;
    this.canvas.setAttribute("aria-label", said);
  }

  /** @param {Snapshot} snapshot @param {Words} text @param {Language} language */
  update(snapshot, text, language) {
    this.snapshot = snapshot;
    this.text = this.scope.text = text;
    this.language = language;
    this.refresh();
  }

  refresh() {
    const { snapshot, gpu, text, language } = this;
    at("detail").hidden = !gpu;
    if (!snapshot || !gpu) return;
    at("chosen").textContent = nameOf(gpu);
    this.scope.limit = gpu.power_limit_watts ?? 0;
    this.put("verdict", [gpu.analyses, gpu.gone, gpu.quarantined], () => verdictPanel(gpu, snapshot, text, language));
    this.put("findings", [gpu.findings, snapshot.node_findings], () => findingsPanel(gpu, snapshot, text, language));
    this.put("pairing", [gpu.links, snapshot.ports, snapshot.nics], () => pairingPanel(gpu, snapshot, text));
    this.put("sources", [snapshot.sources, this.allSources], () => sourcesPanel(gpu, snapshot, this.allSources, () => {
      this.allSources = !this.allSources;
      this.refresh();
      at("all-sources").focus();
    }, text));
    this.controls();
    this.showAge();
    if (this.missed) this.fill();
    if (performance.now() - this.trendAt > TREND_EVERY_MS) this.askTrend();
  }

  // Left alone while it stays the same: an open cause stays open, a focus stays where it is.
  /** @param {string} id @param {unknown} of @param {() => Node[]} make */
  put(id, of, make) {
    const key = JSON.stringify([this.language, this.gpuId, of]);
    if (this.panelKeys.get(id) === key) return;
    this.panelKeys.set(id, key);
    const box = at(id);
    const open = new Set([...box.querySelectorAll("details")].filter((d) => d.open).map((d) => d.dataset.finding));
    const known = new Set([...box.querySelectorAll("details")].map((d) => d.dataset.finding));
    const focused = document.activeElement instanceof HTMLElement && box.contains(document.activeElement) ? document.activeElement.closest("details")?.dataset.finding : undefined;
    box.replaceChildren(...make());
    for (const details of box.querySelectorAll("details")) {
      if (known.has(details.dataset.finding)) details.open = open.has(details.dataset.finding);
      if (focused && details.dataset.finding === focused) details.querySelector("summary")?.focus();
    }
  }

  async askTrend() {
    this.trendAt = performance.now();
    const asked = this.gpuId;
    if (asked === null) return;
    const found = await ask("trend", { gpu: asked });
    if (found && asked === this.gpuId) this.trend = found;
    this.drawTrend();
  }

  drawTrend() {
    if (this.snapshot) this.trendPlot.show(this.trend, this.snapshot.started_unix_s, this.text, this.language);
  }

  /** How old the newest reading is, where it is older than it should be. */
  showAge() {
    const gpu = this.gpu;
    if (!this.snapshot || !gpu) return;
    const power = this.snapshot.t_s - (this.wave?.power.t.at(-1) ?? this.snapshot.t_s);
    const old = at("scope-old");
    const line = gpu.gone ? this.text.gone : gpu.quarantined ? this.text.noReadings : power > OLD_S ? this.text.readingsOld(seconds(power)) : "";
    old.hidden = !line;
    if (old.textContent !== line) old.textContent = line;
    at("scope-box").classList.toggle("stale", Boolean(line));
  }

  controls() {
    const { text, scope } = this;
    this.spans.forEach((made, i) => {
      made.textContent = text.spanName(SPANS[i]);
      made.setAttribute("aria-pressed", String(!scope.view && scope.span === SPANS[i]));
    });
    at("pause").textContent = scope.paused ? text.resume : text.pause;
    at("pause").setAttribute("aria-pressed", String(scope.paused));
    at("reset").hidden = !scope.view;
    at("reset").textContent = text.resetZoom;
    at("scope-box").classList.toggle("paused", scope.paused);
    at("zoomed").textContent = scope.view ? text.zoomed(scope.shownSpan()) : scope.paused ? text.paused : "";
  }

  /** Texts that do not change with the data. */
  label() {
    this.labelled = true;
    const { text } = this;
    /** @type {[string, string][]} */
    const titles = [["t-scope", text.scope], ["t-verdict", text.verdict], ["t-findings", text.findings], ["t-scatter", text.scatter], ["t-fold", text.foldTitle], ["t-trend", text.trend], ["t-pairing", text.pairing], ["t-sources", text.sources]];
    for (const [id, title] of titles) at(id).textContent = title;
    at("download").textContent = text.download;
    at("download").title = text.downloadHint;
    at("s-scatter").textContent = text.scatterHint;
    const trendKeys = [["--good", text.health], ["--poor", text.exposed], ["--calm", text.correlation]];
    at("trend-keys").replaceChildren(...trendKeys.map(([tone, name]) => element("span", { class: `line ${tone.slice(2)}` }, name)));
    this.panelKeys.clear();
    this.controls();
    this.scope.draw();
    this.drawPicture();
    this.drawTrend();
    this.refresh();
  }

  /** The colours changed. */
  recolour() {
    this.scope.draw();
    this.fold.redraw();
    this.trendPlot.redraw();
    this.drawScatter();
  }

}
