// Which models call which, as a drawing: callers to the left, the models that they call to the right.

import { h, svg } from "./dom.js";

const WIDTH = 170; // of a box, in units of the drawing
const HEIGHT = 34;
const GAP = { x: 150, y: 22 }; // between boxes: what a line says stands between two columns
const LONGEST = 22; // characters of a name

/**
 * Draw models. `edges`: `[{ from, to, label, title, isBad }]`, of which `label` stands on the line and `title` says it in
 * full. `chosen` is the model that is marked, if any. Returns an element.
 */
export function callGraph(edges, chosen = "") {
  const places = layout(edges);
  const width = 1 + Math.max(...[...places.values()].map(({ x }) => x + WIDTH));
  const height = 1 + Math.max(...[...places.values()].map(({ y }) => y + HEIGHT));
  const lines = edges.flatMap((edge) => line(edge, places));
  const boxes = [...places].map(([name, { x, y }]) => {
    const shown = name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name;
    const text = svg("text", { x: x + WIDTH / 2, y: y + HEIGHT / 2, class: "graph-name" }, shown);
    const box = svg("rect", { x: x + 0.5, y: y + 0.5, width: WIDTH - 1, height: HEIGHT - 1, rx: 7 });
    return svg("g", { class: name === chosen ? "graph-model chosen" : "graph-model" }, svg("title", {}, name), box, text);
  });
  const said = edges.map(({ title }) => title).join(" ");
  const head = svg("path", { d: "M0 0 8 4 0 8z" });
  const marker = svg("marker", { id: "graph-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, head);
  const drawing = svg("svg", { class: "graph", role: "img", "aria-label": said, viewBox: `0 0 ${width} ${height}`, width, height }, svg("defs", {}, marker), ...lines, ...boxes);
  return h("div", { class: "graph-box", tabindex: "0", role: "group", "aria-label": "Models that call models" }, drawing);
}

// The place of each model: its column is behind those of all its callers. A model that calls itself, by way of others,
// stands where it was met first.
function layout(edges) {
  const columns = new Map();
  const callers = (name) => edges.filter(({ from, to }) => to === name && from !== name).map(({ from }) => from);
  const column = (name, path) => {
    if (columns.has(name)) return columns.get(name);
    if (path.includes(name)) return -1;
    const found = 1 + Math.max(-1, ...callers(name).map((caller) => column(caller, [...path, name])));
    columns.set(name, found);
    return found;
  };
  for (const name of new Set(edges.flatMap(({ from, to }) => [from, to]))) column(name, []);
  const rows = new Map();
  const places = new Map();
  for (const [name, at] of [...columns].sort(([one, a], [other, b]) => a - b || one.localeCompare(other))) {
    const row = rows.get(at) ?? 0;
    rows.set(at, row + 1);
    places.set(name, { x: at * (WIDTH + GAP.x), y: row * (HEIGHT + GAP.y) });
  }
  return places;
}

function line({ from, to, label, title, isBad }, places) {
  const one = places.get(from);
  const other = places.get(to);
  const [x1, y1, x2, y2] = [one.x + WIDTH, one.y + HEIGHT / 2, other.x, other.y + HEIGHT / 2];
  const isBack = x2 <= x1; // a cycle: the line goes round below
  const middle = (x1 + x2) / 2;
  const path = isBack ? `M${x1} ${y1}C${x1 + 60} ${y1 + 50} ${x2 - 60} ${y2 + 50} ${x2} ${y2}` : `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  const curve = svg("path", { d: path, "marker-end": "url(#graph-head)", class: isBad ? "graph-line bad" : "graph-line" }, svg("title", {}, title));
  const text = svg("text", { x: middle, y: (y1 + y2) / 2 + (isBack ? 34 : -6), class: "graph-label" }, label);
  return [curve, text];
}
