// The controls of a form, one for each kind of input.
//
// A control is `{ element, read, write, focus }`. `read` returns the value, undefined to leave the input out, and raises
// Error for what is no value. `write` takes a value, or undefined for the one that the form begins with.

import { button, h, newId } from "../lib/dom.js";
import { fileControl } from "./files.js";
import { hasSlider, kindOf, skeleton } from "./schema.js";

const SHORT = 80; // characters: a text that may be longer has a box of several lines

/** Make the control of a field. `ids`: of its label and of what describes it. `changed` is called when it changes. */
export function makeControl(field, ids, changed) {
  const attributes = { id: ids.control, "aria-describedby": ids.describedBy, "aria-required": field.required ? "true" : null };
  const control = MAKERS[field.kind](field, attributes, changed, ids);
  control.write(undefined);
  return control;
}

const MAKERS = {
  text: textControl,
  integer: numberControl,
  number: numberControl,
  boolean: booleanControl,
  choice: choiceControl,
  choices: choicesControl,
  secret: secretControl,
  list: listControl,
  file: (field, attributes, changed, ids) => fileControl(field, { attributes, ids, changed, several: false }),
  files: (field, attributes, changed, ids) => fileControl(field, { attributes, ids, changed, several: true }),
  tensor: jsonControl,
  json: jsonControl,
};

// What an empty control means: nothing, unless the field has another default than null that it shall not get.
function empty({ nullable, fallback }) {
  return nullable && fallback !== undefined && fallback !== null ? null : undefined;
}

function textControl(field, attributes, changed) {
  const { maxLength, pattern } = field.schema;
  const isShort = (maxLength !== undefined && maxLength <= SHORT) || pattern !== undefined;
  const shown = { ...attributes, class: "control", spellcheck: "false", autocomplete: "off", oninput: changed };
  const element = isShort ? h("input", { type: "text", ...shown }) : h("textarea", { rows: "2", ...shown });
  return {
    element,
    read: () => (element.value === "" && !field.required && field.fallback !== "" ? empty(field) : element.value),
    write(value) {
      element.value = value ?? field.fallback ?? "";
    },
    focus: () => element.focus(),
  };
}

function secretControl(field, attributes, changed) {
  const input = h("input", { type: "password", class: "control", autocomplete: "off", ...attributes, oninput: changed });
  const show = button("Show", { class: "small", "aria-pressed": "false" });
  show.addEventListener("click", () => {
    const isShown = input.type === "password";
    input.type = isShown ? "text" : "password";
    show.textContent = isShown ? "Hide" : "Show";
    show.setAttribute("aria-pressed", String(isShown));
  });
  return {
    element: h("div", { class: "row" }, input, show),
    read: () => input.value || undefined,
    write(value) {
      input.value = value ?? "";
    },
    focus: () => input.focus(),
    isSecret: true,
  };
}

function numberControl(field, attributes, changed, ids) {
  const { kind, minimum, maximum } = field;
  const isWhole = kind === "integer";
  const box = h("input", { type: "text", inputmode: isWhole ? "numeric" : "decimal", class: "control number", autocomplete: "off", ...attributes });
  const slider = hasSlider(field)
    ? h("input", { type: "range", class: "slider", min: minimum, max: maximum, step: isWhole ? 1 : stepOf(minimum, maximum), "aria-labelledby": ids.label })
    : null;
  const follow = () => {
    const value = Number(box.value);
    if (slider && box.value.trim() !== "" && Number.isFinite(value)) slider.value = value;
  };
  box.addEventListener("input", () => {
    follow();
    changed();
  });
  slider?.addEventListener("input", () => {
    box.value = isWhole ? slider.value : String(Number(Number(slider.value).toPrecision(6)));
    changed();
  });
  return {
    element: slider ? h("div", { class: "slider-row" }, slider, box) : box,
    read() {
      const text = box.value.trim();
      if (text === "") return empty(field);
      const value = Number(text);
      if (!Number.isFinite(value)) throw new Error(`"${text}" is not a number`);
      if (isWhole && !Number.isInteger(value)) throw new Error(`${text} is not an integer`);
      if (isWhole && !Number.isSafeInteger(value)) throw new Error(`${text} has more digits than this page can send exactly; send it with the API`);
      return value;
    },
    write(value) {
      const wanted = value === undefined ? field.fallback : value;
      box.value = wanted === undefined || wanted === null ? "" : String(wanted);
      if (slider) slider.value = box.value === "" ? minimum : box.value;
    },
    focus: () => box.focus(),
  };
}

function stepOf(minimum, maximum) {
  return 10 ** Math.floor(Math.log10((maximum - minimum) / 100));
}

function booleanControl(field, attributes, changed) {
  if (field.nullable || (field.fallback === undefined && !field.required)) return choiceControl({ ...field, schema: { enum: [true, false] } }, attributes, changed);
  const box = h("input", { type: "checkbox", class: "switch", role: "switch", ...attributes, onchange: changed });
  const said = h("span", { class: "muted", "aria-hidden": "true" });
  const tell = () => {
    said.textContent = box.checked ? "Yes" : "No";
  };
  box.addEventListener("change", tell);
  return {
    element: h("div", { class: "row" }, box, said),
    read: () => box.checked,
    write(value) {
      box.checked = Boolean(value ?? field.fallback);
      tell();
    },
    focus: () => box.focus(),
  };
}

