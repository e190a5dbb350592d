"""The files of predictions: gone when they are over, whatever their end; and inputs and outputs of every size."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.folders import paths_below
from tests.support.gates import Gates
from tests.support.servers import Serve, ServerProcess, eventually, write_model
from tests.support.web_server import running_server

MIB = 1 << 20
IN_FILE = 7 * MIB  # above the inline limit

SYNC = """
    import os, pathlib, select, tempfile
    from collections.abc import Iterator
    from typing import Any, Optional
    from cog import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, script: list[Any], image: Optional[Path] = None, text: str = "") -> Iterator[Any]:
            for step, argument in script:
                if step == "file":
                    path = Path(tempfile.mkdtemp()) / argument
                    path.write_text("content")
                    yield path
                elif step == "large":
                    yield "x" * argument
                elif step == "print":
                    print(argument)
                elif step == "wait":
                    with open(argument, "rb", buffering=0) as gate:
                        select.select([gate], [], [])
                elif step == "raise":
                    raise ValueError(argument)
                elif step == "die":
                    os._exit(9)
"""
ASYNC = """
    import asyncio, os, tempfile
    from collections.abc import AsyncIterator
    from typing import Any, Optional
    from cog import Path, concurrent

    @concurrent(max=3)
    async def run(script: list[Any], image: Optional[Path] = None, text: str = "") -> AsyncIterator[Any]:
        for step, argument in script:
            if step == "file":
                path = Path(tempfile.mkdtemp()) / argument
                path.write_text("content")
                yield path
            elif step == "large":
                yield "x" * argument
            elif step == "print":
                print(argument)
            elif step == "wait":
                opened = asyncio.Event()
                with open(argument, "rb", buffering=0) as gate:
                    asyncio.get_running_loop().add_reader(gate, opened.set)
                    try:
                        await opened.wait()
                    finally:
                        asyncio.get_running_loop().remove_reader(gate)
            elif step == "raise":
                raise ValueError(argument)
            elif step == "die":
                os._exit(9)
"""
STEPS: list[list[Any]] = [["file", "a.txt"], ["large", IN_FILE], ["file", "b.txt"], ["print", "made"]]
CONTENT = "data:text/plain;base64,Y29udGVudA=="
IMAGE = "data:image/png;base64," + "AAAA" * 100


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of the server and of its worker."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


def left_in(temporary: Path) -> list[str]:
    """Every file, and every folder that is not the server's own, which are empty when nothing runs."""
    own = [path for path in temporary.iterdir() if path.name.startswith("geartrain-")]
    inside = [path for folder in own for path in paths_below(folder)]
    left = [path for path in inside if not (path.is_socket() or path.name == "outputs")]
    return sorted(str(path) for path in [*(set(temporary.iterdir()) - set(own)), *left])


def names_in(temporary: Path, pattern: str = "*") -> list[str]:
    """Of files and folders, without the random part of a temporary one."""
    return sorted(re.sub("^tmp.{8}", "", path.name) for path in paths_below(temporary) if path.match(pattern))


# Nothing is left


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("end", "status"),
    [([], "succeeded"), ([["raise", "boom"]], "failed"), ([["die", ""]], "failed")],
    ids=["success", "failure", "crash"],
)
async def test_nothing_is_left_of_a_prediction(
    serve: Serve, temporary: Path, source: str, end: list[Any], status: str
) -> None:
    async with serve(source) as server:
        values = {"script": STEPS + end, "image": IMAGE, "text": "t" * IN_FILE}
        body = await server.predict(values)
        assert (body["status"], body["output"]) == (status, [CONTENT, "x" * IN_FILE, CONTENT]), body.get("error")
        if end != [["die", ""]]:
            assert left_in(temporary) == []  # at the moment of the answer
        await eventually(lambda: left_in(temporary) == [])
    assert names_in(temporary) == []


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
async def test_nothing_is_left_of_a_canceled_prediction(
    serve: Serve, temporary: Path, gates: Gates, source: str
) -> None:
    async with serve(source) as server:
        values = {"script": [*STEPS, ["wait", str(gates["never"].path)]], "image": IMAGE, "text": "t" * IN_FILE}
        created = await server.start(values)
        await server.said(created["id"], "made")
        await server.client.post(f"/predictions/{created['id']}/cancel")
        ended = await server.ended(created["id"])
        assert (ended.status, len(ended.chunks)) == ("canceled", 3)
        await eventually(lambda: left_in(temporary) == [])
    assert names_in(temporary) == []


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
async def test_nothing_is_left_of_a_prediction_that_is_canceled_at_once(
    serve: Serve, temporary: Path, source: str
) -> None:
    """Whether its input has been read by then or not. (What an author made and had not given yet is the author's.)"""
    async with serve(source) as server:
        for number in range(6):
            created = await server.start({"script": [["large", IN_FILE]] * 2, "text": "t" * IN_FILE}, id=str(number))
            await server.client.post(f"/predictions/{created['id']}/cancel")
            await server.ended(created["id"])
        await eventually(lambda: left_in(temporary) == [])
    assert names_in(temporary) == []


