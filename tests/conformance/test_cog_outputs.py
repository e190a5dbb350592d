"""Observed Cog, sections 9 and 16: from what `run()` gives to the `output` of the answer, files as data URLs."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.folders import files_below
from tests.support.servers import LiveServer, Serve, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Returns whatever an expression evaluates to; `yields` gives its elements one by one.
MODEL = """
    import dataclasses, datetime, decimal, enum, io, os, pathlib, tempfile, typing, uuid
    from collections import OrderedDict, defaultdict, deque
    import numpy as np
    import pydantic
    from cog import BaseModel, BaseRunner, File, Path, Secret
    from typing import Any, NamedTuple, Optional

    class Structured(BaseModel):
        z: int
        a: Optional[str] = None
        file: Optional[Path] = None

    @dataclasses.dataclass
    class Data:
        z: int
        inner: Any = None

    class Pydantic(pydantic.BaseModel):
        z: int
        when: datetime.date = datetime.date(2024, 1, 2)
        a: Optional[str] = None

    class Pair(NamedTuple):
        left: int
        right: str

    class Color(enum.Enum):
        RED = "r"
        PAIR = (1, 2)

    class Level(enum.IntEnum):
        HIGH = 3

    def file(name, content="content"):
        path = pathlib.Path(tempfile.mkdtemp()) / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return Path(path)

    def opened(name, mode="rb"):
        return open(file(name), mode)

    def named(name, content):
        stream = io.BytesIO(content)
        stream.name = name
        return stream

    def recursive():
        value = []
        value.append(value)
        return value

    def closed(name):
        with opened(name) as stream:
            pass
        return stream

    class Runner(BaseRunner):
        def run(self, code: str) -> Any:
            return eval(code)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


async def output(server: LiveServer, code: str) -> str:
    """The JSON text of the output, as it stands in the answer."""
    response = await server.client.post("/predictions", json={"input": {"code": code}})
    body = response.json()
    assert body["status"] == "succeeded", body
    head, found, rest = response.text.partition(',"output":')
    assert found, head
    return rest[: rest.rindex(',"started_at":')]


