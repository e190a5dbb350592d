// The page: its frame, and which view is shown. The part of the URL after # says which.

import { currentKey, onKeyNeeded, useKey } from "./lib/api.js";
import { dialog } from "./lib/dialog.js";
import { button, h, icon } from "./lib/dom.js";
import { listModels } from "./lib/server.js";
import { modelView } from "./views/model.js";
import { resultsView } from "./views/results.js";
import { statusView } from "./views/status.js";

const THEME = "geartrain-theme";
const THEMES = ["auto", "light", "dark"];
const LOOK = 15_000; // milliseconds after which the list of models is asked for again, while somebody looks
const WITHOUT_MODEL = new Set(["results", "status"]); // pages that are of no model
const MANY = 8; // models, from which on there is a field to find one

const page = makeFrame();
let models = [];
let view = null;
let shownPlace = null;

start();

async function start() {
  setTheme(localStorage.getItem(THEME) ?? "auto");
  onKeyNeeded(askForKey);
  addEventListener("hashchange", () => show());
  document.addEventListener("visibilitychange", () => void refresh());
  setInterval(() => void refresh(), LOOK);
  await load();
}

async function load() {
  try {
    models = await listModels();
  } catch (error) {
    page.main.replaceChildren(h("div", { class: "view" }, h("div", { class: "panel" }, h("div", { class: "empty", role: "alert" }, icon("warning"), h("p", {}, error.message), button("Try again", { icon: "reload", onclick: () => void load() })))));
    return;
  }
  paintKey();
  paintModels();
  show(true);
}

// Ask for the models again. A view stays as it is: it asks for what it shows by itself.
async function refresh() {
  if (document.visibilityState !== "visible" || document.querySelector("dialog[open]") || !shownPlace) return;
  const found = await listModels().catch(() => null);
  if (!found || JSON.stringify(found) === JSON.stringify(models)) return;
  models = found;
  paintModels();
}

function isReady(model) {
  return model.versions.some(({ state }) => state === "READY");
}

function readPlace() {
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [kind = "", name = "", version = "", job = ""] = path.split("/").map(decodeURIComponent);
  const asked = new URLSearchParams(query);
  const [run, compared] = [asked.get("run") ?? "", asked.getAll("compare")];
  if (WITHOUT_MODEL.has(kind)) return { kind };
  const model = models.find((each) => each.name === name) ?? models.find(isReady) ?? models[0];
  return model ? { kind: "model", model, version: model.name === name ? version : "", job, run, compared } : { kind: "none" };
}

function keyOf(place) {
  return JSON.stringify([place.kind, place.model?.name, place.version, place.job, place.run, place.compared]);
}

function linkTo(name, version = "", job = "") {
  return `#/models/${[name, version, job].map(encodeURIComponent).join("/").replace(/\/+$/, "")}`;
}

function show(isAnew = false) {
  const place = readPlace();
  const key = keyOf(place);
  if (!isAnew && key === shownPlace) return;
  shownPlace = key;
  view?.close();
  view = makeView(place);
  page.main.replaceChildren(view.element);
  document.title = `${view.title} · geartrain`;
  for (const link of page.frame.querySelectorAll("[data-place]")) {
    const isCurrent = link.dataset.place === (place.kind === "model" ? `model:${place.model.name}` : place.kind) || (link.dataset.place === "models" && !WITHOUT_MODEL.has(place.kind));
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.models.hidden = WITHOUT_MODEL.has(place.kind) || models.length < 2;
  page.pick.value = place.model?.name ?? "";
  scrollTo(0, 0);
}

function makeView(place) {
  if (place.kind === "status") return statusView(models.map(({ name }) => name).filter(Boolean));
  if (place.kind === "results") return resultsView();
  if (place.kind === "none") return { element: h("div", { class: "view" }, h("div", { class: "panel" }, h("div", { class: "empty" }, h("p", {}, "This server has no models.")))), title: "No models", close() {} };
  const { model, version, job, run, compared } = place;
  const go = (chosenVersion, chosenJob) => {
    location.hash = linkTo(model.name, chosenVersion, chosenJob);
  };
  const address = (id, others = []) => `${linkTo(model.name, version, job === "predictions" ? "" : job)}?${new URLSearchParams([["run", id], ...others.map((each) => ["compare", each])])}`;
  const ran = (id, others) => {
    history.replaceState(null, "", address(id, others));
    shownPlace = keyOf(readPlace());
  };
  ran.linkTo = (id) => new URL(address(id), location.href).href;
  return modelView(model, { version, job, run, compared, go, ran, changed: () => void load() });
}

function paintModels() {
  const states = (model) => {
    const all = model.versions.map(({ state }) => state);
    if (all.includes("READY")) return ["succeeded", "ready"];
    if (all.includes("LOADING")) return ["waiting", "loading"];
    return all.some(Boolean) ? ["failed", "not loaded"] : ["unknown", ""];
  };
  const items = models.map((model) => {
    const [kind, text] = states(model);
    const sign = h("span", { class: `sign ${kind}` }, h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "offscreen" }, text));
    const reason = model.versions.find((each) => each.reason)?.reason;
    const link = h("a", { href: linkTo(model.name), class: "model-link", title: reason || null, data: { place: `model:${model.name}` } }, sign, h("span", { class: "model-name" }, model.name));
    return h("li", { data: { model: model.name } }, link);
  });
  page.list.replaceChildren(...items);
  page.pick.replaceChildren(...models.map(({ name }) => h("option", { value: name }, name)));
  page.find.hidden = models.length < MANY;
  page.models.hidden = models.length < 2 || WITHOUT_MODEL.has(readPlace().kind);
  page.frame.classList.toggle("has-models", models.length > 1);
  const place = readPlace();
  page.list.querySelector(`[data-place="${CSS.escape(`model:${place.model?.name}`)}"]`)?.setAttribute("aria-current", "page");
  page.pick.value = place.model?.name ?? "";
}