async def test_nothing_is_left_of_an_output_that_cannot_be_encoded(serve: Serve, temporary: Path) -> None:
    source = """
        import tempfile
        from pathlib import Path
        def run() -> list:
            paths = [Path(tempfile.mkdtemp()) / name for name in "ab"]
            for path in paths:
                path.write_text("content")
            return [*paths, Path("/nowhere")]
    """
    async with serve(source) as server:
        body = await server.predict()
        assert "output[2] is the path /nowhere" in body["error"]
        assert left_in(temporary) == []


async def test_nothing_is_left_of_a_failed_upload(serve: Serve, temporary: Path) -> None:
    with running_server() as receiver:
        receiver.serve("/b.txt", status=403)
        receiver.serve("/a.txt")
        async with serve(SYNC, upload_url=receiver.url()) as server:
            body = await server.predict({"script": STEPS})
            assert body["error"] == "Failed to upload output: upload returned status 403 Forbidden"
            await eventually(lambda: left_in(temporary) == [])


# Which of the author's files are deleted

AUTHORS = """
    import os, pathlib, tempfile
    from typing import Any
    from cog import BaseRunner, Path

    class Runner(BaseRunner):
        def setup(self):
            self.folder = Path(tempfile.mkdtemp())
            self.asset = self.folder / "asset.txt"
            self.asset.write_text("content")

        def run(self, code: str) -> Any:
            made = []
            def new(path, content="content"):
                path = Path(path)
                path.write_text(content)
                return path
            return eval(code)
"""


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        ("new(tempfile.mktemp('a.txt'))", []),
        ("new(pathlib.Path(tempfile.mkdtemp()) / 'a.txt')", []),
        ("[p := new(tempfile.mktemp('a.txt')), p]", []),
        ("new(self.folder / 'a.txt')", ["asset.txt"]),
        ("new((self.folder / 'sub').mkdir() or self.folder / 'sub' / 'a.txt')", ["asset.txt"]),
        # what was there before
        ("self.asset", ["asset.txt"]),
        ("new(self.asset)", ["asset.txt"]),
        ("(self.asset.chmod(0o644), self.asset)[1]", ["asset.txt"]),
        # a link to it, and what is not returned as a path
        ("(os.symlink(self.asset, p := tempfile.mktemp('l.txt')), Path(p))[1]", ["asset.txt", "l.txt"]),
        ("open(new(self.folder / 'open.txt'))", ["asset.txt", "open.txt"]),
        ("str(new(self.folder / 'text.txt'))", ["asset.txt", "text.txt"]),
        # a folder that holds something else
        (
            "(new((d := pathlib.Path(tempfile.mkdtemp())) / 'other.txt'), new(d / 'a.txt'))[1]",
            ["asset.txt", "other.txt"],
        ),
    ],
)
async def test_deleted_is_what_the_run_has_made(serve: Serve, temporary: Path, code: str, stays: list[str]) -> None:
    async with serve(AUTHORS) as server:
        body = await server.predict({"code": code})
        assert body["status"] == "succeeded", body
        assert names_in(temporary, "*.txt") == sorted({"asset.txt", *stays})


