// Files: dropped, chosen, pasted, by URL, from the camera or the microphone.

import { announce, button, h, icon, newId } from "../lib/dom.js";
import { bytes } from "../lib/format.js";
import { capture, canCapture } from "./capture.js";

/** Make the control of one file, or of several. Its values are File objects and URLs. */
export function fileControl(field, { attributes, ids, changed, several }) {
  const accept = field.schema["x-cog-accept"] ?? "";
  const picker = h("input", { type: "file", class: "offscreen", id: attributes.id, accept: accept || null, multiple: several, "aria-describedby": ids.describedBy });
  const shown = h("ul", { class: "file-list", "aria-label": `Files of ${field.label}` });
  const zone = h("div", { class: "drop", data: { drop: field.name } });
  let values = [];
  let urls = [];

  function set(next) {
    values = next;
    for (const each of urls) URL.revokeObjectURL(each);
    urls = [];
    shown.replaceChildren(...values.map((value, at) => fileItem(value, { urls, onremove: () => remove(at) })));
    shown.hidden = !values.length;
    zone.classList.toggle("has-files", values.length > 0);
  }
  function add(files) {
    if (!files.length) return;
    set(several ? [...values, ...files] : [files.at(-1)]);
    announce(`${field.label}: ${files.map((file) => file.name ?? file).join(", ")}`);
    changed();
  }
  function remove(at) {
    set(values.filter((_, each) => each !== at));
    picker.focus();
    changed();
  }

  picker.addEventListener("change", () => {
    add([...picker.files]);
    picker.value = "";
  });
  let depth = 0;
  zone.addEventListener("dragenter", (event) => {
    event.preventDefault();
    depth += 1;
    zone.classList.add("over");
  });
  zone.addEventListener("dragover", (event) => event.preventDefault());
  zone.addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) zone.classList.remove("over");
  });
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    zone.classList.remove("over");
    add([...event.dataTransfer.files]);
  });

  const label = h(
    "label",
    { class: "drop-label", for: attributes.id },
    icon("upload"),
    h("span", {}, h("b", {}, several ? "Choose files" : "Choose a file"), h("span", { class: "muted" }, ", drop or paste ", several ? "them" : "it")),
  );
  const tools = h("div", { class: "drop-tools" });
  for (const [what, symbol, text] of CAPTURES) {
    if (!fits(accept, what)) continue;
    const open = button("", { icon: symbol, class: "icon-button", "aria-label": `${text} for ${field.label}` });
    if (!canCapture()) {
      open.disabled = true;
      open.title = "Browsers give camera and microphone only to pages with TLS, and of this machine";
    }
    open.addEventListener("click", async () => {
      const file = await capture(what);
      if (file) add([file]);
      open.focus();
    });
    tools.append(open);
  }
  const urlBox = urlEntry(field, (address) => add([address]));
  tools.append(urlBox.toggle);
  zone.append(picker, h("div", { class: "drop-row" }, label, tools), urlBox.element, shown);
  return {
    element: zone,
    read: () => {
      if (several) return values.length || field.required || field.fallback === undefined ? [...values] : undefined;
      return values[0];
    },
    write(value) {
      const given = value === undefined || value === null ? [] : [value].flat();
      set(given.filter((each) => each instanceof File || typeof each === "string"));
    },
    focus: () => picker.focus(),
    addFiles: add,
  };
}

const CAPTURES = [
  ["photo", "camera", "Take a photo"],
  ["sound", "microphone", "Record a sound"],
];

function fits(accept, what) {
  if (!accept) return true;
  return accept.includes("*/*") || accept.includes(what === "photo" ? "image" : "audio") || (what === "photo" && /png|jpe?g|webp/.test(accept)) || (what === "sound" && /wav|mp3|ogg|webm/.test(accept));
}

function urlEntry(field, use) {
  const id = newId("url");
  const input = h("input", { type: "url", id, class: "control", placeholder: "https://", autocomplete: "off", "aria-label": `URL for ${field.label}` });
  const enter = () => {
    if (!/^(https?|data):/i.test(input.value.trim())) {
      input.focus();
      return;
    }
    use(input.value.trim());
    input.value = "";
    element.hidden = true;
    toggle.setAttribute("aria-expanded", "false");
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      enter();
    }
  });
  const element = h("div", { class: "row url-row", hidden: true }, input, button("Use", { class: "small", onclick: enter }));
  const toggle = button("", { icon: "link", class: "icon-button", "aria-label": `Give a URL for ${field.label}`, "aria-expanded": "false" });
  toggle.addEventListener("click", () => {
    element.hidden = !element.hidden;
    toggle.setAttribute("aria-expanded", String(!element.hidden));
    if (!element.hidden) input.focus();
  });
  return { element, toggle };
}

function fileItem(value, { urls, onremove }) {
  const isUrl = typeof value === "string";
  const name = isUrl ? shortUrl(value) : value.name;
  const item = h("li", { class: "file-item" });
  if (!isUrl) {
    const address = URL.createObjectURL(value);
    urls.push(address);
    item.append(preview(value, address));
  } else {
    item.append(icon("link"));
  }
  const about = isUrl ? "URL, fetched by the server" : `${bytes(value.size)}${value.type ? `, ${value.type}` : ""}`;
  item.append(
    h("div", { class: "file-about" }, h("span", { class: "file-name" }, name), h("span", { class: "muted" }, about)),
    button("", { icon: "close", class: "icon-button", "aria-label": `Remove ${name}`, onclick: onremove }),
  );
  return item;
}

function preview(file, address) {
  const kind = file.type.split("/")[0];
  if (kind === "image") {
    const image = h("img", { src: address, alt: `Preview of ${file.name}`, class: "file-preview" });
    image.addEventListener("error", () => image.replaceWith(icon("file")));
    return image;
  }
  if (kind === "audio") return h("audio", { src: address, controls: true, class: "file-sound", "aria-label": file.name });
  if (kind === "video") return h("video", { src: address, controls: true, class: "file-preview", "aria-label": file.name });
  return icon("file");
}

function shortUrl(text) {
  return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}
