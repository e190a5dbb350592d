// Two runs beside each other: the inputs in which they differ, and what came of each.

import { button, h } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { visible } from "../lib/text.js";
import { short } from "./history.js";
import { finalOutput, statusSign } from "./result.js";

/**
 * Make the panel. Returns `{ element, show }`; `show(one, other, schema)` compares two entries of the history. `closed()`
 * is called when the reader closes it.
 */
export function makeComparison({ closed }) {
  const body = h("div", { class: "comparison-body" });
  const close = button("Close", { class: "small quiet", onclick: () => {
    element.hidden = true;
    closed();
  } });
  const element = h("section", { class: "panel comparison", "aria-label": "Comparison", hidden: true }, h("div", { class: "panel-head" }, h("h2", {}, "Two runs"), close), body);

  function show(one, other, schema) {
    const names = [...new Set([...Object.keys(one.values), ...Object.keys(other.values)])];
    const differing = names.filter((name) => short(one.values[name]) !== short(other.values[name]) || JSON.stringify(one.values[name]) !== JSON.stringify(other.values[name]));
    body.replaceChildren(...[one, other].map((entry) => side(entry, differing, schema)));
    element.hidden = false;
    element.scrollIntoView({ block: "nearest" });
  }
  return { element, show };
}

function side({ run, values }, differing, schema) {
  const inputs = differing.map((name) => h("div", {}, h("dt", {}, visible(name)), h("dd", {}, values[name] === undefined ? "–" : visible(String(short(values[name]))))));
  return h(
    "div",
    { class: "comparison-side" },
    h("div", { class: "result-head" }, h("time", { datetime: run.at.toISOString(), class: "muted" }, run.at.toTimeString().slice(0, 8)), statusSign(run.status), h("span", { class: "seconds" }, duration(run.seconds))),
    inputs.length ? h("dl", { class: "facts wide" }, inputs) : h("p", { class: "muted" }, "The same input"),
    ...finalOutput(run, schema, null),
  );
}
