// The calls of models that were made for one run, as bars from their begin to their end.

import { h, svg } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { visible } from "../lib/text.js";

const WIDTH = 1000; // of the bars, in units of their own
const THIN = 4; // the least width of a bar

/**
 * Return the waterfall of `GET …/{id}/calls`: the run itself, and below it each call, indented by its depth. `sign(status)`
 * makes the sign of a state. The light part of a bar is the wait for a slot.
 */
export function waterfall(found, sign) {
  const rows = [{ ...found, depth: 0 }, ...found.calls].map(read);
  const begin = Math.min(...rows.map((row) => row.created));
  const end = Math.max(...rows.map((row) => row.completed ?? row.started ?? row.created));
  const scale = WIDTH / Math.max(end - begin, 1e-6);
  const lines = rows.map((row) => line(row, { begin, end, scale, sign }));
  const head = h("tr", {}, ["Model", "Time", "", "State"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))));
  const table = h("table", { class: "waterfall", "aria-label": "Calls of models" }, h("thead", {}, head), h("tbody", {}, lines));
  const rest = found.left_out ? h("p", { class: "muted" }, `and ${found.left_out} more`) : null;
  return h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Calls of models" }, table, rest);
}

function read(call) {
  const { created_at: created, started_at: started, completed_at: completed } = call;
  return { ...call, created: seconds(created), started: started ? seconds(started) : null, completed: completed ? seconds(completed) : null };
}

// A Date has milliseconds; a call may take less than one.
function seconds(text) {
  return Date.parse(`${text.slice(0, 19)}Z`) / 1000 + Number(`0${/\.\d+/.exec(text)?.[0] ?? ""}`);
}

function line(row, { begin, end, scale, sign }) {
  const name = h("th", { scope: "row" }, visible(row.model ?? ""));
  name.style.setProperty("--depth", row.depth);
  const until = row.completed ?? end;
  const took = row.completed === null ? "" : duration(until - row.created);
  const error = row.error && row.depth ? h("p", { class: "waterfall-error" }, visible(row.error).slice(0, 500)) : null;
  const said = `${row.model}: after ${duration(row.created - begin)}, ${took || "goes on"}`;
  const bars = svg("svg", { class: "waterfall-bars", viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", role: "img", "aria-label": said });
  const x = (at) => Math.min((at - begin) * scale, WIDTH - THIN);
  const bar = (kind, from, to) => svg("rect", { class: kind, x: x(from), y: 1, width: Math.max((to - from) * scale, THIN), height: 10 });
  bars.append(bar("wait", row.created, until));
  if (row.started !== null) bars.append(bar(row.status, row.started, until));
  const state = sign(row.status === "starting" ? "waiting" : row.status);
  const batch = row.shared ? h("p", { class: "muted" }, `for a batch of ${row.shared}`) : null;
  return h("tr", { data: { depth: row.depth } }, name, h("td", { class: "waterfall-time" }, took), h("td", { class: "waterfall-cell" }, bars), h("td", {}, state, batch, error));
}
