// JSON, folded: what is inside is made when its reader opens it.

import { h } from "../lib/dom.js";
import { copyButton, downloadButton, visible } from "../lib/text.js";

const PAGE = 100; // entries that are shown at once
const CUT = 300; // characters of a text

/** Return a box of JSON, opened so many levels. */
export function jsonBox(value, name = "output", { open = 1 } = {}) {
  const text = () => JSON.stringify(value, null, 2);
  return h("div", { class: "json-box" }, h("div", { class: "json-tree" }, node(value, open)), h("div", { class: "tools" }, copyButton(text, { label: `Copy ${name} as JSON` }), downloadButton(() => new Blob([text()], { type: "application/json" }), `${name}.json`)));
}

function node(value, open) {
  if (value === null || typeof value !== "object") return leaf(value);
  const keys = Object.keys(value);
  const isList = Array.isArray(value);
  if (!keys.length) return h("span", {}, isList ? "[]" : "{}");
  const inside = h("ul", {});
  const element = h("details", {}, h("summary", {}, h("span", { class: "muted" }, isList ? `list of ${keys.length}` : summary(keys))), inside);
  let shown = 0;
  const grow = () => {
    inside.querySelector(":scope > .more")?.remove();
    for (const key of keys.slice(shown, shown + PAGE)) inside.append(h("li", {}, h("span", { class: "json-key" }, visible(key)), " ", node(value[key], open - 1)));
    shown = Math.min(keys.length, shown + PAGE);
    if (shown < keys.length) inside.append(h("li", { class: "more" }, h("button", { type: "button", class: "small", onclick: grow }, `${keys.length - shown} more`)));
  };
  element.addEventListener("toggle", () => {
    if (element.open && !shown) grow();
  });
  if (open > 0) {
    grow();
    element.open = true;
  }
  return element;
}

function summary(keys) {
  const names = visible(keys.slice(0, 5).join(", ")).slice(0, 80);
  return `{ ${names}${keys.length > 5 ? ", …" : ""} }`;
}

function leaf(value) {
  if (typeof value === "string") {
    const text = value.length > CUT ? `${value.slice(0, CUT)}… (${value.length.toLocaleString("en-US")} characters)` : value;
    return h("span", { class: "json-text" }, `"${visible(text)}"`);
  }
  return h("span", { class: "json-number" }, String(value));
}
