// The files that a reader chooses or drops: those of results, and the files of outputs that lie beside them.

const LINES = /\.(jsonl|ndjson|json)$/i;
const PARQUET = /\.(parquet|arrow|feather)$/i;
const PARQUET_FAULT =
  "Parquet and Arrow cannot be opened here. geartrain batch writes JSON lines with -o FILE.jsonl, and pandas makes them of a folder: " +
  'pandas.read_parquet("OUT").to_json("rows.jsonl", orient="records", lines=True)';
const BESIDE = /(?:^|\/)([^/]*_files\/[^/]+)$/; // as a result names it
const MOST_FILES = 200_000; // that are looked at in a folder

/** Return the files of a drop, also those in folders, as `[{ file, path }]`. */
export async function dropped(transfer) {
  const items = [...transfer.items].filter(({ kind }) => kind === "file").map((item) => ({ entry: item.webkitGetAsEntry?.(), file: item.getAsFile() }));
  const found = [];
  for (const { entry, file } of items) {
    if (entry?.isDirectory) await walk(entry, found);
    else if (file) found.push({ file, path: file.name });
  }
  return found;
}

async function walk(folder, found) {
  const reader = folder.createReader();
  for (;;) {
    const entries = await new Promise((settle, refuse) => reader.readEntries(settle, refuse));
    if (!entries.length || found.length >= MOST_FILES) return;
    for (const entry of entries) {
      if (entry.isDirectory) await walk(entry, found);
      else found.push({ file: await new Promise((settle, refuse) => entry.file(settle, refuse)), path: entry.fullPath.slice(1) });
    }
  }
}

/** Return the files that a control has, as `[{ file, path }]`. */
export function chosen(picker) {
  return [...picker.files].slice(0, MOST_FILES).map((file) => ({ file, path: file.webkitRelativePath || file.name }));
}

/**
 * Return `{ files, besides, fault }` of what was chosen: the files of results by their names, which shares have numbers
 * in, and those of outputs by their paths.
 */
export function sorted(given) {
  const besides = new Map();
  for (const { file, path } of given) besides.set(BESIDE.exec(path)?.[1] ?? path.split("/").at(-1), file);
  const isResult = ({ file, path }) => LINES.test(file.name) && !file.name.startsWith("_") && !BESIDE.test(path);
  const lines = given.length === 1 && !PARQUET.test(given[0].file.name) && !BESIDE.test(given[0].path) ? given : given.filter(isResult);
  const files = lines.sort((one, other) => (one.path < other.path ? -1 : 1)).map(({ file }) => file);
  const isParquet = !files.length && given.some(({ file }) => PARQUET.test(file.name));
  const fault = isParquet ? PARQUET_FAULT : "";
  return { files, besides, fault };
}

/** Return the file of an output that a result names by its path; null without one. `besides`: see `sorted`. */
export function fileBeside(text, besides) {
  if (!isBeside(text)) return null;
  return besides.get(text) ?? besides.get(text.split("/").at(-1)) ?? null;
}

/** Return true for the path of a file that lies beside results. */
export function isBeside(text) {
  return text.length < 300 && /^[^/]*_files\/[^/]+$/.test(text);
}
