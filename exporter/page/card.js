// One GPU as a card: what was judged, how sure it is, and the waveform behind it. Text goes in as text, never as HTML.

import { element } from "./element.js";
import { chip } from "./finding.js";
import { bytesPerSecond, percent, seconds, watts } from "./format.js";
import { draw, lastSecond, mainPath } from "./plot.js";
import { reason, say, word } from "./text.js";

const ICONS = {
  overlapped: "●", partial: "◐", serialized: "◆", compute_only: "■", stalled: "▲", idle: "○", unobservable: "?", no_data: "∅",
};

export class Card {
  constructor(gpu) {
    this.waveform = null;
    this.body = element("div", { class: "body" });
    this.canvas = element("canvas", { role: "img" });
    this.figures = element("div", { class: "figures" });
    this.reasons = element("p", { class: "why" });
    this.node = element("article", { class: "card", "data-gpu": gpu.id }, this.body, this.reasons, this.figures, this.canvas);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  update(gpu, snapshot, text, language) {
    this.gpu = gpu;
    this.text = text;
    const verdict = gpu.analyses.find((a) => a.window_s === snapshot.verdict_window_s) ?? null;
    const state = gpu.gone || !verdict ? "no_data" : verdict.state;
    this.node.dataset.state = state;
    const title = gpu.index === null ? gpu.id : `GPU ${gpu.index}`;
    this.body.replaceChildren(
      element("div", { class: "top" },
        element("div", {}, element("h2", { title: gpu.uuid ?? gpu.id }, title), element("p", { class: "sub" }, shortName(gpu.name))),
        element("span", { class: "state", title: say(language, "states", state) },
          element("i", { "aria-hidden": "true" }, ICONS[state] ?? ""), word(text.states, state))),
      element("dl", { class: "big" },
        figure(text.health, percent(verdict?.health), text.healthHint, text, verdict?.health),
        figure(text.exposed, percent(verdict?.exposed), text.exposedHint, text, null, range(verdict, text))),
      element("dl", { class: "small" },
        figure(text.observability, percent(verdict?.observability), text.observabilityHint, text),
        figure(text.comm, percent(verdict?.communication), text.commHint, text),
        figure(text.stall, percent(verdict?.stall), text.stallHint, text),
        figure(text.wait, percent(verdict?.wait), text.waitHint, text),
        figure(text.step, seconds(verdict?.step_period_s), text.stepHint, text)),
    );
    this.explain(verdict, state, title, text, language);
    this.redraw();
  }

  // Findings first; else the analysis' own reason; else what the state means. Left alone while it stays the same, so that
  // a click or the keyboard's focus does not fall on an element that was just replaced.
  explain(verdict, state, title, text, language) {
    const { findings, quarantined, gone } = this.gpu;
    const key = JSON.stringify([language, state, verdict?.reason, findings, quarantined, gone]);
    if (key === this.explained) return;
    this.explained = key;
    const said = findings.map((finding) => chip(finding, title, language, text));
    if (quarantined) said.unshift(element("span", { class: "chip" }, `${text.quarantined}: ${word(text.reasons, quarantined)}`));
    if (gone) said.push(text.gone);
    else if (verdict?.reason && state !== "idle") said.push(reason(text, verdict.reason));
    else if (!said.length) said.push(say(language, "states", state));
    this.reasons.replaceChildren(...said);
  }

  show(waveform) {
    this.waveform = waveform;
    this.redraw();
  }

  redraw() {
    if (!this.gpu) return;
    const path = mainPath(this.waveform);
    const { power: watted, traffic } = this.waveform ?? {};
    const power = watts(lastSecond(watted?.t_s, watted?.watts));
    const rate = path ? bytesPerSecond(lastSecond(traffic.t_s, traffic[path])) : null;
    const text = this.text;
    this.figures.replaceChildren(
      element("span", { class: "key power" }, text.power, " ", element("b", {}, power ?? text.none)),
      element("span", { class: "key traffic" }, path ? word(text, path) : text.traffic, " ", element("b", {}, rate ?? text.none)));
    this.canvas.setAttribute("aria-label", `${text.power} ${power ?? text.none}, ${text.traffic} ${rate ?? text.none}`);
    draw(this.canvas, this.waveform, this.gpu.power_limit_watts, text);
  }
}

function figure(label, value, hint, text, share = null, note = null) {
  const bar = share === null || share === undefined ? null : element("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" });
  return element("div", { title: hint }, element("dt", {}, label), element("dd", { class: value === null ? "none" : null }, value ?? text.none, note, bar));
}

function range(verdict, text) {
  const low = percent(verdict?.exposed_low), high = percent(verdict?.exposed_high);
  return low === null || high === null ? null : element("small", {}, text.between(low.replace(" %", ""), high));
}


function shortName(name) {
  return (name ?? "").replace(/^NVIDIA /, "");
}
