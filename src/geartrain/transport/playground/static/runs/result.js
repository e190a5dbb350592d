// What a run has given: its state, its output, its logs, and the rest.

import { announce, button, h, icon } from "../lib/dom.js";
import { duration, number } from "../lib/format.js";
import { tabs } from "../lib/tabs.js";
import { copyText, longText, printed, progressOf, visible } from "../lib/text.js";
import { jsonBox } from "../outputs/json.js";
import { releaseMedia } from "../outputs/media.js";
import { arranged, showValue } from "../outputs/output.js";
import { growingText } from "../outputs/words.js";
import { waterfall } from "./waterfall.js";

const LOG_SHOWN = 50_000; // characters of a log that grows

export const STATUS_TEXTS = {
  sending: "Sending",
  waiting: "Waiting for a free slot",
  processing: "Running",
  succeeded: "Succeeded",
  failed: "Failed",
  canceled: "Canceled",
  refused: "Not accepted",
  lost: "No answer",
};

/** Return the state of a run as a small sign. */
export function statusSign(status) {
  return h("span", { class: `sign ${status}` }, h("span", { class: "dot", "aria-hidden": "true" }), STATUS_TEXTS[status]);
}

/**
 * Make the panel of results. Returns `{ element, show }`; `show(run, output)` shows a run, `output` being its schema.
 * `again` is called when the reader wants another try, and `onstatus` when the state of the run that is shown changes.
 * `linkOf(run)` is the URL of a run that can be opened again, null for one that cannot. `callsOf(run)` asks for the calls of
 * models by a run that is over.
 */
