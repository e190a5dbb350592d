// What the server has: its models, their versions and states, and what the reader may do with them.

import { ApiError, ask, failure, send } from "./api.js";

let control = false;

/**
 * Ask which models there are. Returns a list of `{ name, versions: [{ version, state, reason }], jobs, isRoot }`.
 *
 * `isRoot`: its API is at the root of the server, too, because it is alone. `jobs`: of `predictions` and `trainings`.
 */
export async function listModels() {
  const discovery = await ask("");
  const rows = await indexRows(discovery);
  const models = new Map();
  for (const { name, ...version } of rows) {
    if (!models.has(name)) models.set(name, { name, versions: [], jobs: ["predictions"], isRoot: false });
    models.get(name).versions.push(version);
  }
  const isAlone = models.size <= 1 && !discovery.models;
  if (discovery.trainings_url && (isAlone || !models.size)) {
    if (!models.size) models.set("", { name: "", versions: [{ version: "", state: "" }], jobs: [], isRoot: true });
    [...models.values()][0].jobs.push("trainings");
  }
  if (isAlone) for (const model of models.values()) model.isRoot = true;
  return [...models.values()];
}

// A key that is for some models alone may not list them: the discovery has the names then, or there is only one model.
async function indexRows(discovery) {
  try {
    const found = await ask("models");
    control = Boolean(found.can_load);
    return found.models;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 404) return [];
    if (error.status !== 403) throw error;
    if (discovery.models) return Object.keys(discovery.models).map((name) => ({ name, state: "" }));
    const metadata = await ask("openapi.json").catch(() => null);
    if (!metadata) throw error;
    return [{ name: metadata.info.title, state: "" }];
  }
}

/** Return the path of a model's API, without a slash at its end. */
export function modelPath({ name, isRoot }, version = "") {
  if (isRoot && !version) return "";
  const base = `/models/${encodeURIComponent(name)}`;
  return version ? `${base}/versions/${encodeURIComponent(version)}` : base;
}

/** Ask for what its author has written of a model: `{ readme, examples, output }`; null where there is nothing. */
export function cardOf(name, version) {
  return name ? ask(`${cardPath(name)}${query(version)}`).catch(() => null) : null;
}

/** Fetch a file that an example of a model names, as a File. */
export async function exampleFile(name, version, path) {
  const response = await send(`${cardPath(name)}/files/${path.split("/").map(encodeURIComponent).join("/")}${query(version)}`);
  if (!response.ok) throw await failure(response);
  const blob = await response.blob();
  return new File([blob], path.split("/").at(-1), { type: blob.type });
}

function cardPath(name) {
  return `playground/models/${encodeURIComponent(name)}`;
}

function query(version) {
  return version ? `?version=${encodeURIComponent(version)}` : "";
}

/** Ask how a model is. */
export function healthOf(path) {
  return ask(`${path}/health-check`);
}

/** Whether models can be loaded and unloaded here, as the list of models says. */
export function canControl() {
  return control;
}

/** Load a model, or load it anew, or `unload` it. */
export async function controlModel(name, action) {
  await ask(`v2/repository/models/${encodeURIComponent(name)}/${action}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
}
