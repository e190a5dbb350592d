"""Waiting of the parent for a worker: asleep, or awake for moments around the calls.

A processor that has slept wakes slowly and finds its caches cold, so the first work after a sleep of milliseconds takes
several times as long. `Adaptive` therefore waits awake where the next report is likely to come in a moment, and spends
a small part of the time that the calls take on it. `Blocking` never does: for machines that are paid by processor time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from geartrain.bridge.resources import usable_cores
from geartrain.domain.predictions.calls import ItemEnd, Succeeded
from geartrain.ipc.waiting import LATE, Contention

WakeupMode = Literal["adaptive", "blocking"]

# Seconds. A call as short as _SHORT is followed by one that is awaited on the spot, for at most _BRIEFLY.
_SHORT: Final = 350e-6
_BRIEFLY: Final = 500e-6
_IN_ALL: Final = 1.5e-3  # for a call that calls other models, and is awaited for _BRIEFLY after each of them
# The loop stays awake around the ends of calls that take more than _SHORTEST in the model and less than _LONGEST in
# all, and follow each other within _DENSE: for _PART of a call before and after its end, and for at least _LEAD, since
# timers are no more precise. What is short in the model and long in all waits for a loop that has enough to do.
_SHORTEST: Final = 400e-6
_LONGEST: Final = 50e-3
_DENSE: Final = 3e-3
_PART: Final = 0.1
_LEAD: Final = 400e-6
_SLICE: Final = 2e-3  # bytes that others take at once, and more than a turn of an idle loop takes


class WakeupPolicy(Protocol):
    """Decides for one slot when the parent stays awake."""

    def before_send(self, *, alone: bool) -> None:
        """Note that a call begins. `alone`: no other call runs, and no other client seems to ask."""

    def wait(self, poll: Callable[[], bool]) -> None:
        """Wait for the call on the spot, or return at once.

        `poll` reads what has come, without blocking, and tells whether there is nothing more to wait for.
        """

    def resume(self) -> None:
        """Note that the call goes on by itself: it has called another model, and may have the answer."""

    def on_end(self, ends: Sequence[ItemEnd]) -> None:
        """Note that a call has ended, the last of its items as told."""

    def close(self) -> None:
        """Stay awake no longer."""


class Blocking:
    """Sleeps until something comes: the reference."""

    def before_send(self, *, alone: bool) -> None:
        """Do nothing."""

    def wait(self, poll: Callable[[], bool]) -> None:
        """Return at once."""

    def resume(self) -> None:
        """Do nothing."""

    def on_end(self, ends: Sequence[ItemEnd]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Adaptive:
    """Stays awake for a short call of a single client: see the module."""

    def __init__(self) -> None:
        self._sent_at = 0.0  # all moments here are on the performance counter, in seconds
        self._resumed_at = 0.0  # when the call has called another model last; 0 if it has called none
        self._contention = Contention()
        self._was_short = False
        self._awaits = False

    def before_send(self, *, alone: bool) -> None:
        """Note the beginning."""
        self._sent_at = time.perf_counter()
        self._resumed_at = 0.0
        self._awaits = alone and self._was_short and not self._contention.is_felt(self._sent_at)

    def wait(self, poll: Callable[[], bool]) -> None:
        """Poll for a moment, if the call before was short, no other client asks and the processor is free."""
        if not self._awaits:
            return
        while not poll() and time.perf_counter() < self._until():
            os.sched_yield()  # let other threads of this core run first
        now = time.perf_counter()
        self._contention.note(now, is_loss=now > self._until() + LATE)

    def _until(self) -> float:
        """Return the moment at which a wait on the spot ends."""
        if not self._resumed_at:
            return self._sent_at + _BRIEFLY
        return min(self._resumed_at + _BRIEFLY, self._sent_at + _IN_ALL)

    def resume(self) -> None:
        """Note that the call goes on by itself."""
        self._resumed_at = time.perf_counter()

    def on_end(self, ends: Sequence[ItemEnd]) -> None:
        """Note the end."""
        self._was_short = self._time_of_its_own(ends, time.perf_counter()) < _SHORT

    def _time_of_its_own(self, ends: Sequence[ItemEnd], now: float) -> float:
        """Return the seconds that a call has taken in the model, since it has called another one if it has."""
        return now - self._resumed_at if self._resumed_at else _time_in_model(ends, self._sent_at)

    def close(self) -> None:
        """Do nothing: it only waits inside `wait`."""


class AdaptiveOneByOne(Adaptive):
    """Waiting for a worker that runs one call at a time: the end of a call can be foreseen, and is met awake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._awake = _AwakeLoop(loop)
        self._ended_at = 0.0
        self._took = 0.0  # the latest call, from its beginning to its end
        self._is_foreseeable = False  # true if the next one is worth being awake for

    def before_send(self, *, alone: bool) -> None:
        """Note the beginning, and plan to be awake at the expected end."""
        now = self._sent_at = time.perf_counter()
        self._resumed_at = 0.0
        self._contention.note(now, is_loss=self._awake.has_lost)
        self._awake.has_lost = False
        is_free = not self._contention.is_felt(now)
        self._awaits = alone and self._was_short and is_free
        self._awake.sleep()
        if self._is_foreseeable and now - self._ended_at < _DENSE and is_free:
            took = self._took
            lead = max(_LEAD, _PART * took)
            self._awake.plan(took - lead, until=now + took + lead)

    def on_end(self, ends: Sequence[ItemEnd]) -> None:
        """Note the end; if calls follow each other closely, stay awake for the next one."""
        now = self._ended_at = time.perf_counter()
        whole = self._took = now - self._sent_at
        took = self._time_of_its_own(ends, now)
        self._was_short = took < _SHORT
        # The end of a call that has called other models is not foreseen: its turns of the loop slow theirs down.
        self._is_foreseeable = took > _SHORTEST and whole < _LONGEST and not self._resumed_at
        if self._awake.is_planned:
            self._awake.end(now + max(_LEAD, _PART * whole))

    def close(self) -> None:
        """Stay awake no longer."""
        self._awake.close()