export function makeResult({ again, onstatus, linkOf, callsOf }) {
  const head = h("div", { class: "result-head" });
  const output = h("div", { class: "result-body" });
  const logs = h("div", { class: "result-body" });
  const details = h("div", { class: "result-body" });
  const calls = h("div", { class: "calls" });
  const shown = tabs("Result", [
    { id: "output", label: "Output", panel: output },
    { id: "logs", label: "Logs", panel: logs },
    { id: "details", label: "Details", panel: details, onshow: () => void paintCalls() },
  ]);
  const element = h("section", { class: "panel result", "aria-label": "Result" }, h("div", { class: "panel-head" }, shown.list, head), shown.panels);
  let current = null;
  let clock = 0;
  let view = null;

  function empty() {
    output.replaceChildren(h("div", { class: "empty" }, icon("play"), h("p", {}, "Run the model to see its output here."), h("p", { class: "muted long" }, "Ctrl + Enter runs it from anywhere in the form.")));
    logs.replaceChildren(h("p", { class: "muted pad" }, "What the model prints comes here."));
    details.replaceChildren(h("p", { class: "muted pad" }, "Times, metrics and the whole answer come here."));
    head.replaceChildren();
  }

  function show(run, schema) {
    current = run;
    calls.replaceChildren();
    releaseMedia();
    view = makeLiveOutput(schema);
    output.replaceChildren(view.element);
    clearInterval(clock);
    const seconds = h("span", { class: "seconds" });
    const tick = () => {
      seconds.textContent = duration(run.isOver ? run.seconds : (performance.now() - run.begun) / 1000);
    };
    clock = run.isOver ? 0 : setInterval(tick, 100);
    const paintHead = () => {
      tick();
      const link = run.isOver ? linkOf(run) : null;
      const share = link ? button("", { icon: "link", class: "icon-button", "aria-label": "Copy the link to this run", onclick: () => void copyText(link, share) }) : null;
      head.replaceChildren(statusSign(run.status), seconds, ...(share ? [share] : []));
      if (run.isOver && run.kept) seconds.after(h("span", { class: "kept" }, run.kept));
      if (run.status === "waiting" && run.place) seconds.before(h("span", { class: "place" }, `place ${run.place} in the queue`));
    };
    let isPainting = false;
    const later = (paint) => {
      if (isPainting) return;
      isPainting = true;
      requestAnimationFrame(() => {
        isPainting = false;
        if (current === run) paint();
      });
    };
    const paintLive = () => {
      if (run.isOver) return;
      view.update(run.chunks);
      view.report(run.logs);
      paintLogs(run);
      shown.badge("logs", run.logs ? String(lineCount(run.logs)) : "");
      paintDetails(run);
    };
    run.listener = (change) => {
      if (current !== run) return;
      if (change === "status") onstatus();
      if (change !== "status") later(paintLive);
      else if (run.isOver) finish();
      else {
        paintHead();
        view.wait(run.status);
      }
    };
    function finish() {
      clearInterval(clock);
      paintHead();
      releaseMedia();
      output.replaceChildren(...finalOutput(run, schema, again));
      paintLogs(run);
      paintDetails(run);
      void paintCalls();
      shown.badge("logs", run.logs ? String(lineCount(run.logs)) : "");
      if (run.status !== "succeeded") shown.show("output");
      announce(`${STATUS_TEXTS[run.status]}${run.error ? `: ${run.error}` : ""}`);
    }
    if (run.isOver) finish();
    else {
      paintHead();
      view.wait(run.status);
      logs.replaceChildren(h("p", { class: "muted pad" }, "Nothing printed yet."));
      paintDetails(run);
      shown.badge("logs", "");
      shown.show("output");
    }
  }

  function paintLogs(run) {
    if (!run.logs) {
      logs.replaceChildren(h("p", { class: "muted pad" }, run.isOver ? "The model has printed nothing." : "Nothing printed yet."));
      return;
    }
    if (run.isOver) {
      logs.replaceChildren(longText(run.logs, { end: true, kind: "log", label: "Logs" }));
      return;
    }
    let box = logs.querySelector("pre.growing");
    if (!box) {
      box = h("pre", { class: "long-text log growing", tabindex: "0", "aria-label": "Logs" });
      logs.replaceChildren(box);
    }
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.textContent = visible(printed(run.logs.slice(-LOG_SHOWN)));
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  function paintDetails(run) {
    const facts = { "Time in all": run.isOver ? duration(run.seconds) : null, Id: run.id };
    for (const [key, value] of Object.entries(run.metrics)) {
      const isTime = key === "predict_time";
      facts[isTime ? "Time of the run" : key] = isTime ? duration(value) : typeof value === "number" ? number(value) : JSON.stringify(value);
    }
    const rows = Object.entries(facts).filter(([, value]) => value !== null);
    const table = h("dl", { class: "facts wide" }, rows.map(([key, value]) => h("div", {}, h("dt", {}, visible(key)), h("dd", {}, visible(String(value)).slice(0, 500)))));
    details.replaceChildren(table, calls, ...(run.prediction ? [h("h3", {}, "Answer"), jsonBox(run.prediction, "prediction")] : []));
  }

  // They are asked for when a reader looks at the details.
  async function paintCalls() {
    const run = current;
    if (!run?.prediction || shown.current !== "details") return;
    run.calls ??= await callsOf(run).catch(() => null);
    const isShown = current === run && run.calls?.calls.length;
    if (isShown) calls.replaceChildren(h("h3", {}, "Calls of models"), waterfall(run.calls, statusSign));
  }

  function say(text) {
    empty();
    output.replaceChildren(h("div", { class: "empty", role: "status" }, icon("history"), h("p", {}, text)));
  }

  empty();
  return { element, show, empty, say };
}

function lineCount(text) {
  return text.trimEnd().split("\n").length;
}

// An output that grows. Until it begins there is a sign that the run goes on, and the last line that it has printed.
function makeLiveOutput(schema) {
  const isText = schema["x-cog-array-display"] === "concatenate";
  const isSeries = isText || schema["x-cog-array-type"] === "iterator";
  const waiting = h("div", { class: "waiting", role: "status" });
  const report = h("div", { class: "report", hidden: true });
  const text = isText ? growingText() : null;
  const items = h("ol", { class: "live-items" });
  const element = h("div", { class: "live" }, waiting, report);
  let count = 0;
  let hasBegun = false;
  return {
    element,
    wait(status) {
      if (!hasBegun) waiting.replaceChildren(h("span", { class: "spinner", "aria-hidden": "true" }), `${STATUS_TEXTS[status]}…`);
    },
    report(logs) {
      const found = hasBegun ? null : progressOf(logs);
      report.hidden = !found;
      if (!found) return;
      const { text: line, percent, rest } = found;
      if (percent === null) report.replaceChildren(h("p", { class: "report-line" }, line));
      else report.replaceChildren(h("progress", { max: 100, value: percent, "aria-label": line || "Progress" }), h("p", { class: "report-line" }, [line, `${percent} %`, rest].filter(Boolean).join(" · ")));
    },
    update(chunks) {
      if (!isSeries || chunks.length === count) return;
      const fresh = chunks.slice(count);
      if (!hasBegun && text && !fresh.some((chunk) => String(chunk) !== "")) return; // an empty beginning is none
      if (!hasBegun) element.replaceChildren(text ? text.element : items);
      hasBegun = true;
      count = chunks.length;
      if (text) text.append(visible(fresh.map(String).join("")));
      else {
        items.append(...fresh.slice(-200).map((chunk) => h("li", {}, showValue(arranged(chunk, schema.items), schema.items, { depth: 1 }))));
        while (items.children.length > 200) items.firstChild.remove();
        items.start = Math.max(1, count - items.children.length + 1);
      }
    },
  };
}

/** Return the outcome of a run, as the panel of results has it. */
export function finalOutput(run, schema, again) {
  const shown = [];
  if (run.error !== null && run.status !== "canceled") shown.push(failureBox(run, again));
  if (run.status === "canceled") shown.push(h("p", { class: "muted pad" }, run.prediction ? "Canceled. What had come until then:" : "Canceled."));
  const value = run.prediction?.output;
  if (run.status === "succeeded" || (value !== undefined && value !== null)) {
    const isText = schema["x-cog-array-display"] === "concatenate" && Array.isArray(value);
    shown.push(isText ? showValue(value.map(String).join(""), {}, {}) : showValue(arranged(value, schema), schema));
  }
  return shown;
}

function failureBox(run, again) {
  const isBusy = run.refusal?.status === 409;
  const hint = isBusy
    ? "All of the model's slots are in use. Wait for one, or start the server with --queue, so that requests wait."
    : (HINTS[run.refusal?.status] ?? null);
  const hasTraceback = run.status === "failed" && run.logs.includes("Traceback");
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("p", { class: "failure-text" }, icon("warning"), h("span", {}, visible(run.error).slice(0, 5000))),
    hint ? h("p", { class: "muted" }, hint) : null,
    hasTraceback ? h("details", { open: run.logs.length < 20_000 }, h("summary", {}, "Traceback"), longText(run.logs.slice(run.logs.lastIndexOf("Traceback")), { kind: "log", label: "Traceback" })) : null,
    again && (isBusy || run.status === "lost") ? button("Try again", { icon: "reload", onclick: again }) : null,
  );
}

const HINTS = {
  401: "Give a key at the top of the page.",
  403: "The key does not allow this.",
  413: "The input is larger than --max-body-size of the server.",
  422: "The form says which inputs.",
  503: "The model is not ready. Its state is at the top of the page.",
};
