// Outputs that are files: `data:` URLs are shown, URLs of other hosts are links, since nothing is loaded from there.

import { h, icon } from "../lib/dom.js";
import { bytes } from "../lib/format.js";
import { downloadButton, longText } from "../lib/text.js";

const DATA = /^data:([a-z0-9.+-]+\/[a-z0-9.+-]+)?((?:;[a-z0-9-]+=[^;,]*)*)(;base64)?,/i;
const ENDINGS = { "image/jpeg": "jpg", "image/svg+xml": "svg", "audio/mpeg": "mp3", "audio/x-wav": "wav", "text/plain": "txt", "application/octet-stream": "bin", "video/quicktime": "mov" };
const SHOWN_TEXT = 2_000_000; // bytes

/** Return what shows the file behind a text; null if the text is no URL of one. `isUrl`: the schema says that it is. */
export function media(text, name, { isUrl }) {
  if (text.startsWith("data:")) {
    const blob = readDataUrl(text);
    return blob ? fileOutput(blob, `${name}.${ending(blob.type)}`) : null;
  }
  if (isUrl && /^https?:\/\//i.test(text)) return linkOutput(text);
  return null;
}

/** Return what a `data:` URL holds as a Blob, null if it is none. */
export function readDataUrl(text) {
  const match = DATA.exec(text.slice(0, 300));
  if (!match) return null;
  const type = (match[1] ?? "text/plain").toLowerCase();
  const rest = text.slice(match[0].length);
  try {
    if (!match[3]) return new Blob([decodeURIComponent(rest)], { type });
    const binary = atob(rest);
    const content = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at += 1) content[at] = binary.charCodeAt(at);
    return new Blob([content], { type });
  } catch {
    return null;
  }
}

let addresses = []; // of what is shown

function keep(blob) {
  addresses.push(URL.createObjectURL(blob));
  return addresses.at(-1);
}

/** Let the files of outputs go that were shown so far. */
export function releaseMedia() {
  for (const address of addresses) URL.revokeObjectURL(address);
  addresses = [];
}

function ending(type) {
  return ENDINGS[type] ?? type.split("/")[1].replace(/^x-/, "").replace(/\+.*/, "");
}

/** Return what shows a file. */
export function fileOutput(blob, name) {
  const shown = preview(blob, name);
  const note = h("span", { class: "muted" }, [blob.type, bytes(blob.size)].filter(Boolean).join(", "));
  const tools = h("div", { class: "tools" }, note, downloadButton(() => blob, name));
  return h("figure", { class: "file-output" }, shown, h("figcaption", {}, tools));
}

function preview(blob, name) {
  const [kind] = blob.type.split("/");
  if (kind === "image") {
    const address = keep(blob);
    const image = h("img", { src: address, alt: `Output: ${name}`, class: "picture" });
    const size = () => image.closest("figure")?.querySelector(".muted")?.append(`, ${image.naturalWidth} × ${image.naturalHeight} pixels`);
    image.addEventListener("load", size, { once: true });
    image.addEventListener("error", () => image.replaceWith(nameOnly(name)), { once: true });
    return image;
  }
  if (kind === "audio") return h("audio", { src: keep(blob), controls: true, "aria-label": `Output: ${name}` });
  if (kind === "video") return h("video", { src: keep(blob), controls: true, class: "picture", "aria-label": `Output: ${name}` });
  if ((kind === "text" || blob.type === "application/json") && blob.size <= SHOWN_TEXT) {
    const box = h("div", {});
    void blob.text().then((text) => box.append(longText(text, { label: name })));
    return box;
  }
  return nameOnly(name);
}

/** Return a small picture of a file. It holds the file only until it is loaded. */
export function thumbnail(blob, name) {
  const address = URL.createObjectURL(blob);
  const image = h("img", { src: address, alt: name, class: "file-preview" });
  const end = (isShown) => {
    URL.revokeObjectURL(address);
    if (!isShown) image.replaceWith(nameOnly(name));
  };
  image.addEventListener("load", () => end(true), { once: true });
  image.addEventListener("error", () => end(false), { once: true });
  return image;
}

function nameOnly(name) {
  return h("div", { class: "file-name-only" }, icon("file"), name);
}

function linkOutput(text) {
  return h("p", { class: "link-output" }, icon("link"), h("a", { href: text, target: "_blank", rel: "noopener noreferrer nofollow" }, text));
}
