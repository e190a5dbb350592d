// A list of objects with the same keys, as a table.

import { h } from "../lib/dom.js";
import { aligned, label } from "../lib/format.js";
import { downloadButton, visible } from "../lib/text.js";

const ROWS = 100; // that are shown
const COLUMNS = 12;

/** Whether a list is one of objects whose values are numbers and short texts, with much the same keys. */
export function isTable(values) {
  if (values.length < 2 && !(values.length === 1 && Object.keys(values[0] ?? {}).length > 2)) return false;
  const first = values[0];
  if (first === null || typeof first !== "object" || Array.isArray(first)) return false;
  const columns = Object.keys(first).length;
  if (!columns || columns > COLUMNS) return false;
  return values.slice(0, ROWS).every((row) => row !== null && typeof row === "object" && !Array.isArray(row) && Object.values(row).every(isCell));
}

function isCell(value) {
  return value === null || typeof value === "number" || typeof value === "boolean" || (typeof value === "string" && value.length <= 500 && !value.startsWith("data:"));
}

/** Return the table. */
export function table(values, name) {
  const columns = [...new Set(values.slice(0, ROWS).flatMap((row) => Object.keys(row)))];
  const rows = values.slice(0, ROWS);
  const cells = new Map(columns.map((column) => [column, cellsOf(rows.map((row) => row[column]))]));
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: cells.get(column).isNumber ? "number" : null }, label(column))));
  const body = rows.map((_, at) => h("tr", {}, columns.map((column) => cells.get(column).made[at])));
  const box = h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": `Table: ${name}` }, h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
  const note = values.length > ROWS ? `The first ${ROWS} of ${values.length} rows` : `${values.length} rows`;
  return h("div", {}, box, h("div", { class: "tools" }, h("span", { class: "muted" }, note), downloadButton(() => csv(columns, values), `${name}.csv`, "CSV")));
}

// The cells of a column. It is one of numbers if all that is there is a number.
function cellsOf(values) {
  const numbers = values.filter((value) => typeof value === "number");
  const isNumber = numbers.length > 0 && values.every((value) => typeof value === "number" || value === null || value === undefined);
  const texts = aligned(numbers);
  const made = values.map((value) => {
    if (typeof value === "number") return h("td", { class: "number" }, texts.shift());
    return h("td", {}, value === null || value === undefined ? "" : visible(String(value)));
  });
  return { isNumber, made };
}

function csv(columns, values) {
  const quote = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+@\t\r-]/.test(text) ? `'${text}` : text; // a table program runs formulas
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = [columns, ...values.map((row) => columns.map((column) => row[column]))];
  return new Blob([lines.map((line) => line.map(quote).join(",")).join("\n")], { type: "text/csv" });
}
