// Requests to the server. Paths are relative to the page, so they hold below any prefix.

import { readEvents } from "./events.js";

const PLACE = "geartrain-key"; // in the session storage: it is gone when the tab is closed

export const root = new URL(".", location.href.split("#")[0]);

/** An answer that says no. `faults`: texts by the name of the input that they are about. */
export class ApiError extends Error {
  constructor(status, message, { faults = new Map(), retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.faults = faults;
    this.retryAfter = retryAfter;
  }
}

let askForKey = async () => null;
let asking = null;

/** Say who asks the reader for a key: `ask(reason)` returns the key, or null for none. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Return the key that is in use, or null. */
export function currentKey() {
  return sessionStorage.getItem(PLACE);
}

/** Use a key from now on; null forgets it. */
export function useKey(key) {
  if (key) sessionStorage.setItem(PLACE, key);
  else sessionStorage.removeItem(PLACE);
}

/** Return the URL of a path of the server. */
export function url(path) {
  return new URL(path.replace(/^\//, ""), root).href;
}

/** Send a request and return the Response, whatever its status, but for 401: then the reader is asked for a key. */
export async function send(path, { method = "GET", headers = {}, body, signal } = {}) {
  const cache = method === "GET" ? "no-store" : "default"; // with "no-store" a run would not get an answer that is kept
  for (;;) {
    const key = currentKey();
    const sent = { ...headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    let response;
    try {
      response = await fetch(url(path), { method, headers: sent, body, signal, credentials: "same-origin", cache });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server cannot be reached.");
    }
    if (response.status !== 401) return response;
    if (currentKey() !== key) continue; // another request has been asked meanwhile
    const refusal = await failure(response);
    asking ??= askForKey(key ? refusal.message : "").finally(() => {
      asking = null;
    });
    const given = await asking;
    if (!given) throw new ApiError(401, "This server requires a key.");
    useKey(given);
  }
}

/** Send a request and return the JSON of its answer; raises ApiError. */
export async function ask(path, options = {}) {
  const response = await send(path, { ...options, headers: { Accept: "application/json", ...options.headers } });
  if (!response.ok) throw await failure(response);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** Return an answer that says no as an error. */
export async function failure(response) {
  const text = await response.text().catch(() => "");
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    return new ApiError(response.status, text.slice(0, 500) || `The server answered ${response.status}.`, { retryAfter });
  }
  if (Array.isArray(body?.detail)) return new ApiError(response.status, "The input does not fit the model.", { faults: readFaults(body.detail) });
  return errorOf(body, response.status, retryAfter) ?? new ApiError(response.status, `The server answered ${response.status}.`, { retryAfter });
}

/** Return the error that JSON tells of, in the form of Cog's API or of OpenAI's, which may name a parameter; null for none. */
export function errorOf(body, status = 0, retryAfter = null) {
  const { error } = body ?? {};
  if (typeof error === "string") return new ApiError(status, error, { retryAfter });
  if (typeof error?.message !== "string") return null;
  const faults = error.param ? new Map([[error.param, [error.message]]]) : new Map();
  return new ApiError(status, error.message, { faults, retryAfter });
}

// A fault names its place, such as ["body", "input", "words", 3] or ["body", "input", "box/left"]. One that is of no input
// is under "".
function readFaults(detail) {
  const faults = new Map();
  for (const { loc = [], msg = "" } of detail) {
    const [name = "", ...rest] = loc.slice(2).flatMap((step) => String(step).split("/"));
    const text = rest.length ? `${rest.join(".")}: ${msg}` : msg;
    faults.set(name, [...(faults.get(name) ?? []), text]);
  }
  return faults;
}

/** Yield the server-sent events of an answer, as `{ event, data }` with data from JSON. */
export async function* eventsOf(response) {
  for await (const { event, data } of readEvents(response.body)) yield { event, data: JSON.parse(data) };
}
