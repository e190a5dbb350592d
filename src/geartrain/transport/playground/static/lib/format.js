// Numbers, sizes and times for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a size in bytes, such as `12 KiB`. */
export function bytes(size) {
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Return a duration in seconds, such as `240 ms`, `3.2 s` or `2 min 5 s`. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0995) return `${trim((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return `${minutes} min ${Math.round(seconds - minutes * 60)} s`;
}

/** Return a number with at most so many significant digits. */
export function number(value, digits = 6) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US").replaceAll(",", "\u202f");
  return trim(value.toPrecision(digits));
}

const MOST_DECIMALS = 6;

/** Return numbers as texts whose digits line up below each other: with equally many decimals, where that loses nothing. */
export function aligned(values) {
  const texts = values.map((value) => number(value));
  const decimals = Math.min(MOST_DECIMALS, Math.max(0, ...texts.map((text) => text.split(".")[1]?.length ?? 0)));
  const fixed = values.map((value) => value.toFixed(decimals));
  const isLost = values.some((value, at) => !Number.isFinite(value) || (value !== 0 && Number(fixed[at]) === 0) || texts[at].includes("e"));
  if (isLost || !decimals) return texts;
  return fixed.map((text) => {
    const [whole, rest] = text.split(".");
    const sign = whole.startsWith("-") ? "-" : "";
    return `${sign}${Math.abs(Number(whole)).toLocaleString("en-US").replaceAll(",", "\u202f")}.${rest}`;
  });
}

function trim(text) {
  if (text.includes("e")) return String(Number(text));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Return the name of an input as a label: `max_new_tokens` becomes `Max new tokens`. */
export function label(name) {
  const words = name.replaceAll("_", " ").trim() || name;
  return words && words[0].toUpperCase() + words.slice(1);
}
