// The panel "As code".

import { ask, currentKey, root } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { copyButton } from "../lib/text.js";
import { LANGUAGES } from "./samples.js";

let chosen = "curl"; // stays when the reader goes to another model

/**
 * Make the panel. `read` returns the request at hand, as `languages` need it: `{ path, values, streams, model, version }`
 * for predictions. Returns `{ element, paint }`.
 */
export function makeCodePanel(read, languages = LANGUAGES) {
  const shown = h("pre", { class: "code", tabindex: "0", "aria-label": "Code" });
  const note = h("p", { class: "muted" });
  const choices = h("div", { class: "segments", role: "group", "aria-label": "Language" });
  let metadata = null;
  const buttons = languages.map(({ id, label }) => h("button", { type: "button", class: "segment", data: { language: id }, onclick: () => choose(id) }, label));
  choices.append(...buttons);
  const element = h("div", { class: "code-panel" }, h("div", { class: "code-head" }, choices, copyButton(() => shown.textContent, { label: "Copy the code", text: "" })), shown, note);

  function choose(id) {
    chosen = id;
    void paint();
  }

  async function paint() {
    const language = languages.find(({ id }) => id === chosen) ?? languages[0];
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.language === language.id));
    const request = read();
    const hasKey = Boolean(currentKey());
    if (language.needsMetadata && !metadata) {
      const version = request.version ? `/versions/${encodeURIComponent(request.version)}` : "";
      try {
        metadata = await ask(`v2/models/${encodeURIComponent(request.model)}${version}`);
      } catch (error) {
        shown.textContent = "";
        note.textContent = `The Open Inference Protocol does not tell of this model: ${error.message}`;
        return;
      }
      if (chosen !== language.id) return; // another one was chosen meanwhile
    }
    shown.textContent = language.make({ ...request, origin: root.href.replace(/\/$/, ""), hasKey, metadata });
    note.textContent = hasKey ? "The key is taken from the variable GEARTRAIN_KEY." : "";
  }
  return { element, paint };
}
