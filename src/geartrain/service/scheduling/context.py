"""What the executions and the calls of one scheduler share."""

from __future__ import annotations

import time
from collections.abc import Callable

from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.statistics import Counts


def _no_input_files() -> InputFilesPort:
    msg = "this model takes no files"
    raise RuntimeError(msg)


def no_folder() -> FolderPort:
    """Stand in for the folders of a service without files."""
    msg = "this service has no workspace"
    raise RuntimeError(msg)


class RunContext:
    """The ports and settings of one service. Times in seconds."""

    def __init__(
        self,
        *,
        outputs: OutputsPort,
        counts: Counts,
        cancel_grace: float | None = None,
        new_folder: Callable[[], FolderPort] = no_folder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`cancel_grace`: how long a run may ignore a cancel before its worker is killed; None disables the limit.

        `clock` gives seconds since the epoch.
        """
        self.outputs = outputs
        self.counts = counts
        self.cancel_grace = cancel_grace
        self.new_folder = new_folder
        self.clock = clock
        self.input_files: Callable[[], InputFilesPort] = _no_input_files
        self.gives_tensors: Callable[[], bool] = bool  # whether outputs of a request with tensors are packed
