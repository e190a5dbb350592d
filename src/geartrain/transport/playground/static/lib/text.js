// Texts that a model has made. They may be hostile, and may be very long.

import { announce, button, h } from "./dom.js";
import { bytes } from "./format.js";

export const BEGINNING = 2_000; // characters that tell whether a text has columns
const FIRST = 20_000; // characters that are shown at once: a line of millions makes a browser stand still
const MORE = 200_000;

// Control characters, and those that turn the direction of a text around, would hide what a text says.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Return a text in which each control character is a sign that can be seen. */
export function visible(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/** Return printed text as a terminal would show its lines: what follows a carriage return overwrites the line. */
export function printed(text) {
  if (!text.includes("\r")) return text;
  return text
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").replace(/^.*\r/s, ""))
    .join("\n");
}

const BAR = /^(.*?):?\s*(\d{1,3})%\|[^|]*\|\s*(.*)$/; // as tqdm draws it

/** Return how far a run is, as its last printed line says: `{ text, percent, rest }`, `percent` null for a line alone. */
export function progressOf(logs) {
  const lines = printed(logs.slice(-5_000)).split("\n").map((line) => line.trimEnd()).filter(Boolean);
  const line = lines.at(-1);
  if (line === undefined) return null;
  const bar = BAR.exec(line);
  if (!bar || Number(bar[2]) > 100) return { text: visible(line).slice(0, 500), percent: null, rest: "" };
  return { text: visible(bar[1]).slice(0, 200), percent: Number(bar[2]), rest: visible(bar[3]).slice(0, 200) };
}

/** Whether spaces align parts of a text, as in a drawing, a table or code. It needs letters of one width then. */
export function hasColumns(text) {
  const beginning = text.slice(0, BEGINNING);
  const indented = beginning.match(/^(?: {2,}|\t)\S/gm) ?? [];
  return indented.length > 1 || /\S {3,}\S/.test(beginning);
}

/** Return an element that shows a text, its beginning first if it is long. `end`: its end instead. */
export function longText(text, { end = false, kind = "text", label = "Text" } = {}) {
  const shown = h("pre", { class: `long-text ${kind}`, tabindex: "0", "aria-label": label });
  const element = h("div", { class: "text-box" }, shown);
  shown.classList.toggle("columns", kind === "text" && hasColumns(text));
  if (text.length <= FIRST) {
    shown.textContent = visible(text);
    return element;
  }
  let count = FIRST;
  const note = h("span", { class: "muted" });
  const more = button("Show more", { class: "small", onclick: () => grow() });
  element.append(h("div", { class: "text-more" }, note, more));

  function paint() {
    const part = end ? text.slice(-count) : text.slice(0, count);
    shown.textContent = visible(part);
    const place = end ? "last" : "first";
    note.textContent = `The ${place} ${count.toLocaleString("en-US")} of ${text.length.toLocaleString("en-US")} characters`;
    more.hidden = count >= text.length || count >= 1_000_000;
  }
  function grow() {
    count = Math.min(text.length, count + MORE);
    paint();
  }
  paint();
  return element;
}

/** Copy a text, and say so on the button. */
export async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "offscreen", value: text, "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // without TLS there is no other way
    area.remove();
  }
  announce("Copied");
  from.classList.add("done");
  from.addEventListener("transitionend", () => from.classList.remove("done"), { once: true });
  setTimeout(() => from.classList.remove("done"), 1200);
}

/** Return a button that copies what `read` gives. */
export function copyButton(read, { label = "Copy", text = "Copy" } = {}) {
  const made = button(text, { class: "small quiet copy", icon: "copy", "aria-label": label });
  made.addEventListener("click", () => void copyText(read(), made));
  return made;
}

/** Give a file to the browser's downloads. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Return a button that downloads what `read` gives as a Blob. */
export function downloadButton(read, name, text = "Download") {
  return button(text, { class: "small quiet", icon: "download", onclick: () => download(read(), name) });
}

/** Return the size of a text in bytes of UTF-8, as people read it. */
export function textSize(text) {
  return bytes(new Blob([text]).size);
}
