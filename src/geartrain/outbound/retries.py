"""Trying again: how often, after which pauses, and for how long."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_DOUBLED: Final = 64  # times: a float would overflow at 1024
_CAUSES: Final = 16  # causes of one failure whose frames are cleared


class Retries(msgspec.Struct, frozen=True):
    """Pauses between tries: they double from `first_pause` up to `longest_pause`, all in seconds.

    As observed of Cog (section 13), but for the jitter, which keeps a thousand deliveries from coming back together.
    """

    tries: int = 13
    first_pause: float = 0.2
    longest_pause: float = 102.4
    jitter: float = 0.5
    seconds: float = 450.0  # after which no new try begins

    def pause_after(self, number: int) -> float:
        """Draw the pause after a failed try, in seconds; the first try has the number 0."""
        doubled = self.first_pause * 2.0 ** min(number, _MOST_DOUBLED)
        return min(doubled + random.uniform(0, self.jitter), self.longest_pause)  # noqa: S311 - no secret


async def retry(
    work: Callable[[], Awaitable[T]],
    again: Callable[[Exception], bool],
    retries: Retries,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Try until it works; raise the failure of the last try, or the first one that `again` gives no hope for.

    Unlike the libraries for this, it keeps neither a failure nor what has failed once it has returned, or while it
    sleeps.
    """
    ends = asyncio.get_running_loop().time() + retries.seconds
    for number in itertools.count():
        try:
            return await work()
        except Exception as error:
            clear_frames(error)
            pause = retries.pause_after(number)
            is_last = number + 1 >= retries.tries or asyncio.get_running_loop().time() + pause > ends
            if is_last or not again(error):
                raise
            fields = {"tries": number + 1, "seconds": round(pause, 3), "reason": repr(error)}
            logger.debug("a request will be tried again", extra=fields)
        await sleep(pause)
    raise AssertionError


def clear_frames(error: BaseException) -> None:
    """Clear the variables in the frames of a failure and of its causes.

    A connection that was refused leaves a cycle in the libraries, whose frames would hold the body of its request until
    the collector comes.
    """
    seen: BaseException | None = error
    for _ in range(_CAUSES):
        if seen is None:
            break
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
