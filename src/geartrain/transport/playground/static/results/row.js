// A row in full: its output or its error, the columns that passed through, and the outputs of two models side by side.

import { button, h, icon } from "../lib/dom.js";
import { duration, label, number } from "../lib/format.js";
import { longText, visible } from "../lib/text.js";
import { jsonBox } from "../outputs/json.js";
import { releaseMedia } from "../outputs/media.js";
import { showValue } from "../outputs/output.js";
import { fileBeside, isBeside } from "./choice.js";
import { differences, wordDifferences } from "./differences.js";
import { errorText, hasError, isPair } from "./set.js";
import { inWords, numberOf, rowSign } from "./table.js";

const MOST_TEXT = 20_000; // characters of texts whose words are compared
const MOST_ERROR = 5_000; // characters
const DEEPEST = 3; // levels in which paths become files
const MOST_PARTS = 200; // of a list in which they do
const OWN = ["row", "output", "error"];

/** Return the panel of a row. `step(by)` shows another one, and `close()` is called when the reader goes back. */
export function rowPanel(row, { besides, place, isFirst, isLast, step, close }) {
  releaseMedia();
  const back = button("All rows", { class: "small", onclick: close });
  const before = button("Previous", { class: "small", disabled: isFirst, data: { step: "-1" }, onclick: () => step(-1) });
  const after = button("Next", { class: "small", disabled: isLast, data: { step: "1" }, onclick: () => step(1) });
  const title = h("h2", { tabindex: "-1" }, `Row ${numberOf(row)}`);
  const body = h("div", { class: "result-body" }, contentOf(row, besides));
  const onkeydown = (event) => {
    if (event.key === "Escape") close();
  };
  return h("section", { class: "panel row-panel", "aria-label": `Row ${numberOf(row)}`, onkeydown }, h("div", { class: "panel-head" }, h("div", { class: "row-title" }, title, rowSign(row.kind), h("span", { class: "muted" }, place)), h("div", { class: "row-tools" }, before, after, back)), body);
}

function contentOf({ value, fault, text }, besides) {
  if (!value) return [failure(fault), text ? longText(text, { kind: "log", label: "The beginning of the line" }) : null];
  const missing = new Set();
  const shown = (each, name, depth = 1) => showValue(withFiles(each, { besides, missing }), {}, { name, depth });
  const kept = Object.entries(value).filter(([name]) => !OWN.includes(name));
  const columns = kept.length ? h("dl", { class: "entries kept-columns" }, kept.map(([name, each]) => h("div", { class: "entry" }, h("dt", { title: name }, visible(label(name))), h("dd", {}, shown(each, name))))) : null;
  const outcome = hasError(value) ? [failure(errorText(value.error))] : outputOf(value.output, shown);
  const hint = missing.size ? h("p", { class: "hint" }, `Choose the folder ${[...missing].join(", ")} as well to see the files of this row.`) : null;
  return [...outcome, hint, columns ? h("h3", {}, "Kept columns") : null, columns, h("details", {}, h("summary", {}, "The whole row"), jsonBox(value, "row"))];
}

function failure(text) {
  return h("div", { class: "failure", role: "alert" }, h("p", { class: "failure-text" }, icon("warning"), h("span", {}, visible(text).slice(0, MOST_ERROR))));
}

function outputOf(output, shown) {
  return isPair(output) ? pair(output, shown) : [shown(output, "output", 0)];
}

function pair({ a, b, score, a_seconds: first, b_seconds: second }, shown) {
  const facts = [["Score", typeof score === "number" ? number(score, 6) : "–"], ["Time of a", duration(first)], ["Time of b", duration(second)]];
  const table = h("dl", { class: "facts" }, facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
  const areTexts = [a, b].every((each) => typeof each === "string" && each.length <= MOST_TEXT && !each.startsWith("data:"));
  const sides = areTexts && a !== b ? wordDifferences(a, b).map(marked) : [shown(a, "a"), shown(b, "b")];
  const both = h("div", { class: "comparison-body" }, sides.map((side, at) => h("div", { class: "comparison-side", data: { side: "ab"[at] } }, h("h3", {}, "ab"[at]), side)));
  return [table, areTexts ? null : differenceTable(a, b), both];
}

function marked(runs) {
  return h("p", { class: "marked-text" }, runs.map(([text, isMarked]) => (isMarked ? h("mark", {}, visible(text)) : visible(text))));
}

function differenceTable(a, b) {
  const { found, isWhole } = differences(a, b);
  if (!found.length || (found.length === 1 && !found[0].path)) return null;
  const head = h("tr", {}, ["Where they differ", "a", "b"].map((name) => h("th", { scope: "col" }, name)));
  const cell = (value) => h("td", {}, h("p", { class: "brief" }, visible(inWords(value))));
  const rows = found.map(({ path, a: one, b: other }) => h("tr", {}, h("td", {}, h("code", {}, visible(path).slice(0, 200))), cell(one), cell(other)));
  const note = isWhole ? null : h("p", { class: "muted" }, `The first ${found.length} places are shown.`);
  return h("div", { class: "differences" }, h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Where they differ" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))), note);
}

// Put the files of outputs, which lie beside the results, in place of their paths. `missing` gets the folders of others.
function withFiles(value, { besides, missing }, depth = 0) {
  if (typeof value === "string") {
    const file = fileBeside(value, besides);
    if (!file && isBeside(value)) missing.add(value.split("/")[0]);
    return file ?? value;
  }
  if (value === null || typeof value !== "object" || depth >= DEEPEST) return value;
  const entries = Object.entries(value);
  if (entries.length > MOST_PARTS) return value;
  const made = entries.map(([name, each]) => [name, withFiles(each, { besides, missing }, depth + 1)]);
  return Array.isArray(value) ? made.map(([, each]) => each) : Object.fromEntries(made);
}
