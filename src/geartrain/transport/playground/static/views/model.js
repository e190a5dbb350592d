// A model: what it is, its form, its runs.

import { ApiError, ask } from "../lib/api.js";
import { announce, button, h } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { canControl, controlModel, healthOf, modelPath } from "../lib/server.js";
import { tabs } from "../lib/tabs.js";
import { longText } from "../lib/text.js";
import { makeCodePanel } from "../code/panel.js";
import { FormError, makeForm } from "../inputs/form.js";
import { JOBS, readDocument } from "../inputs/schema.js";
import { historyOf } from "../runs/history.js";
import { makeResult } from "../runs/result.js";
import { Run } from "../runs/run.js";
import { makeStored } from "../runs/stored.js";
import { makeJsonPanel } from "./json-input.js";

const AGAIN = 2000; // milliseconds until a model that is not ready is looked at again
const WELL = new Set(["READY", "BUSY"]);
const HEALTH = {
  READY: ["succeeded", "Ready"],
  BUSY: ["processing", "Busy"],
  STARTING: ["waiting", "Starting"],
  UNKNOWN: ["waiting", "Unknown"],
  UNHEALTHY: ["failed", "Unhealthy"],
  SETUP_FAILED: ["failed", "Setup failed"],
  DEFUNCT: ["failed", "Crashed"],
};

/** Make the view of a model. `go(version, job)` goes to another version, or to another job; `changed` is called after a load. */
export function modelView(model, { version, job, go, changed }) {
  const path = modelPath(model, version);
  const sign = h("span", { class: "health", role: "status" });
  const about = h("p", { class: "about" });
  const body = h("div", { class: "model-body" }, skeleton());
  const actions = h("div", { class: "actions" });
  const banner = h("div", { class: "banner-place" });
  const name = model.name || "Training";
  const head = h(
    "div",
    { class: "view-head" },
    h("div", {}, h("div", { class: "title-row" }, h("h1", {}, name), versionPart(model, version, (chosen) => go(chosen, job)), sign), about),
    actions,
  );
  const element = h("div", { class: "view model-view" }, head, banner, jobPart(model, job, (chosen) => go(version, chosen)), body);
  const life = { isClosed: false, timer: 0, hasForm: false, close: () => {} };

  async function look() {
    clearTimeout(life.timer);
    if (life.isClosed || document.visibilityState !== "visible") return;
    let isSettled = false;
    try {
      const [health, document_] = await Promise.all([healthOf(path).catch(keepStatus), life.hasForm ? null : ask(`${path}/openapi.json`).catch(keepStatus)]);
      if (life.isClosed) return;
      paintHealth(health);
      isSettled = WELL.has(health.status);
      if (document_ && !life.hasForm) isSettled = paintDocument(document_) && isSettled;
    } catch (error) {
      if (life.isClosed) return;
      body.replaceChildren(problem(error, () => void look()));
      return;
    }
    if (!isSettled) life.timer = setTimeout(look, AGAIN);
  }

  function paintHealth(health) {
    const [kind, text] = HEALTH[health.status] ?? ["waiting", health.status ?? "Not loaded"];
    sign.replaceChildren(h("span", { class: `sign ${kind}` }, h("span", { class: "dot", "aria-hidden": "true" }), text));
    banner.replaceChildren(...healthBanner(health));
  }

  function paintDocument(found) {
    if (found.error) {
      if (found.httpStatus === 503) return false; // until its signature is known
      throw found.error;
    }
    const known = readDocument(found, job);
    if (!known) throw new ApiError(404, "This model has no such API.");
    about.textContent = known.description;
    life.hasForm = true;
    const workbench = makeWorkbench(model, { version, job, path, known, look });
    body.replaceChildren(workbench.element);
    life.close = workbench.close;
    return true;
  }

  async function control(action, text) {
    if (action === "unload" && !(await confirmUnload(name))) return;
    const buttons = [...actions.querySelectorAll("button")];
    for (const each of buttons) each.disabled = true;
    announce(`${text}…`);
    try {
      await controlModel(model.name, action);
      announce(`${text}: done`);
    } catch (error) {
      banner.replaceChildren(h("div", { class: "banner failed", role: "alert" }, h("p", {}, error.message)));
      for (const each of buttons) each.disabled = false;
      return;
    }
    changed();
  }

  if (model.name) {
    void canControl().then((can) => {
      if (!can) return;
      const isLoaded = model.versions.some(({ state }) => state === "READY" || state === "LOADING");
      actions.append(button(isLoaded ? "Reload" : "Load", { icon: "reload", class: "small", onclick: () => void control("load", isLoaded ? "Reload" : "Load") }));
      if (isLoaded) actions.append(button("Unload", { class: "small", onclick: () => void control("unload", "Unload") }));
    });
  }
  const onVisible = () => void look();
  document.addEventListener("visibilitychange", onVisible);
  void look();
  return {
    element,
    title: name,
    close() {
      life.isClosed = true;
      clearTimeout(life.timer);
      document.removeEventListener("visibilitychange", onVisible);
      life.close();
    },
  };
}