function choiceControl(field, attributes, changed) {
  const values = (field.schema.enum ?? []).filter((value) => value !== null);
  const maybeEmpty = field.nullable || field.fallback === undefined;
  const element = h(
    "select",
    { class: "control", ...attributes, onchange: changed },
    maybeEmpty ? h("option", { value: "" }, field.required && !field.nullable ? "Choose…" : "None") : null,
    values.map((value, at) => h("option", { value: String(at) }, typeof value === "string" ? value : JSON.stringify(value))),
  );
  return {
    element: h("div", { class: "select" }, element),
    read: () => (element.value === "" ? empty(field) : values[Number(element.value)]),
    write(value) {
      const wanted = value === undefined ? field.fallback : value;
      const at = values.indexOf(wanted);
      element.value = at < 0 ? (maybeEmpty ? "" : "0") : String(at);
    },
    focus: () => element.focus(),
  };
}

function choicesControl(field, attributes, changed, ids) {
  const values = field.schema.items.enum;
  const boxes = values.map((value) => h("input", { type: "checkbox", onchange: changed, data: { value: JSON.stringify(value) } }));
  const labels = boxes.map((box, at) => h("label", { class: "chip" }, box, String(values[at])));
  return {
    element: h("div", { class: "chips", role: "group", "aria-labelledby": ids.label, "aria-describedby": ids.describedBy, id: attributes.id }, labels),
    read: () => values.filter((_, at) => boxes[at].checked),
    write(value) {
      const wanted = new Set((value ?? field.fallback ?? []).map((each) => JSON.stringify(each)));
      for (const box of boxes) box.checked = wanted.has(box.dataset.value);
    },
    focus: () => boxes[0]?.focus(),
    isGroup: true,
  };
}

function listControl(field, attributes, changed, ids) {
  const kind = kindOf(field.schema.items);
  const rows = h("div", { class: "list-rows" });
  const name = field.label;
  const addRow = (value = "", focus = false) => {
    const input = h("input", { type: "text", class: "control", autocomplete: "off", spellcheck: "false", oninput: changed, value: String(value) });
    const remove = button("", { icon: "close", class: "icon-button", "aria-label": "Remove" });
    const row = h("div", { class: "row" }, input, remove);
    remove.addEventListener("click", () => {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      row.remove();
      number();
      (next?.querySelector("input") ?? add).focus();
      changed();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        addRow("", true);
      }
    });
    rows.append(row);
    number();
    if (focus) {
      input.focus();
      changed();
    }
  };
  const number = () => {
    for (const [at, row] of [...rows.children].entries()) {
      row.querySelector("input").setAttribute("aria-label", `${name}, ${at + 1}`);
      row.querySelector("button").setAttribute("aria-label", `Remove ${name}, ${at + 1}`);
    }
  };
  const add = button("Add", { icon: "plus", class: "small", onclick: () => addRow("", true), "aria-label": `Add to ${name}` });
  const readRow = (text, at) => {
    if (kind === "text") return text;
    const value = Number(text);
    if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`${at + 1}: "${text}" is not a number`);
    if (kind === "integer" && !Number.isSafeInteger(value)) throw new Error(`${at + 1}: ${text} is not an integer`);
    return value;
  };
  return {
    element: h("div", { class: "list", role: "group", "aria-labelledby": ids.label, "aria-describedby": ids.describedBy, id: attributes.id }, rows, add),
    read() {
      const texts = [...rows.querySelectorAll("input")].map((input) => input.value);
      if (!texts.length && field.fallback === undefined && !field.required) return undefined;
      if (!texts.length && (field.fallback === null || field.nullable)) return empty(field);
      return texts.map(readRow);
    },
    write(value) {
      rows.replaceChildren();
      for (const each of value ?? field.fallback ?? []) addRow(each);
    },
    focus: () => (rows.querySelector("input") ?? add).focus(),
    isGroup: true,
  };
}

function jsonControl(field, attributes, changed) {
  const hintId = newId("json-hint");
  const element = h("textarea", {
    class: "control mono",
    rows: "3",
    spellcheck: "false",
    autocomplete: "off",
    ...attributes,
    "aria-describedby": `${attributes["aria-describedby"] ?? ""} ${hintId}`.trim(),
    oninput: changed,
  });
  const tidy = button("Tidy", { class: "small quiet", "aria-label": `Tidy the JSON of ${field.label}` });
  tidy.addEventListener("click", () => {
    try {
      element.value = JSON.stringify(JSON.parse(element.value), null, 2);
      changed();
    } catch {
      element.focus();
    }
  });
  const example = button("Example", { class: "small quiet", "aria-label": `Fill ${field.label} with an example` });
  example.addEventListener("click", () => {
    element.value = JSON.stringify(skeleton({ ...field.schema, default: undefined }), null, 1);
    changed();
  });
  return {
    element: h("div", { class: "json-control" }, element, h("div", { class: "json-tools" }, h("span", { class: "muted", id: hintId }, "JSON"), example, tidy)),
    read() {
      if (element.value.trim() === "") return empty(field);
      try {
        return JSON.parse(element.value);
      } catch (error) {
        throw new Error(`This is not JSON: ${error.message}`);
      }
    },
    write(value) {
      const wanted = value === undefined ? field.fallback : value;
      element.value = wanted === undefined || wanted === null ? "" : JSON.stringify(wanted, null, isFlat(wanted) ? 0 : 2);
    },
    focus: () => element.focus(),
  };
}

function isFlat(value) {
  return Array.isArray(value) && value.every((each) => typeof each !== "object");
}