async def failure(server: LiveServer, code: str) -> str:
    body = await server.predict({"code": code})
    assert body["status"] == "failed", body
    assert "output" not in body
    error: str = body["error"]
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # as they are
        ("'text é 🙂'", '"text é 🙂"'),
        ("''", '""'),
        ("0", "0"),
        ("-1.5", "-1.5"),
        ("1e300", "1e300"),
        ("7.0", "7.0"),
        ("True", "true"),
        ("None", "null"),
        ("[]", "[]"),
        ("[1, 'a', None, [2.5]]", '[1,"a",null,[2.5]]'),
        ("{}", "{}"),
        ("{'b': 1, 'a': {'d': 2, 'c': 3}}", '{"a":{"c":3,"d":2},"b":1}'),
        # keys become strings
        ("{1: 'a', 2.5: 'b', False: 'c', None: 'd'}", '{"1":"a","2.5":"b","false":"c","null":"d"}'),
        ("{(1): {2: 3}}", '{"1":{"2":3}}'),
        # what counts as a list
        ("(1, 2)", "[1,2]"),
        ("{5}", "[5]"),
        ("frozenset([5])", "[5]"),
        ("range(3)", "[0,1,2]"),
        ("deque([1, 2])", "[1,2]"),
        ("(i * i for i in range(3))", "[0,1,4]"),
        ("map(str, [1, 2])", '["1","2"]'),
        ("{'k': (1, {2})}", '{"k":[1,[2]]}'),
        # what counts as an object
        ("OrderedDict(b=1, a=2)", '{"a":2,"b":1}'),
        ("defaultdict(int, a=1)", '{"a":1}'),
        ("Structured(z=1)", '{"a":null,"file":null,"z":1}'),
        ("[Structured(z=1, a='x')]", '[{"a":"x","file":null,"z":1}]'),
        ("Data(1)", '{"inner":null,"z":1}'),
        ("Data(1, Data(2, (3,)))", '{"inner":{"inner":[3],"z":2},"z":1}'),
        ("Pydantic(z=1)", '{"a":null,"when":"2024-01-02","z":1}'),
        ("Pair(1, 'r')", '[1,"r"]'),
        # enums by value
        ("Color.RED", '"r"'),
        ("Color.PAIR", "[1,2]"),
        ("{'c': [Level.HIGH]}", '{"c":[3]}'),
        # moments
        ("datetime.datetime(2024, 1, 2, 3, 4, 5)", '"2024-01-02T03:04:05"'),
        ("datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)", '"2024-01-02T00:00:00+00:00"'),
        # numpy
        ("np.int64(5)", "5"),
        ("np.uint8(255)", "255"),
        ("np.float64(0.1)", "0.1"),
        ("np.float32(0.5)", "0.5"),
        ("np.array([[1, 2], [3, 4]])", "[[1,2],[3,4]]"),
        ("np.array([0.5, 1.0])", "[0.5,1.0]"),
        ("np.array(5)", "5"),
        ("{'a': np.array(['x', 'y'])}", '{"a":["x","y"]}'),
    ],
)
async def test_output(server: LiveServer, code: str, expected: str) -> None:
    assert await output(server, code) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("2 ** 70", str(2**70)),
        ("-(2 ** 100)", str(-(2**100))),
        ("[2 ** 64, 1]", f"[{2**64},1]"),
        ("{'n': 2 ** 53 + 1}", f'{{"n":{2**53 + 1}}}'),
        ("datetime.date(2024, 1, 2)", '"2024-01-02"'),
        ("datetime.time(3, 4)", '"03:04:00"'),
        ("np.bool_(True)", "true"),
        ("[np.bool_(False)]", "[false]"),
        ("np.array([True, False])", "[true,false]"),
    ],
)
async def test_d30_values_that_json_can_carry(server: LiveServer, code: str, expected: str) -> None:
    assert await output(server, code) == expected


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("float('nan')", ["output is NaN", "None"]),
        ("[1.0, float('inf')]", ["output[1] is Infinity"]),
        ("{'scores': [0.5, -float('inf')]}", ["output.scores[1] is -Infinity"]),
        ("{'a': {'b c': np.float32('nan')}}", ["NaN", "'b c'"]),
        ("np.array([[0.5, np.nan]])", ["output[0][1] is NaN"]),
        ("Structured(z=float('nan'))", ["output.z is NaN"]),
        ("b'raw'", ["output", "bytes"]),
        ("{'k': [b'raw']}", ["output.k[0]", "bytes"]),
        ("object()", ["output", "object"]),
        ("[1, object]", ["output[1]"]),
        ("{'f': lambda: 1}", ["output.f", "function"]),
        ("'half \\ud800'", ["output", "surrogate"]),
        ("{'k': ['\\udfff']}", ["output.k[0]", "surrogate"]),
        ("{'\\ud800': 1}", ["output", "surrogate"]),
        ("1 + 2j", ["output", "complex"]),
        ("recursive()", ["output"]),
        ("Runner", ["output"]),
    ],
)
async def test_d30_what_json_cannot_carry_is_told_with_its_place(
    server: LiveServer, code: str, words: list[str]
) -> None:
    error = await failure(server, code)
    for word in words:
        assert word in error
    assert await output(server, "1") == "1"


async def test_exception_in_a_generator_that_is_returned(server: LiveServer) -> None:
    body = await server.predict({"code": "(1 / i for i in [1, 0])"})
    assert (body["status"], body["error"]) == ("failed", "ZeroDivisionError: division by zero")
    assert body["output"] == [1.0]


async def test_output_of_many_megabytes(server: LiveServer) -> None:
    body = await server.predict({"code": "['x' * 10_000_000, 'y🙂']"})
    assert (len(body["output"][0]), body["output"][1]) == (10_000_000, "y🙂")


# a declared output


@pytest.mark.parametrize(
    ("annotation", "statement", "expected"),
    [
        ("list[str]", "return ['a']", ["a"]),
        ("list[str]", "return ('a', 'b')", ["a", "b"]),
        ("list[str]", "return 'hi'", ["hi"]),
        ("list[int]", "return 5", [5]),
        ("str", "return 5", 5),
        ("str", "return None", None),
        ("Iterator[str]", "yield 'a'; yield 'b'", ["a", "b"]),
        ("Iterator[str]", "return iter(['a', 'b'])", ["a", "b"]),
        ("Iterator[str]", "return; yield", []),
        ("ConcatenateIterator[str]", "yield 'a'; yield 'b'", ["a", "b"]),
        (
            "Iterator[Path]",
            "(p := Path('same.txt')).write_text('1'); yield p; p.write_text('2'); yield p",
            ["data:text/plain;base64,MQ==", "data:text/plain;base64,Mg=="],
        ),
    ],
)
async def test_declared_output(serve: Serve, annotation: str, statement: str, expected: object) -> None:
    source = f"""
        from typing import Iterator
        from cog import ConcatenateIterator, Path
        def run() -> {annotation}:
            {statement}
    """
    async with serve(source) as server:
        body = await server.predict()
        assert body["status"] == "succeeded", body
        assert body["output"] == expected


