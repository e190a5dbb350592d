// A text that a model gives, and the same as Markdown where it looks like it.

import { button, h } from "../lib/dom.js";
import { BEGINNING, copyButton, downloadButton, hasColumns, longText, textSize } from "../lib/text.js";
import { markdown } from "./markdown.js";

const LONGEST = 200_000; // characters that are read as Markdown
const MARKS = [/^#{1,4} \S/m, /^```/m, /\*\*[^*\n]+\*\*/, /^\s*[-*] \S.*\n\s*[-*] \S/m, /^\s*1\. \S.*\n\s*2\. \S/m, /^\|.+\|\n\|[ :-]+\|/m, /\[[^\]\n]+\]\(https?:/];

/** Whether a text has the marks of Markdown. */
export function isMarkdown(text) {
  if (text.length > LONGEST) return false;
  return MARKS.filter((mark) => mark.test(text)).length >= 1;
}

/** Return what shows a text: as Markdown if it looks like it, with a way back to the text. */
export function textOutput(text, { name = "output", asMarkdown = isMarkdown(text) } = {}) {
  const body = h("div", {});
  const canRead = text.length <= LONGEST;
  const toggle = button("Markdown", { class: "small quiet", "aria-pressed": "false" });
  const paint = (isRead) => {
    toggle.setAttribute("aria-pressed", String(isRead));
    body.replaceChildren(isRead ? markdown(text) : longText(text, { label: name }));
  };
  toggle.addEventListener("click", () => paint(toggle.getAttribute("aria-pressed") !== "true"));
  paint(canRead && asMarkdown);
  if (text.length < 60 && !text.includes("\n")) return h("div", { class: "text-output brief" }, body, copyButton(() => text, { text: "", label: `Copy ${name}` }));
  const tools = h(
    "div",
    { class: "tools" },
    h("span", { class: "muted" }, textSize(text)),
    canRead ? toggle : null,
    copyButton(() => text),
    downloadButton(() => new Blob([text], { type: "text/plain" }), `${name}.txt`),
  );
  return h("div", { class: "text-output" }, body, tools);
}

/** Return what shows a text that grows: `{ element, append }`. */
export function growingText() {
  const shown = h("pre", { class: "long-text growing", "aria-live": "off" });
  const element = h("div", { class: "text-output" }, shown);
  let length = 0;
  let beginning = "";
  return {
    element,
    append(text) {
      const room = LONGEST - length;
      if (room <= 0) return;
      length += text.length;
      if (beginning.length < BEGINNING) {
        beginning += text.slice(0, BEGINNING);
        shown.classList.toggle("columns", hasColumns(beginning));
      }
      shown.append(text.slice(0, room));
      if (length >= LONGEST) shown.append("\n… more when it is over");
    },
  };
}
