"""Models that take several requests in one call. The fake worker and real ones run the same.

Each request brings a script as in `run`; the first steps of all are done before the second ones. What the steps of one
turn give is yielded together by the runners that stream; the others return what each request was given last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import geartrain
from geartrain import batch_item, batched
from tests.contract.model.run import Wait, say, wait_in_place, wait_on_loop


class _Batched(geartrain.BaseRunner):
    wait: Wait
    say = staticmethod(say)

    async def play(self, scripts: list[str]) -> AsyncIterator[list[Any]]:
        """Do the steps of all scripts; yield what each turn gives, None for a request that gets nothing."""
        steps = [json.loads(script) for script in scripts]
        self.say(f"{len(steps)} requests\n", "stdout")
        for turn in range(max(map(len, steps))):
            given = [await self.do(place, *own[turn]) if turn < len(own) else None for place, own in enumerate(steps)]
            if any(each is not None for each in given):
                yield given

    async def do(self, place: int, word: str, *arguments: Any) -> Any:
        """Do a step of the request at a place; return what it gives, None for nothing."""
        match word:
            case "give":
                return arguments[0]
            case "fail":  # alone
                return ValueError(arguments[0])
            case "refuse":  # so that the others are run again
                raise geartrain.ItemError(place, arguments[0])
            case "raise":
                raise ValueError(arguments[0])
            case "wait":
                await type(self).wait(arguments[0])
            case "swallow":  # the cancel
                with contextlib.suppress(asyncio.CancelledError, geartrain.CancelationException):
                    await type(self).wait("")
            case _:
                self.tell(place, word, *arguments)
        return None

    def tell(self, place: int, word: str, *arguments: Any) -> None:
        """The steps that are heard of."""
        if word == "metric of all":
            self.record_metric(*arguments)
            return
        with batch_item(place) as scope:
            if word == "metric":
                scope.record_metric(*arguments)
            else:
                self.say(arguments[0], "stdout")


def _last(rounds: list[list[Any]]) -> list[Any]:
    """What each request was given last."""
    return [next((given for given in reversed(own) if given is not None), None) for own in zip(*rounds, strict=True)]


class AsyncStream(_Batched):
    """Streams, on a loop."""

    wait = staticmethod(wait_on_loop)

    @batched(max_size=8)
    async def run(self, script: list[str]) -> AsyncIterator[list[str]]:
        """Do what the scripts say."""
        async for given in self.play(script):
            yield given


class AsyncValue(_Batched):
    """Returns one value, on a loop."""

    wait = staticmethod(wait_on_loop)

    @batched(max_size=8)
    async def run(self, script: list[str]) -> list[str]:
        """Do what the scripts say."""
        return _last([given async for given in self.play(script)])


def _driven(rounds: AsyncIterator[list[Any]]) -> Iterator[list[Any]]:
    while True:
        try:
            rounds.__anext__().__await__().__next__()  # it never waits, so it ends here
        except StopIteration as given:
            yield given.value
        except StopAsyncIteration:
            return


class SyncStream(_Batched):
    """Streams, without a loop."""

    wait = staticmethod(wait_in_place)

    @batched(max_size=8)
    def run(self, script: list[str]) -> Iterator[list[str]]:
        """Do what the scripts say."""
        yield from _driven(self.play(script))


class SyncValue(_Batched):
    """Returns one value, without a loop."""

    wait = staticmethod(wait_in_place)

    @batched(max_size=8)
    def run(self, script: list[str]) -> list[str]:
        """Do what the scripts say."""
        return _last(list(_driven(self.play(script))))
