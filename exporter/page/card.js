// One GPU of the overview: its state, how healthy, what is lost, a glance at its last seconds, and what to do.

import { button, element } from "./element.js";
import { chip } from "./finding.js";
import { bytesPerSecond, percent, watts } from "./format.js";
import { lastOf, spark } from "./spark.js";
import { reason, say, word } from "./text.js";

/** @type {Record<string, string>} */
const ICONS = {
  overlapped: "●", partial: "◐", serialized: "◆", compute_only: "■", stalled: "▲", idle: "○", unobservable: "?", no_data: "∅",
};

/** @param {Gpu} gpu @param {Snapshot} snapshot @returns {Analysis | null} */
export function verdictOf(gpu, snapshot) {
  return gpu.analyses.find((a) => a.window_s === snapshot.verdict_window_s) ?? null;
}

/** @param {Gpu} gpu @param {Snapshot} snapshot */
export function stateOf(gpu, snapshot) {
  return gpu.gone ? "no_data" : verdictOf(gpu, snapshot)?.state ?? "no_data";
}

/** @param {Gpu} gpu */
export function nameOf(gpu) {
  return gpu.index === null ? gpu.id : `GPU ${gpu.index}`;
}

/** @param {string} state @param {Words} text @param {Language} language */
export function stateChip(state, text, language) {
  return element("span", { class: "state", title: say(language, "states", state), "data-state": state },
    element("i", { "aria-hidden": "true" }, ICONS[state] ?? ""), word(text.states, state));
}

export class Card {
  /** @param {Gpu} gpu @param {() => void} choose */
  constructor(gpu, choose) {
    this.pick = button({ class: "pick" }, "", choose);
    this.name = element("p", { class: "sub" });
    this.chip = element("span", {});
    this.figures = element("dl", { class: "big" });
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img" }));
    this.key = element("div", { class: "figures" });
    this.why = element("p", { class: "why" });
    this.node = element("article", { class: "card", "data-gpu": gpu.id },
      element("div", { class: "top" }, element("h2", {}, this.pick), this.name, this.chip), this.figures, this.canvas, this.key, this.why);
    // The whole card chooses its GPU; the buttons in it keep their own meaning.
    this.node.addEventListener("click", (event) => {
      if (!(event.target instanceof Element) || !event.target.closest("button")) choose();
    });
    /** @type {[Gpu, Spark | undefined, Words] | null} */
    this.shown = null;
    this.explained = "";
    this.labelled = "";
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  /** @param {Gpu} gpu @param {Snapshot} snapshot @param {boolean} chosen @param {Words} text @param {Language} language */
  update(gpu, snapshot, chosen, text, language) {
    const verdict = verdictOf(gpu, snapshot);
    const state = stateOf(gpu, snapshot);
    this.node.dataset.state = state;
    this.node.classList.toggle("chosen", chosen);
    this.pick.setAttribute("aria-pressed", String(chosen));
    this.pick.textContent = nameOf(gpu);
    this.pick.title = gpu.uuid ?? gpu.id;
    this.name.textContent = (gpu.name ?? "").replace(/^NVIDIA /, "");
    const label = `${state} ${language}`;
    if (label !== this.labelled) this.chip.replaceChildren(stateChip(state, text, language));
    this.labelled = label;
    this.figures.replaceChildren(
      figure(text.health, percent(verdict?.health), text.healthHint, text, meter(verdict?.health)),
      figure(text.exposed, percent(verdict?.exposed), text.exposedHint, text, range(verdict, text)));
    this.explain(gpu, verdict, state, text, language);
    this.shown = [gpu, snapshot.sparks?.gpus[gpu.id], text];
    this.redraw();
  }

  /**
   * What to do: findings with their first advice; else the analysis' own reason; else what the state means. Left alone while
   * it stays the same, so that a click or the keyboard's focus does not fall on an element that was just replaced.
   * @param {Gpu} gpu @param {Analysis | null} verdict @param {string} state @param {Words} text @param {Language} language
   */
  explain(gpu, verdict, state, text, language) {
    const { findings, quarantined, gone } = gpu;
    const key = JSON.stringify([language, state, verdict?.reason, findings.map((f) => [f.finding, f.advice]), quarantined, gone]);
    if (key === this.explained) return;
    this.explained = key;
    /** @type {(Node | string)[]} */
    const said = findings.map((finding) => chip(finding, nameOf(gpu), language, text));
    if (quarantined) said.unshift(element("span", { class: "chip" }, `${text.quarantined}: ${word(text.reasons, quarantined)}`));
    const advice = findings[0]?.advice[0];
    if (advice) said.push(element("span", { class: "do", title: say(language, "advice", advice, "cost") }, `→ ${say(language, "advice", advice, "action")}`));
    if (gone) said.push(text.gone);
    else if (verdict?.reason && state !== "idle") said.push(element("span", { class: "do" }, reason(language, verdict.reason)));
    else if (!said.length) said.push(element("span", { class: "do" }, say(language, "states", state)));
    this.why.replaceChildren(...said);
  }

  redraw() {
    if (!this.shown) return;
    const [gpu, drawn, text] = this.shown;
    const power = watts(lastOf(drawn?.watts)) ?? text.none;
    const rate = bytesPerSecond(lastOf(drawn?.bytes_per_s)) ?? text.none;
    const path = drawn?.path ? word(text.paths, drawn.path) : text.traffic;
    this.key.replaceChildren(
      element("span", { class: "key power" }, text.power, " ", element("b", {}, power)),
      element("span", { class: "key traffic" }, path, " ", element("b", {}, rate)));
    this.canvas.setAttribute("aria-label", `${text.power} ${power}, ${path} ${rate}`);
    spark(this.canvas, drawn, gpu.power_limit_watts);
  }
}

/** @param {string} label @param {string | null} value @param {string} hint @param {Words} text @param {Node | null} beside */
export function figure(label, value, hint, text, beside = null) {
  return element("div", { title: hint }, element("dt", {}, label),
    element("dd", { class: value === null ? "none" : null }, value ?? text.none, beside));
}

/** @param {Maybe} share */
function meter(share) {
  return share === null || share === undefined ? null : element("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" });
}

/** @param {Analysis | null} verdict @param {Words} text */
export function range(verdict, text) {
  const low = percent(verdict?.exposed_low), high = percent(verdict?.exposed_high);
  return low === null || high === null ? null : element("small", {}, text.between(low.replace(" %", ""), high));
}
