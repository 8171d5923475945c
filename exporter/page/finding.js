// A finding in full: what it means, what was measured, what to do. As a dialog from a chip, or standing in the page.

import { at, button, element } from "./element.js";
import { bytesPerSecond, percent, seconds, watts } from "./format.js";
import { say } from "./text.js";

/** @type {Record<string, (value: Maybe) => string | null>} */
const UNITS = { ratio: percent, bytes_per_second: bytesPerSecond, seconds, watts };

/** @param {Finding} finding @param {string} where @param {Language} language @param {Words} text */
export function chip(finding, where, language, text) {
  return button({ class: "chip", "data-finding": finding.finding }, say(language, "findings", finding.finding, "title"), () => open(finding, where, language, text));
}

/** @param {Finding} finding @param {string} where @param {Language} language @param {Words} text */
function open(finding, where, language, text) {
  const dialog = /** @type {HTMLDialogElement} */ (at("finding"));
  const close = button({}, text.close, () => dialog.close());
  dialog.replaceChildren(
    element("div", { class: "top" },
      element("div", {}, element("p", { class: "sub" }, where), element("h2", {}, say(language, "findings", finding.finding, "title"))), close),
    ...told(finding, language, text));
  dialog.showModal();
}

/**
 * Meaning, evidence and advice.
 * @param {Finding} finding @param {Language} language @param {Words} text
 * @returns {HTMLElement[]}
 */
export function told(finding, language, text) {
  return [
    element("p", { class: "meaning" }, say(language, "findings", finding.finding, "meaning")),
    ...(finding.evidence.length ? [element("h3", {}, text.evidence), evidence(finding.evidence, language, text)] : []),
    ...(finding.advice.length ? [element("h3", {}, text.advice), advice(finding.advice, language)] : []),
  ];
}

/** @param {Measured[]} measured @param {Language} language @param {Words} text */
function evidence(measured, language, text) {
  const rows = measured.map(({ name, value, unit, threshold }) => {
    const shown = (/** @type {Maybe} */ number) =>
      (UNITS[unit] ? UNITS[unit](number) : number === null || number === undefined ? null : String(Number(number.toPrecision(4)))) ?? text.none;
    // A name may begin with the device that it speaks of: "mlx5_2/1 rate".
    const words = name.split(" "), key = words.pop() ?? "";
    return element("tr", {}, element("th", { scope: "row" }, [...words, say(language, "evidence", key)].join(" ")), element("td", {}, shown(value)),
      element("td", { class: "sub" }, threshold === null ? "" : `${text.threshold} ${shown(threshold)}`));
  });
  return element("table", {}, ...rows);
}

/** @param {string[]} keys @param {Language} language */
function advice(keys, language) {
  return element("ol", {}, ...keys.map((key) =>
    element("li", {}, say(language, "advice", key, "action"), element("p", { class: "sub" }, say(language, "advice", key, "cost")))));
}
