"""A `run()` with `@joint`: the signature of one request, what cannot be, and its loop without a server."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest

from geartrain import BaseRunner, Batch, Input, LiveRequest, batched, concurrent, joint
from geartrain.authoring.joining import MOST_PIECES
from geartrain.testing import runner
from geartrain.worker.errors import AnswerError
from geartrain.worker.loading.callables import decorator_value, is_async, is_generator
from geartrain.worker.loading.joint_loop import JointLoop
from geartrain.worker.loading.joint_signature import joined
from geartrain.worker.loading.signature import UnsupportedAnnotationError, read_output, read_parameters


class Plain:
    kind: ClassVar[int] = 3
    text: str
    size: int = Input(default=4, ge=1)


@dataclass
class Data:
    text: str
    size: int = 4
    tags: list[str] = field(default_factory=list)


class Tuple(NamedTuple):
    text: str
    size: int = 4


def model(inputs: Any, output: Any) -> Callable[..., Any]:
    class Runner(BaseRunner):
        """Model of texts."""

        @joint(max_size=7)
        def run(self, batch: Any) -> None:
            """Shout."""
            for live in batch:
                for request in live:
                    request.end(request.inputs.text.upper())

    Runner.run.__annotations__["batch"] = Batch[inputs, output]
    return joined(Runner().run, owner_name="Runner.run()")


@pytest.mark.parametrize("inputs", [Plain, Data, Tuple])
def test_inputs_are_those_of_one_request(inputs: type) -> None:
    run = model(inputs, str)
    fields = {each.field.name: each.field for each in read_parameters(run, owner_name="run()")}
    assert (fields["text"].type.kind, fields["text"].required) == ("string", True)
    assert (fields["size"].type.kind, fields["size"].default) == ("integer", 4)
    assert set(fields) - {"tags"} == {"text", "size"}
    assert (is_async(run), is_generator(run)) == (True, False)
    assert decorator_value(run, "__geartrain_concurrent_max__") == 7
    assert asyncio.run(run(text="a", size=1)) == "A"


def test_outputs() -> None:
    assert read_output(model(Plain, str), owner_name="run()").mode == "value"
    stream = model(Plain, Iterator[str])
    assert read_output(stream, owner_name="run()").mode == "iterator"
    assert is_generator(stream)


@joint
def function(batch: Batch[Data, str]) -> None:
    for live in batch:
        for request in live:
            request.end(request.inputs.text * request.inputs.size)


def test_a_function_and_a_test_of_the_model() -> None:
    with runner(function) as run:
        assert run(text="ab", size=2) == "abab"
        assert run(text="c") == "cccc"


def test_prints_and_metrics_in_a_test() -> None:
    class Runner(BaseRunner):
        @joint
        def run(self, batch: Batch[Data, str]) -> None:
            for live in batch:
                for request in live:
                    with request:
                        print(request.inputs.text)  # noqa: T201
                    request.end("x")

    Runner.run.__annotations__["batch"] = Batch[Data, str]
    with runner(Runner) as run:
        assert run(text="seen") == "x"
        assert run.logs == "seen\n"


def wrong(batch: Any) -> Any: ...


async def asynchronous(batch: Batch[Data, str]) -> None: ...


def yielding(batch: Batch[Data, str]) -> Iterator[str]:
    yield ""


def plain(text: str) -> str:
    return text


def several(batch: Batch[Data, str], text: str) -> None: ...


def bare(batch: Batch) -> None: ...  # type: ignore[type-arg]


def no_class(batch: Batch[str, str]) -> None: ...


class Lost:
    text: Missing  # type: ignore[name-defined]  # noqa: F821


def lost(batch: Batch[Lost, str]) -> None: ...


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (wrong, "write `def run"),
    (bare, "write `def run"),
    (plain, "write `def run"),
    (several, "takes 2 inputs"),
    (asynchronous, "is async: write it without `async`"),
    (yielding, "yields: each request gets its pieces by request.send"),
    (no_class, "is no class with an annotation for each input"),
    (lost, "the annotations of Lost cannot be read: name 'Missing' is not defined"),
    (batched(lambda batch: None), "has the decorators @joint and @batched: keep one"),
    (concurrent(max=1)(lambda batch: None), "has the decorators @joint and @concurrent: keep one"),
]


@pytest.mark.parametrize(("run", "text"), REFUSED)
def test_what_cannot_be_says_what_to_write(run: Callable[..., Any], text: str) -> None:
    with pytest.raises(UnsupportedAnnotationError, match=text):
        joined(joint(run), owner_name="run()")


@pytest.mark.parametrize("max_size", [0, "many", True])
def test_sizes_that_cannot_be(max_size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="@joint: max_size"):
        joint(max_size=max_size)
    with pytest.raises(TypeError, match="write @joint or"):
        joint(8)  # type: ignore[call-overload]


# the loop


def loop_of(run: Callable[[Batch[Any, Any]], Any], *, streams: bool = False) -> JointLoop:
    return JointLoop(run, dict, streams=streams)


Seen = list[LiveRequest[Any, Any]]


async def raised(loop: JointLoop, **values: Any) -> str:
    with pytest.raises(AnswerError) as error:
        await loop.value(values)
    return str(error.value)


def test_mistakes_of_the_author_are_told() -> None:
    def run(batch: Batch[Any, Any]) -> None:
        for live in batch:
            for request in live:
                match request.inputs["do"]:
                    case "send":
                        request.send("x")
                    case "twice":
                        request.end(1)
                        request.end(2)
                    case _:
                        request.end(3)

    async def ask() -> None:
        loop = loop_of(run)
        assert "call request.end(value)" in await raised(loop, do="send")
        assert await loop.value({"do": "twice"}) == 1  # the second one breaks the loop, which begins anew
        assert await loop.value({"do": "end"}) == 3

    asyncio.run(ask())


def test_a_value_at_the_end_of_a_stream_is_refused() -> None:
    def run(batch: Batch[Any, Any]) -> None:
        for live in batch:
            for request in live:
                request.send("a")
                request.end("b")

    async def ask() -> None:
        stream = loop_of(run, streams=True).stream({})
        assert await anext(stream) == "a"
        with pytest.raises(AnswerError, match="takes no value in a model that streams"):
            await anext(stream)

    asyncio.run(ask())


def test_inputs_that_the_authors_class_refuses_fail_their_request_alone() -> None:
    def make(size: int) -> int:
        if size < 0:
            raise ValueError("too small")
        return size

    def run(batch: Batch[int, int]) -> None:
        for live in batch:
            for request in live:
                request.end(request.inputs)

    async def ask() -> None:
        loop = JointLoop(run, make, streams=False)
        with pytest.raises(ValueError, match="too small"):
            await loop.value({"size": -1})
        assert await loop.value({"size": 2}) == 2

    asyncio.run(ask())


def test_a_stream_that_nobody_reads_holds_the_loop_at_a_bound() -> None:
    sent: list[int] = []
    is_full, has_left = threading.Event(), threading.Event()

    def run(batch: Batch[Any, Any]) -> None:
        for live in batch:
            for request in live:
                while request.is_live:
                    if len(sent) == MOST_PIECES:
                        is_full.set()
                    request.send(len(sent))
                    sent.append(1)
                has_left.set()

    async def ask() -> None:
        stream = loop_of(run, streams=True).stream({})
        assert await anext(stream) == 0
        is_full.wait(10)  # the loop stands still, as for a client that does not read
        assert len(sent) <= MOST_PIECES + 1
        await stream.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(has_left.wait, 10)

    asyncio.run(ask())


def test_who_leaves_before_its_turn_never_joins() -> None:
    begun, go = threading.Event(), threading.Event()
    seen: list[str] = []

    def run(batch: Batch[Any, Any]) -> None:
        for live in batch:
            for request in live:
                seen.append(request.inputs["name"])
                begun.set()
                go.wait(10)
                request.end(len(live))

    async def ask() -> None:
        loop = loop_of(run)
        first = asyncio.ensure_future(loop.value({"name": "a"}))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.ensure_future(loop.value({"name": "b"}))
        third = asyncio.ensure_future(loop.value({"name": "c"}))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go.set()
        assert (await first, await third) == (1, 1)

    asyncio.run(ask())
    assert seen == ["a", "c"]


@pytest.mark.parametrize("streams", [True, False])
def test_requests_that_leave_during_a_long_turn_are_not_kept(streams: bool) -> None:
    """Their places are free at once, so any number may come and go before the loop takes its next turn."""
    begun, go = threading.Event(), threading.Event()
    kept: weakref.WeakSet[Text] = weakref.WeakSet()

    class Text:
        def __init__(self) -> None:
            kept.add(self)

    def run(batch: Batch[Any, Any]) -> None:
        for live in batch:
            begun.set()
            go.wait(10)
            for request in live:
                request.end()

    async def ask() -> None:
        loop = JointLoop(run, Text, streams=streams)

        async def one() -> None:
            await (anext(loop.stream({}), None) if streams else loop.value({}))

        first = asyncio.ensure_future(one())
        await asyncio.to_thread(begun.wait, 10)

        async def leave() -> None:
            left = asyncio.ensure_future(one())
            await asyncio.sleep(0)
            assert len(kept) > 1
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)

        for _ in range(100):
            await leave()
        await asyncio.sleep(0)
        gc.collect()
        assert len(kept) == 1
        go.set()
        await first

    asyncio.run(ask())
