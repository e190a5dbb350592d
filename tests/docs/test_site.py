"""The site of the documentation: it is built strictly, its links lead somewhere, and it needs no other server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("myst_parser", reason="the site's generator is not installed: pip install 'geartrain[docs]'")
pytest.importorskip("sphinx_copybutton", reason="the site's buttons are not installed: pip install 'geartrain[docs]'")
pytest.importorskip("pydata_sphinx_theme", reason="the site's theme is not installed: pip install 'geartrain[docs]'")

from tests.support.browser import DESKTOP, PHONE, save_picture, start_browser
from tests.support.browser import Page as Tab
from tools.site.contents import SECTIONS
from tools.site.reference import MODULES

pytestmark = pytest.mark.timeout(480)  # it reads and writes all pages: on a machine that is busy this takes long

ROOT: Final = Path(__file__).parents[2]
FETCHED: Final = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The links of a page, what a browser fetches to show it, and the places that a link may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if FETCHED.get(tag, "") in given:
            self.fetched.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "tools.site.build", str(folder)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}


def dead_links(path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for link in (*pages[path].links, *pages[path].fetched):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or link in {"", "#"}:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchors = pages[target].anchors if target in pages else {parts.fragment}
        if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
            yield f"{path.name}: {link}"


def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert [link for path in pages for link in dead_links(path, pages)] == []


def test_no_page_needs_another_server(pages: dict[Path, Page]) -> None:
    assert [link for page in pages.values() for link in page.fetched if urlsplit(link).netloc] == []


def test_every_page_of_the_docs_is_in_a_section(site: Path) -> None:
    listed = {page for section in SECTIONS for page in section.pages}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= listed
    assert all((site / f"{page}.html").exists() for page in MODULES)


def test_search_and_dark_mode_are_there(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "breakpoint" in index
    assert "theme-switch" in (site / "index.html").read_text(encoding="utf-8")


def test_home_has_a_picture_and_four_ways_in(site: Path, pages: dict[Path, Page]) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    ways = text.partition('<div class="ways">')[2].partition("</div>")[0]
    assert ways.count("<a ") == 4
    assert [link for link in pages[site / "index.html"].fetched if "playground" in link]


def test_guides_are_in_groups(site: Path) -> None:
    guides = next(section for section in SECTIONS if section.name == "guides")
    text = (site / "guides.html").read_text(encoding="utf-8")
    assert len(guides.groups) == 5
    assert [group.title for group in guides.groups if f">{group.title}<" not in text] == []


def test_llms_text_lists_every_page(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# geartrain\n\n> A model server")
    made = {page for page in MODULES if page != "commands"}  # of docstrings, in another format
    assert [
        page for section in SECTIONS for page in section.pages if page not in made and f"({page}.html)" not in text
    ] == []


def test_pages_fit_a_phone_and_their_code_can_be_copied(site: Path, tmp_path: Path) -> None:
    browser = start_browser(tmp_path)
    try:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": PHONE[0], "height": PHONE[1], "deviceScaleFactor": 1, "mobile": True},
        )
        for page in ("index", "start", "recipes", "command-line", "comparison"):
            browser.get((site / f"{page}.html").as_uri())
            width, bars, buttons, blocks = browser.execute_script(
                "const all = (found) => [...document.querySelectorAll(found)];"
                "return [document.documentElement.scrollWidth,"
                " all('thead').filter((head) => !head.innerText.trim() && head.offsetHeight > 0).length,"
                " all('button.copybtn').length, all('div.highlight pre').length];"
            )
            assert width <= PHONE[0], page
            assert bars == 0, f"{page}: the head of a table without words is seen"
            assert buttons == blocks, page
        said: list[dict[str, str]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
        assert [each["message"] for each in said if "invalid" in each["message"]] == []
    finally:
        browser.quit()


def test_home_in_both_themes_on_desktop_and_phone(site: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    browser = start_browser(tmp_path / "profile")
    keep = request.config.getoption("--write-screenshots")
    try:
        tab = Tab(browser, (site / "index.html").as_uri())
        for size, scheme, name in (
            (DESKTOP, "light", "site-home"),
            (DESKTOP, "dark", "site-home-dark"),
            (PHONE, "light", "site-home-phone"),
            (PHONE, "dark", "site-home-phone-dark"),
        ):
            tab.resize(size, scheme)
            browser.get(tab.url)
            assert tab.script("return document.documentElement.dataset.theme") == scheme
            assert not tab.is_too_wide()
            assert tab.faults() == []
            save_picture(browser, tmp_path, name, keep=keep)
        assert tab.hosts() == set()
    finally:
        browser.quit()


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("commands", ("geartrain deploy kubernetes", "--max-connections-per-client")),
        ("api-geartrain", ("geartrain.Input", "min_length", "It may be <code", "current_scope")),
        ("api-client", ("geartrain.client.AsyncClient", "PredictionFailedError")),
        ("api-testing", ("geartrain.testing.call", "geartrain.testing.pytest.geartrain_server")),
    ],
)
def test_reference_has_what_the_code_says(site: Path, page: str, texts: tuple[str, ...]) -> None:
    shown = (site / f"{page}.html").read_text(encoding="utf-8")
    assert [text for text in texts if text not in shown] == []
