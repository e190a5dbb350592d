// Outputs as what they are. The schema says what an output is, and where it says little its value does.

import { h } from "../lib/dom.js";
import { aligned, label as labelOf, number } from "../lib/format.js";
import { jsonBox } from "./json.js";
import { fileOutput, media } from "./media.js";
import { isTable, table } from "./table.js";
import { isTensor, tensor } from "./tensor.js";
import { textOutput } from "./words.js";

const DEEPEST = 3; // levels of objects that are spread out; what is deeper is a box of JSON
const ARRANGED = 64; // levels that are put in order: a value of thousands of them would end the page's stack
const MOST = 200; // values of a list that are shown one by one

/** Return a value whose members are in the order of the schema, which is the author's: a server sends them sorted. */
export function arranged(value, schema = {}, depth = 0) {
  if (depth >= ARRANGED) return value;
  if (Array.isArray(value)) return schema.items ? value.map((each) => arranged(each, schema.items, depth + 1)) : value;
  if (value === null || typeof value !== "object") return value;
  const properties = schema.properties ?? {};
  const names = new Set([...Object.keys(properties).filter((name) => name in value), ...Object.keys(value)]);
  const others = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
  return Object.fromEntries([...names].map((name) => [name, arranged(value[name], properties[name] ?? others, depth + 1)]));
}

/** Return an element that shows a value. `name` is what it is called, for labels and for downloads. */
export function showValue(value, schema = {}, { name = "output", depth = 0 } = {}) {
  if (value === null || value === undefined) return h("p", { class: "muted" }, "Nothing (null)");
  if (value instanceof File) return fileOutput(value, value.name);
  if (typeof value === "string") return media(value, name, { isUrl: schema.format === "uri" }) ?? textOutput(value, { name });
  if (typeof value === "number" || typeof value === "boolean") return h("p", { class: depth ? "scalar" : "scalar large" }, typeof value === "number" ? number(value, 8) : String(value));
  if (isTensor(value, schema)) return tensor(value, schema["x-tensor"], name);
  if (Array.isArray(value)) return showList(value, schema, { name, depth });
  return showObject(value, schema, { name, depth });
}

function showList(values, schema, { name, depth }) {
  if (!values.length) return h("p", { class: "muted" }, "An empty list");
  if (isTable(values)) return table(values, name);
  if (depth >= DEEPEST || values.length > MOST) return jsonBox(values, name);
  const isFlat = values.every((each) => typeof each === "number" || typeof each === "boolean" || (typeof each === "string" && each.length < 200 && !each.startsWith("data:")));
  if (values.every((each) => typeof each === "number")) return h("ol", { class: "value-list" }, aligned(values).map((text) => h("li", {}, h("p", { class: "scalar" }, text))));
  if (isFlat) return h("ol", { class: "value-list" }, values.map((each) => h("li", {}, showValue(each, schema.items, { name, depth: depth + 1 }))));
  return h("div", { class: values.some(isPicture) ? "gallery" : "stack" }, values.map((each, at) => showValue(each, schema.items, { name: `${name}-${at + 1}`, depth: depth + 1 })));
}

function isPicture(value) {
  return value instanceof File ? value.type.startsWith("image/") : typeof value === "string" && value.startsWith("data:image/");
}

function showObject(value, schema, { name, depth }) {
  const entries = Object.entries(value);
  if (!entries.length) return h("p", { class: "muted" }, "An empty object");
  if (depth >= DEEPEST || entries.length > 40) return jsonBox(value, name);
  const rows = entries.map(([key, each]) => {
    const inner = schema.properties?.[key] ?? (typeof schema.additionalProperties === "object" ? schema.additionalProperties : {});
    const isScalar = ["number", "boolean"].includes(typeof each) || each === null;
    return h("div", { class: isScalar ? "entry scalar-entry" : "entry" }, h("dt", { title: key }, labelOf(key)), h("dd", {}, showValue(each, inner, { name: key, depth: depth + 1 })));
  });
  return h("dl", { class: "entries" }, rows);
}
