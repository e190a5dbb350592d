// A chat with a model that takes messages, or a prompt that the server makes of them.

import { announce, button, h, icon, newId } from "../lib/dom.js";
import { tabs } from "../lib/tabs.js";
import { makeCodePanel } from "../code/panel.js";
import { OPENAI_LANGUAGES } from "../code/openai.js";
import { FormError, makeForm } from "../inputs/form.js";
import { conversationWith } from "./conversation.js";
import { copyMessage, makeMessage } from "./message.js";

const NEAR = 120; // pixels from the end of the page, within which it follows a text that grows
const SPOKEN = 300; // characters of an answer that a screen reader is told at once
const STOP = {
  name: "stop",
  label: "Stop",
  kind: "list",
  description: "An answer ends before the first of these texts.",
  required: false,
  nullable: false,
  fallback: undefined,
  deprecated: false,
  schema: { items: { type: "string" } },
};

/**
 * Make the view. `name` is that of the model in OpenAI's API, `fields` are the parameters that the model takes, and
 * `examples` are inputs of its author. Returns `{ element, close }`.
 */
export function makeChat({ name, fields, examples, look }) {
  const talk = conversationWith(name);
  const shown = new Map(); // the elements of messages
  const list = h("ol", { class: "messages", "aria-label": "Messages" });
  const opening = h("div", { class: "empty" }, icon("play"), h("p", {}, "Say something to the model."), suggestions(examples, (text) => write(text)));
  const results = h("form", { class: "results-form", "aria-label": "Results of the tools", hidden: true });
  const box = h("textarea", { class: "control", rows: "2", "aria-label": "Message", placeholder: "Message", "aria-keyshortcuts": "Enter", value: talk.draft, oninput: () => keepDraft() });
  const sending = button("Send", { class: "primary send", onclick: () => void send() });
  const stopping = button("Stop", { icon: "stop", class: "stop", "aria-keyshortcuts": "Escape", onclick: () => talk.stop() });
  const hint = h("span", { class: "keys muted", "aria-hidden": "true" }, h("kbd", {}, "Enter"), " sends, ", h("kbd", {}, "Shift"), " ", h("kbd", {}, "Enter"), " begins a line");
  const composer = h("div", { class: "composer" }, box, h("div", { class: "composer-bar" }, sending, stopping, hint));
  const settingsId = newId("settings");
  const open = button("Settings", { class: "small quiet settings-button", "aria-expanded": "false", "aria-controls": settingsId, onclick: () => showSettings(!settings.classList.contains("is-open")) });
  const anew = button("New chat", { icon: "plus", class: "small quiet", onclick: () => begin() });
  const chat = h("section", { class: "panel chat", "aria-label": "Conversation" }, h("div", { class: "panel-head" }, h("h2", {}, "Conversation"), h("div", { class: "row" }, open, anew)), h("div", { class: "chat-body" }, opening, list, results), composer);

  const system = h("textarea", { class: "control", rows: "3", id: newId("system"), value: talk.system, oninput: () => {
    talk.system = system.value;
    repaint();
  } });
  const takesStop = fields.some((field) => field.name === "stop");
  const form = makeForm(takesStop ? fields : [...fields, STOP], { changed: () => repaint(), submit: () => void send() });
  form.write(talk.values);
  const code = makeCodePanel(() => ({ endpoint: "chat", body: sample() }), OPENAI_LANGUAGES);
  const panels = tabs("Chat", [
    { id: "settings", label: "Settings", panel: h("div", { class: "stack" }, h("div", { class: "field" }, h("div", { class: "field-head" }, h("label", { class: "label", for: system.id }, "System prompt")), system), form.element) },
    { id: "code", label: "Code", panel: code.element, onshow: () => void code.paint() },
  ]);
  const settings = h("section", { class: "panel settings", id: settingsId, "aria-label": "Settings" }, h("div", { class: "panel-head" }, panels.list), h("div", { class: "panel-body" }, panels.panels));
  const element = h("div", { class: "workbench talk" }, chat, settings);

  function keepDraft() {
    talk.draft = box.value;
    repaint();
  }
  function write(text) {
    box.value = text;
    keepDraft();
    box.focus();
  }
  function showSettings(isOpen) {
    settings.classList.toggle("is-open", isOpen);
    open.setAttribute("aria-expanded", String(isOpen));
  }
  function repaint() {
    if (panels?.current === "code") void code.paint();
  }

  // The parameters that are not what the model takes without them.
  function parameters(options) {
    const values = form.read(options);
    talk.values = values;
    const isDefault = ([field, value]) => JSON.stringify(value) === JSON.stringify(fields.find((each) => each.name === field)?.fallback ?? null);
    return Object.fromEntries(Object.entries(values).filter((each) => !isDefault(each)));
  }
  function sample() {
    const last = talk.messages.findLastIndex((each) => each.role !== "assistant");
    const body = talk.toBody(parameters({ quiet: true }), talk.messages.slice(0, last + 1));
    const draft = box.value.trim() ? box.value : last < 0 ? "Hello" : "";
    if (draft) body.messages.push({ role: "user", content: draft });
    return body;
  }

  function isAtEnd() {
    return innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR;
  }
  function goToEnd() {
    scrollTo(0, document.documentElement.scrollHeight);
  }

  function paint() {
    for (const [message, { element: old }] of shown) {
      if (talk.messages.includes(message)) continue;
      old.remove();
      shown.delete(message);
    }
    for (const message of talk.messages) {
      if (!shown.has(message)) shown.set(message, makeMessage(message, { actions, grown: () => isFollowing && goToEnd() }));
      else shown.get(message).paint();
      list.append(shown.get(message).element);
    }
    paintState();
  }
  function paintState() {
    const { isWriting, messages } = talk;
    element.classList.toggle("is-writing", isWriting);
    opening.hidden = messages.length > 0;
    list.hidden = !messages.length;
    anew.disabled = !messages.length;
    sending.hidden = isWriting;
    stopping.hidden = !isWriting;
    paintResults();
    repaint();
  }

  // The buttons of a message. An answer that was not the last one would be made anew without what follows it.
  function actions(message) {
    const isAnswer = message.role === "assistant";
    const edit = button("Edit", { class: "small quiet edit", "aria-label": "Edit the message", onclick: () => change(message) });
    const again = isAnswer && message === talk.messages.at(-1) ? button("Regenerate", { icon: "reload", class: "small quiet", onclick: () => void regenerate(message) }) : null;
    return [copyMessage(message), edit, again].filter(Boolean);
  }
  function change(message) {
    if (talk.isWriting) return;
    const isAsked = message.role !== "assistant";
    shown.get(message).edit(isAsked ? "Send" : "Save", (text) => {
      message.content = text;
      if (!isAsked) {
        shown.get(message).paint();
        repaint();
        return;
      }
      const next = talk.messages[talk.messages.indexOf(message) + 1];
      if (next) talk.cut(next);
      void answer();
    });
  }
  async function regenerate(message) {
    if (talk.isWriting) return;
    talk.cut(message);
    await answer();
  }
  function begin() {
    talk.clear();
    paint();
    box.focus();
    announce("A new chat");
  }

  // Boxes for what the tools have given that the model has called: it goes on when it has the results.
  function paintResults() {
    const calls = talk.openCalls;
    results.hidden = !calls.length;
    const boxes = calls.map(({ name: tool }) => h("textarea", { class: "control mono", rows: "2", "aria-label": `Result of ${tool}`, placeholder: `Result of ${tool}` }));
    results.replaceChildren(...boxes, button("Send the results", { class: "small", onclick: () => {
      talk.tell(boxes.map(({ value }) => value));
      void answer();
    } }));
  }

  let isFollowing = true;
  const onScroll = () => {
    isFollowing = isAtEnd();
  };

  async function send() {
    if (talk.isWriting || !box.value.trim()) return;
    if (given() === null) return;
    talk.say(box.value);
    box.value = "";
    keepDraft();
    await answer();
  }
  // The parameters, or null if the form has faults.
  function given() {
    form.clearFaults();
    try {
      return parameters();
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      showForm();
      announce(error.message);
      return null;
    }
  }
  function showForm() {
    showSettings(true);
    panels.show("settings");
  }
  async function answer() {
    const values = given();
    if (values === null) return;
    const written = talk.answer(values, () => shown.get(talk.messages.at(-1))?.grow());
    isFollowing = true;
    paint();
    goToEnd();
    const message = await written;
    if (isClosed) return;
    const wasFollowing = isFollowing;
    paint();
    if (wasFollowing) goToEnd();
    tell(message);
    if (message.error?.faults?.size && [...message.error.faults.keys()].some((each) => each in values)) {
      showForm();
      form.showFaults(message.error.faults);
    }
    if (message.state === "failed") look();
  }
  function tell({ state, content, calls, error, note }) {
    if (state === "failed") return; // the failure is an alert
    const text = content.length > SPOKEN ? `${content.slice(0, SPOKEN)}…` : content;
    const called = calls.length ? `The model calls ${calls.map((each) => each.name).join(", ")}.` : "";
    announce([text, called, error?.message, note].filter(Boolean).join(" "));
  }

  let isClosed = false;
  box.addEventListener("keydown", (event) => {
    const sends = event.key === "Enter" && !event.isComposing && !event.shiftKey && !event.altKey;
    if (!sends || (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey)) return; // a finger has no Shift
    event.preventDefault();
    void send();
  });
  const onKey = (event) => {
    if (event.key === "Escape" && talk.isWriting && !document.querySelector("dialog[open]")) talk.stop();
  };
  document.addEventListener("keydown", onKey);
  addEventListener("scroll", onScroll, { passive: true });
  paint();
  return {
    element,
    close() {
      isClosed = true;
      talk.stop();
      document.removeEventListener("keydown", onKey);
      removeEventListener("scroll", onScroll);
    },
  };
}

// Buttons with what the author's examples say.
function suggestions(examples, choose) {
  const texts = examples.map(textOf).filter(Boolean).slice(0, 6);
  if (!texts.length) return null;
  return h("div", { class: "examples", role: "group", "aria-label": "Examples" }, texts.map((text) => h("button", { type: "button", class: "small example", title: text, onclick: () => choose(text) }, text)));
}

function textOf(example) {
  const content = Array.isArray(example.messages) ? example.messages.findLast((each) => each?.role === "user")?.content : Object.values(example).find((value) => typeof value === "string");
  return typeof content === "string" ? content : "";
}