@pytest.mark.parametrize("annotation", ["AsyncIterator[str]", "AsyncConcatenateIterator[str]"])
async def test_async_generator(serve: Serve, annotation: str) -> None:
    source = f"""
        from typing import AsyncIterator
        from geartrain import AsyncConcatenateIterator
        async def run(n: int) -> {annotation}:
            for i in range(n):
                yield f"c{{i}}"
    """
    async with serve(source) as server:
        assert (await server.predict({"n": 3}))["output"] == ["c0", "c1", "c2"]
        assert (await server.predict({"n": 0}))["output"] == []


# section 16: files


def data_url(media_type: str, content: bytes = b"content") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.txt", "text/plain"),
        ("a.png", "image/png"),
        ("a.PNG", "image/png"),
        ("a.jpg", "image/jpeg"),
        ("a.json", "application/json"),
        ("a.mp4", "video/mp4"),
        ("a.csv", "text/csv"),
        ("a.md", "text/markdown"),
        ("a.wav", "audio/wav"),
        ("a.tar.gz", "application/gzip"),
        ("a.svg", "image/svg+xml"),
        ("a b#é?.png", "image/png"),
        ("a.unknown", "application/octet-stream"),
        ("noextension", "application/octet-stream"),
    ],
)
async def test_path_becomes_a_data_url(server: LiveServer, name: str, media_type: str) -> None:
    assert await output(server, f"file({name!r})") == json.dumps(data_url(media_type))


@pytest.mark.parametrize(
    ("code", "media_type", "content"),
    [
        ("pathlib.Path(file('a.txt'))", "text/plain", b"content"),
        ("opened('a.png')", "image/png", b"content"),
        ("opened('a.txt', 'r')", "text/plain", b"content"),
        ("closed('a.png')", "image/png", b"content"),
        ("io.BytesIO(b'\\x00\\xff')", "application/octet-stream", b"\x00\xff"),
        ("named('x.jpg', b'j')", "image/jpeg", b"j"),
        ("io.StringIO('text')", "application/octet-stream", b"text"),
        ("file('empty.txt', '')", "text/plain", b""),
        ("file('big.bin', bytes(300_000))", "application/octet-stream", bytes(300_000)),
    ],
)
async def test_files_of_every_kind(server: LiveServer, code: str, media_type: str, content: bytes) -> None:
    assert await output(server, code) == json.dumps(data_url(media_type, content))


@pytest.mark.parametrize(
    ("code", "build"),
    [
        ("[file('a.txt'), file('b.png')]", lambda txt, png: [txt, png]),
        ("(file('a.txt'), 'between', opened('b.png'))", lambda txt, png: [txt, "between", png]),
        ("{'k': [file('a.txt')], 'f': {'g': file('b.png')}}", lambda txt, png: {"k": [txt], "f": {"g": png}}),
        ("Structured(z=1, file=file('a.txt'))", lambda txt, _: {"z": 1, "a": None, "file": txt}),
        ("Data(1, [file('a.txt')])", lambda txt, _: {"z": 1, "inner": [txt]}),
        ("[f := file('a.txt'), f]", lambda txt, _: [txt, txt]),
    ],
)
async def test_files_at_any_depth(server: LiveServer, code: str, build: Any) -> None:
    assert json.loads(await output(server, code)) == build(data_url("text/plain"), data_url("image/png"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Path('/nowhere/at-all.png')", ["output is the path /nowhere/at-all.png", "no such file"]),
        ("Path('missing.png')", ["missing.png", "no such file"]),
        ("{'images': [file('a.png'), Path('missing.png')]}", ["output.images[1]", "no such file"]),
        ("Path(tempfile.mkdtemp())", ["folder"]),
        ("Path('')", ["folder"]),
        ("Path('/dev/null')", ["no regular file"]),
    ],
)
async def test_d5_missing_file_is_a_failure(server: LiveServer, code: str, words: list[str]) -> None:
    error = await failure(server, code)
    for word in words:
        assert word in error


