// Results of `geartrain batch`: files of JSON lines that the reader chooses. They stay in the browser, and a large one on
// its disk.

import { announce, button, h, icon } from "../lib/dom.js";
import { bytes, duration, number } from "../lib/format.js";
import { visible } from "../lib/text.js";
import { releaseMedia } from "../outputs/media.js";
import { chosen, dropped, sorted } from "../results/choice.js";
import { rowPanel } from "../results/row.js";
import { BROKEN, DIFFERENT, ERROR, GOOD, ResultSet, SAME, Selection } from "../results/set.js";
import { PAGE, rowsTable } from "../results/table.js";

const PAUSE = 300; // milliseconds without a key, after which a text is searched for
const SHOWN_FILES = 5;
const ALL = { id: "all", text: "All rows", kinds: null, isOffered: () => true };
const FILTERS = [
  ALL,
  { id: "good", text: "Succeeded", kinds: [GOOD, SAME, DIFFERENT], isOffered: () => true },
  { id: "error", text: "Errors", kinds: [ERROR], isOffered: () => true },
  { id: "different", text: "Different", kinds: [DIFFERENT], isOffered: (set) => set.isCompared },
  { id: "same", text: "The same", kinds: [SAME], isOffered: (set) => set.isCompared },
  { id: "broken", text: "Broken lines", kinds: [BROKEN], isOffered: (set) => set.counts[BROKEN] > 0 },
];

let kept = null; // the set that was opened last, for a reader who comes back from another page

/** Make the view. Returns `{ element, title, close }`. */
export function resultsView() {
  const choice = makeChoice((given) => open(given));
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const reading = h("div", { class: "report", hidden: true });
  const tiles = h("div", { class: "tiles" });
  const faults = h("div", {});
  const rows = h("div", {});
  const about = h("p", { class: "about" }, "A file that ", h("code", {}, "geartrain batch"), " has written as JSON lines, also with ", h("code", {}, "--compare"), ". It is read in this browser, and sent nowhere.");
  const element = h("div", { class: "view results-view" }, h("div", { class: "view-head" }, h("div", {}, h("h1", {}, "Results"), about)), choice.element, fault, reading, tiles, faults, rows);
  let set = null;
  let list = null;

  function tell(text) {
    fault.textContent = text;
    fault.hidden = !text;
  }

  function open(given) {
    const { files, besides, fault: said } = sorted(given);
    if (!files.length && set && besides.size && !said) {
      for (const [name, file] of besides) set.besides.set(name, file);
      tell("");
      announce(`${number(besides.size)} files of outputs`);
      list.repaint();
      return;
    }
    tell(said || (files.length ? "" : "There are no JSON lines: choose a file such as results.jsonl."));
    if (!files.length) return;
    set?.stop();
    show(new ResultSet(files, besides));
    void set.read();
  }

  function show(given) {
    list?.close();
    set = given;
    kept = given;
    choice.paint(set.files);
    list = rowList(set, (filter, text) => list.choose(filter, text));
    rows.replaceChildren(list.element);
    set.onchange = paint;
    paint();
  }

  function paint() {
    paintReading();
    paintTiles();
    paintFaults();
    list.follow();
    if (set.fault) tell(set.fault);
    if (!set.isReading && set.count) announce(`${number(set.count)} rows, ${number(set.counts[ERROR])} errors`);
  }

  function paintReading() {
    const share = set.size ? Math.floor((100 * set.done) / set.size) : 100;
    const isWhole = set.done >= set.size;
    reading.hidden = !set.isReading && isWhole;
    if (!set.isReading) {
      reading.replaceChildren(isWhole ? "" : h("p", { class: "muted" }, `The first ${number(set.count)} rows are shown, ${share} % of ${bytes(set.size)}.${set.isCut ? " This page keeps no more." : ""}`));
      return;
    }
    if (!reading.querySelector("progress")) {
      reading.replaceChildren(h("progress", { max: 100, "aria-label": "Reading" }), h("div", { class: "row" }, h("p", { class: "report-line" }), button("Stop", { class: "small quiet", icon: "stop", onclick: () => set.stop() })));
    }
    reading.querySelector("progress").value = share;
    reading.querySelector(".report-line").textContent = `Reading ${bytes(set.size)}: ${share} %`;
  }

  function paintTiles() {
    const facts = [["Rows", number(set.count)], ["Succeeded", number(set.count - set.counts[ERROR] - set.counts[BROKEN])], ["Errors", number(set.counts[ERROR])]];
    if (set.counts[BROKEN]) facts.push(["Broken lines", number(set.counts[BROKEN])]);
    if (set.isCompared) {
      const compared = set.counts[SAME] + set.counts[DIFFERENT];
      facts.push(["The same", number(set.counts[SAME])], ["Different", number(set.counts[DIFFERENT])], ["Agreement", `${number((100 * set.counts[SAME]) / compared, 4)} %`], ["Mean score", set.scored ? number(set.score / set.scored, 4) : "–"]);
      for (const [at, name] of ["a", "b"].entries()) facts.push([`Mean time of ${name}`, duration(set.seconds[at] / compared)]);
    }
    tiles.replaceChildren(...facts.map(([name, value]) => h("div", { class: "tile" }, h("div", { class: "tile-name" }, name), h("div", { class: "tile-value" }, value))));
  }

  // The errors that most rows have. It is made once more when there are more of them, and stays as its reader has left it.
  function paintFaults() {
    const isOpen = faults.querySelector("details")?.open ?? false;
    const most = [...set.faults].sort(([, one], [, other]) => other - one);
    const items = most.map(([text, count]) => h("li", {}, h("button", { type: "button", class: "quiet fault-row", onclick: () => list.choose("error", text) }, h("span", { class: "number" }, number(count)), h("span", {}, visible(text)))));
    faults.replaceChildren(...(items.length ? [h("details", { class: "panel faults-panel", open: isOpen }, h("summary", {}, "Errors by their text"), h("ul", {}, items))] : []));
  }

  const over = (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  };
  const drop = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    choice.leave();
    void dropped(event.dataTransfer).then(open);
  };
  addEventListener("dragover", over);
  addEventListener("drop", drop);
  if (kept) show(kept);
  return {
    element,
    title: "Results",
    close() {
      removeEventListener("dragover", over);
      removeEventListener("drop", drop);
      list?.close();
      if (set) set.onchange = () => {};
      releaseMedia();
    },
  };
}