function keepStatus(error) {
  if (error instanceof ApiError && (error.status === 503 || error.status === 404 || error.status === 400)) return { status: null, error, httpStatus: error.status };
  throw error;
}

// The form, the result, and the runs so far.
function makeWorkbench(model, { version, job, path, known, look }) {
  const target = { name: model.name, path: `${path}${JOBS[job].path}`, streams: known.streams };
  const past = historyOf(`${target.path}`);
  const result = makeResult({ again: () => void start(), onstatus: () => list.paint() });
  const form = makeForm(known.fields, { changed: () => repaint(), submit: () => void start() });
  const json = makeJsonPanel(form, known.fields);
  const code = makeCodePanel(() => ({ path: target.path, values: current({ quiet: true }), streams: known.streams, model: model.name, version }));
  const items = [
    { id: "form", label: "Form", panel: form.element, onshow: () => json.leave() },
    { id: "json", label: "JSON", panel: json.element, onshow: () => json.enter() },
  ];
  if (job === "predictions") items.push({ id: "code", label: "Code", panel: code.element, onshow: () => {
    json.leave();
    void code.paint();
  } });
  const shown = tabs("Input", items);
  const run = button("Run", { class: "primary run", icon: "play", onclick: () => void start(), "aria-keyshortcuts": "Control+Enter" });
  const cancel = button("Cancel", { icon: "stop", class: "cancel", hidden: true, onclick: () => void active?.cancel() });
  const reset = button("Reset", { onclick: () => {
    json.forget();
    form.write();
    repaint();
    if (shown.current === "json") json.enter();
  } });
  const bar = h("div", { class: "run-bar" }, run, cancel, reset, h("span", { class: "keys muted", "aria-hidden": "true" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")));
  const input = h("section", { class: "panel input", "aria-label": "Input" }, h("div", { class: "panel-head" }, shown.list), h("div", { class: "panel-body" }, shown.panels), bar);
  const list = past.makeList((entry) => {
    json.forget();
    form.write(entry.values);
    shown.show("form");
    result.show(entry.run, known.output);
  });
  const stored = known.isListed ? makeStored(target.path) : null;
  const element = h("div", { class: "workbench" }, input, h("div", { class: "results" }, result.element, list.element, stored?.element));
  let active = null;

  function current(options) {
    return shown?.current === "json" ? json.read(options) : form.read(options);
  }
  function repaint() {
    if (shown?.current === "code") void code.paint();
  }
  function paintRunning() {
    const isRunning = Boolean(active && !active.isOver);
    run.disabled = isRunning;
    cancel.hidden = !isRunning;
    element.classList.toggle("is-running", isRunning);
  }

  async function start() {
    if (active && !active.isOver) return;
    form.clearFaults();
    let values;
    try {
      values = current();
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      announce(error.message);
      return;
    }
    active = new Run(target, values, () => {});
    past.add(active, values);
    result.show(active, known.output);
    paintRunning();
    list.paint();
    const following = active;
    await following.follow();
    paintRunning();
    past.trim();
    list.paint();
    void stored?.look();
    if (following.refusal?.faults?.size) {
      if (shown.current !== "json") shown.show("form");
      form.showFaults(following.refusal.faults);
      if (shown.current === "json") json.showFaults(following.refusal.faults);
    }
    if (["failed", "refused", "lost"].includes(following.status)) look();
  }

  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      void start();
    }
  };
  const onPaste = (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length && shown.current === "form" && form.addFiles(files)) event.preventDefault();
  };
  document.addEventListener("keydown", onKey);
  document.addEventListener("paste", onPaste);
  list.paint();
  void stored?.look();
  return {
    element,
    close() {
      document.removeEventListener("keydown", onKey);
      document.removeEventListener("paste", onPaste);
    },
  };
}

