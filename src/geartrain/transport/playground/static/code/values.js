// Values as they are written in other languages, and as tensors.

/** Return a text for a POSIX shell, in quotes where it needs them. */
export function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Return JSON in which what is short stands on one line. `indent`: the columns before it. */
export function folded(value, indent = 0) {
  const line = JSON.stringify(value);
  if (value === null || typeof value !== "object" || line.length + indent < 72) return line;
  const space = " ".repeat(indent + 2);
  const isList = Array.isArray(value);
  const parts = Object.entries(value).map(([key, each]) => `${space}${isList ? "" : `${JSON.stringify(key)}: `}${folded(each, indent + 2)}`);
  const [open, close] = isList ? "[]" : "{}";
  return `${open}\n${parts.join(",\n")}\n${" ".repeat(indent)}${close}`;
}

/** Return a value of JSON as Python writes it. */
export function python(value, indent = 0) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map((each) => python(each, indent)).join(", ")}]`;
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([key, each]) => `${python(key)}: ${python(each, indent + 4)}`);
    const line = `{${entries.join(", ")}}`;
    if (line.length + indent < 88) return line;
    const space = " ".repeat(indent + 4);
    return `{\n${entries.map((entry) => `${space}${entry},\n`).join("")}${" ".repeat(indent)}}`;
  }
  return String(value);
}

// Every text of JSON is one of Python, but for characters beyond 16 bits that are escaped, which no browser does.
function pythonText(text) {
  return JSON.stringify(text);
}

/** Return where the files of values would lie, by their name; URLs stay as they are. */
export function filePath(value) {
  return value instanceof File ? value.name : value;
}

/** Whether a value is a file, or a list that holds one. */
export function holdsFile(value) {
  return [value].flat().some((each) => each instanceof File);
}

/**
 * Return the tensor of an input: `{ name, datatype, shape, data, files }`. `data` is flat; of files it has their paths,
 * and `files` is true. `about`: what the metadata of the model say of the input.
 */
export function asTensor(about, value) {
  const isJson = about.datatype === "BYTES" && !isText(value) && !(Array.isArray(value) && value.every(isText));
  const given = isJson ? JSON.stringify(value) : value;
  const shape = Array.isArray(given) ? sizes(given) : [1];
  while (shape.length < about.shape.length) shape.unshift(1);
  const data = [given].flat(Infinity).map(filePath);
  return { name: about.name, datatype: about.datatype, shape, data, files: holdsFile(value) };
}

function isText(value) {
  return typeof value === "string" || value instanceof File;
}

function sizes(value) {
  return Array.isArray(value) ? [value.length, ...(value.length ? sizes(value[0]) : [])] : [];
}