async def test_files_outside_of_temporary_folders_stay(serve: Serve, temporary: Path, tmp_path: Path) -> None:
    """Also below the model's own folder when that lies in a temporary one, as it does here."""
    async with serve(AUTHORS) as server:
        body = await server.predict({"code": "new('mine.txt')"})
        assert body["output"] == CONTENT
        assert (server.root / "mine.txt").read_text() == "content"


async def test_a_path_through_a_link_to_another_place_stays(serve: Serve, temporary: Path, tmp_path: Path) -> None:
    assets = tmp_path / "model" / "assets"
    assets.mkdir(parents=True)
    (temporary / "current").symlink_to(assets)
    async with serve(AUTHORS) as server:
        assert (await server.predict({"code": f"new({str(temporary / 'current' / 'a.txt')!r})"}))["output"] == CONTENT
        assert (assets / "a.txt").exists()


async def test_files_of_a_generator_are_there_until_it_ends(serve: Serve, temporary: Path) -> None:
    source = """
        import tempfile
        from collections.abc import Iterator
        from cog import Path
        def run() -> Iterator[Path]:
            path = Path(tempfile.mktemp(".txt"))
            with open(path, "w") as file:
                for word in ("a", "b"):
                    file.write(word)
                    file.flush()
                    yield path
    """
    async with serve(source) as server:
        assert (await server.predict())["output"] == ["data:text/plain;base64,YQ==", "data:text/plain;base64,YWI="]
        assert left_in(temporary) == []


async def test_files_of_runs_side_by_side_are_deleted(serve: Serve, temporary: Path, gates: Gates) -> None:
    async with serve(ASYNC) as server:
        slow = await server.start({"script": [["print", "here"], ["wait", str(gates["slow"].path)]]})
        await server.said(slow["id"], "here")
        assert (await server.predict({"script": [["file", "a.txt"]]}))["output"] == [CONTENT]
        gates["slow"].open()
        await server.ended(slow["id"])
        await eventually(lambda: left_in(temporary) == [])


# Inputs


async def test_default_that_is_a_url_is_fetched(serve: Serve) -> None:
    with running_server() as web:
        url = web.serve("/dir/default.txt", b"by default")
        source = f"""
            from cog import Input, Path
            def run(
                file: Path = Input(default={url!r}),
                files: list[Path] = Input(default=[{url!r}, "run.py"]),
            ) -> list[str]:
                return [file.read_text(), files[0].read_text(), files[1].name, type(files[1]).__name__, str(file)]
        """
        async with serve(source) as server:
            *output, path = (await server.predict())["output"]
            assert output == ["by default", "by default", "run.py", "Path"]
            assert names_in(Path(path)) == []
            other = web.serve("/other.txt", b"by the client")
            assert (await server.predict({"file": other}))["output"][:2] == ["by the client", "by default"]


async def test_default_that_is_a_url_is_guarded(serve: Serve) -> None:
    with running_server() as web:
        source = f"""
            from cog import Input, Path
            def run(file: Path = Input(default={web.serve("/a", b"a")!r})) -> str:
                return file.read_text()
        """
        async with serve(source, allow_private_urls=False) as server:
            body = await server.predict()
            assert (body["status"], "--allow-private-urls" in body["error"]) == ("failed", True)
            assert web.received == []


async def test_accept_stands_in_the_schema(serve: Serve) -> None:
    source = """
        from cog import Input, Path
        def run(image: Path = Input(accept="image/*"), more: list[Path] = Input(default=[], accept=".png,.jpg")) -> str:
            return "ok"
    """
    async with serve(source) as server:
        schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]["properties"]
        assert (schema["image"]["x-cog-accept"], schema["more"]["x-cog-accept"]) == ("image/*", ".png,.jpg")


async def test_names_of_lazy_files(serve: Serve) -> None:
    """A model may look whether it got one of Cog's lazy files: it never does."""
    source = """
        from cog import BaseRunner, File, Path
        from cog.types import URLFile, URLPath

        class Runner(BaseRunner):
            def run(self, path: Path, file: File) -> list[bool]:
                return [isinstance(path, Path), isinstance(path, URLPath), isinstance(file, URLFile), file.readable()]
    """
    async with serve(source) as server:
        assert (await server.predict({"path": IMAGE, "file": IMAGE}))["output"] == [True, False, False, True]


