// The input of a run as the body of a request.
//
// Files go as a form, which the server writes straight to its disk. A form cannot say null, so such an input goes as JSON
// with its files as `data:` URLs.

/** Return `{ body, headers }` of a request with these values. */
export async function encodeInput(values) {
  if (!hasFiles(values)) return asJson(values);
  if (Object.values(values).every((value) => value !== null)) return { body: asForm(values), headers: {} };
  const inline = {};
  for (const [name, value] of Object.entries(values)) inline[name] = await inlineFiles(value);
  return asJson(inline);
}

/** Whether any of the values is a file that the reader has given. */
export function hasFiles(values) {
  return Object.values(values).some((value) => [value].flat().some((each) => each instanceof File));
}

function asJson(values) {
  return { body: JSON.stringify({ input: values }), headers: { "Content-Type": "application/json" } };
}

function asForm(values) {
  const form = new FormData();
  for (const [name, value] of Object.entries(values)) {
    const isFiles = Array.isArray(value) && value.some((each) => each instanceof File);
    if (isFiles) for (const each of value) form.append(name, each);
    else if (value instanceof File) form.append(name, value);
    else form.append(name, typeof value === "string" ? value : JSON.stringify(value));
  }
  return form;
}

async function inlineFiles(value) {
  if (Array.isArray(value)) return Promise.all(value.map(inlineFiles));
  return value instanceof File ? dataUrl(value) : value;
}

function dataUrl(file) {
  return new Promise((settle, refuse) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => settle(reader.result));
    reader.addEventListener("error", () => refuse(reader.error));
    reader.readAsDataURL(file);
  });
}
