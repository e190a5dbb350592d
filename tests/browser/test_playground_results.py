"""The page of results: files that `geartrain batch` has written, hostile ones and large ones."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from PIL import Image

from tests.browser.conftest import Picture
from tests.support.browser import DESKTOP, PHONE, SMALL_PHONE, Page
from tests.support.servers import PATIENCE, ServerProcess, write_model

if TYPE_CHECKING:
    from selenium import webdriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SHOUT = """
    def run(text: str, times: int = 1) -> dict:
        if text == "raise":
            raise ValueError("not this one")
        return {"text": text.upper() * times, "length": len(text)}
    """
FIRST = "def run(text: str) -> str:\n    return 'The ' + text + ' gear turns slowly.'\n"
SECOND = (
    "def run(text: str) -> str:\n    return 'The ' + text + (' wheel' if '3' in text else ' gear') + ' turns slowly.'\n"
)
BOXES = "def run(text: str) -> dict:\n    return {{'boxes': [{{'top': 1, 'left': {left}}}], 'name': text}}\n"
PAINT = """
    from PIL import Image
    from geartrain import Path

    def run(color: str) -> Path:
        Image.new("RGB", (32, 16), color).save("made.png")
        return Path("made.png")
    """
MEBIBYTE = 1024**2


def run_batch(folder: Path, *arguments: str) -> str:
    """Run `geartrain batch` in a folder; return its account."""
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", "batch", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def server_url(driver: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server. It needs the browser, so that nothing is started where there is none."""
    folder = tmp_path_factory.mktemp("server")
    write_model(folder / "shout", SHOUT)
    process = ServerProcess(str(folder / "shout"), grpc=("--grpc-port", "off"))
    yield f"{process.wait_for('listening')['url']}/"
    process.end()


@pytest.fixture
def page(driver: webdriver.Chrome, server_url: str) -> Iterator[Page]:
    """The page of results. Nothing is sent anywhere, and the console has no complaint."""
    shown = Page(driver, server_url)
    shown.hosts()
    shown.complaints()
    shown.open("results")
    shown.find(".results-view")
    yield shown
    assert shown.hosts() <= {server_url.split("/")[2]}
    assert shown.complaints() == []


def choose(page: Page, *paths: Path) -> None:
    page.all("#result-files")[0].send_keys("\n".join(map(str, paths)))


def choose_folder(page: Page, path: Path) -> None:
    page.all("#result-folder")[0].send_keys(str(path))


TILES = """
const parts = [...document.querySelectorAll(".tile")].map((tile) => [...tile.children].map((each) => each.textContent));
return Object.fromEntries(parts.map(([name, value]) => [name, value.replaceAll("\\u202f", "")]));
"""


