// A finding in full: what it means, what was measured, what to do. One dialog for the whole page.

import { element } from "./element.js";
import { bytesPerSecond, percent, seconds, watts } from "./format.js";
import { say } from "./text.js";

const UNITS = { ratio: percent, bytes_per_second: bytesPerSecond, seconds, watts };

export function chip(finding, where, language, text) {
  const made = element("button", { type: "button", class: "chip", "data-finding": finding.finding }, say(language, "findings", finding.finding, "title"));
  made.addEventListener("click", () => open(finding, where, language, text));
  return made;
}

function open(finding, where, language, text) {
  const dialog = document.getElementById("finding");
  const close = element("button", { type: "button" }, text.close);
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(
    element("div", { class: "top" },
      element("div", {}, element("p", { class: "sub" }, where), element("h2", {}, say(language, "findings", finding.finding, "title"))), close),
    element("p", {}, say(language, "findings", finding.finding, "meaning")),
    ...(finding.evidence.length ? [element("h3", {}, text.evidence), evidence(finding.evidence, text)] : []),
    ...(finding.advice.length ? [element("h3", {}, text.advice), advice(finding.advice, language)] : []),
  );
  dialog.showModal();
}

function evidence(measured, text) {
  const rows = measured.map(({ name, value, unit, threshold }) => {
    const shown = (number) => (UNITS[unit] ? UNITS[unit](number) : number === null ? null : String(Number(number.toPrecision(4)))) ?? text.none;
    return element("tr", {}, element("th", { scope: "row" }, name.replaceAll("_", " ")), element("td", {}, shown(value)),
      element("td", { class: "sub" }, threshold === null ? "" : `${text.threshold} ${shown(threshold)}`));
  });
  return element("table", {}, ...rows);
}

function advice(keys, language) {
  return element("ol", {}, ...keys.map((key) =>
    element("li", {}, say(language, "advice", key, "action"), element("p", { class: "sub" }, say(language, "advice", key, "cost")))));
}
