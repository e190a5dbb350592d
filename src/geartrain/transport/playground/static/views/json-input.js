// The input as JSON. Files cannot be written down: they stay in the form, and are sent along.

import { h } from "../lib/dom.js";
import { holdsFile } from "../code/values.js";
import { FormError } from "../inputs/form.js";

/** Make the panel. `enter` fills it from the form, and `leave` the form from it. */
export function makeJsonPanel(form, fields) {
  const fault = h("div", { class: "fault", role: "alert", hidden: true, id: "json-fault" });
  const note = h("p", { class: "hint", hidden: true }, "Files stay in the form, and are sent along.");
  const area = h("textarea", { class: "control mono json-area", rows: "16", spellcheck: "false", autocomplete: "off", "aria-label": "Input as JSON", "aria-describedby": "json-fault" });
  const element = h("div", { class: "json-panel" }, area, note, fault);
  const secrets = new Set(fields.filter(({ kind }) => kind === "secret").map(({ name }) => name));
  let isShown = false;
  let kept = {}; // what stays in the form

  function tell(text) {
    fault.hidden = !text;
    fault.textContent = text;
  }
  function parse() {
    let values;
    try {
      values = JSON.parse(area.value || "{}");
    } catch (error) {
      throw new FormError(`This is not JSON: ${error.message}`);
    }
    if (values === null || typeof values !== "object" || Array.isArray(values)) throw new FormError("The input is an object: {…}.");
    return { ...kept, ...values };
  }
  area.addEventListener("input", () => tell(""));

  return {
    element,
    enter() {
      const values = form.read({ quiet: true });
      const isKept = ([name, value]) => holdsFile(value) || secrets.has(name);
      kept = Object.fromEntries(Object.entries(values).filter(isKept));
      note.hidden = !Object.keys(kept).length;
      area.value = JSON.stringify(Object.fromEntries(Object.entries(values).filter((entry) => !isKept(entry))), null, 2);
      isShown = true;
      tell("");
    },
    leave() {
      if (!isShown) return;
      isShown = false;
      try {
        form.write(parse());
      } catch (error) {
        if (!(error instanceof FormError)) throw error;
      }
    },
    forget() {
      isShown = false;
    },
    read({ quiet = false } = {}) {
      try {
        return parse();
      } catch (error) {
        if (quiet) return form.read({ quiet });
        tell(error.message);
        area.focus();
        throw error;
      }
    },
    showFaults(faults) {
      tell([...faults].flatMap(([name, texts]) => texts.map((text) => (name ? `${name}: ${text}` : text))).join("\n"));
      area.focus();
    },
  };
}
