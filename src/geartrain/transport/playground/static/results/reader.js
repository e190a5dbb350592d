// Lines of large files. A file stays on its disk: it is read in blocks, and a line again when it is shown.

const BLOCK = 1024 * 1024; // bytes that are read at once
const NEWLINE = 10;
const BEGINNING = 4096; // bytes that are shown of a line that cannot be read
export const LONGEST = 64 * 1024 * 1024; // bytes of a line that is read, as many as geartrain batch reads of a row
const TURN = 10; // milliseconds of work after which the page gets its turn

const TOO_LONG = `The line has more than ${LONGEST / 1024 ** 2} MiB.`;

const strict = new TextDecoder("utf-8", { fatal: true });
const lenient = new TextDecoder();

/** Read a line: `{ value, text }`, or `{ fault, text }` for one that is no JSON object. `bytes` null: it is too long. */
export function readLine(bytes) {
  if (bytes === null) return { fault: TOO_LONG, text: "" };
  let text = "";
  try {
    text = strict.decode(bytes);
  } catch {
    return { fault: "The line is not UTF-8.", text: lenient.decode(bytes.subarray(0, BEGINNING)) };
  }
  try {
    const value = JSON.parse(text);
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return { value, text };
    return { fault: "The line is JSON, but no object.", text: text.slice(0, BEGINNING) };
  } catch (error) {
    return { fault: `The line is not JSON: ${error.message}`.slice(0, 500), text: text.slice(0, BEGINNING) };
  }
}

/** Lines of a file that comes in blocks. Of a line that is too long nothing is kept. */
class LineBreaker {
  constructor() {
    this.start = 0; // of the line at hand, in the file
    this.size = 0;
    this.parts = [];
  }

  /** Yield `{ start, bytes }` of the lines that end in a block. */
  *add(block) {
    let from = 0;
    for (let end = block.indexOf(NEWLINE); end >= 0; end = block.indexOf(NEWLINE, from)) {
      this.hold(block.subarray(from, end));
      yield this.take();
      this.start += 1;
      from = end + 1;
    }
    this.hold(block.subarray(from));
  }

  /** Yield the last line, if no newline has ended it. */
  *end() {
    if (this.size) yield this.take();
  }

  hold(part) {
    this.size += part.length;
    if (this.size > LONGEST) this.parts = [];
    else if (part.length) this.parts.push(part);
  }

  take() {
    const { start, size, parts } = this;
    this.start += size;
    this.size = 0;
    this.parts = [];
    return { start, bytes: size > LONGEST ? null : joined(parts, size) };
  }
}

function joined(parts, size) {
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Return true if a line has nothing but white space. */
export function isEmpty(bytes) {
  return bytes !== null && bytes.every((each) => each === 32 || each === 9 || each === 13 || each === NEWLINE);
}

/** Call `onLine(start, bytes)` for each line of a file, until it returns false. The page gets its turns meanwhile. */
export async function eachLine(file, onLine) {
  const lines = new LineBreaker();
  const turns = new Turns();
  for (let at = 0; at < file.size; at += BLOCK) {
    const isLast = at + BLOCK >= file.size;
    const block = await readPart(file, at, at + BLOCK);
    for (const found of isLast ? [lines.add(block), lines.end()] : [lines.add(block)]) {
      for (const { start, bytes } of found) {
        if (!onLine(start, bytes)) return;
        if (turns.isOver()) await turns.next();
      }
    }
  }
}

/** Read a part of a file. */
export async function readPart(file, start, end) {
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch {
    throw new Error(`${file.name} cannot be read any more. It may have changed since it was chosen: choose it again.`);
  }
}

/** Read the line that begins at `start`, and ends before `end` at the latest: its bytes, null if it is too long. */
export async function lineAt(file, start, end) {
  const part = await readPart(file, start, Math.min(end, start + LONGEST + 1));
  const newline = part.indexOf(NEWLINE);
  const size = newline < 0 ? part.length : newline;
  return size > LONGEST ? null : part.subarray(0, size);
}

/** Turns of work that takes long, between which the page shows what has changed, and takes clicks. */
export class Turns {
  constructor() {
    this.began = performance.now();
    this.steps = 0;
  }

  /** Return true if it is the page's turn. */
  isOver() {
    this.steps += 1;
    return this.steps % 16 === 0 && performance.now() - this.began > TURN;
  }

  /** Give the page its turn. A timer would be slowed down in a tab that is not seen. */
  async next() {
    await new Promise((settle) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        settle();
      };
      port2.postMessage(null);
    });
    this.began = performance.now();
  }
}
