"""Output of a worker past Python: whether it is of setup, of a call, or of no one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Final

from geartrain.bridge.slot_state import SlotState
from geartrain.bridge.slots import NO_CALL, SlotChannel
from geartrain.bridge.stdio import OutputPipes
from geartrain.domain.predictions.calls import ALL
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.printed.text import PrintedLines

logger = logging.getLogger("geartrain.model")

_FIRST: Final = 16  # calls without such output, before a call is prefetched behind another one
_AFTER: Final = 256  # calls without such output, once there has been some
_PATIENCE: Final = 1.0  # seconds that a line may wait for its end


class ModelLog:
    """Prints outside of predictions as records of the server's log: one a line, of a progress bar its last state."""

    def __init__(self) -> None:
        self._lines = PrintedLines()
        self._timers: list[asyncio.TimerHandle] = []  # one while a line has no end
        self._fields: Mapping[str, object] = {}

    def add(self, text: str, **fields: object) -> None:
        """Take some text; `fields` are those of its records."""
        self._fields = fields
        self._log(self._lines.add(text))
        if self._lines.holds and not self._timers:
            self._timers.append(asyncio.get_running_loop().call_later(_PATIENCE, self.end))

    def end(self) -> None:
        """Log what has no end yet."""
        while self._timers:
            self._timers.pop().cancel()
        self._log(self._lines.end())

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            logger.info(line, extra=dict(self._fields))


class RawOutput:
    """Gives raw output to the call that it is of. What could be of several calls goes to the server's log.

    The pipes carry no mark between two calls. While a call is prefetched, the worker may have begun it without the
    parent's knowing, and what comes could be of either. So a worker that writes past Python gets no prefetched calls
    for a while, and its output finds its calls again.
    """

    __slots__ = ("_is_served", "_on_setup_log", "_quiet_from", "_slots", "calls", "log", "pipes")

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], on_setup_log: Callable[[LogSource, str], None]) -> None:
        self.log = ModelLog()
        self.pipes = OutputPipes(stdout, stderr, self.give)
        self._slots: Mapping[int, SlotChannel] = {}
        self._on_setup_log = on_setup_log
        self._is_served = False
        self.calls = 0  # that have begun
        self._quiet_from = _FIRST  # the number of calls from which on the worker is taken to write nothing

    def begin_service(self, slots: Mapping[int, SlotChannel]) -> None:
        """Note that setup is over, and which slots there are."""
        self._slots = slots
        self._is_served = True

    def close(self) -> None:
        """Read no more; what has no end yet goes to the log."""
        self.pipes.close()
        self.log.end()

    @property
    def is_quiet(self) -> bool:
        """True if none of the last calls has written anything."""
        return self.calls >= self._quiet_from

    def give(self, source: LogSource, data: str) -> None:
        """Take whole lines, or a last line that has no end."""
        if not self._is_served:
            self._on_setup_log(source, data)
            return
        self._quiet_from = self.calls + _AFTER
        running = [slot for slot in self._slots.values() if slot.state is SlotState.RUNNING]
        if len(running) == 1 and running[0].next_call is NO_CALL:
            running[0].call.listener.on_log(ALL, source, data)
        else:
            self.log.add(data, source=source)
