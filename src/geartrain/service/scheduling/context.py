"""The ports, settings, clocks and timers that executions and calls of one scheduler share."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from geartrain.domain.errors import Code
from geartrain.domain.predictions.calls import ModelCallPort
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.inference import LONGEST_TIMEOUT
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.rendering import clip
from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.scheduling.tracing import ModelTraces
from geartrain.service.statistics import Counts

if TYPE_CHECKING:
    from geartrain.service.scheduling.call import Call

DEFAULT_MAX_OUTPUT: Final = 256 * 1024**2
NO_OUTPUT_LIMIT: Final = sys.maxsize
SHORTEST_TIMEOUT: Final = 0.0005  # seconds; uvloop's timers count milliseconds, and round less than this to 0


class TimeLimit:
    """A timer that holds its own end.

    uvloop's handles for less than half a millisecond have no `when()`, so no handle is asked for it.
    """

    __slots__ = ("_handle", "ends_at")

    def __init__(self, seconds: float, on_expiry: Callable[..., None], *args: object) -> None:
        """Call `on_expiry` with `args` in `seconds`: at least 0, at most `LONGEST_TIMEOUT`."""
        seconds = min(max(0.0, seconds), LONGEST_TIMEOUT)
        self.ends_at = time.monotonic() + seconds
        self._handle = asyncio.get_running_loop().call_later(seconds, on_expiry, *args)

    @property
    def seconds_left(self) -> float:
        """The seconds until its end, at least 0."""
        return max(0.0, self.ends_at - time.monotonic())

    def cancel(self) -> None:
        """Stop the timer."""
        self._handle.cancel()


def no_folder() -> FolderPort:
    """Stand in for the folders of a service without files."""
    msg = "this service has no workspace"
    raise RuntimeError(msg)


OnPrint = Callable[[Prediction, LogSource, str], None]
"""Hears what the run of a prediction prints, as it prints it."""


OnModelCall = Callable[["ModelCallPort", "Call"], None]
"""Makes the prediction of another model that a run calls."""


def no_models(call: ModelCallPort, _caller: Call | None = None) -> None:
    """Stand in for the models of a service with a single one."""
    call.fail(call.model, Code.NOT_FOUND, f"Request for unknown model: '{clip(call.model)}' is not found")


def no_mirror(_prediction: Prediction, _source: LogSource, _text: str) -> None:
    """Stand in for a mirror: what is printed stands in the prediction's logs alone."""


class Clocks(NamedTuple):
    """The clocks of a machine: seconds since the epoch, and seconds on a clock that cannot be set."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic


CLOCKS: Final = Clocks()


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """The ports and settings of one deployment. Times in seconds; None disables a limit."""

    outputs: Callable[[], OutputsPort]
    counts: Counts
    input_files: Callable[[], InputFilesPort | None]
    own_files: Callable[[], InputFilesPort | None] = lambda: None  # of inputs of other models of the server
    gives_tensors: Callable[[], bool]  # true if outputs of a request with tensors are packed
    cancel_grace: float | None = None  # time that a run may ignore a cancel before its worker is killed
    max_output_size: int = NO_OUTPUT_LIMIT  # bytes of the outputs of a run, beyond which it is canceled and fails
    run_timeout: float | None = None  # time that a run may take before it is canceled and fails
    new_folder: Callable[[], FolderPort] = no_folder
    on_print: OnPrint = no_mirror
    on_model_call: OnModelCall = no_models
    clock: Callable[[], float] = time.time  # seconds since the epoch
    steady: Callable[[], float] = time.monotonic  # seconds on a clock that cannot be set: how long calls take
    traces: ModelTraces | None = None  # None: nothing is traced