function makeFrame() {
  const theme = button("", { icon: "theme", class: "icon-button", id: "theme", "aria-label": "Theme", onclick: nextTheme });
  const key = button("Key", { icon: "key", class: "small quiet", id: "key", hidden: true, onclick: () => void changeKey() });
  const link = (href, text, place) => h("a", { href, data: { place } }, text);
  const top = h(
    "header",
    { class: "top" },
    h("a", { class: "brand", href: "#/", "aria-label": "geartrain" }, mark(), h("span", {}, "geartrain")),
    h("nav", { "aria-label": "Pages" }, link("#/", "Playground", "models"), link("#/status", "Status", "status"), link("#/results", "Results", "results"), h("a", { href: "docs" }, "API", h("span", { class: "long" }, " reference"))),
    h("div", { class: "top-tools" }, key, theme),
  );
  const list = h("ul", { class: "model-list" });
  const find = h("input", { type: "search", class: "control", placeholder: "Find a model", "aria-label": "Find a model", hidden: true, oninput: () => {
    for (const item of list.children) item.hidden = !item.dataset.model.toLowerCase().includes(find.value.toLowerCase());
  } });
  const pick = h("select", { class: "control", "aria-label": "Model", onchange: () => {
    location.hash = linkTo(pick.value);
  } });
  const side = h("nav", { class: "side", "aria-label": "Models", hidden: true }, h("h2", { class: "side-title" }, "Models"), find, list, h("div", { class: "select pick" }, pick));
  const main = h("main", { id: "main", tabindex: "-1" }, h("div", { class: "view" }, h("div", { class: "panel bones", role: "status", "aria-label": "Loading" }, h("div", { class: "bone" }), h("div", { class: "bone" }), h("div", { class: "bone" }))));
  const skip = h("a", { class: "skip", href: "#main", onclick: (event) => {
    event.preventDefault();
    main.focus();
  } }, "To the content");
  const frame = h("div", { class: "frame" }, side, main);
  document.body.append(skip, top, frame, h("div", { id: "announcements", class: "offscreen", role: "status", "aria-live": "polite" }));
  return { frame: document.body, main, models: side, list, find, pick };
}

function mark() {
  const image = h("img", { src: new URL("icon.svg", import.meta.url).href, alt: "", width: 22, height: 22 });
  return image;
}

function setTheme(theme) {
  const chosen = THEMES.includes(theme) ? theme : "auto";
  document.documentElement.dataset.theme = chosen;
  const control = document.querySelector("#theme");
  control.replaceChildren(icon({ auto: "theme", light: "sun", dark: "moon" }[chosen]));
  control.setAttribute("aria-label", `Theme: ${chosen}`);
  control.title = `Theme: ${chosen}`;
  document.dispatchEvent(new Event("theme"));
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, next);
  setTheme(next);
}

function paintKey() {
  const control = document.querySelector("#key");
  control.hidden = !currentKey();
}

async function askForKey(reason) {
  const input = h("input", { type: "password", class: "control", id: "key-input", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-hint" });
  const use = button("Use this key", { class: "primary" });
  const shown = dialog(
    "This server requires a key",
    [
      reason ? h("p", { class: "fault", role: "alert" }, reason) : null,
      h("label", { class: "label", for: "key-input" }, "Key"),
      input,
      h("p", { class: "hint", id: "key-hint" }, "It needs the scopes read and predict. The page keeps it until its tab is closed, and sends it to this server alone."),
    ],
    [use],
  );
  const enter = () => input.value.trim() && shown.close(input.value.trim());
  use.addEventListener("click", enter);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      enter();
    }
  });
  input.focus();
  const key = await shown.result;
  if (key) document.querySelector("#key").hidden = false;
  return key;
}

async function changeKey() {
  const forget = button("Forget the key", { class: "danger" });
  const shown = dialog("The key of this page", [h("p", {}, "The page sends a key with each of its requests.")], [forget]);
  forget.addEventListener("click", () => shown.close(true));
  if (await shown.result) {
    useKey(null);
    await load();
  }
}
