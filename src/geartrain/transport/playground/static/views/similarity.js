// Texts compared by their embeddings: the cosine of the angle between each two of them.

import { ApiError, ask } from "../lib/api.js";
import { announce, button, h, icon } from "../lib/dom.js";
import { duration, number } from "../lib/format.js";
import { tabs } from "../lib/tabs.js";
import { downloadButton, visible } from "../lib/text.js";
import { makeCodePanel } from "../code/panel.js";
import { OPENAI_LANGUAGES } from "../code/openai.js";
import { FormError, makeForm } from "../inputs/form.js";

const MOST = 24; // texts: more are no table that can be read
const FIRST = ["How do I reset my password?", "I forgot my login", "The train leaves at noon"];
const STEPS = [0.2, 0.4, 0.6, 0.8]; // between the shades of the table

const kept = new Map(); // the texts, by the name of the model

/**
 * Make the view. `name` is that of the model in OpenAI's API, and `fields` are the parameters that the model takes.
 * Returns `{ element, close }`.
 */
export function makeSimilarity({ name, fields, look }) {
  const rows = h("ol", { class: "text-rows" });
  const add = button("Add a text", { icon: "plus", class: "small", onclick: () => addRow("").focus() });
  const form = makeForm(fields, { changed: () => repaint(), submit: () => void compare() });
  const code = makeCodePanel(() => ({ endpoint: "embeddings", body: { model: name, input: texts(), ...parameters({ quiet: true }) } }), OPENAI_LANGUAGES);
  const shown = tabs("Texts", [
    { id: "texts", label: "Texts", panel: h("div", { class: "stack" }, rows, add, fields.length ? form.element : null) },
    { id: "code", label: "Code", panel: code.element, onshow: () => void code.paint() },
  ]);
  const run = button("Compare", { class: "primary run", onclick: () => void compare(), "aria-keyshortcuts": "Control+Enter" });
  const bar = h("div", { class: "run-bar" }, run, h("span", { class: "keys muted", "aria-hidden": "true" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")));
  const output = h("div", { class: "result-body" }, h("div", { class: "empty" }, icon("play"), h("p", {}, "Compare two texts or more."), h("p", { class: "muted" }, "1 is the same direction, 0 is none in common.")));
  const element = h(
    "div",
    { class: "workbench" },
    h("section", { class: "panel input", "aria-label": "Texts" }, h("div", { class: "panel-head" }, shown.list), h("div", { class: "panel-body" }, shown.panels), bar),
    h("div", { class: "results" }, h("section", { class: "panel result similarity", "aria-label": "Similarity" }, h("div", { class: "panel-head" }, h("h2", {}, "Similarity")), output)),
  );
  let asking = null;

  function addRow(text) {
    const box = h("textarea", { class: "control", rows: "1", value: text, oninput: () => keep() });
    const remove = button("", { icon: "close", class: "icon-button" });
    const item = h("li", { class: "row" }, box, remove);
    remove.addEventListener("click", () => {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      item.remove();
      keep();
      next?.querySelector("textarea").focus();
    });
    rows.append(item);
    keep();
    return box;
  }
  function keep() {
    for (const [at, item] of [...rows.children].entries()) {
      item.querySelector("textarea").setAttribute("aria-label", `Text ${at + 1}`);
      item.querySelector("button").setAttribute("aria-label", `Remove text ${at + 1}`);
      item.querySelector("button").disabled = rows.children.length <= 2;
    }
    add.disabled = rows.children.length >= MOST;
    kept.set(name, boxes().map(({ value }) => value));
    repaint();
  }
  function boxes() {
    return [...rows.querySelectorAll("textarea")];
  }
  function texts() {
    return boxes().map(({ value }) => value).filter((text) => text.trim());
  }
  function parameters(options) {
    const isDefault = ([field, value]) => JSON.stringify(value) === JSON.stringify(fields.find((each) => each.name === field)?.fallback ?? null);
    return Object.fromEntries(Object.entries(form.read(options)).filter((each) => !isDefault(each)));
  }
  function repaint() {
    if (shown?.current === "code") void code.paint();
  }

  async function compare() {
    if (asking) return;
    const input = texts();
    if (input.length < 2) {
      say(new ApiError(0, "Two texts are needed to compare them."));
      return;
    }
    asking = new AbortController();
    run.disabled = true;
    const begun = performance.now();
    try {
      form.clearFaults();
      const body = JSON.stringify({ model: name, input, encoding_format: "float", ...parameters() });
      const answer = await ask("v1/embeddings", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal: asking.signal });
      show(input, answer, (performance.now() - begun) / 1000);
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof FormError)) {
        if (error.faults?.size) form.showFaults(new Map([...error.faults].filter(([each]) => fields.some((field) => field.name === each))));
        say(error);
        look();
      }
    }
    asking = null;
    run.disabled = false;
  }

  function say(error) {
    output.replaceChildren(h("div", { class: "failure", role: "alert" }, h("p", { class: "failure-text" }, icon("warning"), h("span", {}, visible(error.message)))));
  }

  function show(input, { data, usage }, seconds) {
    const vectors = data.toSorted((one, other) => one.index - other.index).map(({ embedding }) => embedding);
    const table = vectors.map((one) => vectors.map((other) => cosine(one, other)));
    const closest = closestPair(table);
    const facts = [`${vectors[0].length} numbers a text`, usage?.prompt_tokens ? `${number(usage.prompt_tokens)} tokens` : "", duration(seconds)].filter(Boolean).join(" · ");
    const sentence = closest ? `Closest: ${closest[0] + 1} and ${closest[1] + 1}, ${fixed(table[closest[0]][closest[1]])}` : "";
    output.replaceChildren(
      h("p", { class: "closest" }, sentence),
      similarityTable(input, table),
      h("div", { class: "tools" }, h("span", { class: "muted" }, facts), downloadButton(() => new Blob([JSON.stringify(vectors)], { type: "application/json" }), "embeddings.json", "Vectors")),
    );
    announce(sentence);
  }

  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      void compare();
    }
  };
  document.addEventListener("keydown", onKey);
  for (const text of kept.get(name) ?? FIRST) addRow(text);
  return {
    element,
    close() {
      asking?.abort();
      document.removeEventListener("keydown", onKey);
    },
  };
}

