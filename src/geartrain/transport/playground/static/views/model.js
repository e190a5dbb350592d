// A model: what it is, its form, its runs.

import { ApiError, ask } from "../lib/api.js";
import { announce, button, h } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { canControl, cardOf, controlModel, exampleFile, healthOf, modelPath } from "../lib/server.js";
import { tabs } from "../lib/tabs.js";
import { longText } from "../lib/text.js";
import { makeChat } from "../chat/view.js";
import { makeCodePanel } from "../code/panel.js";
import { FormError, makeForm } from "../inputs/form.js";
import { JOBS, readDocument } from "../inputs/schema.js";
import { makeComparison } from "../runs/compare.js";
import { markdown } from "../outputs/markdown.js";
import { historyOf, summary } from "../runs/history.js";
import { makeResult } from "../runs/result.js";
import { Run } from "../runs/run.js";
import { makeStored } from "../runs/stored.js";
import { makeJsonPanel } from "./json-input.js";
import { makeSimilarity } from "./similarity.js";

const AGAIN = 2000; // milliseconds until a model that is not ready is looked at again
const TEXT_JOBS = { chat: makeChat, embeddings: makeSimilarity }; // by OpenAI's API
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

/**
 * Make the view of a model. `job`: `predictions`, `trainings`, `chat` or `embeddings`; empty for the first that fits.
 * `run` is the id of the run to show first, if any, and `compared` has those of two runs to compare.
 * `go(version, job)` goes to another version, or to another job; `ran(id, compared)` notes these runs in the address; `changed` is called after a load.
 */
