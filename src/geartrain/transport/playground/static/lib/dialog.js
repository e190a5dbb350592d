// A dialog over the page. The browser keeps the focus inside it, and Escape closes it.

import { button, h, newId } from "./dom.js";

/**
 * Show a dialog. `content` and `actions` are lists of elements. Returns `{ close, result, isClosed }`: `close(value)` ends
 * it, and `result` is a promise of that value, or of null if the reader has canceled it.
 */
export function dialog(title, content, actions) {
  const titleId = newId("dialog");
  let value = null;
  const cancel = button("Cancel", { class: "", onclick: () => element.close() });
  const element = h(
    "dialog",
    { class: "dialog", "aria-labelledby": titleId },
    h("h2", { id: titleId }, title),
    h("div", { class: "dialog-content" }, content),
    h("div", { class: "dialog-actions" }, cancel, actions),
  );
  const shown = {
    isClosed: false,
    close(given = null) {
      value = given;
      element.close();
    },
  };
  shown.result = new Promise((settle) => {
    element.addEventListener("close", () => {
      shown.isClosed = true;
      element.remove();
      settle(value);
    });
  });
  document.body.append(element);
  element.showModal();
  return shown;
}
