// One run of a model, as the page follows it.
//
//   sending ──▶ waiting ──▶ processing ──▶ succeeded | failed | canceled
//      └───────────┴────────────┴────────▶ refused (the server did not take it) | lost (its answer never came)

import { ApiError, ask, eventsOf, failure, send } from "../lib/api.js";
import { encodeInput } from "./input.js";

const FIRST_LOOK = 700; // milliseconds after which the page asks how a run without a stream goes on
const LOOKS = 1000; // between two such questions
const HEAVY = 262_144; // bytes of an answer, from which on it asks less often
const MOST_CHUNKS = 20_000; // that are kept while a run goes on

export const OVER = new Set(["succeeded", "failed", "canceled", "refused", "lost"]);

/** A run. `listener(change)` is called when something has changed: `status`, `output`, `log` or `metric`. */
export class Run {
  /** `target`: `{ name, path, streams }`, of which `path` is that of the predictions. */
  constructor(target, values, listener) {
    this.target = target;
    this.values = values;
    this.id = `page_${randomHex(12)}`;
    this.status = "sending";
    this.place = 0; // in the queue, 1 for the next one; 0 if it does not wait there
    this.kept = ""; // how the server has answered it without a run of its own
    this.chunks = [];
    this.logs = "";
    this.metrics = {};
    this.error = null;
    this.prediction = null; // the whole of it, when it is over
    this.begun = performance.now();
    this.at = new Date();
    this.seconds = 0;
    this.listener = listener;
    this.abort = new AbortController();
    this.isWatched = false; // whether another page has sent it
  }

  /** Return a run of which the server has told, such as one of another session. */
  static of(target, prediction) {
    const run = new Run(target, prediction.input ?? {}, () => {});
    run.id = prediction.id;
    run.at = new Date(prediction.created_at);
    run.chunks = Array.isArray(prediction.output) ? prediction.output : [];
    if (OVER.has(prediction.status)) run.finish(prediction);
    else run.observe(prediction);
    if (prediction.completed_at) run.seconds = (new Date(prediction.completed_at) - run.at) / 1000;
    return run;
  }

  /** Follow a run that this page has not sent. Does not raise. */
  async watch() {
    this.isWatched = true;
    if (!this.isOver) await this.look(this.abort.signal);
  }

  get isOver() {
    return OVER.has(this.status);
  }

  /** Send it, and follow it to its end. Does not raise. */
  async follow() {
    try {
      const input = await encodeInput(this.values);
      if (this.target.streams) await this.followStream(input);
      else await this.followAnswer(input);
    } catch (error) {
      if (error.name === "AbortError") this.move("canceled");
      else if (error instanceof ApiError && error.status) this.move("refused", error);
      else this.move("lost", error);
    }
  }

  /** Ask the server to end it. */
  async cancel() {
    const answer = await send(`${this.target.path}/${this.id}/cancel`, { method: "POST" }).catch(() => null);
    if (!answer?.ok && !this.isOver) this.abort.abort(); // the server does not have it: nobody waits for it any more
  }

  async followStream(input) {
    const response = await this.put(input, "text/event-stream");
    this.move("waiting");
    const begun = new AbortController();
    void this.look(begun.signal); // a stream says nothing of the queue
    try {
      for await (const { event, data } of eventsOf(response)) {
        begun.abort();
        this.hear(event, data);
      }
    } finally {
      begun.abort();
    }
    if (!this.isOver) throw new Error("The stream ended before the run did.");
  }

  // The request stays open until the run is over: a page that is closed ends its run. Meanwhile other requests ask how it
  // stands.
  async followAnswer(input) {
    const answered = new AbortController();
    void this.look(answered.signal);
    try {
      const response = await this.put(input, "application/json");
      this.finish(await response.json());
    } finally {
      answered.abort();
    }
  }

  async put({ body, headers }, accept) {
    const path = `${this.target.path}/${this.id}`;
    const response = await send(path, { method: "PUT", body, headers: { ...headers, Accept: accept }, signal: this.abort.signal });
    if (!response.ok) throw await failure(response);
    this.kept = keptNote(response.headers.get("X-Cache"), response.headers.get("Age"));
    return response;
  }

  async look(answered) {
    let pause = FIRST_LOOK;
    for (;;) {
      await new Promise((settle) => setTimeout(settle, pause));
      if (answered.aborted || this.isOver) return;
      const response = await send(`${this.target.path}/${this.id}`).catch(() => null);
      const text = response?.ok ? await response.text().catch(() => "") : "";
      if (!this.isOver) this.stand(Number(response?.headers.get("X-Queue-Position") ?? 0));
      pause = text.length > HEAVY ? 5 * LOOKS : LOOKS;
      if (!text && response?.status === 404 && this.isWatched) this.move("lost", new Error("The server does not know this run any more."));
      if (text && !answered.aborted && !this.isOver) this.observe(JSON.parse(text));
    }
  }

  hear(event, data) {
    if (event === "start") this.move("processing");
    else if (event === "output") {
      if (this.chunks.length < MOST_CHUNKS) this.chunks.push(data.chunk);
      this.tell("output");
    } else if (event === "log") {
      this.logs = (this.logs + data.data).slice(-2_000_000);
      this.tell("log");
    } else if (event === "metric") {
      this.metrics = { ...this.metrics, [data.name]: data.value };
      this.tell("metric");
    } else if (event === "completed") this.finish(data);
    else if (event === "error") throw new Error(data.error);
  }

  // What the server tells of a run that goes on.
  observe(prediction) {
    if (this.isWatched && OVER.has(prediction.status)) this.finish(prediction);
    else if (prediction.status === "starting") this.move("waiting");
    else if (prediction.status === "processing") {
      this.move("processing");
      if (Array.isArray(prediction.output)) this.chunks = prediction.output;
      this.logs = prediction.logs ?? "";
      this.metrics = prediction.metrics ?? {};
      for (const change of ["output", "log", "metric"]) this.tell(change);
    }
  }

  // Its place in the queue.
  stand(place) {
    if (place === this.place) return;
    this.place = place;
    this.tell("status");
  }

  finish(prediction) {
    this.prediction = prediction;
    this.logs = prediction.logs ?? "";
    this.metrics = prediction.metrics ?? {};
    this.error = prediction.error ?? null;
    this.move(OVER.has(prediction.status) ? prediction.status : "lost");
  }

  move(status, error = null) {
    if (this.isOver || this.status === status) return;
    this.status = status;
    if (error) {
      this.error = error.message;
      this.refusal = error;
    }
    this.seconds = (performance.now() - this.begun) / 1000;
    this.tell("status");
  }

  tell(change) {
    this.listener(change);
  }
}

// Without TLS a page has no `crypto.randomUUID`.
function randomHex(size) {
  return [...crypto.getRandomValues(new Uint8Array(size))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function keptNote(cache, age) {
  if (cache === "hit") return `from the cache, ${Number(age)} s old`;
  return cache === "shared" ? "from the run of an equal request" : "";
}
