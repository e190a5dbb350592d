"""Tracebacks that a model's author reads: they begin with the author's own line, and hold none of ours."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, what: str) -> dict:
            if what == "raises":
                raise ValueError("boom")
            if what == "chained":
                try:
                    self.record_metric("x", object())
                except TypeError as error:
                    raise ValueError("boom") from error
            if what == "metric":
                self.record_metric("x", object())
            value = float("nan")
            return {"x": value}
"""
SEVERAL = """
    def run(which: int) -> dict:
        if which:
            return {"x": float("nan")}
        return {"y": object()}
"""
GENERATOR = """
    from collections.abc import Iterator

    def run() -> Iterator[float]:
        yield 1.0
        yield float("nan")
        yield 2.0
"""
ASYNC_GENERATOR = """
    from collections.abc import AsyncIterator

    async def run() -> AsyncIterator[float]:
        yield 1.0
        yield float("nan")
"""
ASYNC_SETUP = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        async def setup(self) -> None:
            raise RuntimeError("no weights")

        def run(self) -> int:
            return 1
"""
NAN = "OutputError: output.x is NaN, which JSON cannot carry; return None or a string instead"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


def frames(logs: str) -> list[tuple[str, str, str]]:
    """The file, the function and the text of each line of tracebacks."""
    return re.findall(r'^  File ".*?([^/]*)", line \d+, in (\S+)\n    (.*)$', logs, re.MULTILINE)


async def failed(server: LiveServer, **values: object) -> str:
    body = await server.predict(values)
    assert body["status"] == "failed", body
    logs: str = body["logs"]
    return logs


async def test_output_that_is_none_is_shown_where_it_was_returned(server: LiveServer) -> None:
    logs = await failed(server, what="")
    assert frames(logs) == [("run.py", "run", 'return {"x": value}')]
    assert logs.startswith("Traceback (most recent call last):\n")
    assert logs.endswith(f"\n{NAN}\n")


async def test_output_of_several_returns_is_shown_where_run_begins(serve_shared: Serve) -> None:
    async with serve_shared(SEVERAL, name="several") as server:
        assert frames(await failed(server, which=1)) == [("run.py", "run", "def run(which: int) -> dict:")]


@pytest.mark.parametrize("source", [GENERATOR, ASYNC_GENERATOR])
async def test_output_that_is_none_is_shown_where_it_was_yielded(serve_shared: Serve, source: str) -> None:
    async with serve_shared(source, name=f"generator{len(source)}") as server:
        logs = await failed(server)
    assert frames(logs) == [("run.py", "run", 'yield float("nan")')]


async def test_exception_of_run(server: LiveServer) -> None:
    assert frames(await failed(server, what="raises")) == [("run.py", "run", 'raise ValueError("boom")')]


async def test_exception_that_a_call_of_ours_raises(server: LiveServer) -> None:
    line = ("run.py", "run", 'self.record_metric("x", object())')
    assert frames(await failed(server, what="metric")) == [line]
    logs = await failed(server, what="chained")
    assert frames(logs) == [line, ("run.py", "run", 'raise ValueError("boom") from error')]


async def test_exception_of_an_async_setup(serve_shared: Serve) -> None:
    async with serve_shared(ASYNC_SETUP, name="setup", ready=False) as server:
        await eventually(lambda: server.workers.setup.failed)
        logs = (await server.health())["setup"]["logs"]
    assert frames(logs) == [("run.py", "setup", 'raise RuntimeError("no weights")')]
    assert logs.endswith("setup() failed: RuntimeError: no weights\n")
