// The text of `/metrics`, and what can be told from two of them.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Read the text of metrics. Returns a Map of lists of `{ labels, value }`, by the name of the metric. */
export function readMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value;
    const list = found.get(match[1]);
    const sample = { labels, value: match[3] === "+Inf" ? Infinity : Number(match[3]) };
    if (list) list.push(sample);
    else found.set(match[1], [sample]);
  }
  return found;
}

/** Return the samples of a metric; of one model if `model` is not empty. */
export function samples(metrics, name, model = "") {
  const all = metrics.get(name) ?? [];
  return model ? all.filter(({ labels }) => labels.model === model) : all;
}

/** Return their sum, of those alone that have these labels. */
export function total(metrics, name, model = "", labels = {}) {
  const required = Object.entries(labels);
  return samples(metrics, name, model)
    .filter((sample) => required.every(([label, value]) => sample.labels[label] === value))
    .reduce((sum, { value }) => sum + value, 0);
}

/** Return the buckets of a histogram as `[{ upTo, count }]`, by how much each has grown. */
export function grownBuckets(now, before, name, model = "") {
  const sums = new Map();
  for (const [metrics, sign] of [[now, 1], [before, -1]]) {
    for (const { labels, value } of samples(metrics, `${name}_bucket`, model)) {
      const upTo = labels.le === "+Inf" ? Infinity : Number(labels.le);
      sums.set(upTo, (sums.get(upTo) ?? 0) + sign * value);
    }
  }
  const bounds = [...sums.keys()].sort((one, other) => one - other);
  let below = 0;
  return bounds.map((upTo) => {
    const count = Math.max(0, sums.get(upTo) - below);
    below = sums.get(upTo);
    return { upTo, count };
  });
}