def _time_in_model(ends: Sequence[ItemEnd], sent_at: float) -> float:
    """Return the seconds that a call, which began at `sent_at`, has taken in the model; in all if it failed."""
    for end in ends:
        if type(end.outcome) is Succeeded:
            return end.outcome.predict_time
    return time.perf_counter() - sent_at


class _AwakeLoop:
    """Keeps an event loop from sleeping: a loop that has something to do sees at once what comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_planned = False
        self.has_lost = False  # true if others have taken the processor from it
        self._until = 0.0
        self._ticked_at = 0.0
        self._is_ticking = False
        self._timer: asyncio.TimerHandle | None = None  # of the plan

    def plan(self, delay: float, *, until: float) -> None:
        """Be awake in `delay` seconds, and stay so `until` that moment."""
        delay = max(0, int(delay * 1000)) / 1000  # the loop's timers are in milliseconds, and may round up
        self._timer = self._loop.call_later(delay, self._keep, until)
        self.is_planned = True

    def sleep(self) -> None:
        """Sleep as usual, until there is a plan."""
        self._until = 0.0

    def end(self, until: float) -> None:
        """Drop the plan, and stay awake `until` that moment."""
        self._cancel()
        self._keep(until)

    def close(self) -> None:
        """Drop the plan, and sleep as usual."""
        self._cancel()
        self._until = 0.0

    def _cancel(self) -> None:
        self.is_planned = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep(self, until: float) -> None:
        if self.has_lost:
            return
        self._until = until
        if not self._is_ticking:
            self._is_ticking = True
            self._ticked_at = time.perf_counter()
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = time.perf_counter()
        if now - self._ticked_at > _SLICE:
            self.has_lost = True
            self._until = 0.0
        self._ticked_at = now
        if now < self._until:
            self._loop.call_soon(self._tick)
        else:
            self._is_ticking = False


def effective_mode(mode: WakeupMode, *, cores: Callable[[], float] = usable_cores) -> WakeupMode:
    """Return the mode that is used: always `blocking` where parent and worker share one core or less."""
    return mode if mode == "blocking" or cores() > 1 else "blocking"


def new_policy(mode: WakeupMode, loop: asyncio.AbstractEventLoop, *, one_by_one: bool) -> WakeupPolicy:
    """Make the policy of one slot; `mode` is an effective one.

    `one_by_one`: its worker runs one call at a time.
    """
    if mode == "blocking":
        return Blocking()
    return AdaptiveOneByOne(loop) if one_by_one else Adaptive()
