// Elements, made without HTML: a text is always a text, whatever it says.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. `props`: `class`, `data`, `on…` for listeners, properties such as `value` and `checked`, and
 * attributes. A value of `false`, `null` or `undefined` leaves an attribute out. Children that are null are left out.
 */
export function h(name, props = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "textContent", "indeterminate", "srcObject"]);

/** Make an element of SVG. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Paths in a square of 16, drawn with a line of 1.5.
const ICONS = {
  camera: "M2 5.5h2.5L6 3.5h4l1.5 2H14v7H2zM8 11a2.2 2.2 0 1 0 0-4.4A2.2 2.2 0 0 0 8 11z",
  check: "m3 8.5 3.2 3.2L13 4.8",
  close: "m4 4 8 8M12 4l-8 8",
  code: "m5.5 4.5-3.5 3.5 3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  copy: "M5.5 5.5h8v8h-8zM3 10.5H2.5v-8h8V3",
  download: "M8 2v8.5M4.5 7.2 8 10.7l3.5-3.5M2.5 13.5h11",
  file: "M4 1.8h5.2L12.5 5v9.2H4zM9 2v3.4h3.4",
  history: "M2.5 8a5.5 5.5 0 1 0 1.8-4.1L2.5 5.5M2.5 2.3v3.2h3.2M8 5v3.2l2.2 1.3",
  key: "M6.2 9.8a3.4 3.4 0 1 1 0-.1zM5.9 9.2 13.5 2M11 4.4l2 2",
  link: "M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2.3-2.3a2.6 2.6 0 0 0-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 0 0-3.7 0L3.2 9.1a2.6 2.6 0 0 0 3.7 3.7l.9-.9",
  microphone: "M8 1.8a1.9 1.9 0 0 1 1.9 1.9v4a1.9 1.9 0 1 1-3.8 0v-4A1.9 1.9 0 0 1 8 1.8zM3.7 7.5a4.3 4.3 0 0 0 8.6 0M8 11.8v2.4",
  moon: "M13.4 9.7A5.8 5.8 0 0 1 6.3 2.6a5.8 5.8 0 1 0 7.1 7.1z",
  play: "M4.5 2.8v10.4L13 8z",
  plus: "M8 3v10M3 8h10",
  reload: "M13.5 8a5.5 5.5 0 1 1-1.8-4.1l1.8 1.6M13.5 2.3v3.2h-3.2",
  stop: "M4 4h8v8H4z",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM8 1.2v1.4M8 13.4v1.4M1.2 8h1.4M13.4 8h1.4M3.2 3.2l1 1M11.8 11.8l1 1M3.2 12.8l1-1M11.8 4.2l1-1",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  upload: "M8 10.5V2.2M4.5 5.5 8 2l3.5 3.5M2.5 10.5v3h11v-3",
  warning: "M8 2 1.5 13.5h13zM8 6.5v3.2M8 11.4v.2",
};

/** Return an icon. It says nothing to a screen reader: a label stands beside it, or on its button. */
export function icon(name) {
  const line = svg("path", { d: ICONS[name] });
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true", focusable: "false" }, line);
}

/** Return a button; `props.icon` names the icon before its text, and one without a text needs `aria-label`. */
export function button(text, { icon: name, ...props } = {}) {
  const label = props["aria-label"];
  return h("button", { type: "button", title: text ? null : label, ...props }, name ? icon(name) : null, text || null);
}

let serial = 0;

/** Return an id that no other element has. */
export function newId(prefix) {
  serial += 1;
  return `${prefix}-${serial}`;
}

/** Tell a screen reader. */
export function announce(text) {
  const region = document.querySelector("#announcements");
  if (region) region.textContent = text;
}