// The controls that files are chosen with, and the files that are open.
function makeChoice(open) {
  const pick = (picker) => {
    if (picker.files.length) open(chosen(picker));
    picker.value = "";
  };
  const files = h("input", { type: "file", class: "offscreen", id: "result-files", multiple: true, onchange: () => pick(files) });
  const folder = h("input", { type: "file", class: "offscreen", id: "result-folder", multiple: true, webkitdirectory: true, hidden: true, onchange: () => pick(folder) });
  const label = h("label", { class: "drop-label", for: "result-files" }, icon("upload"), h("span", {}, h("b", {}, "Choose files"), h("span", { class: "muted" }, ", or drop them anywhere")));
  const opened = h("ul", { class: "file-list", "aria-label": "Open files", hidden: true });
  const element = h("div", { class: "drop" }, files, folder, h("div", { class: "drop-row" }, label, button("A folder", { class: "small quiet", "aria-label": "Choose a folder", onclick: () => folder.click() })), opened);
  let depth = 0;
  const leave = () => {
    depth = 0;
    element.classList.remove("over");
  };
  element.addEventListener("dragenter", () => {
    depth += 1;
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) leave();
  });
  return {
    element,
    leave,
    paint(given) {
      const items = given.slice(0, SHOWN_FILES).map((file) => fileItem(file.name, bytes(file.size)));
      if (given.length > SHOWN_FILES) items.push(fileItem(`${given.length - SHOWN_FILES} more files`, bytes(given.slice(SHOWN_FILES).reduce((sum, { size }) => sum + size, 0))));
      opened.replaceChildren(...items);
      opened.hidden = false;
    },
  };
}

function fileItem(name, about) {
  return h("li", { class: "file-item" }, icon("file"), h("div", { class: "file-about" }, h("span", { class: "file-name" }, visible(name)), h("span", { class: "muted" }, about)));
}