async def test_text_that_looks_like_a_placeholder_is_left_alone(server: LiveServer) -> None:
    text = "geartrain-file-" + "0" * 32
    code = f"[{text!r}, file('a.txt'), {{{text!r}: {text!r}}}]"
    assert json.loads(await output(server, code)) == [text, data_url("text/plain"), {text: text}]


async def test_returned_files_stay_where_they_are(server: LiveServer) -> None:
    path = server.root / "mine.txt"
    path.write_text("content")
    assert await output(server, "Path('mine.txt')") == json.dumps(data_url("text/plain"))
    assert path.read_text() == "content"


async def test_files_of_one_name_are_told_apart(serve: Serve) -> None:
    source = """
        from typing import Iterator
        from geartrain import Path
        def run(n: int) -> Iterator[list[Path | int]]:
            for i in range(n):
                path = Path("same.txt")
                path.write_text(str(i))
                yield [path, i]
    """
    async with serve(source) as server:
        output = (await server.predict({"n": 200}))["output"]
        assert output == [[data_url("text/plain", str(i).encode()), i] for i in range(200)]


@pytest.mark.one_server(reason="the predictions have to be in one worker")
async def test_files_of_concurrent_predictions_are_told_apart(serve: Serve) -> None:
    source = """
        import asyncio, tempfile
        from geartrain import Path, concurrent
        together = None

        @concurrent(max=4)
        async def run(name: str) -> list[Path]:
            global together
            together = together or asyncio.Barrier(4)
            paths = [Path(tempfile.mkdtemp()) / "same.txt" for _ in range(3)]
            for index, path in enumerate(paths):
                path.write_text(f"{name}{index}" * 100_000)
            await together.wait()
            return paths
    """
    async with serve(source) as server:
        for _ in range(3):
            bodies = await asyncio.gather(*(server.predict({"name": name}) for name in "abcd"))
            for body in bodies:
                name = body["input"]["name"]
                contents = [data_url("text/plain", f"{name}{index}".encode() * 100_000) for index in range(3)]
                assert body["output"] == contents


@pytest.mark.one_server(reason="it sets the temporary folder of the server's own process")
async def test_d10_copies_of_output_files_are_gone(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything left of an output that goes from process to process in a file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with serve(MODEL) as server:
        await output(server, "[file('a.txt'), io.BytesIO(b'x'), file('b.png')]")
        await output(server, "'x' * 10_000_000")
        assert own_folders(tmp_path) != []
        await eventually(lambda: not any(files_below(own) for own in own_folders(tmp_path)), 5)
    assert own_folders(tmp_path) == []


def own_folders(folder: Path) -> list[Path]:
    return list(folder.glob("geartrain-*"))


async def test_temporary_files_of_a_run_are_deleted_and_no_others(server: LiveServer) -> None:
    """As the documents have it: what a run has made in a temporary folder, and returned, is gone afterwards."""
    kept = "globals().setdefault('kept', file('kept.txt'))"
    first = json.loads(await output(server, f"str({kept})"))
    *_, path = json.loads(await output(server, f"[{kept}, f := file('a.txt'), str(f)]"))
    await eventually(lambda: not Path(path).parent.exists(), 5)
    assert [path for path in (first, path) if is_file(path)] == [first]


def is_file(path: str) -> bool:
    return Path(path).is_file()


@pytest.mark.one_server(reason="the predictions have to be in one worker")
async def test_results_that_concurrent_runs_share_are_not_deleted(serve: Serve) -> None:
    source = """
        import asyncio, tempfile
        from geartrain import Path, concurrent
        shared = None

        @concurrent(max=3)
        async def run() -> Path:
            global shared
            if shared is None:
                shared = asyncio.create_task(make())
            return await shared

        async def make() -> Path:
            await asyncio.sleep(0.05)
            path = Path(tempfile.mkdtemp()) / "shared.txt"
            path.write_text("content")
            return path
    """
    async with serve(source) as server:
        for _ in range(3):
            bodies = await asyncio.gather(*(server.predict() for _ in range(3)))
            assert [body.get("output") for body in bodies] == [data_url("text/plain")] * 3
