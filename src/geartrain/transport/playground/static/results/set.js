// Results of the rows of a data set, in files of JSON lines. Of each row nine bytes are kept: its place in the files, and
// its kind. Everything else is read again from the file, so memory goes by the number of rows and not by their size.

import { eachLine, isEmpty, lineAt, readLine, readPart, Turns } from "./reader.js";

export const MOST_ROWS = 4_000_000;
const NAMED = 1_000; // rows whose columns are known
const MOST_COLUMNS = 50;
const MOST_FAULTS = 20; // different errors that are counted by themselves
const FAULT_CUT = 200; // characters
const SEARCHED = 4 * 1024 * 1024; // bytes that a search reads at once
const REPORT = 150; // milliseconds between two reports of a reading

export const GOOD = 0;
export const ERROR = 1;
export const BROKEN = 2;
export const SAME = 3; // two models that were compared agree
export const DIFFERENT = 4;

const lenient = new TextDecoder();

const OWN = new Set(["row", "output", "error"]);

/** Return true for the outputs of two models: of `geartrain batch --compare`. */
export function isPair(output) {
  return output !== null && typeof output === "object" && ["a", "b", "score", "a_seconds", "b_seconds"].every((name) => Object.hasOwn(output, name));
}

/** Return true if a row has an error. */
export function hasError(value) {
  return Object.hasOwn(value, "error") && value.error !== null;
}

/** Return an error as a text. */
export function errorText(error) {
  if (typeof error === "string") return error;
  try {
    return JSON.stringify(error);
  } catch {
    return "An error that is nested too deeply to be shown";
  }
}

function kindOf(value) {
  if (hasError(value)) return ERROR;
  if (!isPair(value.output)) return GOOD;
  return value.output.score === 1 ? SAME : DIFFERENT;
}

/** A list of numbers that grows. */
class Numbers {
  constructor(Type) {
    this.values = new Type(1024);
    this.count = 0;
  }

  push(value) {
    if (this.count === this.values.length) {
      const wider = new this.values.constructor(2 * this.count);
      wider.set(this.values);
      this.values = wider;
    }
    this.values[this.count] = value;
    this.count += 1;
  }
}

/**
 * The rows of files. `besides` has the files of outputs, by their paths. `onchange` is called while the files are read,
 * and at the end.
 */
export class ResultSet {
  constructor(files, besides) {
    this.files = files;
    this.besides = besides;
    this.onchange = () => {};
    this.size = 0;
    this.bases = files.map((file) => {
      this.size += file.size;
      return this.size - file.size;
    });
    this.counts = [0, 0, 0, 0, 0]; // by GOOD, ERROR, …
    this.columns = new Set(); // that passed through
    this.faults = new Map(); // different errors, and how many rows have each
    this.score = 0; // sums over compared rows
    this.scored = 0;
    this.seconds = [0, 0];
    this.done = 0; // bytes
    this.fault = "";
    this.isReading = true; // until `read` has ended
    this.isCut = false; // there are more rows
    this.starts = new Numbers(Float64Array);
    this.kinds = new Numbers(Uint8Array);
    this.end = 0; // of the last row
    this.reported = 0;
  }

  get count() {
    return this.kinds.count;
  }

  get isCompared() {
    return this.counts[SAME] + this.counts[DIFFERENT] > 0;
  }

  /** Read the files, and find their rows. */
  async read() {
    try {
      for (const [at, file] of this.files.entries()) {
        await eachLine(file, (start, bytes) => this.add(this.bases[at] + start, bytes));
        if (!this.isReading || this.isCut) break;
        this.done = this.bases[at] + file.size;
      }
    } catch (error) {
      this.fault = error.message;
    }
    this.isReading = false;
    this.onchange();
  }

  /** End the reading; the rows that were found stay. */
  stop() {
    this.isReading = false;
  }

  add(start, bytes) {
    if (!this.isReading) return false;
    if (isEmpty(bytes)) return true;
    if (this.count >= MOST_ROWS) {
      this.isCut = true;
      return false;
    }
    this.take(readLine(bytes).value);
    this.starts.push(start);
    this.end = bytes === null ? this.size : start + bytes.length;
    this.done = start + (bytes?.length ?? 0);
    if (performance.now() - this.reported > REPORT) {
      this.reported = performance.now();
      this.onchange();
    }
    return true;
  }

  take(value) {
    const kind = value ? kindOf(value) : BROKEN;
    this.kinds.push(kind);
    this.counts[kind] += 1;
    if (!value) return;
    if (this.count <= NAMED) {
      for (const name of Object.keys(value)) if (!OWN.has(name) && this.columns.size < MOST_COLUMNS) this.columns.add(name);
    }
    if (kind === ERROR) this.countFault(errorText(value.error).split("\n", 1)[0].slice(0, FAULT_CUT));
    if (kind === SAME || kind === DIFFERENT) {
      const { score, a_seconds: first, b_seconds: second } = value.output;
      if (typeof score === "number") {
        this.score += score;
        this.scored += 1;
      }
      this.seconds = [this.seconds[0] + (Number(first) || 0), this.seconds[1] + (Number(second) || 0)];
    }
  }

