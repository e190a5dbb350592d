"""Printed text of runs in the server's log as well: the answers of some protocols have no place for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal

from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import NO_REQUEST
from geartrain.domain.printed.text import PrintedLines
from geartrain.service.scheduling.failures import TRACEBACK

logger = logging.getLogger("geartrain.model")

MirrorMode = Literal["auto", "on", "off"]
"""Which runs are mirrored: those asked for by a protocol whose answers have no logs, all, or none."""

MAX_LINES: Final = 500  # a second, of all models of a server
MAX_LENGTH: Final = 4096  # characters of a line


class PrintMirror:
    """Writes a record for each line that a run prints, with the ids of the prediction and of its request.

    The traceback of a failed run is left to the record of its failure (`service.scheduling.failures`). Of a progress
    bar there is a record of its last state. A long line is cut. When runs print more than `MAX_LINES` a
    second, further lines are left out and counted.
    """

    def __init__(self, mode: MirrorMode, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._mode = mode
        self._clock = clock
        self._printing: dict[Prediction, PrintedLines] = {}
        # A traceback that has been printed. As the last thing it is that of the failed run, which is logged whole.
        self._tracebacks: dict[Prediction, tuple[tuple[LogSource, str]]] = {}
        self._began = clock()  # the second that is counted
        self._written = 0  # lines of it
        self._left_out = 0  # lines since the latest warning

    def hear(self, prediction: Prediction, source: LogSource, text: str) -> None:
        """Take what the run of a prediction has printed."""
        if self._mode == "off" or (self._mode == "auto" and prediction.record.request.shows_logs):
            return
        if not logger.isEnabledFor(logging.INFO):
            return
        lines = self._printing.get(prediction)
        if lines is None:
            lines = self._printing[prediction] = PrintedLines()
            prediction.log.listen_for_end(partial(self._end, prediction))
        for held_source, held in self._tracebacks.pop(prediction, ()):
            self._write(prediction, lines.add(held), source=held_source)
        if TRACEBACK in text:
            self._tracebacks[prediction] = ((source, text),)
        else:
            self._write(prediction, lines.add(text), source=source)

    def _end(self, prediction: Prediction) -> None:
        lines = self._printing.pop(prediction)
        for source, held in self._tracebacks.pop(prediction, ()):
            if prediction.status is not Status.FAILED or prediction.record.request is NO_REQUEST:
                self._write(prediction, lines.add(held), source=source)
        self._write(prediction, lines.end())
        if not self._printing:
            self._warn()

    def _write(self, prediction: Prediction, lines: Iterable[str], **fields: str) -> None:
        for line in lines:
            now = self._clock()
            if now - self._began >= 1:
                self._began, self._written = now, 0
                self._warn()
            if self._written >= MAX_LINES:
                self._left_out += 1
                continue
            self._written += 1
            logger.info("%s", _cut(line), extra={**_ids(prediction), **fields})

    def _warn(self) -> None:
        if self._left_out:
            count, self._left_out = self._left_out, 0
            logger.warning("lines left out that runs have printed: %d; the limit is %d in a second", count, MAX_LINES)


def _ids(prediction: Prediction) -> dict[str, str]:
    ids = {
        "prediction_id": prediction.id,
        "model": prediction.record.model,
        "version": prediction.record.version,
        "request_id": prediction.record.request.request_id,
    }
    return {name: value for name, value in ids.items() if value}


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LENGTH else f"{line[:MAX_LENGTH]} [… {len(line) - MAX_LENGTH} more characters]"
