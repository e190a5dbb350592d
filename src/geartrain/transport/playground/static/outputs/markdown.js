// Markdown as elements. marked cuts the text into tokens, and each becomes an element here: no HTML is ever made, so
// there is nothing to clean. HTML in the text is shown as text. Pictures are links: nothing is loaded from elsewhere.

import { lexer } from "../vendor/marked-18.2.1.js";
import { h } from "../lib/dom.js";
import { copyButton, longText, visible } from "../lib/text.js";

const SAFE = /^(https?:|mailto:|#)/i;

/** Return an element that shows a text as Markdown. */
export function markdown(text) {
  try {
    return h("div", { class: "markdown" }, blocks(lexer(text, { gfm: true })));
  } catch {
    return longText(text); // its parts lie too deep in each other
  }
}

function blocks(tokens) {
  return tokens.map(block);
}

function block(token) {
  switch (token.type) {
    case "heading":
      return h(`h${Math.min(6, token.depth + 2)}`, {}, inlines(token.tokens));
    case "paragraph":
      return h("p", {}, inlines(token.tokens));
    case "text":
      return h("span", {}, token.tokens ? inlines(token.tokens) : plain(token.text));
    case "code":
      return code(token.text, visible(token.lang ?? "").slice(0, 40));
    case "blockquote":
      return h("blockquote", {}, blocks(token.tokens));
    case "list":
      return h(token.ordered ? "ol" : "ul", token.ordered && token.start !== 1 ? { start: token.start } : {}, token.items.map((item) => h("li", {}, item.task ? (item.checked ? "☑ " : "☐ ") : null, blocks(item.tokens))));
    case "table":
      return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": "Table" }, h("table", {}, h("thead", {}, row("th", token.header)), h("tbody", {}, token.rows.map((cells) => row("td", cells)))));
    case "hr":
      return h("hr");
    case "space":
    case "def":
      return null;
    default:
      return h("p", {}, visible(token.raw));
  }
}

function code(text, language) {
  const shown = h("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code: ${language}` : "Code" }, h("code", {}, visible(text)));
  const bar = h("div", { class: "code-bar" }, h("span", { class: "muted" }, language), copyButton(() => text, { text: "", label: "Copy the code" }));
  return h("div", { class: "code-box" }, bar, shown);
}

function row(name, cells) {
  return h("tr", {}, cells.map((cell) => h(name, name === "th" ? { scope: "col" } : {}, inlines(cell.tokens))));
}

function inlines(tokens = []) {
  return tokens.map(inline);
}

function inline(token) {
  switch (token.type) {
    case "strong":
      return h("strong", {}, inlines(token.tokens));
    case "em":
      return h("em", {}, inlines(token.tokens));
    case "del":
      return h("del", {}, inlines(token.tokens));
    case "codespan":
      return h("code", {}, plain(token.text));
    case "br":
      return h("br");
    case "link":
    case "image":
      return link(token);
    case "text":
      return token.tokens ? h("span", {}, inlines(token.tokens)) : plain(token.text);
    case "escape":
      return plain(token.text);
    default:
      return visible(token.raw);
  }
}

function link(token) {
  const shown = token.tokens?.length ? inlines(token.tokens) : [plain(token.text || token.href)];
  if (!SAFE.test(token.href)) return h("span", {}, shown);
  return h("a", { href: token.href, target: "_blank", rel: "noopener noreferrer nofollow", title: token.href }, shown);
}

function plain(text) {
  return visible(text);
}
