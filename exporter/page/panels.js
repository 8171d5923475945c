// What stands beside the plots of the chosen GPU: the verdict in words, its causes, the pairing, the sources. Content only.

import { figure, nameOf, range, stateChip, stateOf, verdictOf } from "./card.js";
import { button, element } from "./element.js";
import { told } from "./finding.js";
import { bytesPerSecond, correlation, percent, seconds } from "./format.js";
import { reason, say, word } from "./text.js";

/** @param {Gpu} gpu @param {Snapshot} snapshot @param {Words} text @param {Language} language @returns {Node[]} */
export function verdictPanel(gpu, snapshot, text, language) {
  const verdict = verdictOf(gpu, snapshot), state = stateOf(gpu, snapshot);
  return [
    element("div", { class: "said" }, stateChip(state, text, language), element("p", {}, say(language, "states", state))),
    verdict?.reason && state !== "idle" ? element("p", { class: "sub" }, reason(language, verdict.reason)) : "",
    element("dl", { class: "numbers" },
      figure(text.health, percent(verdict?.health), text.healthHint, text),
      figure(text.exposed, percent(verdict?.exposed), text.exposedHint, text, range(verdict, text)),
      figure(text.comm, percent(verdict?.communication), text.commHint, text),
      figure(text.stall, percent(verdict?.stall), text.stallHint, text),
      figure(text.wait, percent(verdict?.wait), text.waitHint, text),
      figure(text.step, seconds(verdict?.step_period_s), text.stepHint, text),
      figure(text.correlation, correlation(verdict?.correlation), text.correlationHint, text),
      figure(text.observability, percent(verdict?.observability), text.observabilityHint, text)),
  ].filter((node) => node !== "").map((node) => /** @type {Node} */ (node));
}

/** @param {Gpu} gpu @param {Snapshot} snapshot @param {Words} text @param {Language} language @returns {Node[]} */
export function findingsPanel(gpu, snapshot, text, language) {
  const active = [...gpu.findings, ...snapshot.node_findings];
  if (!active.length) return [element("p", { class: "nothing" }, text.noFinding)];
  return active.map((finding, i) => element("details", { class: "cause", open: i === 0, "data-finding": finding.finding },
    element("summary", {}, element("b", {}, say(language, "findings", finding.finding, "title")),
      element("span", { class: "sub" }, ` ${finding.gpu === null ? text.node : nameOf(gpu)} · ${text.since(seconds(Math.max(0, snapshot.t_s - finding.since_s)))}`)),
    ...told(finding, language, text)));
}

/** @param {Gpu} gpu @param {Snapshot} snapshot @param {Words} text @returns {Node[]} */
export function pairingPanel(gpu, snapshot, text) {
  if (!gpu.links.length) return [element("p", { class: "nothing" }, text.noLinks)];
  const devices = new Map([...snapshot.ports, ...snapshot.nics].map((device) => [device.id, device]));
  const rows = gpu.links.map((link) => {
    const device = devices.get(link.device);
    const up = device?.readings.up_ratio;
    const facts = [
      link.path === "nvlink" ? "" : bytesPerSecond(device?.rate_bytes_per_s ?? device?.readings.rate_bytes_per_second), device?.driver,
      up === undefined ? "" : up > 0 ? text.linkUp : text.linkDown, link.weight < 1 ? text.sharedBy(Math.round(1 / link.weight)) : "",
    ].filter(Boolean).join(" · ");
    return element("tr", {},
      element("th", { scope: "row" }, link.path === "nvlink" ? "NVLink" : link.device), element("td", {}, word(text.paths, link.path)),
      element("td", {}, element("b", {}, link.reason === "nvlink" ? "" : link.reason.length <= 4 ? link.reason : ""), " ", word(text.pairs, link.reason)),
      element("td", { class: "sub" }, facts));
  });
  return [table([text.device, text.path, text.why, ""], rows)];
}

const OLD_INTERVALS = 3;

/** @param {Source} source */
function isOld(source) {
  return source.silent_s !== null && source.silent_s > Math.max(2.5, OLD_INTERVALS * (source.interval_s ?? 0));
}

/**
 * Those of the chosen GPU and its links, and whatever is not well; or all.
 * @param {Gpu} gpu @param {Snapshot} snapshot @param {boolean} all @param {() => void} toggle @param {Words} text @returns {Node[]}
 */
export function sourcesPanel(gpu, snapshot, all, toggle, text) {
  const mine = [gpu.id, ...gpu.links.map((link) => link.device.split("/")[0])];
  const shown = snapshot.sources.filter((source) => all || !source.up || isOld(source) || mine.includes(source.source.split("/")[1]) || !source.source.includes("/"));
  const rows = shown.map((source) => {
    const device = source.source.split("/")[1];
    const errors = Object.entries(source.errors).filter(([, count]) => count).map(([name, count]) => `${word(text.reasons, name)} ${count}`).join(", ");
    const refresh = source.source.split("/").length === 2 ? snapshot.refresh.filter((r) => r.id === device || r.id.startsWith(`${device}/`)).map((r) => seconds(r.refresh_s)).join(", ") : "";
    return element("tr", { "data-source": source.source, class: source.up && !isOld(source) ? null : "bad" },
      element("th", { scope: "row" }, source.source),
      element("td", {}, source.up ? text.up : `${text.down}: ${word(text.reasons, source.reason ?? "unknown")}`),
      element("td", { class: isOld(source) ? "old-value" : "" }, seconds(source.silent_s) ?? text.none),
      element("td", {}, seconds(source.interval_s) ?? text.none), element("td", {}, refresh || text.none),
      element("td", {}, [source.missed_ticks ? text.missed(source.missed_ticks) : "", source.restarts ? text.restarts(source.restarts) : "", errors].filter(Boolean).join(" · ") || text.none));
  });
  const rest = snapshot.sources.length - shown.length;
  return [
    table([text.source, text.sourceState, text.age, text.interval, text.refresh, text.trouble], rows),
    ...(rest || all ? [button({ class: "quiet", id: "all-sources", "aria-expanded": String(all) }, all ? text.fewerSources : text.moreSources(rest), toggle)] : []),
  ];
}

/** @param {string[]} heads @param {HTMLElement[]} rows */
function table(heads, rows) {
  return element("div", { class: "wide" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)));
}
