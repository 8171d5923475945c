// Wires the page: feed in, cards out; language, colours, notices. No state beyond the newest snapshot.

import { Card } from "./card.js";
import { element } from "./element.js";
import { Feed } from "./feed.js";
import { chip } from "./finding.js";
import { TEXT, keepLanguage, loadWords, storedLanguage, word } from "./text.js";

const THEMES = ["auto", "dark", "light"];
const SPANS = [30, 60, 10];
const THEME_KEY = "overlap-exporter.theme";
const at = (id) => document.getElementById(id);
const cards = new Map();
let language = storedLanguage();
let snapshot = null;
let pulse = { live: "connecting", seconds: 0 };

const feed = new Feed(
  (news) => { snapshot = news; render(); },
  (gpu, waveform) => cards.get(gpu)?.show(waveform),
  (now) => { pulse = now; showPulse(); showNotices(); },
);
const text = () => TEXT[language];

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem(THEME_KEY, theme);
  at("theme").textContent = text()[{ auto: "themeAuto", dark: "themeDark", light: "themeLight" }[theme]];
  at("theme").title = text().themeTitle;
  for (const card of cards.values()) card.redraw();
}

function showLanguage() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  at("language").textContent = text().language;
  at("span").textContent = text().span(feed.seconds);
  at("span").title = text().spanTitle;
  showTheme(document.documentElement.dataset.theme);
  at("legend").replaceChildren(
    element("span", { class: "key power" }, text().power), element("span", { class: "key traffic" }, text().traffic));
  render();
}

function render() {
  showPulse();
  showNotices();
  if (!snapshot) return;
  const t = text();
  at("host").textContent = snapshot.host || "overlap-exporter";
  document.title = `${snapshot.host} · overlap-exporter`;
  const present = snapshot.gpus.filter((gpu) => !gpu.gone);
  at("facts").textContent = `${t.facts(present.length, snapshot.ports.length, snapshot.nics.length)} · ${t.transport}: ${word(t.transports, snapshot.transport)} · ${t.window(snapshot.verdict_window_s)}`;
  const mode = { demo: t.demo, replay: t.replay }[snapshot.mode];
  at("mode").hidden = mode === undefined;
  at("mode").textContent = mode ?? "";
  at("version").textContent = snapshot.version;
  showSummary(present, t);
  showCards(t);
}

function showSummary(present, t) {
  const counts = new Map();
  for (const gpu of present) {
    const state = gpu.analyses.find((a) => a.window_s === snapshot.verdict_window_s)?.state ?? "no_data";
    counts.set(state, (counts.get(state) ?? 0) + 1);
  }
  at("summary").replaceChildren(...Object.keys(t.states).filter((state) => counts.has(state)).map((state) =>
    element("span", { class: "count", "data-state": state }, element("b", {}, String(counts.get(state))), ` ${t.states[state]}`)));
}

function showCards(t) {
  const wanted = new Set(snapshot.gpus.map((gpu) => gpu.id));
  for (const [id, card] of cards) if (!wanted.has(id)) { card.node.remove(); cards.delete(id); }
  for (const gpu of snapshot.gpus) {
    if (!cards.has(gpu.id)) cards.set(gpu.id, new Card(gpu));
    const card = cards.get(gpu.id);
    if (!card.node.isConnected) at("gpus").append(card.node);
    card.update(gpu, snapshot, t, language);
  }
  const empty = at("empty");
  if (!snapshot.gpus.length && !empty) {
    at("gpus").append(element("div", { id: "empty" }, element("h2", {}, t.noGpus), element("p", {}, t.noGpusHint)));
  } else if (snapshot.gpus.length) empty?.remove();
  else empty.replaceChildren(element("h2", {}, t.noGpus), element("p", {}, t.noGpusHint));
}

function notices() {
  const t = text(), found = [];
  if (pulse.live === "stale") found.push(["bad", t.staleNotice(pulse.seconds)]);
  if (pulse.live === "lost") found.push(["bad", t.lostNotice]);
  if (!snapshot) return found;
  if (snapshot.mode === "demo") found.push(["demo", t.demoNotice]);
  if (snapshot.mode === "replay") found.push(["demo", t.replayNotice]);
  const down = new Map();
  for (const source of snapshot.sources) {
    if (source.up) continue;
    const what = `${word(t.kinds, source.kind)}: ${word(t.reasons, source.reason ?? "unknown")}`;
    down.set(what, [...(down.get(what) ?? []), source.source.split("/").slice(1).join("/")].filter(Boolean));
  }
  for (const [what, devices] of down) found.push(["warn", `${t.sourcesDown} – ${what}${devices.length ? ` (${devices.join(", ")})` : ""}`]);
  const { pci, nvml } = snapshot.counted_gpus;
  if (pci !== null && nvml !== null && pci !== nvml) found.push(["warn", t.countMismatch(pci, nvml)]);
  for (const finding of snapshot.node_findings) found.push(["warn", finding]);
  if (!snapshot.config_reload_ok) found.push(["warn", t.configBad]);
  return found;
}

let shownNotices = "";
function showNotices() {
  const found = notices(), key = JSON.stringify([language, found]);
  if (key === shownNotices) return;
  shownNotices = key;
  at("notices").replaceChildren(...found.map(([level, line]) => element("p", { class: "notice", "data-level": level },
    typeof line === "string" ? line : chip(line, text().node, language, text()))));
}

function showPulse() {
  const t = text();
  at("pulse").dataset.live = pulse.live;
  document.body.classList.toggle("old", pulse.live === "stale" || pulse.live === "lost");
  at("pulse-text").textContent = { live: t.live, stale: t.stale(pulse.seconds), lost: t.lost }[pulse.live] ?? t.waiting;
}

at("language").addEventListener("click", () => {
  language = language === "en" ? "zh" : "en";
  keepLanguage(language);
  showLanguage();
});
at("span").addEventListener("click", () => {
  feed.seconds = SPANS[(SPANS.indexOf(feed.seconds) + 1) % SPANS.length];
  showLanguage();
  for (const id of cards.keys()) feed.fetchWaveform(id);
});
at("theme").addEventListener("click", () => {
  showTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cards.forEach((card) => card.redraw()));

const kept = localStorage.getItem(THEME_KEY);
document.documentElement.dataset.theme = THEMES.includes(kept) ? kept : "auto";
// Without the shared words the page still shows every number.
await loadWords().catch(() => {});
showLanguage();
feed.start();
