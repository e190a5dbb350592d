// The runs of this session, to return to. They are kept in the page alone, and are gone when it is closed.

import { button, h } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { visible } from "../lib/text.js";
import { statusSign } from "./result.js";

const MOST_RUNS = 30;
const MOST_WEIGHT = 64_000_000; // characters of outputs and logs

const histories = new Map();

/** Return the history of what has this path. */
export function historyOf(path) {
  if (!histories.has(path)) histories.set(path, new History());
  return histories.get(path);
}

class History {
  constructor() {
    this.entries = []; // the newest first
  }

  /** Keep a run, with what the form had. */
  add(run, values) {
    this.entries.unshift({ run, values, weight: 0 });
    this.trim();
  }

  /** Return the entry of a run. */
  find(run) {
    return this.entries.find((entry) => entry.run === run);
  }

  /** Let the oldest go when there are many, or large ones. The newest always stays. */
  trim() {
    let weight = 0;
    const kept = this.entries.filter((entry, at) => {
      if (!entry.weight && entry.run.isOver) entry.weight = weigh(entry.run.prediction);
      weight += entry.weight;
      return at === 0 || !entry.run.isOver || (at < MOST_RUNS && weight <= MOST_WEIGHT);
    });
    this.entries = kept;
  }

  /**
   * Make the list. `open(entry)` is called for the one that the reader chooses, and `compare(entry)` for one that is to be
   * compared with the run that is shown, which `shown()` returns.
   */
  makeList({ open, compare, shown }) {
    const rows = h("ol", { class: "history-rows" });
    const clear = button("Clear", { class: "small quiet", "aria-label": "Clear the history" });
    const element = h("section", { class: "panel history", "aria-label": "History", hidden: true }, h("div", { class: "panel-head" }, h("h2", {}, "History"), clear), rows);
    const paint = () => {
      element.hidden = !this.entries.length;
      rows.replaceChildren(...this.entries.map((entry) => row(entry, { open, compare, shown: this.find(shown()) })));
    };
    clear.addEventListener("click", () => {
      this.entries = this.entries.filter(({ run }) => !run.isOver);
      paint();
    });
    return { element, paint };
  }
}

function row(entry, { open, compare, shown }) {
  const { run, values } = entry;
  const time = h("time", { datetime: run.at.toISOString(), class: "muted" }, run.at.toTimeString().slice(0, 8));
  const isShown = shown === entry;
  const canCompare = [shown, entry].every((each) => each?.run.prediction) && !isShown;
  return h(
    "li",
    { class: "history-item" },
    h("button", { type: "button", class: "history-row", "aria-current": isShown ? "true" : null, onclick: () => open(entry) }, time, statusSign(run.status), h("span", { class: "history-input" }, summary(values)), h("span", { class: "history-time muted" }, run.isOver ? duration(run.seconds) : "")),
    h("button", { type: "button", class: "small quiet compare", disabled: !canCompare, "aria-label": `Compare the run of ${time.textContent} with the one that is shown`, onclick: () => compare(entry) }, "Compare"),
  );
}

/** Return an input in a line. */
export function summary(values) {
  const parts = Object.entries(values).map(([name, value]) => `${name}: ${short(value)}`);
  return visible(parts.join(" · ")).slice(0, 200) || "no input";
}

/** Return a value in a few words. */
export function short(value) {
  if (value instanceof File) return value.name;
  if (typeof value === "string" && value.startsWith("data:")) return value.slice(0, value.search(/[;,]/));
  if (Array.isArray(value)) return value.length > 3 ? `${value.length} values` : value.map(short).join(", ");
  return typeof value === "string" ? value.slice(0, 60) : (JSON.stringify(value) ?? "").slice(0, 60);
}

// About how many characters a value has.
function weigh(value) {
  if (typeof value === "string") return value.length;
  if (value === null || typeof value !== "object") return 8;
  let sum = 16;
  for (const each of Object.values(value)) sum += weigh(each);
  return sum;
}
