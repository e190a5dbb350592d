// The predictions that the server keeps in its store, where it has one: also those of others, and of earlier sessions.

import { ask } from "../lib/api.js";
import { button, h } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { jsonBox } from "../outputs/json.js";
import { summary } from "./history.js";
import { statusSign } from "./result.js";

const PAGE = 20;

/**
 * Make the list of what has this path, such as `/predictions`. Returns `{ element, look }`; `look()` reads the newest
 * ones anew. `open(id)` shows one in the panel of results.
 */
export function makeStored(path, open) {
  const rows = h("ol", { class: "history-rows" });
  const older = button("Older", { class: "small quiet", hidden: true, onclick: () => void read(next) });
  const again = button("Refresh", { icon: "reload", class: "small quiet", "aria-label": "Refresh the stored runs", onclick: () => void look() });
  const element = h("section", { class: "panel stored", "aria-label": "Stored runs" }, h("div", { class: "panel-head" }, h("h2", {}, "Stored runs"), again, older), rows);
  let next = null;

  function look() {
    return read(null);
  }

  async function read(cursor) {
    try {
      const query = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
      const page = await ask(`${path}?limit=${PAGE}${query}`);
      const found = page.results.map((entry) => row(path, entry, open));
      if (cursor) rows.append(...found);
      else rows.replaceChildren(...(found.length ? found : [h("li", { class: "muted pad" }, "Nothing yet.")]));
      next = page.next;
    } catch (error) {
      rows.replaceChildren(h("li", { class: "muted pad", role: "alert" }, error.message));
      next = null;
    }
    older.hidden = !next;
  }

  return { element, look };
}

// A row, which has the whole prediction in it when its reader opens it.
function row(path, entry, open) {
  const made = new Date(entry.created_at);
  const time = h("time", { datetime: entry.created_at, class: "muted", title: made.toLocaleString() }, dateOf(made));
  const status = entry.status === "starting" ? "waiting" : entry.status;
  const took = entry.completed_at ? duration((new Date(entry.completed_at) - made) / 1000) : "";
  const whole = h("div", { class: "pad" });
  const shown = entry.input ? summary(entry.input) : "a long input";
  const details = h("details", {}, h("summary", { class: "history-row", title: entry.id }, time, statusSign(status), h("span", { class: "history-input" }, shown), h("span", { class: "history-time muted" }, took)), whole);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      const prediction = await ask(`${path}/${encodeURIComponent(entry.id)}`);
      whole.replaceChildren(button("Show as the result", { class: "small", onclick: () => open(prediction) }), jsonBox(prediction, "prediction"));
    } catch (error) {
      whole.replaceChildren(h("p", { class: "muted", role: "alert" }, error.message));
    }
  });
  return h("li", {}, details);
}

// Today the time alone, and otherwise the day before it.
function dateOf(moment) {
  const time = moment.toTimeString().slice(0, 5);
  if (moment.toDateString() === new Date().toDateString()) return time;
  const day = moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${day} ${time}`;
}
