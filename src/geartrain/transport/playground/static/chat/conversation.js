// A conversation with a model: its messages, and the answer that is being written.

import { ApiError, errorOf, failure, send } from "../lib/api.js";
import { readEvents } from "../lib/events.js";

const MOST_KEPT = 10; // conversations, each with a model or a version of it
const LONGEST = 2_000_000; // characters of an answer, after which it is stopped
const MOST_CALLS = 127; // the greatest number of a call of a tool in one answer

const kept = new Map();

/** Return the conversation with this name, such as `writer@2`, which is that of the model in OpenAI's API. */
export function conversationWith(name) {
  const found = kept.get(name) ?? new Conversation(name);
  kept.delete(name);
  kept.set(name, found);
  while (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  return found;
}

/**
 * A message. `calls`: those of tools, `{ id, name, arguments }`. `state` is `writing`, `done`, `stopped` or `failed`;
 * `note` says why a text has ended early, and `figures` how fast it was.
 */
class Message {
  constructor(role, content = "") {
    this.role = role;
    this.content = content;
    this.reasoning = "";
    this.calls = [];
    this.callId = ""; // of the call that a message of a tool answers
    this.state = "done";
    this.error = null;
    this.note = "";
    this.figures = null;
  }

  get isEmpty() {
    return !this.content && !this.calls.length;
  }

  /** Return it as OpenAI's API has it. */
  toBody() {
    if (this.role === "tool") return { role: "tool", tool_call_id: this.callId, content: this.content };
    if (!this.calls.length) return { role: this.role, content: this.content };
    const calls = this.calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
    return { role: this.role, content: this.content || null, tool_calls: calls };
  }
}

class Conversation {
  constructor(name) {
    this.name = name;
    this.system = "";
    this.values = {}; // of the parameters
    this.draft = "";
    this.messages = [];
    this.abort = null; // while an answer is being written
  }

  get isWriting() {
    return this.abort !== null;
  }

  /** The calls of tools that the last answer waits for. */
  get openCalls() {
    const last = this.messages.at(-1);
    return last?.role === "assistant" && last.state !== "writing" ? last.calls : [];
  }

  /** Add a message of the reader. */
  say(text) {
    this.messages.push(new Message("user", text));
  }

  /** Add the results of calls, in their order. */
  tell(results) {
    for (const [at, call] of this.openCalls.entries()) {
      const message = new Message("tool", results[at]);
      message.callId = call.id;
      message.name = call.name;
      this.messages.push(message);
    }
  }

  /** Drop a message and what follows it. */
  cut(message) {
    const at = this.messages.indexOf(message);
    if (at >= 0) this.messages.length = at;
  }

  /** Drop all messages. */
  clear() {
    this.stop();
    this.messages = [];
  }

  /** Return the body of a request. `messages`: those of it, all of them at first. */
  toBody(parameters, messages = this.messages) {
    const said = messages.filter((each) => each.role !== "assistant" || !each.isEmpty).map((each) => each.toBody());
    const system = this.system.trim() ? [{ role: "system", content: this.system }] : [];
    return { model: this.name, messages: [...system, ...said], ...parameters };
  }

  /** End the answer. The server cancels its run. */
  stop() {
    this.abort?.abort();
  }

  /** Have the model write the next message; `changed()` is called as it grows. Returns it. Does not raise. */
  async answer(parameters, changed) {
    const body = { ...this.toBody(parameters), stream: true, stream_options: { include_usage: true } };
    const message = new Message("assistant");
    message.state = "writing";
    this.messages.push(message);
    const abort = new AbortController();
    this.abort = abort;
    const times = { begun: performance.now(), first: null, pieces: 0, usage: null };
    try {
      const response = await send("v1/chat/completions", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal: abort.signal });
      if (!response.ok) throw await failure(response);
      await this.follow(response, { message, times, changed });
      message.state = "done";
    } catch (error) {
      message.state = error.name === "AbortError" ? "stopped" : "failed";
      if (message.state === "failed") message.error = error;
      abort.abort();
    }
    if (message.state === "stopped") message.note ||= "Stopped";
    message.figures = figuresOf(times);
    if (this.abort === abort) this.abort = null;
    return message;
  }

  async follow(response, { message, times, changed }) {
    for await (const { data } of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      const fault = errorOf(chunk);
      if (fault) throw fault;
      if (chunk.usage) times.usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      if (take(message, choice.delta ?? {})) {
        times.first ??= performance.now();
        times.last = performance.now();
        times.pieces += 1;
        changed();
      }
      if (choice.finish_reason) message.note = ENDS[choice.finish_reason] ?? "";
      if (message.content.length + message.reasoning.length > LONGEST) {
        message.note = `Stopped: the page shows at most ${LONGEST.toLocaleString("en-US")} characters of an answer`;
        throw new DOMException("", "AbortError");
      }
    }
    throw new ApiError(0, "The answer broke off.");
  }
}

const ENDS = { length: "Ended at the limit of tokens", content_filter: "Ended by the content filter" };

// Add a piece to a message; returns whether there was anything in it.
function take(message, delta) {
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = callAt(message.calls, part.index ?? 0);
    call.id ||= part.id ?? "";
    call.name ||= part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
}

// The call with a number; the server numbers them without gaps.
function callAt(calls, number) {
  while (calls.length <= Math.min(number, MOST_CALLS)) calls.push({ id: "", name: "", arguments: "" });
  return calls[Math.min(number, MOST_CALLS)];
}

// Seconds until the first piece, and tokens a second from there to the last one; pieces where the model counts no tokens.
function figuresOf({ begun, first, last, pieces, usage }) {
  if (first === null) return null;
  const tokens = usage?.completion_tokens || null;
  const count = tokens ?? pieces;
  const seconds = (last - first) / 1000;
  return { wait: (first - begun) / 1000, count, unit: tokens === null ? "pieces" : "tokens", prompt: usage?.prompt_tokens || null, rate: count > 1 && seconds > 0 ? (count - 1) / seconds : null };
}