// The rows that a filter lets through, a page at a time, or one of them in full.
function rowList(set, choose) {
  const segments = h("div", { class: "segments", role: "group", "aria-label": "Rows that are shown" });
  const find = h("input", { type: "search", class: "control small", placeholder: "Find a text", "aria-label": "Find a text in the rows" });
  const box = h("div", {});
  const note = h("span", { class: "muted", role: "status" });
  const turn = (by) => void paintPage(first + by * PAGE);
  const before = button("Previous", { class: "small", data: { turn: "-1" }, onclick: () => turn(-1) });
  const after = button("Next", { class: "small", data: { turn: "1" }, onclick: () => turn(1) });
  const page = h("input", { type: "number", class: "control small number", min: "1", "aria-label": "Page", onchange: () => void turnTo((Math.floor(Number(page.value)) || 1) - 1) });
  const pages = h("span", { class: "muted" });
  const pager = h("div", { class: "pager" }, note, before, page, pages, after);
  const panel = h("section", { class: "panel rows-panel", "aria-label": "Rows" }, h("div", { class: "panel-head rows-head" }, segments, find), box, pager);
  const element = h("div", {}, panel);
  let filter = ALL;
  let selection = new Selection(set);
  let first = 0; // of the page
  let shown = 0; // rows of the page
  let wanted = null; // the first row of the page that is to be painted next
  let isPainting = false;
  let isWaiting = false; // for the first row
  let timer = 0;
  let shownRow = null; // the place in the selection of the one that is shown in full

  async function turnTo(at) {
    await paintPage(at * PAGE);
    page.value = String(first / PAGE + 1);
  }

  async function paintPage(from) {
    wanted = from;
    if (isPainting) return;
    isPainting = true;
    while (wanted !== null) {
      const last = Math.max(0, Math.floor((selection.count - 1) / PAGE) * PAGE);
      const begin = Math.min(Math.max(0, wanted), last);
      const count = Math.min(PAGE, selection.count - begin);
      wanted = null;
      const made = await tableOf(begin);
      if (wanted !== null) continue;
      first = begin;
      shown = count;
      box.replaceChildren(made);
    }
    isPainting = false;
    grown();
  }

  async function tableOf(begin) {
    isWaiting = !selection.count && isBusy();
    if (!selection.count) return h("p", { class: "muted pad" }, isWaiting ? "Looking for rows…" : "No rows.");
    try {
      return await rowsTable(selection, begin, openRow);
    } catch (error) {
      return h("p", { class: "fault pad", role: "alert" }, error.message);
    }
  }

  function isBusy() {
    return set.isReading || selection.isSearching;
  }

  function paintPager() {
    const count = selection.count;
    const sum = Math.max(1, Math.ceil(count / PAGE));
    note.textContent = selection.fault || (count ? `${number(first + 1)} to ${number(first + shown)} of ${number(count)}` : "");
    if (selection.isSearching && set.count) note.textContent += ` ${Math.floor((100 * selection.seen) / set.count)} % searched`;
    before.disabled = first === 0;
    after.disabled = first + PAGE >= count;
    if (document.activeElement !== page) page.value = String(first / PAGE + 1);
    page.max = String(sum);
    pages.textContent = `of ${number(sum)}`;
    pager.hidden = sum === 1 && !selection.fault && !selection.isSearching;
  }

  function paintSegments() {
    const offered = FILTERS.filter((each) => each.isOffered(set));
    if (segments.children.length === offered.length && segments.querySelector('[aria-pressed="true"]')?.dataset.filter === filter.id) return;
    segments.replaceChildren(...offered.map((each) => button(each.text, { class: "segment", "aria-pressed": String(each === filter), data: { filter: each.id }, onclick: () => choose(each.id, find.value) })));
  }

  // The rows of a page that is full do not change while others are found.
  function grown() {
    if (isPainting) return;
    if ((isWaiting && !isBusy()) || shown < Math.min(PAGE, selection.count - first)) void paintPage(first);
    else paintPager();
  }

  function select(id, text) {
    const hadFocus = segments.contains(document.activeElement);
    filter = FILTERS.find((each) => each.id === id);
    find.value = text;
    selection.close();
    selection = new Selection(set, { kinds: filter.kinds && new Set(filter.kinds), text: text.trim() });
    selection.onchange = grown;
    shown = 0;
    back();
    paintSegments();
    if (hadFocus) segments.querySelector('[aria-pressed="true"]').focus();
    void selection.follow();
    void paintPage(0);
  }

  async function openRow(index) {
    const row = await set.row(selection.at(index)).catch((error) => ({ at: selection.at(index), kind: BROKEN, value: null, fault: error.message, text: "" }));
    const opened = rowPanel(row, {
      besides: set.besides,
      place: `${number(index + 1)} of ${number(selection.count)}`,
      isFirst: index === 0,
      isLast: index + 1 >= selection.count,
      step: (by) => void openRow(index + by).then(() => element.querySelector(`[data-step="${by}"]:enabled`)?.focus()),
      close: () => {
        back();
        const goes = index < first || index >= first + PAGE ? paintPage(Math.floor(index / PAGE) * PAGE) : Promise.resolve();
        void goes.then(() => box.querySelector(`[data-index="${index}"]`)?.focus());
      },
    });
    element.replaceChildren(opened);
    shownRow = index;
    opened.querySelector("h2").focus({ preventScroll: true });
    opened.scrollIntoView({ block: "start" });
  }

  function back() {
    if (shownRow === null) return;
    shownRow = null;
    releaseMedia();
    element.replaceChildren(panel);
  }

  find.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => select(filter.id, find.value), PAUSE);
  });
  void paintPage(0);
  return {
    element,
    choose: select,
    repaint() {
      void paintPage(first);
      if (shownRow !== null) void openRow(shownRow);
    },
    follow() {
      paintSegments();
      if (selection.places) void selection.follow();
      grown();
    },
    close() {
      clearTimeout(timer);
      selection.close();
    },
  };
}
