// The predictions that the server keeps in its store, where it has one: also those of others, and of earlier sessions.

import { ask } from "../lib/api.js";
import { button, h } from "../lib/dom.js";
import { visible } from "../lib/text.js";
import { jsonBox } from "../outputs/json.js";
import { statusSign } from "./result.js";

const PAGE = 20;

/**
 * Make the list of what has this path, such as `/predictions`. Returns `{ element, look }`; `look()` reads the newest
 * ones anew.
 */
export function makeStored(path) {
  const rows = h("ol", { class: "history-rows" });
  const older = button("Older", { class: "small quiet", hidden: true, onclick: () => void read(next) });
  const again = button("Refresh", { icon: "reload", class: "small quiet", "aria-label": "Refresh the list of the store", onclick: () => void look() });
  const element = h("section", { class: "panel stored", "aria-label": "In the store" }, h("div", { class: "panel-head" }, h("h2", {}, "In the store"), again, older), rows);
  let next = null;

  function look() {
    return read(null);
  }

  async function read(cursor) {
    try {
      const query = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
      const page = await ask(`${path}?limit=${PAGE}${query}`);
      const found = page.results.map((entry) => row(path, entry));
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
function row(path, entry) {
  const made = new Date(entry.created_at);
  const time = h("time", { datetime: entry.created_at, class: "muted", title: made.toLocaleString() }, made.toTimeString().slice(0, 8));
  const status = entry.status === "starting" ? "waiting" : entry.status;
  const whole = h("div", { class: "pad" });
  const details = h("details", {}, h("summary", { class: "history-row" }, time, statusSign(status), h("span", { class: "history-input" }, visible(entry.id))), whole);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    try {
      whole.replaceChildren(jsonBox(await ask(`${path}/${encodeURIComponent(entry.id)}`), "prediction"));
    } catch (error) {
      whole.replaceChildren(h("p", { class: "muted", role: "alert" }, error.message));
    }
  });
  return h("li", {}, details);
}
