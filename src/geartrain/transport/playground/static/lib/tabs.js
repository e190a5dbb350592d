// Tabs, as of the ARIA pattern: one of them takes part in the order of Tab, arrows move.

import { h, newId } from "./dom.js";

/**
 * Make tabs of `[{ id, label, panel, onshow }]`. `panel` is an element. Returns `{ list, panels, show, badge, current }`;
 * `list` has the tabs and `panels` what they show. `label`: what the tabs are called together.
 */
export function tabs(label, items) {
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": label });
  const panels = h("div", { class: "tab-panels" });
  const entries = items.map((item) => {
    const tabId = newId("tab");
    const badge = h("span", { class: "tab-badge", hidden: true });
    const tab = h(
      "button",
      { type: "button", role: "tab", id: tabId, class: "tab", data: { tab: item.id }, onclick: () => show(item.id) },
      item.label,
      badge,
    );
    const panel = h("div", { role: "tabpanel", id: `${tabId}-panel`, "aria-labelledby": tabId, tabindex: "-1" }, item.panel);
    tab.setAttribute("aria-controls", panel.id);
    list.append(tab);
    panels.append(panel);
    return { ...item, tab, panel, badge };
  });
  let current = "";

  function show(id) {
    current = id;
    for (const entry of entries) {
      const isShown = entry.id === id;
      entry.tab.setAttribute("aria-selected", String(isShown));
      entry.tab.tabIndex = isShown ? 0 : -1;
      entry.panel.hidden = !isShown;
      if (isShown) entry.onshow?.();
    }
  }

  list.addEventListener("keydown", (event) => {
    const at = entries.findIndex((entry) => entry.id === current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: entries.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const entry = entries[(to + entries.length) % entries.length];
    show(entry.id);
    entry.tab.focus();
  });
  show(entries[0].id);
  return {
    list,
    panels,
    show,
    badge(id, text) {
      const { badge } = entries.find((entry) => entry.id === id);
      badge.textContent = text;
      badge.hidden = !text;
    },
    get current() {
      return current;
    },
  };
}
