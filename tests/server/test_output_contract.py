"""Outputs that are not as annotated: an error of a model of ours, a warning of one that was written for Cog."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.servers import Serve, ServerProcess, write_model

OURS = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, code: str) -> int:
            return eval(code)
"""
COGS = """
    from cog import BasePredictor, Input

    class Predictor(BasePredictor):
        def predict(self, code: str = Input(default="1")) -> int:
            return eval(code)
"""
STREAM = """
    from collections.abc import Iterator
    def run() -> Iterator[int]:
        try:
            yield 1
            yield "x"
            yield 3
        finally:
            print("closed")
"""
ASYNC = """
    from typing import TypedDict
    class Result(TypedDict):
        scores: list[float]
    async def run() -> Result:
        return {"scores": [0.5, "x"]}
"""
GENERATOR = """
    def run(lazy: bool = True) -> str:
        return (letter for letter in "abc")
"""
BATCHED = """
    import geartrain
    @geartrain.batched(max_size=4, max_delay=20, preferred_sizes=[4])
    def run(texts: list[str]) -> list[int]:
        print("together", len(texts))
        return [len(text) if text != "bad" else text for text in texts]
"""
HELPED = {
    "base.py": "from cog import BasePredictor\nclass Base(BasePredictor):\n    pass\n",
    "run.py": "from base import Base\nclass Predictor(Base):\n    def predict(self) -> int:\n        return 'x'\n",
}
MIXED = {
    **HELPED,
    "run.py": "import geartrain\n" + HELPED["run.py"],
}


async def test_c10_a_wrong_output_fails_its_prediction(serve: Serve) -> None:
    async with serve(OURS) as server:
        body = await server.predict({"code": "'x'"})
        assert body["status"] == "failed"
        assert body["error"] == "OutputError: output: run() is annotated int, and returned a str: 'x'"
        assert "output" not in body
        assert (await server.predict({"code": "5"}))["output"] == 5
        assert (await server.health())["status"] == "READY"


def test_c10_a_model_for_cog_goes_on_with_one_warning(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    process = server_process(str(write_model(tmp_path / "model", COGS)))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=60) as client:
        for code, output in (("5", 5), ("'x'", "x"), ("'private'", "private"), ("None", None), ("0.5", 0.5)):
            body = client.post("/predictions", json={"input": {"code": code}}).json()
            assert (body["status"], body.get("output")) == ("succeeded", output)
    process.popen.send_signal(signal.SIGTERM)
    with pytest.raises(pytest.fail.Exception):
        process.wait_for("never said")  # reads to the end
    warnings = [str(line) for line in process.lines if "annotated" in str(line)]
    assert len(warnings) == 1
    assert "output: predict() is annotated int, and returned a str; it is passed on, as Cog does" in warnings[0]
    assert "'level': 'WARNING'" in warnings[0].replace("warning", "WARNING")


async def test_c10_a_wrong_chunk_ends_the_stream(serve: Serve) -> None:
    async with serve(STREAM) as server:
        body = await server.predict()
        assert body["status"] == "failed"
        assert body["error"].endswith("run() is annotated Iterator[int], and yielded a str where int is wanted: 'x'")
        assert "closed" in body["logs"]


async def test_c10_async_and_records(serve: Serve) -> None:
    async with serve(ASYNC) as server:
        body = await server.predict()
        assert (body["status"], body["error"]) == (
            "failed",
            "OutputError: output.scores[1]: run() is annotated Result, and returned a str where float is wanted: 'x'",
        )


async def test_c10_a_stream_for_one_text_fails(serve: Serve) -> None:
    async with serve(GENERATOR) as server:
        body = await server.predict()
        assert body["error"] == "OutputError: output: run() is annotated str, and returned a stream of values"


async def test_c10_in_a_batch_one_bad_output_fails_only_its_own(serve: Serve) -> None:
    async with serve(BATCHED) as server:
        texts = ["a", "bad", "bbb", "cc"]
        bodies = await asyncio.gather(*(server.predict({"texts": text}) for text in texts))
        assert [body["status"] for body in bodies] == ["succeeded", "failed", "succeeded", "succeeded"]
        assert all("together 4" in body["logs"] for body in bodies)
        assert [body.get("output") for body in bodies] == [1, None, 3, 2]
        assert bodies[1]["error"].endswith(
            "output: run() is annotated list[int], and returned a str where int is wanted: 'bad'"
        )


@pytest.mark.parametrize(("files", "status"), [(HELPED, "succeeded"), (MIXED, "failed")], ids=["cog", "both"])
async def test_c10_whose_model_it_is_is_told_by_its_imports(
    serve: Serve, tmp_path: Path, files: dict[str, str], status: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    async with serve(folder) as server:
        assert (await server.predict())["status"] == status
