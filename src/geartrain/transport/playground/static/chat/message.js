// A message of a conversation, as it is shown. What a model has written becomes elements, never HTML.

import { button, h, icon } from "../lib/dom.js";
import { duration, number } from "../lib/format.js";
import { copyButton, longText, visible } from "../lib/text.js";
import { markdown } from "../outputs/markdown.js";

const LONGEST = 200_000; // characters that are read as Markdown
const LONGEST_GROWING = 30_000; // likewise, of a text that grows: it is read anew for each piece
const PACE = 40; // milliseconds between two paintings of a text that grows
const SHARE = 8; // of the time that a painting has taken, until the next one: reading takes a small part of the time
const ROLES = { user: "You", assistant: "Model", tool: "Tool" };

/**
 * Make the element of a message. Returns `{ element, grow, paint, edit }`: `grow()` shows what has come since, soon, and
 * `paint()` all of it at once. `actions(message)` gives the buttons below it.
 */
export function makeMessage(message, { actions, grown }) {
  const figures = h("span", { class: "message-figures muted" });
  const head = h("div", { class: "message-head" }, h("h3", {}, message.role === "tool" ? `Result of ${visible(message.name ?? "")}` : ROLES[message.role]), figures);
  const thoughts = foldable("Reasoning", "reasoning");
  const body = h("div", { class: "message-body" });
  const calls = h("div", { class: "message-calls" });
  const end = h("div", { class: "message-end" });
  const tools = h("div", { class: "message-tools" });
  const element = h("li", { class: `message ${message.role}`, data: { state: message.state } }, head, thoughts.element, body, calls, end, tools);
  const callParts = [];
  let timer = 0;
  let cost = 0;

  function paintCalls(isWriting) {
    for (const [at, call] of message.calls.entries()) {
      if (!callParts[at]) calls.append((callParts[at] = foldable("", "call")).element);
      callParts[at].show(isWriting ? call.arguments : tidied(call.arguments), `Calls ${visible(call.name) || "a tool"}`);
      callParts[at].element.hidden = false;
    }
  }

  function paint() {
    clearTimeout(timer);
    timer = 0;
    const begun = performance.now();
    const isWriting = message.state === "writing";
    element.dataset.state = message.state;
    thoughts.show(message.reasoning, isWriting && !message.content ? "Reasoning…" : "Reasoning");
    body.replaceChildren(...bodyOf(message, isWriting));
    paintCalls(isWriting);
    end.replaceChildren(...endOf(message));
    figures.textContent = figuresText(message.figures);
    tools.replaceChildren(...(isWriting ? [] : actions(message)));
    cost = performance.now() - begun;
  }

  paint();
  return {
    element,
    paint,
    grow() {
      timer ||= setTimeout(() => {
        paint();
        grown();
      }, Math.max(PACE, SHARE * cost));
    },
    /** Put a box in place of the text. `save(text)` is called with the new one. */
    edit(label, save) {
      const box = h("textarea", { class: "control", rows: "3", "aria-label": "Text of the message", value: message.content });
      const cancel = button("Cancel", { class: "small", onclick: () => {
        paint();
        element.querySelector(".edit")?.focus();
      } });
      const done = button(label, { class: "small primary", onclick: () => save(box.value) });
      box.addEventListener("keydown", (event) => {
        if (event.key === "Escape") cancel.click();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done.click();
        if (["Escape", "Enter"].includes(event.key)) event.stopPropagation();
      });
      body.replaceChildren(box);
      tools.replaceChildren(done, cancel);
      box.focus();
    },
  };
}

function bodyOf(message, isWriting) {
  const { content } = message;
  if (!content) return isWriting && !message.reasoning && !message.calls.length ? [h("p", { class: "waiting" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Waiting for the model…")] : [];
  if (message.role !== "assistant") return [longText(content, { label: "Message" })];
  if (content.length > (isWriting ? LONGEST_GROWING : LONGEST)) return [longText(content, { end: isWriting, label: "Answer" })];
  return [markdown(content)];
}

function tidied(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

// A text that is folded: `show(text, title)` hides it while there is none.
function foldable(title, kind) {
  const summary = h("summary", {}, title);
  const shown = h("div", {});
  const element = h("details", { class: `folded ${kind}`, hidden: true }, summary, shown);
  let text = "";
  const paint = () => {
    if (element.open) shown.replaceChildren(longText(text, { kind: "log", end: true, label: summary.textContent }));
  };
  element.addEventListener("toggle", paint);
  return {
    element,
    show(given, named) {
      element.hidden = !given;
      summary.textContent = named;
      if (given === text) return;
      text = given;
      paint();
    },
  };
}

function endOf({ error, note }) {
  if (!error) return note ? [h("p", { class: "muted" }, note)] : [];
  return [h("div", { class: "failure", role: "alert" }, h("p", { class: "failure-text" }, icon("warning"), h("span", {}, visible(error.message).slice(0, 5000))), error.retryAfter ? h("p", { class: "muted" }, `The server asks to wait for ${error.retryAfter} s.`) : null)];
}

function figuresText(figures) {
  if (!figures) return "";
  const { wait, count, unit, prompt, rate } = figures;
  const parts = [`${number(count)} ${unit}`, rate === null ? "" : `${number(rate, 3)} ${unit}/s`, `first after ${duration(wait)}`, prompt === null ? "" : `prompt ${number(prompt)}`];
  return parts.filter(Boolean).join(" · ");
}

/** Return the button that copies a message. */
export function copyMessage(message) {
  return copyButton(() => message.content, { text: "", label: "Copy the message" });
}
