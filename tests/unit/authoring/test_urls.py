"""Files by URL that a model makes itself, as it may with Cog."""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Iterator

import pytest

import geartrain
from geartrain import File, Path
from geartrain.authoring.values import URLFile, URLPath, get_filename
from tests.support.web_server import Server, running_server


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        server.serve("/dir/im%20g.png", b"line 1\nline 2\n")
        yield server


def test_a_url_file_is_fetched_with_the_first_look(server: Server) -> None:
    with URLFile(server.url("/dir/im%20g.png?q=1")) as file:
        assert (file.name, file.readable(), server.received) == ("im%20g.png", True, [])
        assert file.read(4) == b"line"
        assert file.readline() == b" 1\n"
        assert list(file) == [b"line 2\n"]
        assert file.read() == b""
    assert file.closed
    assert server.paths() == ["/dir/im%20g.png?q=1"]


def test_a_url_file_of_another_name() -> None:
    file = URLFile("https://a.test/x", "mine.png")
    assert file.name == "mine.png"
    assert repr(file) == "<URLFile of 'https://a.test/x'>"
    file.close()


def test_a_url_file_survives_pickling(server: Server) -> None:
    with pickle.loads(pickle.dumps(URLFile(server.url("/dir/im%20g.png"), "a.png"))) as file:  # noqa: S301 - our own
        assert (file.name, file.read()) == ("a.png", b"line 1\nline 2\n")


def test_the_user_agent_of_cog_s_variable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COG_USER_AGENT", "mine/1")
    with URLFile(server.url("/dir/im%20g.png")) as file:
        file.read()
    assert server.received[0].headers["user-agent"] == "mine/1"


def test_a_url_that_cannot_be_fetched(server: Server) -> None:
    with URLFile(server.url("/nope")) as file, pytest.raises(OSError, match="404"):
        file.read()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.test/x", "/etc/passwd", ""])
def test_a_url_file_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="none"):
        URLFile(url)
    with pytest.raises(ValueError, match=r"no http:"):
        File.validate(url)


def test_a_path_made_of_a_url(server: Server) -> None:
    path = Path.validate(server.url("/dir/im%20g.png"))
    assert isinstance(path, URLPath)
    assert isinstance(path, geartrain.Path)
    assert (str(path), path.filename, server.received) == (server.url("/dir/im%20g.png"), "im g.png", [])
    local = path.convert()
    assert type(local) is Path
    assert local.name.endswith("im g.png")
    assert local.read_bytes() == b"line 1\nline 2\n"
    assert path.convert() is local
    path.unlink()
    assert not local.exists()
    path.unlink(missing_ok=True)


def test_a_path_made_of_a_data_url() -> None:
    path = Path.validate("data:text/plain;base64,aGk=")
    assert isinstance(path, URLPath)
    assert (path.filename, path.convert().read_text()) == ("file.txt", "hi")
    path.unlink()


def test_a_url_path_that_was_not_converted_has_nothing_to_delete() -> None:
    URLPath(source="https://a.test/x", filename="x", fileobj=io.BytesIO()).unlink()


def test_a_path_made_of_a_path(tmp_path: pathlib.Path) -> None:
    assert Path.validate(tmp_path) is tmp_path
    assert Path.validate("/a/b.png") == Path("/a/b.png")
    assert type(Path.validate("b.png")) is Path


def test_a_file_made_of_a_file_and_of_data() -> None:
    file = io.BytesIO(b"x")
    assert File.validate(file) is file
    assert File.validate("data:,hi").read() == b"hi"
    assert isinstance(File.validate("http://a.test/x"), URLFile)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://a.test/dir/im%20g.png?q=1#f", "im g.png"),
        ("https://a.test/a%2Fb.png", "a_b.png"),
        ("https://a.test/", ""),
        ("https://a.test/" + "x" * 300 + ".png", "x" * 195 + "~.png"),
        ("data:image/png;base64,AAAA", "file.png"),
        ("data:,hi", "file.txt"),
        ("data:what/ever,hi", "file"),
    ],
)
def test_the_name_of_a_file(url: str, name: str) -> None:
    assert get_filename(url) == name
