// A page of rows as a table: of each its beginning, and a way to see all of it.

import { button, h, icon } from "../lib/dom.js";
import { bytes, number } from "../lib/format.js";
import { visible } from "../lib/text.js";
import { readDataUrl, thumbnail } from "../outputs/media.js";
import { fileBeside } from "./choice.js";
import { BROKEN, DIFFERENT, ERROR, errorText, GOOD, isPair, SAME } from "./set.js";

export const PAGE = 50; // rows
const MOST_COLUMNS = 8; // that passed through
const CUT = 200; // characters of a cell
const PARTS = 8; // of a list or an object
const DEEPEST = 2;
const MOST_BYTES = 32 * 1024 * 1024; // of the rows of a page; the others are shown when they are opened

/** Return the table of rows of a selection from `first` on. `open(index)` shows one of them. */
export async function rowsTable(selection, first, open) {
  const { set } = selection;
  const names = [...set.columns].slice(0, MOST_COLUMNS);
  const outputs = set.isCompared ? ["a", "b", "Score"] : ["Output"];
  const head = h("tr", {}, ["Row", ...names.map(visible), ...outputs].map((name, at) => h("th", { scope: "col", class: at === 0 || name === "Score" ? "number" : null }, name.slice(0, 60))));
  const body = h("tbody", {});
  const places = Array.from({ length: Math.min(PAGE, selection.count - first) }, (_, by) => selection.at(first + by));
  for (const [by, row] of (await readRows(set, places)).entries()) {
    const index = first + by;
    const cells = cellsOf(row, { names, width: outputs.length, besides: set.besides });
    const opened = button(numberOf(row), { class: "small quiet row-open", "aria-label": `Open row ${numberOf(row)}`, data: { index } });
    body.append(h("tr", { onclick: () => open(index) }, h("td", { class: "number" }, opened), cells));
  }
  return h("div", { class: "table-box rows-box", tabindex: "0", role: "group", "aria-label": "Rows" }, h("table", {}, h("thead", {}, head), body));
}

// Read rows, but for those that are too large to be read for a table.
function readRows(set, places) {
  let room = MOST_BYTES;
  const reads = places.map((at) => {
    const size = set.sizeOf(at);
    if (size > room) return { at, kind: set.kinds.values[at], value: null, fault: "", size };
    room -= size;
    return set.row(at);
  });
  return Promise.all(reads);
}

/** Return the number of a row: its own, or else its place, from 0 on. */
export function numberOf({ at, value }) {
  return number(Number.isInteger(value?.row) ? value.row : at);
}

/** Return the state of a row as a small sign. */
export function rowSign(kind) {
  const [name, text] = { [ERROR]: ["failed", "Error"], [BROKEN]: ["failed", "Broken line"], [SAME]: ["succeeded", "The same"], [DIFFERENT]: ["waiting", "Different"] }[kind] ?? ["succeeded", "Succeeded"];
  return h("span", { class: `sign ${name}` }, h("span", { class: "dot", "aria-hidden": "true" }), text);
}

function cellsOf({ kind, value, fault, text, size }, { names, width, besides }) {
  const brief = (each) => pictureOf(each, besides) ?? inBrief(each);
  if (!value) {
    const shown = fault ? [fault, visible(text.slice(0, CUT))] : [`${bytes(size)}: open the row to see it`];
    return [h("td", { colspan: names.length + width }, kind === GOOD ? null : rowSign(kind), shown.map((each) => h("p", { class: "brief muted" }, each)))];
  }
  const kept = names.map((name) => h("td", {}, Object.hasOwn(value, name) ? brief(value[name]) : ""));
  if (kind === ERROR) return [...kept, h("td", { colspan: width }, h("p", { class: "brief fault" }, icon("warning"), visible(errorText(value.error)).slice(0, CUT)))];
  if (!isPair(value.output)) return [...kept, h("td", { colspan: width }, brief(value.output))];
  const { a, b, score } = value.output;
  const marked = kind === DIFFERENT ? "number different" : "number";
  return [...kept, h("td", {}, brief(a)), h("td", {}, brief(b)), h("td", { class: marked }, typeof score === "number" ? number(score, 4) : "–")];
}

// A small picture of an output that is one; null for any other.
function pictureOf(value, besides) {
  if (typeof value !== "string") return null;
  const file = value.startsWith("data:image/") ? readDataUrl(value) : fileBeside(value, besides);
  return file?.type.startsWith("image/") ? thumbnail(file, file.name ?? "Picture") : null;
}

function inBrief(value) {
  if (value === null || value === undefined) return h("p", { class: "brief muted" }, value === null ? "null" : "");
  if (typeof value === "number") return h("p", { class: "brief scalar" }, number(value));
  return h("p", { class: "brief" }, visible(inWords(value)).slice(0, CUT));
}

/** Return a value in a line. */
export function inWords(value, depth = 0) {
  if (typeof value === "string") return value.startsWith("data:") ? fileInWords(value) : value.slice(0, CUT);
  if (value === undefined) return "–";
  if (value === null || typeof value !== "object") return typeof value === "number" ? number(value, 8) : String(value);
  const isList = Array.isArray(value);
  const keys = Object.keys(value);
  const parts = depth > DEEPEST ? (keys.length ? ["…"] : []) : keys.slice(0, PARTS).map((key) => `${isList ? "" : `${key.slice(0, 40)}: `}${inWords(value[key], depth + 1)}`);
  if (depth <= DEEPEST && keys.length > PARTS) parts.push(`… ${number(keys.length)} in all`);
  return isList ? `[${parts.join(", ")}]` : `{${parts.join(", ")}}`;
}

function fileInWords(url) {
  const end = url.slice(0, 100).search(/[;,]/);
  return `${url.slice(5, end < 0 ? 40 : end) || "a file"}, ${bytes(Math.round((url.length * 3) / 4))}`;
}
