"""Functions in the place of other models: `call(Runner, models={...})`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

import geartrain
from geartrain.testing import call, runner


class Boxes(NamedTuple):
    boxes: list[int]
    size: int


class Reader(geartrain.BaseRunner):
    detector: geartrain.Model[Any]
    writer = geartrain.model("author", version="2")

    def run(self, text: str) -> str:
        found = self.detector(text=text)
        jobs = [self.detector.start(text=piece) for piece in text.split()]
        parts = [job.result().size for job in jobs]
        return f"{found.boxes} {found['size']} {parts} {'+'.join(self.writer.stream(text=text))}"


class AsyncReader(geartrain.BaseRunner):
    detector: geartrain.Model[Any]

    async def run(self, text: str) -> str:
        found = await self.detector(text=text)
        both = await asyncio.gather(*(self.detector(text=piece) for piece in text.split()))
        job = self.detector.start(text=text)
        pieces = [piece async for piece in geartrain.models["author"].stream(text=text)]
        return f"{found.size} {[each.size for each in both]} {(await job).size} {pieces}"


def detect(text: str) -> Boxes:
    return Boxes([1, 2], len(text))


async def detect_later(text: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"boxes": [], "size": len(text)}


def write(text: str) -> Iterator[str]:
    yield from text.split()


async def write_later(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


@pytest.mark.parametrize("detector", [detect, detect_later])
def test_a_sync_model_gets_the_answers_of_functions(detector: Any) -> None:
    answer = call(Reader, text="ab c", models={"detector": detector, "author@2": write})
    boxes = [1, 2] if detector is detect else []
    assert answer == f"{boxes} 4 [2, 1] ab+c"


@pytest.mark.parametrize(("detector", "writer"), [(detect, write), (detect_later, write_later)])
def test_an_async_model_gets_them_too(detector: Any, writer: Any) -> None:
    with runner(AsyncReader, models={"detector": detector, "author": writer}) as run:
        assert run(text="ab c") == "4 [2, 1] 4 ['ab', 'c']"
        assert run(text="d") == "1 [1] 1 ['d']"


class Careful(geartrain.BaseRunner):
    other: geartrain.Model[Any]

    def run(self, text: str) -> str:
        try:
            return str(self.other(text=text))
        except geartrain.ModelError as error:
            return f"{error.model}: {error.code}: {error.message}"


def test_an_exception_of_a_function_is_the_error_of_the_call() -> None:
    def fail(text: str) -> str:
        raise ValueError(f"no {text}")

    def full(text: str) -> str:
        raise geartrain.ModelError("deeper", "queue_full", "Exceeds maximum queue size")

    assert call(Careful, text="x", models={"other": fail}) == "other: run_failed: ValueError: no x"
    assert call(Careful, text="x", models={"other": full}) == "deeper: queue_full: Exceeds maximum queue size"


def test_texts_that_are_yielded_are_joined_as_a_model_does() -> None:
    def say(text: str) -> geartrain.ConcatenateIterator[str]:
        yield from (text, "!")

    assert call(Careful, text="x", models={"other": say}) == "x!"
    assert call(Careful, text="x y", models={"other": write}) == "['x', 'y']"


def test_a_call_without_a_function_says_so() -> None:
    with pytest.raises(LookupError, match=r"the model 'other' is called, and the test has functions for: 'another'"):
        call(Careful, text="x", models={"another": write})
    with pytest.raises(RuntimeError, match=r"there are no other models here"):
        call(Careful, text="x")