export function modelView(model, { version, job, run, compared, go, ran, changed }) {
  const path = modelPath(model, version);
  const sign = h("span", { class: "health", role: "status" });
  const about = h("p", { class: "about" });
  const body = h("div", { class: "model-body" }, skeleton());
  const actions = h("div", { class: "actions" });
  const banner = h("div", { class: "banner-place" });
  const readme = h("div", { class: "readme-place" });
  const name = model.name || "Training";
  const head = h(
    "div",
    { class: "view-head" },
    h("div", { class: "view-title" }, h("div", { class: "title-row" }, h("h1", {}, name), versionPart(model, version, (chosen) => go(chosen, job)), sign), about),
    actions,
  );
  const jobs = h("div", { class: "jobs-place" });
  const element = h("div", { class: "view model-view" }, head, banner, readme, jobs, body);
  const life = { isClosed: false, timer: 0, hasForm: false, close: () => {} };

  async function look() {
    clearTimeout(life.timer);
    if (life.isClosed || document.visibilityState !== "visible") return;
    let isSettled = false;
    try {
      const [health, document_, card] = await Promise.all([healthOf(path).catch(keepStatus), life.hasForm ? null : ask(`${path}/openapi.json`).catch(keepStatus), life.hasForm ? null : cardOf(model.name, version)]);
      if (life.isClosed) return;
      paintHealth(health);
      isSettled = WELL.has(health.status);
      if (health.status === "SETUP_FAILED" && document_?.error) body.replaceChildren(); // its inputs are not known, and do not come
      if (document_ && !life.hasForm) isSettled = paintDocument(document_, card) && isSettled;
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

  function paintDocument(found, card) {
    if (found.error) {
      if (found.httpStatus === 503) return false; // until its signature is known
      throw found.error;
    }
    Object.assign(found.components?.schemas ?? {}, card?.schemas); // whose members are in the author's order
    const all = [...model.jobs, ...textJobs(card?.openai)];
    const first = card?.openai?.is_talker ? "chat" : all[0];
    const chosen = job || (run ? all[0] : first);
    const known = all.includes(chosen) ? readDocument(found, chosen === "trainings" ? chosen : "predictions") : null;
    if (!known) throw new ApiError(404, "This model has no such API.");
    jobs.replaceChildren(...jobPart(all, chosen, (other) => go(version, other === first ? "" : other)));
    about.textContent = known.description;
    if (card?.readme && chosen !== "trainings") readme.replaceChildren(readmePart(card.readme));
    life.hasForm = true;
    const workbench = makeBench(chosen, { known, card });
    body.replaceChildren(workbench.element);
    life.close = workbench.close;
    return true;
  }

  function makeBench(chosen, { known, card }) {
    const examples = card?.examples ?? [];
    if (!(chosen in TEXT_JOBS)) return makeWorkbench(model, { version, job: chosen, path, known, look, run, compared, ran, examples });
    const filled = new Set(card.openai.filled);
    const fields = known.fields.filter(({ name: field, kind }) => !filled.has(field) && kind !== "file" && kind !== "files");
    const full = version ? `${model.name}@${version}` : model.name;
    return TEXT_JOBS[chosen]({ name: full, fields, examples, look });
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

  if (model.name && canControl()) {
    const isLoaded = model.versions.some(({ state }) => state === "READY" || state === "LOADING");
    actions.append(button(isLoaded ? "Reload" : "Load", { icon: "reload", class: "small", onclick: () => void control("load", isLoaded ? "Reload" : "Load") }));
    if (isLoaded) actions.append(button("Unload", { class: "small", onclick: () => void control("unload", "Unload") }));
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
function makeWorkbench(model, { version, job, path, known, look, run: first, compared, ran, examples }) {
  const target = { name: model.name, path: `${path}${JOBS[job].path}`, streams: known.streams };
  const past = historyOf(`${target.path}`);
  const linkOf = (each) => (each.prediction ? ran.linkTo(each.id) : null);
  const callsOf = (run) => ask(`${target.path}/${encodeURIComponent(run.id)}/calls`);
  const result = makeResult({ again: () => void start(), onstatus: () => list.paint(), linkOf, callsOf });
  const comparison = makeComparison({ closed: () => tellCompared([]) });
  const form = makeForm(known.fields, { changed: () => repaint(), submit: () => void start() });
  const json = makeJsonPanel(form, known.fields);
  const code = makeCodePanel(() => ({ path: target.path, values: current({ quiet: true }), streams: known.streams, model: model.name, version, isRoot: model.isRoot }));
  const chooser = exampleChooser(examples, known.fields, (example) => fill(example));
  const items = [
    { id: "form", label: "Form", panel: h("div", {}, chooser, form.element), onshow: () => json.leave() },
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
  const list = past.makeList({ open, compare: (entry) => compare(past.find(shownRun), entry), shown: () => shownRun });
  const stored = known.isListed ? makeStored(target.path, adopt) : null;
  const element = h("div", { class: "workbench" }, input, h("div", { class: "results" }, result.element, comparison.element, list.element, stored?.element));
  let active = null;
  let shownRun = null;

  // Fill the form with an example of the author, whose files the server has.
  async function fill(example) {
    const names = new Set(known.fields.filter(({ kind }) => kind === "file" || kind === "files").map(({ name }) => name));
    const fetched = (value) => (typeof value !== "string" || /^(https?|data):/.test(value) ? value : exampleFile(model.name, version, value));
    const values = {};
    try {
      for (const [name, value] of Object.entries(example)) {
        values[name] = !names.has(name) ? value : Array.isArray(value) ? await Promise.all(value.map(fetched)) : await fetched(value);
      }
    } catch (error) {
      announce(error.message);
      return;
    }
    json.forget();
    form.write(values);
    repaint();
    announce("The form has the example.");
  }
  // Show a run, and fill the form with its input.
  function open(entry) {
    json.forget();
    form.write(entry.values);
    shown.show("form");
    present(entry.run);
  }
  function present(each) {
    shownRun = each;
    result.show(each, known.output);
    if (each.prediction) ran(each.id, compared);
    list.paint();
  }
  // Compare two entries of the history. The address names them, so that a reload shows them again.
  function compare(one, other) {
    comparison.show(one, other, known.output);
    tellCompared([one.run.id, other.run.id]);
  }
  function tellCompared(ids) {
    compared = ids;
    if (shownRun?.prediction) ran(shownRun.id, compared);
  }
  // Return the entry of a run of which the server has told.
  function entryOf(prediction) {
    const there = past.entries.find(({ run: each }) => each.id === prediction.id);
    const entry = there ?? { run: Run.of(target, prediction), values: fillable(prediction.input ?? {}, known.fields), weight: 0 };
    if (!there) past.add(entry.run, entry.values);
    return entry;
  }
  function adopt(prediction) {
    const entry = entryOf(prediction);
    open(entry);
    bringUp();
    if (entry.run.isOver) return;
    active = entry.run;
    paintRunning();
    void entry.run.watch().then(() => {
      paintRunning();
      list.paint();
    });
  }
  const fetched = (id) => ask(`${target.path}/${encodeURIComponent(id)}`);
  async function showFirst(id) {
    try {
      const both = compared.length === 2 ? Promise.all(compared.map(fetched)).catch(() => []) : [];
      adopt(await fetched(id));
      const entries = (await both).map(entryOf);
      if (entries.length) compare(...entries);
      else tellCompared([]);
    } catch (error) {
      const text = error.status === 404 ? "The server does not have this run any more. Without --store it forgets a run after five minutes." : error.message;
      result.say(text);
    }
  }
  // On a phone the result is below the form.
  function bringUp() {
    if (matchMedia("(max-width: 1000px)").matches) result.element.scrollIntoView({ block: "start" });
  }

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
    present(active);
    bringUp();
    paintRunning();
    const following = active;
    await following.follow();
    paintRunning();
    if (following.prediction && following === shownRun) ran(following.id, compared);
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
  if (first) void showFirst(first);
  return {
    element,
    close() {
      document.removeEventListener("keydown", onKey);
      document.removeEventListener("paste", onPaste);
    },
  };
}

function exampleChooser(examples, fields, choose) {
  if (!examples.length) return null;
  const order = fields.map(({ name }) => name);
  const shown = (example) => summary(Object.fromEntries(order.filter((name) => name in example).map((name) => [name, example[name]])));
  return h("div", { class: "examples", role: "group", "aria-label": "Examples" }, h("span", { class: "label" }, "Examples"), examples.map((example) => h("button", { type: "button", class: "small example", title: shown(example), onclick: () => choose(example) }, shown(example))));
}

function readmePart(text) {
  return h("details", { class: "panel readme" }, h("summary", {}, "About this model"), markdown(text));
}

// The values of an input that the form can have again: files were not kept, and secrets are masked.
function fillable(values, fields) {
  const kinds = new Map(fields.map(({ name, kind }) => [name, kind]));
  const isLost = (name, value) => kinds.get(name) === "secret" || (["file", "files"].includes(kinds.get(name)) && ![value].flat().every((each) => /^(https?|data):/.test(each)));
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => kinds.has(name) && !isLost(name, value)));
}

function versionPart(model, version, go) {
  const versions = model.versions.map((each) => each.version).filter(Boolean);
  if (!versions.length) return null;
  if (versions.length === 1) return h("span", { class: "tag" }, `v${versions[0]}`);
  const select = h("select", { class: "control small", "aria-label": "Version", onchange: () => go(select.value) }, h("option", { value: "" }, "Default version"), versions.map((each) => h("option", { value: each }, `Version ${each}`)));
  select.value = version;
  return h("div", { class: "select" }, select);
}

function jobPart(jobs, job, go) {
  if (jobs.length < 2) return [];
  const texts = { predictions: "Run", trainings: "Train", chat: "Chat", embeddings: "Compare texts" };
  return [h("div", { class: "segments job", role: "group", "aria-label": "What to do" }, jobs.map((each) => h("button", { type: "button", class: "segment", data: { job: each }, "aria-pressed": String(each === job), onclick: () => go(each) }, texts[each])))];
}

// What a model can be asked for by OpenAI's API, of what this page has a view for.
function textJobs(openai) {
  return Object.keys(TEXT_JOBS).filter((job) => openai?.endpoints.includes(job));
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
