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
pytest.importorskip("pydata_sphinx_theme", reason="the site's theme is not installed: pip install 'geartrain[docs]'")

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