function versionPart(model, version, go) {
  const versions = model.versions.map((each) => each.version).filter(Boolean);
  if (!versions.length) return null;
  if (versions.length === 1) return h("span", { class: "tag" }, `v${versions[0]}`);
  const select = h("select", { class: "control small", "aria-label": "Version", onchange: () => go(select.value) }, h("option", { value: "" }, "Default version"), versions.map((each) => h("option", { value: each }, `Version ${each}`)));
  select.value = version;
  return h("div", { class: "select" }, select);
}

function jobPart(model, job, go) {
  if (model.jobs.length < 2) return null;
  const texts = { predictions: "Run", trainings: "Train" };
  return h("div", { class: "segments job", role: "group", "aria-label": "What to do" }, model.jobs.map((each) => h("button", { type: "button", class: "segment", "aria-pressed": String(each === job), onclick: () => go(each) }, texts[each])));
}

function healthBanner(health) {
  const { status, setup, error } = health;
  const printed = setup?.logs ? h("details", { open: status === "SETUP_FAILED" }, h("summary", {}, "What setup printed"), longText(setup.logs, { end: true, kind: "log", label: "What setup printed" })) : null;
  if (status === "STARTING") return [h("div", { class: "banner waiting" }, h("p", {}, h("span", { class: "spinner", "aria-hidden": "true" }), " The model is being set up. This page goes on when it is ready."), printed)];
  if (status === "SETUP_FAILED") return [h("div", { class: "banner failed", role: "alert" }, h("p", {}, "The setup of this model has failed, so it takes no requests."), printed)];
  if (status === "DEFUNCT") return [h("div", { class: "banner failed", role: "alert" }, h("p", {}, "The model's process has ended. Reload the model, or start the server with --restart on-crash."))];
  if (status === "UNHEALTHY") return [h("div", { class: "banner failed", role: "alert" }, h("p", {}, `The model says that it is not well: ${health.user_healthcheck_error ?? ""}`))];
  if (error) return [h("div", { class: "banner waiting" }, h("p", {}, error.message))];
  return [];
}

function problem(error, again) {
  const isForbidden = error.status === 401 || error.status === 403;
  const hint = isForbidden ? "A key needs the scopes read and predict for this page." : null;
  return h("div", { class: "panel" }, h("div", { class: "empty", role: "alert" }, h("p", {}, error.message), hint ? h("p", { class: "muted" }, hint) : null, button("Try again", { icon: "reload", onclick: again })));
}

async function confirmUnload(name) {
  const yes = button("Unload", { class: "danger" });
  const shown = dialog(`Unload ${name}?`, [h("p", {}, "Runs that have begun go on to their end. Nobody can ask for new ones until it is loaded again.")], [yes]);
  yes.addEventListener("click", () => shown.close(true));
  return shown.result;
}

function skeleton() {
  const lines = Array.from({ length: 3 }, () => h("div", { class: "bone" }));
  return h("div", { class: "workbench", "aria-busy": "true" }, h("div", { class: "panel bones", role: "status", "aria-label": "Loading" }, lines), h("div", { class: "panel bones" }, h("div", { class: "bone tall" })));
}