# Sizes


@pytest.mark.parametrize("size", [6 * MIB - 64, 6 * MIB, IN_FILE])
async def test_sizes_around_the_inline_limit(serve: Serve, size: int) -> None:
    source = """
        from cog import Path
        def run(text: str) -> list[str]:
            return [text, str(len(text))]
    """
    async with serve(source) as server:
        text = "é" + "x" * size
        assert (await server.predict({"text": text}))["output"] == [text, str(size + 1)]


async def test_loop_is_free_while_a_large_output_is_read(serve: Serve) -> None:
    """Another client is answered between the pieces of one that is large."""
    source = """
        from cog import Path
        import tempfile
        def run(size: int) -> Path:
            path = Path(tempfile.mktemp(".bin"))
            path.write_bytes(bytes(size))
            return path
    """
    async with serve(source) as server:
        large = asyncio.ensure_future(server.predict({"size": 32 * MIB}))
        answers = 0
        while not large.done():
            assert (await server.client.get("/health-check")).status_code == 200
            answers += 1
        assert answers > 3
        assert len((await large)["output"]) > 32 * MIB


LARGE = 64 * MIB
_SMALL = b'{"input":{"give":"text","size":3}}'
LARGE_MODEL = """
    import hashlib, tempfile
    from typing import Any, Optional
    from cog import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, give: str = "", size: int = 0, text: str = "", file: Optional[Path] = None) -> Any:
            if give == "text":
                return "x" * size
            if give == "file":
                path = Path(tempfile.mktemp(".bin"))
                path.write_bytes(b"x" * size)
                return path
            return hashlib.sha256(text.encode() if file is None else file.read_bytes()).hexdigest()
"""


class Process:
    """A server process with its memory, and a client that keeps nothing."""

    def __init__(self, process: ServerProcess, url: str) -> None:
        self.pid = process.popen.pid
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def memory(self, name: str) -> int:
        """`VmRSS` or `VmHWM`, in bytes."""
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(encoding="ascii"))
        assert found is not None
        return int(found[1]) * 1024

    def growth(self, body: bytes) -> tuple[int, int, bytes]:
        """How much memory a prediction takes at its peak, how long its answer is, and how that ends."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        before = self.memory("VmRSS")
        self._connection.request("POST", "/predictions", body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        assert response.status == 200
        size, end = 0, b""
        while piece := response.read(MIB):
            size += len(piece)
            end = (end + piece)[-2000:]
        return self.memory("VmHWM") - before, size, end


@pytest.fixture
def large(server_process: Callable[..., ServerProcess], tmp_path: Path) -> Iterator[Process]:
    process = server_process(str(write_model(tmp_path / "model", LARGE_MODEL)))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    server = Process(process, url)
    server.growth(_SMALL)  # what is imported and allocated once
    server.growth(b'{"input":{"give":"file","size":3}}')
    server.growth(b'{"input":{"file":"data:,x","text":"%b"}}' % (b"x" * 100_000))
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text in", "file in", "text out", "file out"])
def test_64_mib_take_at_most_4_times_as_much_memory(large: Process, kind: str) -> None:
    content = b"x" * LARGE
    what, _, way = kind.partition(" ")
    if way == "out":
        body = json.dumps({"input": {"give": what, "size": LARGE}}).encode()
        expected = b'xxxx","started_at"' if what == "text" else base64.b64encode(content[-31:]) + b'","started_at"'
    else:
        value = content if what == "text" else b"data:;base64," + base64.b64encode(content)
        body = b'{"input":{"%b":"%b"}}' % (what.encode(), value)
        expected = hashlib.sha256(content).hexdigest().encode()
        del value
    growth, size, end = large.growth(body)
    assert expected in end
    assert end.endswith(b'"status":"succeeded"}')
    assert LARGE < size < LARGE * 3 // 2
    assert growth <= 4 * LARGE
    large.growth(_SMALL)
    after = large.memory("VmRSS")
    for _ in range(2):
        large.growth(body)
    large.growth(_SMALL)
    assert large.memory("VmRSS") - after < LARGE // 2  # nor is anything of it kept
