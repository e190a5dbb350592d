// The form of a model, and the same input as JSON.

import { h, newId } from "../lib/dom.js";
import { makeControl } from "./fields.js";
import { typeText } from "./schema.js";

/** An input that cannot be sent: the form says where. */
export class FormError extends Error {}

/**
 * Make a form of fields. Returns `{ element, read, write, showFaults, addFiles }`. `read` returns the values and raises
 * FormError; values of files are File objects. `changed` is called at each change, `submit` when the reader asks to run.
 */
export function makeForm(fields, { changed, submit }) {
  const rows = new Map(fields.map((field) => [field.name, makeRow(field, () => {
    rows.get(field.name).clear();
    changed();
  })]));
  const general = h("div", { class: "fault-box", role: "alert", hidden: true });
  const element = h("form", { class: "form", novalidate: true, autocomplete: "off", "aria-label": "Input" }, general, [...rows.values()].map((row) => row.element));
  if (!fields.length) element.append(h("p", { class: "muted" }, "This model takes no input."));
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });

  function showFaults(faults) {
    let first = null;
    const others = [];
    for (const [name, texts] of faults) {
      const row = rows.get(name);
      if (row) {
        row.show(texts);
        if (!first || row.element.compareDocumentPosition(first.element) & Node.DOCUMENT_POSITION_FOLLOWING) first = row;
      } else {
        others.push(...texts.map((text) => (name ? `${name}: ${text}` : text)));
      }
    }
    general.hidden = !others.length;
    general.replaceChildren(...others.map((text) => h("p", {}, text)));
    first?.control.focus();
  }

  return {
    element,
    /** Return the values; those that are left out are missing. */
    read({ quiet = false } = {}) {
      const values = {};
      const faults = new Map();
      for (const [name, row] of rows) {
        try {
          const value = row.control.read();
          if (value !== undefined) values[name] = value;
        } catch (error) {
          faults.set(name, [error.message]);
        }
      }
      if (faults.size && !quiet) {
        showFaults(faults);
        throw new FormError("Some inputs are not complete.");
      }
      return values;
    },
    /** Fill the form: an input that `values` has not gets what it begins with. */
    write(values = {}) {
      general.hidden = true;
      for (const [name, row] of rows) {
        row.control.write(values[name]);
        row.clear();
      }
    },
    showFaults,
    clearFaults() {
      general.hidden = true;
      for (const row of rows.values()) row.clear();
    },
    /** Give files that were pasted to the first input for files that has none, or else to the first that takes several. */
    addFiles(files) {
      const takers = [...rows.values()].filter((row) => row.control.addFiles);
      const taker = takers.find((row) => row.element.contains(document.activeElement)) ?? takers.find((row) => !row.control.read()?.length && !(row.control.read() instanceof File)) ?? takers[0];
      taker?.control.addFiles(files);
      return Boolean(taker);
    },
  };
}

function makeRow(field, changed) {
  const ids = { control: newId("input"), label: newId("label"), hint: newId("hint"), fault: newId("fault") };
  const hasHint = Boolean(field.description);
  const describedBy = `${hasHint ? `${ids.hint} ` : ""}${ids.fault}`;
  const control = makeControl(field, { ...ids, describedBy }, changed);
  const fault = h("div", { class: "fault", id: ids.fault, hidden: true });
  const title = h(control.isGroup ? "span" : "label", { id: ids.label, class: "label", for: control.isGroup ? null : ids.control }, field.label);
  const marks = [
    field.required ? h("span", { class: "required", title: "Required" }, h("span", { "aria-hidden": "true" }, "*"), h("span", { class: "offscreen" }, "required")) : null,
    field.deprecated ? h("span", { class: "tag" }, "deprecated") : null,
  ];
  const head = h("div", { class: "field-head" }, h("span", {}, title, marks), h("span", { class: "field-type" }, h("code", {}, field.name), typeText(field)));
  const hint = hasHint ? h("p", { class: "hint", id: ids.hint }, field.description) : null;
  const element = h("div", { class: "field", data: { field: field.name, kind: field.kind } }, head, control.element, hint, fault);
  const inputs = () => element.querySelectorAll("input, textarea, select");
  return {
    element,
    control,
    show(texts) {
      fault.replaceChildren(...texts.map((text) => h("p", {}, text)));
      fault.hidden = false;
      element.classList.add("has-fault");
      for (const input of inputs()) input.setAttribute("aria-invalid", "true");
    },
    clear() {
      if (fault.hidden) return;
      fault.hidden = true;
      element.classList.remove("has-fault");
      for (const input of inputs()) input.removeAttribute("aria-invalid");
    },
  };
}
