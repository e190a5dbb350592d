"""The ports and settings that executions and calls of one scheduler share."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.statistics import Counts


def no_folder() -> FolderPort:
    """Stand in for the folders of a service without files."""
    msg = "this service has no workspace"
    raise RuntimeError(msg)


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """The ports and settings of one deployment. Times in seconds; None disables a limit."""

    outputs: Callable[[], OutputsPort]
    counts: Counts
    input_files: Callable[[], InputFilesPort]
    gives_tensors: Callable[[], bool]  # whether outputs of a request with tensors are packed
    cancel_grace: float | None = None  # how long a run may ignore a cancel before its worker is killed
    run_timeout: float | None = None  # how long a run may take before it is canceled and fails
    new_folder: Callable[[], FolderPort] = no_folder
    clock: Callable[[], float] = time.time  # seconds since the epoch
