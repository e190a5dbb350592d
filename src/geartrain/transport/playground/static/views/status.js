// The status of the server: what `/metrics` tells, asked every two seconds as long as somebody looks.

import { failure, root, send } from "../lib/api.js";
import { lineChart } from "../lib/charts.js";
import { h } from "../lib/dom.js";
import { bytes, duration, number } from "../lib/format.js";
import { grownBuckets, quantile, rate, readMetrics, samples, total } from "../lib/metrics.js";

const FAILURES = "nv_inference_request_failure"; // counts what was canceled too, by reason
const PERIOD = 2000; // milliseconds between two questions
const KEPT = 150; // answers: five minutes
const WINDOW = 15; // answers, over which latencies are counted: half a minute

/** Make the view. Returns `{ element, close }`. `names`: of the models. */
export function statusView(names) {
  const choice = h("select", { class: "control", id: "status-model", onchange: () => paint() }, h("option", { value: "" }, "All models"), names.map((name) => h("option", { value: name }, name)));
  const note = h("p", { class: "status-note muted", role: "status" }, "Waiting for the first figures…");
  const tiles = h("div", { class: "tiles" });
  const plots = h("div", { class: "plots" });
  const batches = h("div", {});
  const workers = h("div", {});
  const element = h(
    "div",
    { class: "view status-view" },
    h("div", { class: "view-head" }, h("div", {}, h("h1", {}, "Status"), note), h("div", { class: "status-choice" }, h("label", { for: "status-model", class: "label" }, "Model"), h("div", { class: "select" }, choice))),
    tiles,
    plots,
    batches,
    workers,
  );
  const history = []; // { at, metrics }
  let charts = [];
  let timer = 0;
  let isClosed = false;
  let isAsking = false;

  async function ask() {
    clearTimeout(timer);
    if (isClosed || isAsking || document.visibilityState !== "visible") return;
    isAsking = true;
    try {
      const response = await send("metrics", { headers: { Accept: "text/plain" } });
      if (!response.ok) throw await failure(response);
      const metrics = readMetrics(await response.text());
      if (isClosed) return;
      history.push({ at: Date.now() / 1000, metrics });
      if (history.length > KEPT) history.shift();
      if (!charts.length) await makeCharts();
      note.textContent = "The last five minutes, as this page has seen them.";
      note.classList.remove("fault");
      paint();
    } catch (error) {
      note.textContent = error.status === 404 ? "The metrics are on another port: see --admin-port." : error.message;
      note.classList.add("fault");
      if (error.status === 404 || error.status === 403) return;
    } finally {
      isAsking = false;
    }
    if (!isClosed && document.visibilityState === "visible") timer = setTimeout(ask, PERIOD);
  }

  async function makeCharts() {
    const { default: uPlot } = await import("../vendor/uplot-1.6.32.js");
    const style = h("link", { rel: "stylesheet", href: new URL("../vendor/uplot-1.6.32.css", import.meta.url).href });
    if (!document.querySelector(`link[href="${style.href}"]`)) {
      const loaded = new Promise((settle) => style.addEventListener("load", settle, { once: true }));
      document.head.append(style);
      await loaded;
    }
    if (isClosed) return;
    charts = CHARTS.map((chart) => ({ ...chart, plot: lineChart(uPlot, chart) }));
    plots.append(...charts.map(({ plot }) => plot.element));
  }

  function paint() {
    if (!history.length || !charts.length) return;
    const model = choice.value;
    const now = history.at(-1);
    const steps = history.map((step, at) => figures(step, history[at - 1] ?? null, history[Math.max(0, at - WINDOW)], model));
    for (const { plot, keys } of charts) plot.set(history.map(({ at }) => at), keys.map((key) => steps.map((step) => step[key])));
    paintTiles(steps.at(-1), now.metrics, model);
    batches.replaceChildren(...batchPart(now.metrics, history[0].metrics, model));
    workers.replaceChildren(workerTable(now, history.at(-2) ?? null, model));
  }

  function paintTiles(figure, metrics, model) {
    const unsuccessful = total(metrics, FAILURES, model);
    const canceled = total(metrics, FAILURES, model, { reason: "CANCELED" });
    const facts = [
      ["Requests", figure.succeeded === null ? "–" : `${number(figure.succeeded + figure.failed, 3)} /s`],
      ["Median latency", duration(figure.median)],
      ["95th percentile", duration(figure.p95)],
      ["Running", number(figure.running)],
      ["Waiting", number(figure.waiting)],
      ["Worker memory", bytes(figure.memory)],
      ["All requests", number(total(metrics, "nv_inference_request_success", model) + unsuccessful)],
      ["Failed", number(unsuccessful - canceled)],
      ["Canceled", number(canceled)],
    ];
    tiles.replaceChildren(...facts.map(([name, value]) => h("div", { class: "tile" }, h("div", { class: "tile-name" }, name), h("div", { class: "tile-value" }, value))));
  }

  const onVisible = () => {
    if (document.visibilityState === "visible") void ask();
    else clearTimeout(timer);
  };
  document.addEventListener("visibilitychange", onVisible);
  void ask();
  return {
    element,
    title: "Status",
    close() {
      isClosed = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
      for (const { plot } of charts) plot.close();
    },
  };
}

const perSecond = (value) => `${number(value, 3)} /s`;
const cores = (value) => `${number(value, 2)}`;

