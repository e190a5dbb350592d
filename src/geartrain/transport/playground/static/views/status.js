// The status of the server: the last five minutes, which the server remembers, and what `/metrics` tells of its workers.

import { ask, failure, root, send } from "../lib/api.js";
import { lineChart } from "../lib/charts.js";
import { h } from "../lib/dom.js";
import { bytes, duration, number } from "../lib/format.js";
import { callGraph } from "../lib/graph.js";
import { grownBuckets, readMetrics, samples, total } from "../lib/metrics.js";

const FAILURES = "nv_inference_request_failure"; // counts what was canceled too, by reason
const PERIOD = 2000; // milliseconds between two questions
const NO_POINTS = { at: [], seconds: 300 };

/** Make the view. Returns `{ element, close }`. `names`: of the models. */
export function statusView(names) {
  const choice = h("select", { class: "control", id: "status-model", onchange: () => choose() }, h("option", { value: "" }, "All models"), names.map((name) => h("option", { value: name }, name)));
  const note = h("p", { class: "status-note muted", role: "status" }, "Waiting for the first figures…");
  const tiles = h("div", { class: "tiles" });
  const plots = h("div", { class: "plots" });
  const calls = h("div", {});
  const batches = h("div", {});
  const workers = h("div", {});
  const element = h(
    "div",
    { class: "view status-view" },
    h("div", { class: "view-head" }, h("div", {}, h("h1", {}, "Status"), note), h("div", { class: "status-choice" }, h("label", { for: "status-model", class: "label" }, "Model"), h("div", { class: "select" }, choice))),
    tiles,
    plots,
    calls,
    batches,
    workers,
  );
  const readings = []; // { at, metrics }: the first, the one before, and the latest
  let points = NO_POINTS; // of the model that is chosen, as columns
  let charts = [];
  let timer = 0;
  let isClosed = false;
  let isAsking = false;

  async function look() {
    clearTimeout(timer);
    if (isClosed || isAsking || document.visibilityState !== "visible") return;
    isAsking = true;
    const model = choice.value;
    try {
      const query = new URLSearchParams({ model, after: points.at.at(-1) ?? 0 });
      const [metrics, newer] = await Promise.all([readServer(), ask(`playground/history?${query}`)]);
      if (isClosed) return;
      readings.push({ at: Date.now() / 1000, metrics });
      if (readings.length > 3) readings.splice(1, 1);
      if (model === choice.value) points = joined(points, newer);
      if (!charts.length) await makeCharts();
      note.textContent = "The last five minutes.";
      note.classList.remove("fault");
      paint();
    } catch (error) {
      note.textContent = error.status === 404 ? "The metrics are on another port: see --admin-port." : error.message;
      note.classList.add("fault");
      if (error.status === 404 || error.status === 403) return;
    } finally {
      isAsking = false;
    }
    if (!isClosed && document.visibilityState === "visible") timer = setTimeout(look, model === choice.value ? PERIOD : 0);
  }

  function choose() {
    points = NO_POINTS;
    paint();
    void look();
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
    if (!readings.length || !charts.length) return;
    const model = choice.value;
    const now = readings.at(-1);
    for (const { plot, keys } of charts) plot.set(points.at, keys.map((key) => points[key] ?? []), points.seconds);
    const latest = (key) => points[key]?.at(-1) ?? null;
    paintTiles(latest, now.metrics, model);
    calls.replaceChildren(...callPart(now, readings.length > 1 ? readings.at(-2) : null, readings[0], model));
    batches.replaceChildren(...batchPart(now.metrics, readings[0].metrics, model));
    workers.replaceChildren(workerTable(now, readings.length > 1 ? readings.at(-2) : null, model));
  }

  function paintTiles(latest, metrics, model) {
    const succeeded = total(metrics, "nv_inference_request_success", model);
    const unsuccessful = total(metrics, FAILURES, model);
    const canceled = total(metrics, FAILURES, model, { reason: "CANCELED" });
    const each = ["succeeded", "failed", "canceled"].map(latest);
    const facts = [
      ["Requests", each.includes(null) ? "–" : `${number(each.reduce((one, other) => one + other), 3)} /s`],
      ["Median latency", time(latest("median"))],
      ["95th percentile", time(latest("p95"))],
      ["Running", number(latest("running") ?? 0)],
      ["Waiting", number(latest("waiting") ?? 0)],
      ["Worker memory", bytes(latest("memory") ?? 0)],
      ["All requests", number(succeeded + unsuccessful)],
      ["Succeeded", number(succeeded)],
      ["Failed", number(unsuccessful - canceled)],
      ["Canceled", number(canceled)],
    ];
    tiles.replaceChildren(...facts.map(([name, value]) => h("div", { class: "tile" }, h("div", { class: "tile-name" }, name), h("div", { class: "tile-value" }, value))));
  }

  const onVisible = () => {
    if (document.visibilityState === "visible") void look();
    else clearTimeout(timer);
  };
  document.addEventListener("visibilitychange", onVisible);
  void look();
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

async function readServer() {
  const response = await send("metrics", { headers: { Accept: "text/plain" } });
  if (!response.ok) throw await failure(response);
  return readMetrics(await response.text());
}

// Add newer points, and let go of those that are too old.
function joined(points, newer) {
  const times = [...points.at, ...newer.at];
  const first = times.findIndex((at) => at > times.at(-1) - newer.seconds);
  const columns = Object.entries(newer).filter(([, column]) => Array.isArray(column));
  return { seconds: newer.seconds, ...Object.fromEntries(columns.map(([name, column]) => [name, [...(points[name] ?? []), ...column].slice(Math.max(0, first))])) };
}

function time(seconds) {
  return seconds === null ? "–" : duration(seconds);
}

const perSecond = (value) => `${number(value, 3)} /s`;
const cores = (value) => `${number(value, 2)}`;
const NONE = "No requests yet";

const CHARTS = [
  { title: "Requests", keys: ["succeeded", "failed", "canceled"], series: [{ label: "succeeded", color: "--series-1" }, { label: "failed", color: "--series-4" }, { label: "canceled", color: "--series-3" }], format: perSecond, empty: NONE },
  { title: "Latency", keys: ["median", "p95", "p99", "queue_p95"], series: [{ label: "median", color: "--series-1" }, { label: "95 %", color: "--series-2" }, { label: "99 %", color: "--series-3" }, { label: "queue, 95 %", color: "--series-4" }], format: duration, empty: NONE },
  { title: "Queue", keys: ["running", "waiting"], series: [{ label: "running", color: "--series-1" }, { label: "waiting", color: "--series-3" }], format: (value) => number(value, 3), isWhole: true },
  { title: "Batch size, mean", keys: ["batch"], series: [{ label: "predictions a call", color: "--series-1" }], format: (value) => number(value, 3), empty: NONE },
  { title: "Memory", keys: ["memory", "server_memory"], series: [{ label: "workers", color: "--series-1" }, { label: "server", color: "--series-2" }], format: bytes, isBinary: true },
  { title: "Processor, in cores", keys: ["cpu", "server_cpu"], series: [{ label: "workers", color: "--series-1" }, { label: "server", color: "--series-2" }], format: cores },
];

// Which models call which, with the rates since the last look and the times since the page was opened.
function callPart({ at, metrics }, before, first, model) {
  const edges = callsOf(metrics).filter(({ from, to }) => !model || [from, to].includes(model));
  if (!edges.length) return [];
  const earlier = new Map(callsOf(before?.metrics).map((edge) => [edge.key, edge]));
  const opened = new Map(callsOf(first.metrics).map((edge) => [edge.key, edge]));
  const figures = edges.map((edge) => {
    const rate = before ? (edge.count - (earlier.get(edge.key)?.count ?? 0)) / (at - before.at) : null;
    const count = edge.count - (opened.get(edge.key)?.count ?? 0);
    const failed = edge.failed - (opened.get(edge.key)?.failed ?? 0);
    const mean = count > 0 ? (edge.seconds - (opened.get(edge.key)?.seconds ?? 0)) / count : null;
    return { ...edge, rate, mean, failed };
  });
  const drawing = callGraph(
    figures.map(({ from, to, rate, mean, failed }) => ({
      from,
      to,
      label: [rate === null ? null : perSecond(rate), mean === null ? null : duration(mean)].filter(Boolean).join(" · "),
      title: `${from} calls ${to}${rate === null ? "" : `, ${perSecond(rate)}`}${mean === null ? "" : `, ${duration(mean)} each`}${failed ? `, ${number(failed)} failed` : ""}.`,
      isBad: failed > 0,
    })),
    model,
  );
  const columns = ["Caller", "Model", "Calls", "Mean time", "Running", "Failed"];
  const rows = figures.map(({ from, to, rate, mean, running, failed }) =>
    h("tr", {}, h("td", {}, from), h("td", {}, to), ...[rate === null ? "–" : perSecond(rate), time(mean), number(running), number(failed)].map((text) => h("td", { class: "number" }, text))),
  );
  const head = h("tr", {}, columns.map((column, at_) => h("th", { scope: "col", class: at_ > 1 ? "number" : null }, column)));
  const table = h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Calls of models" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
  return [h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Models that call models")), drawing, table)];
}

// The pairs of models that call, as `/metrics` has them.
function callsOf(metrics) {
  if (!metrics) return [];
  const edges = new Map();
  const edge = ({ caller, model }) => {
    const key = JSON.stringify([caller, model]);
    if (!edges.has(key)) edges.set(key, { key, from: caller, to: model, count: 0, failed: 0, seconds: 0, running: 0 });
    return edges.get(key);
  };
  for (const { labels, value } of samples(metrics, "geartrain_model_calls_total")) {
    edge(labels).count += value;
    if (labels.outcome !== "succeeded") edge(labels).failed += value;
  }
  for (const { labels, value } of samples(metrics, "geartrain_model_call_seconds_total")) edge(labels).seconds += value;
  for (const { labels, value } of samples(metrics, "geartrain_model_calls_running")) edge(labels).running += value;
  return [...edges.values()];
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
  const hints = { Worker: "The number of the worker, a process that runs the model. With --replicas there are several.", Files: "Files, sockets and pipes that the process has open.", Processor: "Of one core, since the last look.", Restarts: "How often workers of this model were started again after a crash." };
  const ready = samples(metrics, "geartrain_worker_ready", model);
  const find = (from, name, { model: whose, version, replica }) => samples(from, name, whose).find(({ labels }) => labels.version === version && (labels.replica ?? replica) === replica)?.value;
  const rows = ready.map(({ labels, value }) => {
    const cpu = before ? (find(metrics, "geartrain_worker_cpu_seconds_total", labels) - find(before.metrics, "geartrain_worker_cpu_seconds_total", labels)) / (at - before.at) : NaN;
    return h(
      "tr",
      {},
      h("td", {}, labels.model, h("span", { class: "muted" }, ` v${labels.version}`)),
      h("td", { title: hints.Worker }, labels.replica),
      h("td", {}, h("span", { class: `sign ${value ? "succeeded" : "waiting"}` }, h("span", { class: "dot", "aria-hidden": "true" }), value ? "Ready" : "Not ready")),
      h("td", { class: "number" }, Number.isFinite(cpu) && cpu >= 0 ? `${Math.round(cpu * 100)} %` : "–"),
      h("td", { class: "number" }, bytes(find(metrics, "geartrain_worker_memory_bytes", labels) ?? 0)),
      h("td", { class: "number" }, number(find(metrics, "geartrain_worker_open_descriptors", labels) ?? 0)),
      h("td", { class: "number" }, number(find(metrics, "geartrain_worker_restarts_total", labels) ?? 0)),
    );
  });
  const head = h("tr", {}, columns.map((column, number_) => h("th", { scope: "col", class: number_ > 2 ? "number" : null, title: hints[column] }, column)));
  const body = rows.length ? h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Workers" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))) : h("p", { class: "muted pad" }, "No worker runs.");
  return h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Workers"), h("a", { class: "quiet-link", href: new URL("metrics", root).href, target: "_blank", rel: "noopener" }, "All metrics")), body);
}