function cosine(one, other) {
  let [product, square, otherSquare] = [0, 0, 0];
  for (let at = 0; at < one.length; at += 1) {
    product += one[at] * other[at];
    square += one[at] ** 2;
    otherSquare += other[at] ** 2;
  }
  return square && otherSquare ? product / Math.sqrt(square * otherSquare) : NaN;
}

function closestPair(table) {
  let best = null;
  for (let one = 0; one < table.length; one += 1) {
    for (let other = one + 1; other < table.length; other += 1) {
      if (Number.isFinite(table[one][other]) && (!best || table[one][other] > table[best[0]][best[1]])) best = [one, other];
    }
  }
  return best;
}

function fixed(value) {
  return Number.isFinite(value) ? value.toFixed(3) : "–";
}

function similarityTable(texts, table) {
  const head = h("tr", {}, h("td", {}), texts.map((_, at) => h("th", { scope: "col", class: "number" }, String(at + 1))));
  const body = texts.map((text, at) => h("tr", {}, h("th", { scope: "row", title: visible(text).slice(0, 500) }, h("span", {}, `${at + 1} `), h("span", { class: "text-name" }, visible(text).slice(0, 80))), table[at].map((value) => h("td", { class: `number shade-${shade(value)}` }, fixed(value)))));
  return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Similarity of the texts" }, h("table", { class: "similarity-table" }, h("thead", {}, head), h("tbody", {}, body)));
}

function shade(value) {
  return STEPS.filter((step) => value >= step).length;
}