def tiles(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.script(TILES)
    return found


def wait_rows(page: Page, count: int) -> None:
    """Wait until a file is read, and has so many rows."""
    page.until(lambda: tiles(page).get("Rows") == str(count) and not page.all("progress"), f"{count} rows")
    page.until(lambda: len(page.all(".rows-box tbody tr")) == min(count, 50), "the table")


def numbers(page: Page) -> list[str]:
    """Return the numbers of the rows of the table."""
    return [
        str(each)
        for each in page.script("return [...document.querySelectorAll('.row-open')].map((e) => e.textContent)")
    ]


def focused(page: Page) -> str:
    return str(page.script("return document.activeElement.textContent"))


# what geartrain batch writes


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of 120 rows, of which every tenth fails, as one file and as two shares."""
    folder = tmp_path_factory.mktemp("written")
    write_model(folder / "shout", SHOUT)
    rows: list[dict[str, Any]] = [{"text": f"text {at}", "id": f"id-{at}"} for at in range(120)]
    for at in range(0, 120, 20):
        rows[at] = {"text": "raise", "id": f"id-{at}"}
        rows[at + 10] = {"word": "x", "id": f"id-{at + 10}"}
    write_lines(folder / "texts.jsonl", rows)
    run_batch(folder, "shout", "texts.jsonl", "-o", "loud.jsonl", "--keep", "id,text")
    for share in ("0/2", "1/2"):
        run_batch(folder, "shout", "texts.jsonl", "-o", "shares.jsonl", "--keep", "id,text", "--part", share)
    return folder


def test_results_are_counted_filtered_and_opened(page: Page, written: Path, picture: Picture) -> None:
    assert page.faults() == []
    choose(page, written / "loud.jsonl")
    wait_rows(page, 120)
    assert tiles(page) == {"Rows": "120", "Succeeded": "108", "Errors": "12"}
    assert page.text(".file-name") == "loud.jsonl"
    assert page.text(".rows-box thead").split() == ["Row", "id", "text", "Output"]
    assert "not this one" in page.text(".rows-box tbody tr:nth-of-type(1)")
    assert page.text(".rows-box tbody tr:nth-of-type(2)").split("\n")[0] == "1"
    assert "{length: 6, text: TEXT 1}" in page.text(".rows-box tbody tr:nth-of-type(2)")
    assert page.faults() == []
    picture("playground-results")
    page.click('[data-turn="1"]')
    page.until(lambda: numbers(page)[0] == "50", "the second page")
    assert page.text(".pager [role=status]") == "51 to 100 of 120"
    page.find('[aria-label="Page"]').send_keys("\ue0093", "\ue007")
    page.find('[aria-label="Page"]').clear()
    page.find('[aria-label="Page"]').send_keys("3", "\ue007")
    page.until(lambda: numbers(page)[0] == "100", "the third page")
    assert not page.find('[data-turn="1"]').is_enabled()
    page.click('[data-filter="error"]')
    page.until(lambda: numbers(page) == [str(at) for at in range(0, 120, 10)], "the rows with errors")
    page.click(".faults-panel summary")
    assert [each.text.split("\n") for each in page.all(".fault-row")] == [
        ["6", "ValueError: not this one"],
        ["6", 'missing required input "text"'],
    ]
    page.all(".fault-row")[1].click()
    page.until(lambda: numbers(page) == [str(at) for at in range(10, 120, 20)], "the rows with that error")
    search = page.find("input[type=search]")
    search.clear()
    search.send_keys("NOT this")
    page.until(lambda: numbers(page) == [str(at) for at in range(0, 120, 20)], "the rows with the other one")
    page.click('[data-filter="good"]')
    page.says(".rows-panel", "No rows.")
    search.clear()
    search.send_keys("text 11")
    page.until(lambda: numbers(page) == ["11", *map(str, range(111, 120))], "the rows with a text")
    search.clear()
    search.send_keys("length")  # the name of a field, and no text of any
    page.says(".rows-panel", "No rows.")


def test_row_is_opened_by_the_keyboard_and_left_again(page: Page, written: Path) -> None:
    choose(page, written / "loud.jsonl")
    wait_rows(page, 120)
    page.all(".row-open")[48].send_keys("\ue007")
    page.says(".row-panel h2", "Row 48")
    assert focused(page) == "Row 48"
    assert [each.text for each in page.all(".row-panel .entries > .entry > dt")] == ["Length", "Text", "Id", "Text"]
    page.says(".row-panel", "id-48")
    page.find('[data-step="1"]').send_keys("\ue007")
    page.says(".row-panel h2", "Row 49")
    page.until(lambda: focused(page) == "Next", "the focus on the button")
    page.driver.switch_to.active_element.send_keys("\ue007")
    page.says(".row-panel h2", "Row 50")
    page.says(".row-panel .failure-text", 'missing required input "text"')
    assert page.text(".row-panel .sign") == "Error"
    page.click(".row-panel summary")
    page.says(".row-panel .json-box", "id-50")
    assert page.faults() == []
    page.driver.switch_to.active_element.send_keys("\ue00c")  # Escape
    page.until(lambda: numbers(page)[:1] == ["50"], "the page with the row")
    page.until(lambda: focused(page) == "50", "the focus on the row")
    page.click('[data-place="status"]')
    page.find(".status-view")
    page.click('[data-place="results"]')
    wait_rows(page, 120)  # as long as the page is open


def test_header_has_room_on_a_phone_beside_a_key(page: Page) -> None:
    page.script("sessionStorage.setItem('geartrain-key', 'any')")
    try:
        page.open("results")
        page.resize(SMALL_PHONE)
        page.find("#key")
        assert not page.is_too_wide()
        right = "return document.querySelector('#theme').getBoundingClientRect().right"
        assert page.script(right) <= SMALL_PHONE[0]
        assert page.faults() == []
    finally:
        page.script("sessionStorage.clear()")


def test_shares_of_a_run_are_one_set(page: Page, written: Path) -> None:
    shares = sorted(written.glob("shares-*.jsonl"), reverse=True)
    assert len(shares) == 2
    choose(page, *shares)
    wait_rows(page, 120)
    assert [each.text for each in page.all(".file-name")] == [path.name for path in reversed(shares)]
    assert numbers(page)[:3] == ["0", "1", "2"]
    page.find("input[type=search]").send_keys("id-61")
    page.until(lambda: numbers(page) == ["61"], "a row of the second share")
    page.click(".row-open")
    page.says(".row-panel", "TEXT 61")


def test_output_of_parquet_is_opened_as_the_page_says(page: Page, written: Path) -> None:
    run_batch(written, "shout", "texts.jsonl", "-o", "parts", "--keep", "id,text", "--part-rows", "50")
    parts = sorted((written / "parts").glob("*.parquet"))
    assert len(parts) == 3
    choose(page, *parts)
    page.says(".results-view > .fault", "Parquet and Arrow cannot be opened here")
    code = page.text(".results-view > .fault").partition("of a folder: ")[2].replace("OUT", "parts")
    subprocess.run([sys.executable, "-c", f"import pandas; {code}"], cwd=written, check=True, timeout=PATIENCE)
    choose(page, written / "rows.jsonl")
    wait_rows(page, 120)
    assert tiles(page)["Errors"] == "12"
    page.find("input[type=search]").send_keys("id-61")
    page.until(lambda: numbers(page) == ["61"], "a row by a column that was kept")
    page.click(".row-open")
    page.says(".row-panel", "TEXT 61")


DROP = """
const transfer = new DataTransfer();
transfer.items.add(new File([arguments[0]], "dropped.jsonl"));
const options = { bubbles: true, cancelable: true, dataTransfer: transfer };
document.querySelector("h1").dispatchEvent(new DragEvent("drop", options));
"""


def test_file_is_dropped_anywhere(page: Page) -> None:
    page.script(DROP, '{"row":0,"output":"one"}\n\n{"row":1,"output":2}')
    wait_rows(page, 2)
    assert page.text(".file-name") == "dropped.jsonl"
    assert page.all(".rows-box .scalar")[0].text == "2"


def drop_from_disk(page: Page, *paths: Path) -> None:
    """Drop files and folders as a file manager does."""
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": 200, "y": 200, "data": data})


def test_folder_is_dropped_with_its_shares_and_files(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "painted_files").mkdir(parents=True)
    Image.new("RGB", (32, 16), "red").save(folder / "painted_files/00000000.png")
    (folder / "painted_files/notes.json").write_text("{}")
    (folder / "_progress.json").write_text("{}")
    for share in range(3):
        rows = [{"row": 2 * share + at, "output": "painted_files/00000000.png"} for at in range(2)]
        write_lines(folder / f"painted-0000{share}-of-00003.jsonl", rows)
    drop_from_disk(page, folder)
    wait_rows(page, 6)
    assert numbers(page) == list("012345")
    widths = "return [...document.querySelectorAll('.rows-box img')].map((each) => each.naturalWidth)"
    page.until(lambda: page.script(widths) == [32] * 6, "small pictures")
    assert page.faults() == []
    page.all(".row-open")[5].click()
    page.says(".row-panel figcaption", "32 × 16 pixels")


def test_files_of_outputs_are_shown_when_their_folder_is_chosen(page: Page, tmp_path: Path) -> None:
    write_model(tmp_path / "paint", PAINT)
    write_lines(tmp_path / "colors.jsonl", [{"color": "red"}, {"color": "blue"}])
    run_batch(tmp_path, "paint", "colors.jsonl", "-o", "out/painted.jsonl")
    choose(page, tmp_path / "out/painted.jsonl")
    wait_rows(page, 2)
    page.all(".row-open")[1].click()
    page.says(".row-panel .hint", "Choose the folder painted_files")
    choose_folder(page, tmp_path / "out/painted_files")
    page.says(".row-panel figcaption", "image/png, ")
    page.says(".row-panel figcaption", "32 × 16 pixels")
    assert page.all(".row-panel .hint") == []
    page.open("status")
    page.open("results")  # loaded anew: it keeps nothing
    assert page.all(".file-name") == []
    choose_folder(page, tmp_path / "out")
    wait_rows(page, 2)
    page.all(".row-open")[0].click()
    page.says(".row-panel figcaption", "32 × 16 pixels")
    assert page.faults() == []


# two models


def test_two_models_are_shown_side_by_side(page: Page, tmp_path: Path, picture: Picture) -> None:
    write_model(tmp_path / "first", FIRST)
    write_model(tmp_path / "second", SECOND)
    write_lines(tmp_path / "texts.jsonl", [{"text": f"text {at}"} for at in range(60)])
    account = run_batch(tmp_path, "first", "second", "texts.jsonl", "--compare", "-o", "pairs.jsonl", "--keep", "text")
    choose(page, tmp_path / "pairs.jsonl")
    wait_rows(page, 60)
    different = [at for at in range(60) if "3" in str(at)]
    found = tiles(page)
    assert (found["The same"], found["Different"]) == (str(60 - len(different)), str(len(different)))
    assert f"{found['The same']} of 60 rows are the same; mean score {found['Mean score']}" in account
    assert found["Agreement"] == "75 %"
    assert found["Mean time of a"].endswith("s")
    assert page.text(".rows-box thead").split() == ["Row", "text", "a", "b", "Score"]
    page.click('[data-filter="different"]')
    page.until(lambda: numbers(page) == [str(at) for at in different], "the rows that differ")
    page.all(".row-open")[1].click()
    page.says(".row-panel h2", "Row 13")
    marks = [
        [mark.text for mark in side.find_elements("css selector", "mark")]
        for side in page.all(".row-panel .comparison-side")
    ]
    assert marks == [["gear"], ["wheel"]]
    assert page.text('[data-side="b"]') == "b\nThe text 13 wheel turns slowly."
    assert page.text(".row-panel .sign") == "Different"
    for size, scheme in ((DESKTOP, "dark"), (PHONE, "light"), (SMALL_PHONE, "dark"), (DESKTOP, "light")):
        page.resize(size, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
    picture("playground-results-compared")
    page.click(".row-tools button:last-child")
    for size, scheme in ((DESKTOP, "dark"), (PHONE, "light"), (SMALL_PHONE, "dark")):
        page.resize(size, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
    page.click('[data-filter="same"]')
    page.until(lambda: numbers(page)[:2] == ["0", "1"], "the rows that are the same")


def test_places_where_two_records_differ_are_listed(page: Page, tmp_path: Path) -> None:
    for name, left in (("first", 1), ("second", 2)):
        write_model(tmp_path / name, BOXES.format(left=left))
    write_lines(tmp_path / "texts.jsonl", [{"text": "x"}, {}])
    run_batch(tmp_path, "first", "second", "texts.jsonl", "--compare", "-o", "pairs.jsonl")
    choose(page, tmp_path / "pairs.jsonl")
    wait_rows(page, 2)
    assert 'a: missing required input "text"' in page.text(".rows-box tbody tr:nth-of-type(2)")
    page.click(".row-open")
    page.find(".differences td")
    assert [each.text for each in page.all(".differences td")] == ["boxes[0].left", "1", "2"]
    assert page.faults() == []


# what must not be believed, and what is not there


def test_broken_lines_are_shown_as_such(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    lines = [
        b'\xef\xbb\xbf{"row":0,"output":"first"}',
        b'{"row":1,"output":"cut o',
        b"   \t\r",
        b'{"row":2,"output":"\xff\xfe"}',
        b"[1, 2]",
        b"<b>no</b>\x00",
        b"[" * 1_000_000,
        b'{"row":6,"output":' + b"[" * 100_000 + b"1" + b"]" * 100_000 + b"}",
        b'{"row":7,"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"row":8,"output":"' + b"x" * (65 * MEBIBYTE) + b'"}',
        b'{"row":9,"output":"last"}',
    ]
    path.write_bytes(b"\n".join(lines))
    choose(page, path)
    wait_rows(page, 10)
    assert tiles(page) == {"Rows": "10", "Succeeded": "3", "Errors": "1", "Broken lines": "6"}
    page.click('[data-filter="broken"]')
    page.until(lambda: len(numbers(page)) == 6, "the broken lines")
    said = page.text(".rows-box tbody")
    for text in ("The line is not JSON", "The line is not UTF-8", "The line is JSON, but no object", "65.0 MiB"):
        assert text in said
    page.all(".row-open")[5].click()
    page.says(".row-panel .failure-text", "The line has more than 64 MiB.")
    page.click(".row-tools button:last-child")
    page.all(".row-open")[3].click()
    page.says(".row-panel .long-text", "<b>no</b>␀")
    page.says(".row-panel .sign", "Broken line")
    page.click(".row-tools button:last-child")
    page.click('[data-filter="all"]')
    page.until(lambda: len(numbers(page)) == 10, "all of them")
    for index, text in ((0, "first"), (5, "[[["), (6, "list of 1"), (7, "[[["), (9, "last")):
        page.click(f'[data-index="{index}"]')
        page.says(".row-panel .result-body", text)
        page.click(".row-tools button:last-child")
        page.find(f'[data-index="{index}"]')


EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script><b>bold</b>'


def test_hostile_results_are_text(page: Page, tmp_path: Path) -> None:
    rows = [
        {"row": EVIL, EVIL: EVIL, "": 1, "__proto__": {"polluted": True}, "output": EVIL},
        {"row": 1, "output": {"": 1, "__proto__": {"polluted": True}, EVIL: [EVIL, {EVIL: 1}]}},
        {"row": 2, "error": EVIL + "\u202eback\x1b[31m"},
        {"row": 3, "error": {"message": EVIL}},
        {"row": 4, "output": "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>").decode()},
        {"row": 5, "output": "http://192.0.2.1/x.png"},
        {"row": 6, "output": "../../etc_files/passwd"},
        {"row": 7, "output": {"a": EVIL, "b": "<b>", "score": EVIL, "a_seconds": EVIL, "b_seconds": None}},
        {"row": 8, "output": {"a": {EVIL: EVIL}, "b": {EVIL: 1}, "score": 0.5, "a_seconds": 1, "b_seconds": 2}},
    ]
    path = write_lines(tmp_path / f"{'a' * 200}.jsonl", rows)
    choose(page, path)
    wait_rows(page, len(rows))
    page.click(".faults-panel summary")
    page.says(".fault-row", "<img src=x")
    for index in range(len(rows)):
        page.click(f'[data-index="{index}"]')
        page.find(".row-panel")
        page.click(".row-panel .result-body > details > summary")
        assert page.driver.title == "Results · geartrain"
        assert page.script("return {}.polluted ?? null") is None
        assert page.all(".results-view script, .results-view iframe, .results-view b:not(.drop b), [onerror]") == []
        sources = page.script("return [...document.images].map((each) => each.src)")
        assert all(each.startswith(("blob:", "data:", page.url)) for each in sources)
        assert not page.is_too_wide()
        page.click(".row-tools button:last-child")
    page.resize(SMALL_PHONE)
    assert not page.is_too_wide()


def test_files_that_are_no_results_are_refused(page: Page, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    for name in ("part-00000.parquet", "part-00001.parquet"):
        (tmp_path / name).write_bytes(b"PAR1")
    choose(page, *sorted(tmp_path.glob("*.parquet")))
    page.says(".results-view > .fault", "Parquet and Arrow cannot be opened here")
    choose(page, tmp_path / "one.png", tmp_path / "part-00000.parquet")
    page.says(".results-view > .fault", "Parquet")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    choose(page, empty)
    page.says(".rows-panel", "No rows.")
    assert tiles(page)["Rows"] == "0"
    assert not page.find(".results-view").find_elements("css selector", ":scope > .fault")[0].is_displayed()


def test_file_that_has_changed_is_said_to_have(page: Page, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"row": at, "output": at} for at in range(200)])
    choose(page, path)
    wait_rows(page, 200)
    path.write_text("gone")
    page.click('[data-turn="1"]')
    page.says(".rows-panel .fault", "It may have changed since it was chosen: choose it again.")


# large files


def resident(page: Page) -> int:
    """Return the memory of all processes of the browser that show pages, in bytes."""
    processes = psutil.Process(page.driver.service.process.pid).children(recursive=True)
    shown = [each for each in processes if "--type=renderer" in each.cmdline()]
    assert shown
    return sum(each.memory_info().rss for each in shown)


def test_memory_does_not_grow_with_the_file(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    block = "".join(
        json.dumps({"row": 0, "id": at, "output": "some words of a text " * 40}) + "\n" for at in range(1000)
    )
    count = 300
    with path.open("w") as file:
        for _ in range(count):
            file.write(block)
        file.write('{"row":1,"output":"the needle"}\n')
    choose(page, write_lines(tmp_path / "small.jsonl", [{"row": 0, "output": 1}] * 60))
    wait_rows(page, 60)
    before = resident(page)
    choose(page, path)
    most = 0
    began = time.monotonic()
    while tiles(page).get("Rows") != str(1000 * count + 1) or page.all("progress"):
        most = max(most, resident(page) - before)
        assert time.monotonic() - began < PATIENCE
    page.find("input[type=search]").send_keys("needle")
    page.until(lambda: len(numbers(page)) == 1, "the needle")
    most = max(most, resident(page) - before)
    assert path.stat().st_size > 240 * MEBIBYTE
    assert most < 120 * MEBIBYTE


def test_rows_are_kept_up_to_a_number(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("{}\n" * 4_000_100)
    choose(page, path)
    page.says(".report", "This page keeps no more.")
    assert tiles(page)["Rows"] == "4000000"
    page.find('[aria-label="Page"]').clear()
    page.find('[aria-label="Page"]').send_keys("100000", "\ue007")
    page.until(lambda: page.text(".pager [role=status]").endswith(" of 4\u202f000\u202f000"), "the last page")
    page.until(lambda: numbers(page)[-1:] == ["3\u202f999\u202f999"], "the last row")
    page.until(lambda: page.find('[aria-label="Page"]').get_attribute("value") == "80000", "the number of the page")


def test_reading_can_be_stopped(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text('{"row":0,"output":"x"}\n' * 3_000_000)
    choose(page, path)
    page.click(".report button")
    page.says(".report", " rows are shown, ")
    count = int(tiles(page)["Rows"])
    assert 0 < count < 3_000_000
    assert page.text(".pager [role=status]").replace("\u202f", "") == f"1 to 50 of {count}"