  countFault(text) {
    if (this.faults.has(text) || this.faults.size < MOST_FAULTS) this.faults.set(text, (this.faults.get(text) ?? 0) + 1);
  }

  /** Read a row: `{ at, kind, value, text }`, or `fault` for `value`; `at` is its place, from 0 on. */
  async row(at) {
    const place = this.fileOf(at);
    const start = this.starts.values[at];
    const bytes = await lineAt(this.files[place], start - this.bases[place], this.endOf(at, place) - this.bases[place]);
    return { at, kind: this.kinds.values[at], ...readLine(bytes) };
  }

  /** Return the bytes that a row has at most. */
  sizeOf(at) {
    return this.endOf(at, this.fileOf(at)) - this.starts.values[at];
  }

  fileOf(at) {
    const start = this.starts.values[at];
    let [low, high] = [0, this.bases.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.bases[middle] <= start) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  endOf(at, place) {
    const next = at + 1 < this.count ? this.starts.values[at + 1] : this.end;
    return Math.min(next, this.bases[place] + this.files[place].size);
  }
}

/** Rows that a filter lets through: by their kind, and by a text that one of their values has. */
export class Selection {
  /** `kinds`: a Set of them, null for all. `onchange` is called when there are more rows. */
  constructor(set, { kinds = null, text = "" } = {}) {
    this.set = set;
    this.kinds = kinds;
    this.text = text.toLowerCase();
    this.escaped = JSON.stringify(this.text).slice(1, -1);
    this.places = kinds || text ? new Numbers(Uint32Array) : null;
    this.seen = 0;
    this.fault = "";
    this.isClosed = false;
    this.isSearching = false;
    this.reported = 0;
    this.onchange = () => {};
  }

  get count() {
    return this.places ? this.places.count : this.set.count;
  }

  /** Return the place of a row of the selection. */
  at(index) {
    return this.places ? this.places.values[index] : index;
  }

  close() {
    this.isClosed = true;
  }

  /** Look at the rows that have come since the last call. */
  async follow() {
    if (!this.places || this.isSearching || this.isClosed) return;
    this.isSearching = true;
    try {
      await this.search();
    } catch (error) {
      this.fault = error.message;
    }
    this.isSearching = false;
    if (!this.isClosed) this.onchange();
  }

  async search() {
    const turns = new Turns();
    while (this.seen < this.set.count && !this.isClosed) {
      const at = this.seen;
      if (this.kinds && !this.kinds.has(this.set.kinds.values[at])) this.seen += 1;
      else if (!this.text) {
        this.places.push(at);
        this.seen += 1;
      } else {
        await this.searchBlock(at, turns);
      }
      if (turns.isOver()) {
        this.report();
        await turns.next();
      }
    }
  }

  // Read rows that lie one after the other at once, and look for the text in each.
  async searchBlock(first, turns) {
    const { set } = this;
    const place = set.fileOf(first);
    const base = set.bases[place];
    const begin = set.starts.values[first];
    let end = first + 1;
    while (end < set.count && set.starts.values[end] < base + set.files[place].size && set.endOf(end, place) - begin <= SEARCHED) end += 1;
    if (end === first + 1) {
      const { value, text } = await set.row(first);
      if (!this.isClosed && this.matches(value, text)) this.places.push(first);
    } else {
      const block = await readPart(set.files[place], begin - base, set.endOf(end - 1, place) - base);
      const last = this.mayHave(lenient.decode(block)) ? end : first; // most blocks have the text nowhere
      for (let at = first; at < last && !this.isClosed; at += 1) {
        if (this.kinds && !this.kinds.has(set.kinds.values[at])) continue;
        const line = block.subarray(set.starts.values[at] - begin, set.endOf(at, place) - begin);
        if (this.mayHave(lenient.decode(line))) {
          const { value, text } = readLine(line);
          if (this.matches(value, text)) this.places.push(at);
        }
        if (turns.isOver()) await turns.next();
      }
    }
    this.seen = end;
  }

  // Return false for JSON that has the text neither as it is nor in escapes: most has not, and needs not be parsed.
  mayHave(json) {
    const lower = json.toLowerCase();
    return lower.includes(this.text) || lower.includes(this.escaped) || lower.includes("\\u");
  }

  matches(value, line) {
    return value ? hasText(value, this.text) : line.toLowerCase().includes(this.text);
  }

  report() {
    if (this.isClosed || performance.now() - this.reported < REPORT) return;
    this.reported = performance.now();
    this.onchange();
  }
}

// Return true if one of the values inside has a text. The nesting of a file may be deeper than calls can be.
function hasText(value, text) {
  const left = [value];
  while (left.length) {
    const each = left.pop();
    if (each !== null && typeof each === "object") for (const inner of Object.values(each)) left.push(inner);
    else if (String(each).toLowerCase().includes(text)) return true;
  }
  return false;
}
