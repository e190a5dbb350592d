"""How the playground is served: who gets it, how long it is kept, and what it may do."""

from __future__ import annotations

import gzip
import posixpath
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geartrain.transport.playground import routes
from tests.support.servers import LiveServer, Serve

MODEL = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self) -> int:
            return 1
"""
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
STATIC = Path(routes.__file__).parent / "static"


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(MODEL, ready=False) as live:
        yield live


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("text/html;q=0.9, application/json;q=0.1", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("application/json, text/html;q=0.9, */*;q=0.8", False),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("text/htmlx", False),
    ],
)
async def test_browsers_get_the_page_and_others_the_discovery(server: LiveServer, accept: str, is_page: bool) -> None:
    response = await server.client.get("/", headers={"accept": accept})
    assert response.status_code == 200
    assert "Accept" in response.headers["vary"]
    if is_page:
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.text.startswith("<!doctype html>")
    else:
        assert response.json()["predictions_url"] == "/predictions"


async def test_policy_of_the_page_allows_its_own_files_alone(server: LiveServer) -> None:
    page = await server.client.get("/", headers={"accept": BROWSER})
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"unsafe|\*|https?:", page.headers["content-security-policy"])
    assert "set-cookie" not in page.headers
    assert re.findall(r"<script(?! type=\"module\" src=\"playground/)|<style|\son\w+=|style=", page.text) == []


async def test_files_are_kept_for_ever_and_the_page_is_asked_about(server: LiveServer) -> None:
    page = await server.client.get("/", headers={"accept": BROWSER})
    assert page.headers["cache-control"] == "no-cache"
    held = {"accept": BROWSER, "if-none-match": page.headers["etag"]}
    again = await server.client.get("/", headers=held)
    assert (again.status_code, again.content) == (304, b"")
    urls = re.findall(r'(?:src|href)="(playground/[^"]*)"', page.text)
    assert len(urls) == 8
    for url in urls:
        file = await server.client.get(f"/{url}")
        assert file.status_code == 200
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["x-content-type-options"] == "nosniff"
        assert re.fullmatch(r'"[0-9a-f]{32}-gzip"', file.headers["etag"])
        assert file.headers["content-encoding"] == "gzip"
        plain = await server.client.get(f"/{url}", headers={"accept-encoding": "identity"})
        assert plain.content == file.content == (STATIC / url.split("/", 2)[2]).read_bytes()
        assert plain.headers["etag"] != file.headers["etag"]
        kept = await server.client.get(f"/{url}", headers={"if-none-match": f'W/"x", {file.headers["etag"]}'})
        assert (kept.status_code, kept.content) == (304, b"")


async def test_reference_has_the_header_of_the_page(server: LiveServer) -> None:
    shared = (await server.client.get("/docs/static/header.css")).content
    assert shared == (STATIC / "css/header.css").read_bytes()
    assert "/docs/static/header.css" in (await server.client.get("/docs")).text
    rule = re.compile(r"^([^\s{}@/][^{}]*)\{([^{}]*)\}", re.MULTILINE)
    own = [set(rule.findall(text)) for text in ((STATIC / "css/views.css").read_text(), (await docs_style(server)))]
    assert own[0].isdisjoint(own[1]), own[0] & own[1]


async def docs_style(server: LiveServer) -> str:
    return (await server.client.get("/docs/static/docs.css")).text


@pytest.mark.parametrize(
    "path", ["0123456789abcdef/app.js", "{}/", "{}/..%2frouting.py", "{}/nope.js", "{}/index.html"]
)
async def test_nothing_else_is_served(server: LiveServer, path: str) -> None:
    page = await server.client.get("/", headers={"accept": BROWSER})
    digest = re.findall(r"playground/([0-9a-f]{16})/", page.text)[0]
    response = await server.client.get(f"/playground/{path.format(digest)}")
    assert response.status_code == 404
    assert "error" in response.json()


def test_every_file_is_named_by_another() -> None:
    """What nobody imports is not served for nothing, and nothing is imported that is not there."""
    files = routes.load_assets().files
    named = set()
    for name, file in {**files, "index.html": routes.load_assets().page}.items():
        text = gzip.decompress(file.gzipped).decode()
        assert text.encode() == file.plain
        if not name.startswith("vendor/"):
            for found in re.findall(r'(?:from |import\(|new URL\()"(\.[^"]+)"', text):
                named.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), found)))
            named |= set(re.findall(r"playground/[0-9a-f]{16}/([^\"]+)", text))
    assert named == set(files) - {"vendor/LICENSES.txt"}


def test_libraries_of_others_have_their_licenses() -> None:
    licenses = (STATIC / "vendor/LICENSES.txt").read_text()
    for path in (STATIC / "vendor").glob("*.js"):
        name, _, version = path.stem.rpartition("-")
        assert re.search(rf"^{name} {re.escape(version)}, https://", licenses, re.MULTILINE | re.IGNORECASE)
