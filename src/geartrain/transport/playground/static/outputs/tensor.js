// Tensors: their shape, what their numbers are like, and the first of them.

import { h, svg } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { copyButton, downloadButton } from "../lib/text.js";

const BARS = 64; // numbers that have a bar each; of more there is a histogram
const BINS = 32;
const CORNER = 8; // rows and columns that are shown
const DEEPEST = 32; // levels: a text may be nested deeper than calls can be

/** Whether a value is a tensor: its schema says so, or it is a list of numbers, or of equally long lists of them. */
export function isTensor(value, schema) {
  if (!Array.isArray(value)) return false;
  if (schema["x-tensor"]) return schema["x-tensor"].datatype !== "BYTES" && shapeOf(value) !== null;
  const shape = shapeOf(value);
  return shape !== null && shape.reduce((all, size) => all * size, 1) >= 4;
}

// Return the shape of nested lists of numbers; null if they are uneven, or hold anything else.
function shapeOf(value, depth = 0) {
  if (depth > DEEPEST) return null;
  if (!Array.isArray(value)) return typeof value === "number" || typeof value === "boolean" ? [] : null;
  if (!value.length) return [0];
  const first = shapeOf(value[0], depth + 1);
  if (first === null) return null;
  for (const each of value) {
    const shape = shapeOf(each, depth + 1);
    if (shape === null || shape.length !== first.length || shape.some((size, at) => size !== first[at])) return null;
  }
  return [value.length, ...first];
}

/** Return what shows a tensor; `about` is what the schema says of it, if anything. */
export function tensor(value, about, name) {
  const shape = shapeOf(value);
  const numbers = value.flat(Infinity).map(Number);
  const finite = numbers.filter(Number.isFinite);
  const facts = { shape: `[${shape.join(", ")}]`, ...(about ? { datatype: about.datatype } : {}), ...statistics(finite) };
  const text = () => JSON.stringify(value);
  return h(
    "div",
    { class: "tensor" },
    h("dl", { class: "facts" }, Object.entries(facts).map(([key, each]) => h("div", {}, h("dt", {}, key), h("dd", {}, each)))),
    shape.length === 1 && numbers.length <= BARS ? bars(numbers, name) : histogram(finite, name),
    h("details", {}, h("summary", {}, "Numbers"), corner(value, shape, name)),
    h("div", { class: "tools" }, copyButton(text, { label: `Copy ${name} as JSON` }), downloadButton(() => new Blob([text()], { type: "application/json" }), `${name}.json`)),
  );
}

function statistics(numbers) {
  if (!numbers.length) return {};
  let least = Infinity;
  let greatest = -Infinity;
  let sum = 0;
  for (const each of numbers) {
    least = Math.min(least, each);
    greatest = Math.max(greatest, each);
    sum += each;
  }
  const mean = sum / numbers.length;
  const spread = Math.sqrt(numbers.reduce((all, each) => all + (each - mean) ** 2, 0) / numbers.length);
  return { min: number(least, 4), max: number(greatest, 4), mean: number(mean, 4), "std. dev.": number(spread, 4) };
}

/** Return a bar for each number. */
function bars(numbers, name) {
  const least = Math.min(0, ...numbers);
  const span = Math.max(0, ...numbers) - least || 1;
  const greatest = numbers.indexOf(Math.max(...numbers));
  const items = numbers.map((each, at) => ({ from: (Math.min(each, 0) - least) / span, to: (Math.max(each, 0) - least) / span, isMarked: at === greatest, text: `${at}: ${number(each)}`, under: String(at) }));
  return chart(items, `${name}: ${numbers.length} numbers, the greatest, ${number(numbers[greatest])}, at ${greatest}`, true);
}

function histogram(numbers, name) {
  if (!numbers.length) return null;
  const least = numbers.reduce((one, other) => Math.min(one, other));
  const greatest = numbers.reduce((one, other) => Math.max(one, other));
  const width = (greatest - least) / BINS || 1;
  const counts = new Array(BINS).fill(0);
  for (const each of numbers) counts[Math.min(BINS - 1, Math.floor((each - least) / width))] += 1;
  const most = Math.max(...counts);
  const items = counts.map((count, at) => ({ from: 0, to: count / most, text: `${number(least + at * width, 4)} to ${number(least + (at + 1) * width, 4)}: ${count}`, under: at === 0 ? number(least, 3) : at === BINS - 1 ? number(greatest, 3) : "" }));
  return chart(items, `Histogram of ${name}: ${numbers.length} numbers from ${number(least, 4)} to ${number(greatest, 4)}`, false);
}

function chart(items, text, hasAllLabels) {
  const step = 600 / items.length;
  const drawn = items.map(({ from, to, isMarked, text: title }, at) => {
    const bar = svg("rect", { x: at * step + step * 0.1, y: 100 - to * 96, width: step * 0.8, height: Math.max(1, (to - from) * 96), rx: Math.min(3, step * 0.2), class: isMarked ? "bar marked" : "bar" });
    bar.append(svg("title", {}, title));
    return bar;
  });
  const picture = svg("svg", { viewBox: "0 0 600 101", class: "bars", role: "img", "aria-label": text, preserveAspectRatio: "none" }, ...drawn, svg("line", { x1: 0, x2: 600, y1: 100.5, y2: 100.5, class: "axis" }));
  const labels = hasAllLabels && items.length <= 20 ? items : [items[0], items.at(-1)];
  return h("div", { class: "chart" }, picture, h("div", { class: labels === items ? "chart-labels each" : "chart-labels", "aria-hidden": "true" }, labels.map(({ under }) => h("span", {}, under))));
}

function corner(value, shape, name) {
  let rows = value;
  let prefix = "";
  for (let depth = shape.length; depth > 2; depth -= 1) {
    rows = rows[0];
    prefix += "0, ";
  }
  if (shape.length === 1) rows = [value];
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  const shown = rows.slice(0, CORNER).map((row) => h("tr", {}, row.slice(0, CORNER * 2).map((each) => h("td", { class: "number" }, number(Number(each), 5))), row.length > CORNER * 2 ? h("td", {}, "…") : null));
  const isCut = height > CORNER || width > CORNER * 2 || prefix;
  return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": `Numbers of ${name}` }, h("table", { class: "numbers" }, h("tbody", {}, shown)), isCut ? h("p", { class: "muted" }, `The beginning of [${prefix}:, :]`) : null);
}
