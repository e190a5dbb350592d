// Lines over time, drawn by uPlot, which is loaded when the first one is.

import { h } from "./dom.js";

const MINUTES = [60, 120, 300];
const APART = 0.025; // of the height, between lines that all lie at 0
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000];
const BINARY = Array.from({ length: 45 }, (_, power) => 2 ** power);

/** A color of the page as it is shown now: what the variable comes to, which has one for each scheme. */
function color(name) {
  const probe = h("span", {});
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * Make a chart. `series`: `[{ label, color }]`, of which `color` is a variable of the style sheet. `format` makes a text of
 * a value. `isWhole`: there is nothing between two integers. `isBinary`: values are bytes. `empty` is shown while there is
 * nothing but zeros. Returns `{ element, set(times, columns, seconds), close }`: `columns` has a list of values for each
 * series, and the chart is `seconds` long, however many there are.
 */
export function lineChart(uPlot, { title, series, format, isWhole = false, isBinary = false, empty = "" }) {
  const nothing = h("p", { class: "plot-empty muted", hidden: true }, empty);
  const box = h("div", { class: "plot" }, nothing);
  const legend = h("div", { class: "plot-legend" });
  const element = h("figure", { class: "plot-box", role: "group", "aria-label": title }, h("figcaption", {}, h("h3", {}, title), legend), box);
  const values = series.map(({ label, color: name }) => {
    const value = h("b", {});
    legend.append(h("span", { class: "plot-key" }, h("span", { class: `swatch ${name.slice(2)}`, "aria-hidden": "true" }), label, " ", value));
    return value;
  });
  let plot = null;
  let data = [[], ...series.map(() => [])];
  let length = 300;

  function draw() {
    plot?.destroy();
    const line = color("--line");
    const text = color("--muted");
    const steps = isWhole ? { incrs: WHOLE } : isBinary ? { incrs: BINARY } : {};
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot = new uPlot(
      {
        width: Math.max(200, box.clientWidth),
        height: 150,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: {
          x: { time: true, range: (_, least, greatest) => [greatest - length, greatest] },
          y: { range: () => [-top() * APART * (series.length - 1), top()] },
        },
        axes: [
          { ...axis, size: 28, space: 50, incrs: MINUTES, values: (_, splits) => splits.map((at) => new Date(at * 1000).toTimeString().slice(0, 5)) },
          { ...axis, size: 58, ...steps, filter: (_, splits) => splits.map((at) => (at < 0 ? null : at)), values: (_, splits) => splits.map((at) => (at === null ? "" : format(at))) },
        ],
        series: [{}, ...series.map(({ color: name }) => ({ stroke: color(name), width: 1.75, points: { show: false }, spanGaps: false }))],
        hooks: { setCursor: [(at) => tell(at.cursor.idx)] },
      },
      apart(),
      box,
    );
  }
  const finite = () => data.slice(1).flat().filter(Number.isFinite);
  const top = () => {
    const greatest = finite().reduce((one, other) => Math.max(one, other), 0);
    return greatest > 0 ? greatest * 1.15 : 1;
  };
  // Lines at 0 lie below each other instead of on top of each other.
  function apart() {
    const step = top() * APART;
    return [data[0], ...data.slice(1).map((column, at) => column.map((value) => (value === 0 ? -at * step : value)))];
  }
  function tell(index) {
    const at = index ?? data[0].length - 1;
    for (const [number, value] of values.entries()) {
      const found = data[number + 1][at];
      value.textContent = found === null || found === undefined || !Number.isFinite(found) ? "–" : format(found);
    }
  }
  const sizes = new ResizeObserver(() => plot?.setSize({ width: Math.max(200, box.clientWidth), height: 150 }));
  const themes = matchMedia("(prefers-color-scheme: dark)");
  sizes.observe(box);
  themes.addEventListener("change", draw);
  document.addEventListener("theme", draw);
  return {
    element,
    set(times, columns, seconds) {
      data = [times, ...columns];
      length = seconds;
      if (plot) plot.setData(apart());
      else draw();
      nothing.hidden = !empty || finite().some((value) => value > 0);
      tell(null);
    },
    close() {
      sizes.disconnect();
      themes.removeEventListener("change", draw);
      document.removeEventListener("theme", draw);
      plot?.destroy();
    },
  };
}
