// Wires the page: feed in, cards and the chosen GPU out; language, colours, notices, keys. No state beyond the newest snapshot.

import { Card, stateOf } from "./card.js";
import { Detail } from "./detail.js";
import { at, element } from "./element.js";
import { Feed } from "./feed.js";
import { chip } from "./finding.js";
import { SPANS } from "./scope.js";
import { TEXT, keepLanguage, loadWords, storedLanguage, word } from "./text.js";

const THEMES = ["auto", "dark", "light"];
const THEME_KEY = "overlap-exporter.theme";
/** @type {Map<string, Card>} */
const cards = new Map();
/** @type {Language} */
let language = storedLanguage();
/** @type {Snapshot | null} */
let snapshot = null;
/** @type {Pulse} */
let pulse = { live: "connecting", seconds: 0 };
/** @type {string | null} what the address asks for, or what was chosen: an index, an id */
let wanted = new URLSearchParams(location.hash.slice(1)).get("gpu");

const detail = new Detail();
const feed = new Feed({
  snapshot: (news) => { snapshot = news; render(); },
  live: (news) => detail.live(news),
  picture: (news) => detail.judged(news),
  pulse: (now) => { pulse = now; showPulse(); showNotices(); },
});
/** @returns {Words} */
const text = () => TEXT[language];

/** @returns {Gpu[]} */
const gpus = () => snapshot?.gpus ?? [];

/** The GPU that is looked at: the one asked for, else the one that loses most, else the first. */
function chosen() {
  const found = gpus().find((gpu) => [gpu.id, gpu.uuid, String(gpu.index)].includes(wanted ?? ""));
  if (found) return found;
  const lost = (/** @type {Gpu} */ gpu) => gpu.analyses.find((a) => a.window_s === snapshot?.verdict_window_s)?.exposed ?? -1;
  return [...gpus()].filter((gpu) => !gpu.gone).sort((a, b) => lost(b) - lost(a))[0] ?? gpus()[0];
}

/** @param {Gpu} gpu */
function choose(gpu) {
  wanted = gpu.index === null ? gpu.id : String(gpu.index);
  history.replaceState(null, "", `#${new URLSearchParams({ gpu: wanted })}`);
  render();
}

/** @param {number} by */
function step(by) {
  const all = gpus(), now = all.findIndex((gpu) => gpu.id === detail.gpuId);
  if (all.length) choose(all[(now + by + all.length) % all.length]);
}

/** @param {string} theme */
function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem(THEME_KEY, theme);
  at("theme").textContent = theme === "dark" ? text().themeDark : theme === "light" ? text().themeLight : text().themeAuto;
  at("theme").title = text().themeTitle;
  recolour();
}

function recolour() {
  for (const card of cards.values()) card.redraw();
  detail.recolour();
}

function showLanguage() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  at("language").textContent = text().language;
  showTheme(document.documentElement.dataset.theme ?? "auto");
  at("legend").replaceChildren(
    element("span", { class: "key power" }, text().power), element("span", { class: "key traffic" }, text().traffic));
  at("keys").textContent = text().keys;
  render();
  if (detail.labelled) detail.label();
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
  /** @type {Record<string, string>} */
  const modes = { demo: t.demo, replay: t.replay };
  const mode = modes[snapshot.mode];
  at("mode").hidden = mode === undefined;
  at("mode").textContent = mode ?? "";
  at("version").textContent = snapshot.version;
  const gpu = chosen();
  wanted ??= gpu ? gpu.id : null;
  const first = !detail.labelled;
  detail.update(snapshot, t, language);
  detail.choose(gpu?.id ?? null);
  if (first) detail.label();
  feed.choose(gpu && !gpu.gone ? gpu.id : null);
  showSummary(present, snapshot, t);
  showCards(snapshot, gpu, t);
}

/** @param {Gpu[]} present @param {Snapshot} of @param {Words} t */
function showSummary(present, of, t) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const gpu of present) counts.set(stateOf(gpu, of), (counts.get(stateOf(gpu, of)) ?? 0) + 1);
  at("summary").replaceChildren(...Object.keys(t.states).filter((state) => counts.has(state)).map((state) =>
    element("span", { class: "count", "data-state": state }, element("b", {}, String(counts.get(state))), ` ${t.states[state]}`)));
}