const CHARTS = [
  { title: "Requests", keys: ["succeeded", "failed"], series: [{ label: "succeeded", color: "--series-1" }, { label: "failed", color: "--series-4" }], format: perSecond },
  { title: "Latency", keys: ["median", "p95", "p99", "queueP95"], series: [{ label: "median", color: "--series-1" }, { label: "95 %", color: "--series-2" }, { label: "99 %", color: "--series-3" }, { label: "queue, 95 %", color: "--series-4" }], format: duration },
  { title: "Queue", keys: ["running", "waiting"], series: [{ label: "running", color: "--series-1" }, { label: "waiting", color: "--series-3" }], format: (value) => number(value, 3), isWhole: true },
  { title: "Batch size, mean", keys: ["batch"], series: [{ label: "predictions a call", color: "--series-1" }], format: (value) => number(value, 3) },
  { title: "Memory", keys: ["memory", "serverMemory"], series: [{ label: "workers", color: "--series-1" }, { label: "server", color: "--series-2" }], format: bytes, isBinary: true },
  { title: "Processor, in cores", keys: ["cpu", "serverCpu"], series: [{ label: "workers", color: "--series-1" }, { label: "server", color: "--series-2" }], format: cores },
];

// What is known of one moment. `before` is the answer before, `earlier` one at the beginning of the window.
function figures({ at, metrics }, before, earlier, model) {
  const known = {
    running: total(metrics, "geartrain_predictions_running", model),
    waiting: total(metrics, "geartrain_predictions_waiting", model),
    memory: total(metrics, "geartrain_worker_memory_bytes", model),
    serverMemory: total(metrics, "process_resident_memory_bytes"),
  };
  if (!before) return { ...known, succeeded: null, failed: null, median: null, p95: null, p99: null, queueP95: null, batch: null, cpu: null, serverCpu: null };
  const seconds = at - before.at;
  const grown = (name, whose = model) => rate(metrics, before.metrics, seconds, name, whose);
  const latency = grownBuckets(metrics, earlier.metrics, "geartrain_prediction_duration_seconds", model);
  const queue = grownBuckets(metrics, earlier.metrics, "geartrain_queue_duration_seconds", model);
  const [predictions, calls] = [grown("nv_inference_count"), grown("nv_inference_exec_count")];
  return {
    ...known,
    succeeded: grown("nv_inference_request_success"),
    failed: grown("nv_inference_request_failure"),
    median: nullable(quantile(latency, 0.5)),
    p95: nullable(quantile(latency, 0.95)),
    p99: nullable(quantile(latency, 0.99)),
    queueP95: nullable(quantile(queue, 0.95)),
    batch: calls > 0 ? predictions / calls : null,
    cpu: grown("geartrain_worker_cpu_seconds_total"),
    serverCpu: grown("process_cpu_seconds_total", ""),
  };
}

function nullable(value) {
  return Number.isNaN(value) ? null : value;
}

// The sizes of the batches since the page was opened, for models that have batches.
function batchPart(now, first, model) {
  const buckets = grownBuckets(now, first, "geartrain_batch_size", model).filter(({ count }) => count > 0);
  if (!buckets.length) return [];
  const most = Math.max(...buckets.map(({ count }) => count));
  const rows = buckets.map(({ upTo, count }) => h("li", {}, h("span", {}, upTo === Infinity ? "more" : `≤ ${upTo}`), h("meter", { min: 0, max: most, value: count, "aria-label": `Batches up to ${upTo}` }), h("span", { class: "number" }, number(count))));
  return [h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Sizes of batches since the page was opened")), h("ul", { class: "meters" }, rows))];
}

function workerTable({ at, metrics }, before, model) {
  const columns = ["Model", "Worker", "State", "Processor", "Memory", "Files", "Restarts"];
  const ready = samples(metrics, "geartrain_worker_ready", model);
  const find = (from, name, { model: whose, version, replica }) => samples(from, name, whose).find(({ labels }) => labels.version === version && (labels.replica ?? replica) === replica)?.value;
  const rows = ready.map(({ labels, value }) => {
    const cpu = before ? (find(metrics, "geartrain_worker_cpu_seconds_total", labels) - find(before.metrics, "geartrain_worker_cpu_seconds_total", labels)) / (at - before.at) : NaN;
    return h(
      "tr",
      {},
      h("td", {}, labels.model, h("span", { class: "muted" }, ` v${labels.version}`)),
      h("td", {}, labels.replica),
      h("td", {}, h("span", { class: `sign ${value ? "succeeded" : "waiting"}` }, h("span", { class: "dot", "aria-hidden": "true" }), value ? "Ready" : "Not ready")),
      h("td", { class: "number" }, Number.isFinite(cpu) && cpu >= 0 ? `${Math.round(cpu * 100)} %` : "–"),
      h("td", { class: "number" }, bytes(find(metrics, "geartrain_worker_memory_bytes", labels) ?? 0)),
      h("td", { class: "number" }, number(find(metrics, "geartrain_worker_open_descriptors", labels) ?? 0)),
      h("td", { class: "number" }, number(find(metrics, "geartrain_worker_restarts_total", labels) ?? 0)),
    );
  });
  const head = h("tr", {}, columns.map((column, number_) => h("th", { scope: "col", class: number_ > 2 ? "number" : null }, column)));
  const body = rows.length ? h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Workers" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))) : h("p", { class: "muted pad" }, "No worker runs.");
  return h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Workers"), h("a", { class: "quiet-link", href: new URL("metrics", root).href, target: "_blank", rel: "noopener" }, "All metrics")), body);
}
