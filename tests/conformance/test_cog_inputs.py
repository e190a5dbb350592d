"""Observed Cog, section 15: Path, File and Secret inputs, from data: and http: URLs, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve, eventually
from tests.support.web_server import Exchange, Server, running_server, unused_port
from tests.support.wire import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    import os, pathlib, stat, time
    from typing import Any, Optional
    from cog import BaseModel, BaseRunner, File, Input, Path, Secret

    class Pair(BaseModel):
        left: Path
        right: Optional[Path] = None

    def describe(value: Any) -> Any:
        if isinstance(value, list):
            return [describe(item) for item in value]
        if isinstance(value, Pair):
            return [describe(value.left), describe(value.right)]
        if isinstance(value, pathlib.Path):
            assert isinstance(value, Path) and value.is_absolute()
            mode = stat.S_IMODE(value.stat().st_mode)
            assert not mode & 0o077, oct(mode)
            return {"path": str(value), "text": value.read_bytes().decode("latin-1")}
        if isinstance(value, Secret):
            return [repr(value), str(value), value.get_secret_value()]
        if hasattr(value, "read"):
            return {"file": value.read().decode("latin-1"), "again": (value.seek(0), value.read(1).decode())[1]}
        return value

    class Runner(BaseRunner):
        def run(
            self,
            path: Optional[Path] = None,
            maybe: Optional[Path] = None,
            paths: list[Path] = [],
            file: Optional[File] = None,
            files: list[File] = [],
            pair: Optional[Pair] = None,
            text: str = "",
            secret: Secret = None,
            gate: str = "",
            damage: bool = False,
        ) -> Any:
            print("begun")
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            given = dict(path=path, maybe=maybe, paths=paths, file=file, files=files, pair=pair, text=text,
                         secret=secret)
            described = {name: describe(value) for name, value in given.items() if value}
            if damage:
                path.unlink()
                (path.parent / "left behind").mkdir()
                (path.parent / "left behind" / "more").write_text("x")
                path.parent.chmod(0o500)
            return described
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


@pytest.fixture
def web() -> Iterator[Server]:
    with running_server() as web:
        yield web


async def given(server: LiveServer, values: dict[str, Any]) -> dict[str, Any]:
    """What the model was given."""
    body = await server.predict(values)
    assert body["status"] == "succeeded", body
    output: dict[str, Any] = body["output"]
    return output


async def refused(server: LiveServer, values: dict[str, Any]) -> list[tuple[str, str]]:
    """Place and message of every fault of a 422."""
    response = await server.client.post("/predictions", json={"input": values})
    assert response.status_code == 422, response.text
    detail = response.json()["detail"]
    assert all(fault["loc"][:2] == ["body", "input"] for fault in detail)
    return [(fault["loc"][2], fault["msg"]) for fault in detail]


async def failed(server: LiveServer, values: dict[str, Any]) -> str:
    """The error of a prediction that could not begin."""
    body = await server.predict(values)
    assert body["status"] == "failed", body
    assert (body["logs"], body.get("output")) == ("", None)
    assert body["completed_at"] >= body["created_at"]
    assert body["input"] == values
    error: str = body["error"]
    return error


def data_url(content: bytes, media_type: str = "text/plain") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


# what is in a data: URL


@pytest.mark.parametrize(
    ("url", "suffix", "text"),
    [
        (data_url(b"\x89PNG", "image/png"), "file.png", "\x89PNG"),
        (data_url(b"{}", "application/json"), "file.json", "{}"),
        (data_url(b"x", "text/plain"), "file.txt", "x"),
        (data_url(b"x", "made/up"), "file", "x"),
        (data_url(b"x", "text/plain;charset=utf-8"), "file.txt", "x"),
        ("data:;base64,eA==", ".txt", "x"),
        ("data:,plain%20text", ".txt", "plain text"),
        ("data:text/csv,a,b", ".csv", "a,b"),
        ("data:text/plain;base64,", "file.txt", ""),
        ("DATA:text/plain;BASE64,eA==", "file.txt", "x"),
        # forgiven
        ("data:text/plain;base64,eHk", "file.txt", "xy"),
        ("data:text/plain;base64,eH\nk=", "file.txt", "xy"),
    ],
)
async def test_data_url(server: LiveServer, url: str, suffix: str, text: str) -> None:
    found = (await given(server, {"path": url}))["path"]
    assert found["text"] == text
    assert found["path"].endswith(suffix)


@pytest.mark.parametrize("url", ["data:bad", "data:", "data:text/plain;base64,!!!", "data:text/plain;base64,e"])
async def test_malformed_data_url_is_refused(server: LiveServer, url: str) -> None:
    [(place, message)] = await refused(server, {"path": url})
    assert place == "path"
    assert "data: URL" in message


async def test_large_data_url(server: LiveServer) -> None:
    content = bytes(range(256)) * 40_000
    found = (await given(server, {"path": data_url(content)}))["path"]
    assert found["text"].encode("latin-1") == content


# what is behind an http: URL


@pytest.mark.parametrize(
    ("route", "query", "suffix"),
    [
        ("/dir/im%20g.png", "?q=1#part", "im g.png"),
        ("/plain", "", "plain"),
        ("/", "", ""),
        ("/%2e%2e%2fetc%2fpasswd", "", "passwd"),
        ("/" + "x" * 300 + ".png", "", "~.png"),
        ("/caf%C3%A9.txt", "", "café.txt"),
    ],
)
async def test_http_url(server: LiveServer, web: Server, route: str, query: str, suffix: str) -> None:
    url = web.serve(route, b"content") + query
    found = (await given(server, {"path": url}))["path"]
    assert found["text"] == "content"
    assert found["path"].endswith(suffix)
    assert len(Path(found["path"]).name.encode()) <= 255


async def test_scheme_in_upper_case(server: LiveServer, web: Server) -> None:
    """Cog hands it to the model as text, which then reads a local file."""
    url = web.serve("/a.txt", b"content").replace("http:", "HTTP:")
    assert (await given(server, {"path": url}))["path"]["text"] == "content"


async def test_redirects_are_followed(server: LiveServer, web: Server) -> None:
    web.serve("/end.txt", b"there")
    url = web.serve("/start.bin", status=302, Location="/end.txt")
    found = (await given(server, {"path": url}))["path"]
    assert found["text"] == "there"
    assert found["path"].endswith("start.bin")


async def test_compressed_answer_is_decoded(server: LiveServer, web: Server) -> None:
    url = web.serve("/a.txt", gzip.compress(b"content"), Content_Encoding="gzip")
    assert (await given(server, {"path": url}))["path"]["text"] == "content"


async def test_user_agent(serve: Serve, web: Server) -> None:
    url = web.serve("/a.txt", b"content")
    source = "from geartrain import Path\ndef run(p: Path) -> str: return p.read_text()"
    async with serve(source, environ={"COG_USER_AGENT": "my-cluster/1.0"}) as server:
        assert (await server.predict({"p": url}))["output"] == "content"
    assert web.received[0].headers["user-agent"] == "my-cluster/1.0"


@pytest.mark.parametrize(
    ("status", "words"), [(404, ["404 Not Found"]), (500, ["500 Internal Server Error"]), (403, ["403 Forbidden"])]
)
async def test_failed_download_is_a_failed_prediction(
    server: LiveServer, web: Server, status: int, words: list[str]
) -> None:
    url = web.serve("/a.txt", b"no", status=status)
    error = await failed(server, {"path": url})
    for word in [*words, "path", url]:
        assert word in error
    assert (await server.health())["status"] == "READY"


async def test_refused_connection_is_a_failed_prediction(server: LiveServer) -> None:
    error = await failed(server, {"path": f"http://127.0.0.1:{unused_port()}/a.txt"})
    assert "Connection refused" in error


async def test_broken_answer_is_a_failed_prediction(server: LiveServer, web: Server) -> None:
    def breaks(exchange: Exchange) -> None:
        exchange.reply(b"half", Content_Length="1000")
        exchange.close_connection = True

    web.routes["/a.txt"] = breaks
    await failed(server, {"path": web.url("/a.txt")})


async def test_download_beyond_the_limit(serve: Serve, web: Server) -> None:
    source = "from geartrain import Path\ndef run(p: Path) -> int: return len(p.read_bytes())"
    async with serve(source, max_download_bytes=1000) as server:
        assert (await server.predict({"p": web.serve("/fits", bytes(1000))}))["output"] == 1000
        for url in (web.serve("/large", bytes(1001)), data_url(bytes(1001))):
            body = await server.predict({"p": url})
            assert body["status"] == "failed"
            assert "1000" in body["error"]


async def test_private_addresses_are_refused_when_served_to_others(serve: Serve, web: Server) -> None:
    source = "from geartrain import Path\ndef run(p: Path) -> str: return p.read_text()"
    async with serve(source, allow_private_urls=False) as server:
        body = await server.predict({"p": web.serve("/a.txt", b"internal")})
        assert body["status"] == "failed"
        assert web.received == []


# several


async def test_lists_and_records(server: LiveServer, web: Server) -> None:
    one, two = web.serve("/1.txt", b"one"), web.serve("/2.txt", b"two")
    found = await given(server, {"paths": [one, data_url(b"x"), two], "pair": {"left": two, "right": one}})
    assert [each["text"] for each in found["paths"]] == ["one", "x", "two"]
    assert [each["text"] for each in found["pair"]] == ["two", "one"]


async def test_downloads_run_in_parallel(server: LiveServer, web: Server) -> None:
    barrier = threading.Barrier(3)

    def together(exchange: Exchange) -> None:
        barrier.wait(10)
        exchange.reply(exchange.path.encode())

    urls = []
    for number in range(3):
        web.routes[f"/{number}"] = together
        urls.append(web.url(f"/{number}"))
    found = await given(server, {"path": urls[0], "paths": urls[1:]})
    assert [found["path"]["text"], *(each["text"] for each in found["paths"])] == ["/0", "/1", "/2"]


async def test_one_failure_fails_the_whole(server: LiveServer, web: Server) -> None:
    error = await failed(server, {"paths": [web.serve("/1.txt", b"one"), web.url("/missing")]})
    assert "paths/1" in error


# File


async def test_file_inputs(server: LiveServer, web: Server) -> None:
    found = await given(server, {"file": data_url(b"abc"), "files": [web.serve("/f", b"fetched"), data_url(b"x")]})
    assert found["file"] == {"file": "abc", "again": "a"}
    assert [each["file"] for each in found["files"]] == ["fetched", "x"]


# what is refused


@pytest.mark.parametrize("parameter", ["path", "maybe", "file"])
@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "run.py",
        "./run.py",
        "~/x",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file:run.py",
        "s3://bucket/key",
        "ftp://127.0.0.1/x",
        "",
        " ",
        "http:",
        "http://",
        "http:///etc/passwd",
        "https://[::1",
        "http://127.0.0.1:99999/x",
        "\\\\host\\share",
    ],
)
async def test_d11_what_is_no_url_never_reaches_the_model(server: LiveServer, parameter: str, value: str) -> None:
    [(place, message)] = await refused(server, {parameter: value})
    assert place == parameter
    assert "URL" in message


async def test_d11_inside_lists_and_records(server: LiveServer, web: Server) -> None:
    """Also a list that mixes URLs with plain text, which Cog leaves undownloaded (D12)."""
    url = web.serve("/1.txt", b"one")
    values = {"paths": [url, "/etc/passwd"], "files": ["run.py"], "pair": {"left": "/etc/passwd"}}
    assert [place for place, _ in await refused(server, values)] == ["paths/1", "files/0", "pair/left"]
    assert web.received == []


async def test_d11_redirect_to_a_file(server: LiveServer, web: Server) -> None:
    await failed(server, {"path": web.serve("/a", status=302, Location="file:///etc/passwd")})


async def test_text_that_is_a_url_stays_text(server: LiveServer, web: Server) -> None:
    url = web.serve("/1.txt", b"one")
    assert await given(server, {"text": url}) == {"text": url}
    assert await given(server, {"text": "/etc/passwd"}) == {"text": "/etc/passwd"}
    assert web.received == []


# Secret


async def test_secret(server: LiveServer) -> None:
    body = await server.predict({"secret": "hunter2", "text": "t"})
    assert body["output"]["secret"] == ["Secret(**********)", "**********", "hunter2"]
    assert body["input"] == {"secret": "**********", "text": "t"}


async def test_secret_is_masked_in_every_answer(server: LiveServer, web: Server) -> None:
    values = {"secret": "hunter2", "path": web.url("/missing")}
    body = await server.predict(values)
    assert (body["status"], body["input"]["secret"]) == ("failed", "**********")
    accepted = await server.start({"secret": "hunter2", "gate": "secret"}, id="sec")
    assert accepted["input"]["secret"] == "**********"
    response = await server.client.put("/predictions/sec", json={})
    assert response.json()["input"]["secret"] == "**********"
    server.open_gate("secret")
    assert b"hunter2" not in (await server.ended("sec")).input


async def test_echo_has_the_url_and_not_the_servers_path(server: LiveServer, web: Server) -> None:
    url = web.serve("/1.txt", b"one")
    body = await server.predict({"path": url})
    assert body["input"] == {"path": url}


# temporary files


async def test_d10_nothing_is_left_of_a_prediction(server: LiveServer, web: Server) -> None:
    one = web.serve("/1.txt", b"one")
    values: dict[str, Any] = {"path": one, "paths": [one, data_url(b"x")], "file": data_url(b"y")}
    found = await given(server, values)
    folder = Path(found["path"]["path"]).parent
    assert {Path(each["path"]).parent for each in found["paths"]} == {folder}
    # It is gone before the answer is there, and so are those of all others.
    assert not folder.exists()
    await failed(server, {"path": web.url("/missing"), "file": data_url(b"y")})
    await given(server, {"path": one, "damage": True})
    assert list(folder.parent.iterdir()) == []


@pytest.mark.one_server(reason="each replica has a folder of its own")
async def test_d10_also_when_it_is_canceled(server: LiveServer, web: Server) -> None:
    folder = Path((await given(server, {"path": data_url(b"x")}))["path"]["path"]).parent.parent
    await server.start({"path": data_url(b"x"), "gate": "never"}, id="d10")
    await server.said("d10", "begun")
    assert len(list(folder.iterdir())) == 1
    assert (await server.client.post("/predictions/d10/cancel")).status_code == 200
    await server.ended("d10")
    assert list(folder.iterdir()) == []


@pytest.mark.one_server(reason="it sets the temporary folder of the server's own process")
async def test_d10_nor_of_the_server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "from geartrain import Path\ndef run(p: Path) -> str: return str(p)"
    async with serve(source) as server:
        path = Path((await server.predict({"p": data_url(b"x")}))["output"])
        assert path.is_relative_to(tmp_path)
        assert own_folders(tmp_path) != []
    assert own_folders(tmp_path) == []


def own_folders(folder: Path) -> list[Path]:
    return list(folder.glob("geartrain-*"))


# while a download is going on


@pytest.mark.one_server(reason="each replica has a slot")
async def test_cancel_during_a_download(server: LiveServer, web: Server) -> None:
    folder = Path((await given(server, {"path": data_url(b"x")}))["path"]["path"]).parent.parent
    web.routes["/slow"] = Exchange.hold
    asked = asyncio.ensure_future(server.predict({"path": web.url("/slow"), "file": data_url(b"y")}, id="dl"))
    assert await asyncio.to_thread(web.held.acquire, timeout=40)
    assert (await server.client.put("/predictions/dl", json={})).json()["status"] == "starting"
    assert (await server.client.post("/predictions", json={})).status_code == 409
    assert (await server.client.post("/predictions/dl/cancel")).status_code == 200
    body = await asked
    assert (body["status"], body["logs"]) == ("canceled", "")
    assert await asyncio.to_thread(web.hung_up.acquire, timeout=40)
    assert list(folder.iterdir()) == []
    assert await given(server, {"text": "next"}) == {"text": "next"}


async def test_client_hangs_up_during_a_download(server: LiveServer, web: Server) -> None:
    web.routes["/slow"] = Exchange.hold
    body = json.dumps({"id": "hang", "input": {"path": web.url("/slow")}}).encode()
    async with connection(server.url) as wire:
        await wire.send(
            b"POST /predictions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert await asyncio.to_thread(web.held.acquire, timeout=40)
    assert (await server.ended("hang")).status == "canceled"
    assert await asyncio.to_thread(web.hung_up.acquire, timeout=40)
    await eventually(lambda: server.workers.permits.idle == 1)


@pytest.mark.one_server(reason="another replica may tell of its health")
async def test_server_answers_while_it_downloads(server: LiveServer, web: Server) -> None:
    web.routes["/slow"] = Exchange.hold
    await server.start({"path": web.url("/slow")}, id="bg")
    assert await asyncio.to_thread(web.held.acquire, timeout=40)
    assert (await server.health())["status"] == "BUSY"
    assert (await server.client.post("/predictions/bg/cancel")).status_code == 200
    assert (await server.ended("bg")).status == "canceled"