/** @param {Snapshot} of @param {Gpu | undefined} picked @param {Words} t */
function showCards(of, picked, t) {
  const here = new Set(of.gpus.map((gpu) => gpu.id));
  for (const [id, card] of cards) if (!here.has(id)) { card.node.remove(); cards.delete(id); }
  for (const gpu of of.gpus) {
    let card = cards.get(gpu.id);
    if (!card) {
      card = new Card(gpu, () => { const now = gpus().find((g) => g.id === gpu.id); if (now) choose(now); });
      cards.set(gpu.id, card);
    }
    if (!card.node.isConnected) at("gpus").append(card.node);
    card.update(gpu, of, gpu.id === picked?.id, t, language);
  }
  const empty = document.getElementById("empty");
  if (of.gpus.length) empty?.remove();
  else if (empty) empty.replaceChildren(element("h2", {}, t.noGpus), element("p", {}, t.noGpusHint));
  else at("gpus").append(element("div", { id: "empty" }, element("h2", {}, t.noGpus), element("p", {}, t.noGpusHint)));
}

/** @returns {[string, string | Finding][]} */
function notices() {
  const t = text();
  /** @type {[string, string | Finding][]} */
  const found = [];
  if (pulse.live === "stale") found.push(["bad", t.staleNotice(pulse.seconds)]);
  if (pulse.live === "lost") found.push(["bad", t.lostNotice]);
  if (!snapshot) return found;
  if (snapshot.mode === "demo") found.push(["demo", t.demoNotice]);
  if (snapshot.mode === "replay") found.push(["demo", t.replayNotice]);
  /** @type {Map<string, string[]>} */
  const down = new Map();
  for (const source of snapshot.sources) {
    if (source.up) continue;
    const what = `${word(t.kinds, source.kind)}: ${word(t.reasons, source.reason ?? "unknown")}`;
    down.set(what, [...(down.get(what) ?? []), source.source.split("/").slice(1).join("/")].filter(Boolean));
  }
  for (const [what, devices] of down) found.push(["warn", `${t.sourcesDown} – ${what}${devices.length ? ` (${devices.join(", ")})` : ""}`]);
  for (const { id, reason } of snapshot.quarantined) {
    if (![...down.values()].flat().some((device) => device.split("/")[0] === id.split("/")[0])) found.push(["warn", `${t.quarantined} – ${id}: ${word(t.reasons, reason)}`]);
  }
  const { pci, nvml } = snapshot.counted_gpus;
  if (pci !== null && nvml !== null && pci !== nvml) found.push(["warn", t.countMismatch(pci, nvml)]);
  for (const finding of snapshot.node_findings) found.push(["warn", finding]);
  if (!snapshot.config_reload_ok) found.push(["warn", t.configBad]);
  return found;
}

let shownNotices = "";
function showNotices() {
  const found = notices();
  const key = JSON.stringify([language, found.map(([level, line]) => [level, typeof line === "string" ? line : line.finding])]);
  if (key === shownNotices) return;
  shownNotices = key;
  at("notices").replaceChildren(...found.map(([level, line]) => element("p", { class: "notice", "data-level": level },
    typeof line === "string" ? line : chip(line, text().node, language, text()))));
}

function showPulse() {
  const t = text();
  at("pulse").dataset.live = pulse.live;
  document.body.classList.toggle("old", pulse.live === "stale" || pulse.live === "lost");
  /** @type {Record<string, string>} */
  const words = { live: t.live, stale: t.stale(pulse.seconds), lost: t.lost };
  at("pulse-text").textContent = words[pulse.live] ?? t.waiting;
}

function otherLanguage() {
  language = language === "en" ? "zh" : "en";
  keepLanguage(language);
  showLanguage();
}

function otherTheme() {
  showTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length]);
}

/** @type {Record<string, () => void>} */
const KEYS = {
  ArrowLeft: () => step(-1), ArrowRight: () => step(1), p: () => detail.scope.pause(), Escape: () => detail.scope.follow(),
  "+": () => detail.scope.scale(0.5), "=": () => detail.scope.scale(0.5), "-": () => detail.scope.scale(2),
  "[": () => detail.scope.shift(-0.5), "]": () => detail.scope.shift(0.5), l: otherLanguage, t: otherTheme,
  ...Object.fromEntries(SPANS.map((span, i) => [String(i + 1), () => detail.scope.setSpan(span)])),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  // Space on a button presses that button; everywhere else it pauses.
  const onButton = event.target instanceof Element && event.target.closest("button, a, summary") !== null;
  const action = event.key === " " ? (onButton ? undefined : KEYS.p) : KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
addEventListener("hashchange", () => {
  wanted = new URLSearchParams(location.hash.slice(1)).get("gpu") ?? wanted;
  render();
});
at("language").addEventListener("click", otherLanguage);
at("theme").addEventListener("click", otherTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

const kept = localStorage.getItem(THEME_KEY) ?? "";
document.documentElement.dataset.theme = THEMES.includes(kept) ? kept : "auto";
// Without the shared words the page still shows every number.
await loadWords().catch(() => {});
showLanguage();
feed.open();
