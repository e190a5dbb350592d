// Differences of two values, and of two texts.

const DEEPEST = 100; // levels
const MOST = 50; // differences that are listed
const MOST_CELLS = 1_000_000; // of the table that finds the words two texts share
const WORDS = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[\p{L}\p{N}_]+|\s+|./gsu;

/** Return `{ found, isWhole }`: `found` has `{ path, a, b }` for each place where two values differ, up to a number. */
export function differences(a, b) {
  const found = [];
  let isWhole = true;
  const left = [["", a, b, 0]];
  while (left.length && isWhole) {
    const [path, one, other, depth] = left.pop();
    if (one === other) continue;
    const names = namesOf(one, other);
    if (names === null) found.push({ path, a: one, b: other });
    else if (depth >= DEEPEST) isWhole = false;
    else {
      for (const name of names.reverse()) {
        const [first, second] = [own(one, name), own(other, name)];
        if (first !== second) left.push([step(path, name, Array.isArray(one)), first, second, depth + 1]);
      }
    }
    if (found.length > MOST) isWhole = false;
  }
  return { found: found.slice(0, MOST), isWhole };
}

// The names of the parts of two values of a kind; null if they have none, or are of two kinds.
function namesOf(one, other) {
  const areObjects = [one, other].every((each) => each !== null && typeof each === "object");
  if (!areObjects || Array.isArray(one) !== Array.isArray(other)) return null;
  if (Array.isArray(one)) return Array.from({ length: Math.max(one.length, other.length) }, (_, at) => at);
  return [...new Set([...Object.keys(one), ...Object.keys(other)])];
}

function own(value, name) {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

function step(path, name, isList) {
  if (isList) return `${path}[${name}]`;
  return path ? `${path}.${name}` : name;
}

/** Return two lists of `[text, isMarked]`, whose texts are those of `a` and of `b`: marked is what the other lacks. */
export function wordDifferences(a, b) {
  const [one, other] = [a.match(WORDS) ?? [], b.match(WORDS) ?? []];
  let begin = 0;
  while (begin < Math.min(one.length, other.length) && one[begin] === other[begin]) begin += 1;
  let end = 0;
  while (end < Math.min(one.length, other.length) - begin && one.at(-1 - end) === other.at(-1 - end)) end += 1;
  const inner = [one, other].map((words) => words.slice(begin, words.length - end));
  const marks = inner[0].length * inner[1].length <= MOST_CELLS ? unshared(...inner) : inner.map((words) => words.map(() => true));
  return [one, other].map((words, side) => runs(words, (at) => at >= begin && at < words.length - end && marks[side][at - begin]));
}

// Mark the words that are not in the longest sequence that both have.
function unshared(one, other) {
  const width = other.length + 1;
  const lengths = new Uint16Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      lengths[at] = one[i] === other[j] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  const marks = [one.map(() => true), other.map(() => true)];
  for (let i = 0, j = 0; i < one.length && j < other.length; ) {
    if (one[i] === other[j]) {
      marks[0][i] = false;
      marks[1][j] = false;
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return marks;
}

function runs(words, isMarked) {
  const made = [];
  for (const [at, word] of words.entries()) {
    const marked = isMarked(at);
    if (made.length && made.at(-1)[1] === marked) made.at(-1)[0] += word;
    else made.push([word, marked]);
  }
  return made;
}
