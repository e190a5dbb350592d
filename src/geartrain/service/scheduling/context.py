"""What the executions and the calls of one scheduler share."""

from __future__ import annotations

import time
from collections.abc import Callable

from geartrain.service.ports import FolderPort, InputFilesPort, OutputsPort
from geartrain.service.statistics import Counts


def no_folder() -> FolderPort:
    """Stand in for the folders of a service without files."""
    msg = "this service has no workspace"
    raise RuntimeError(msg)


class RunContext:
    """The ports and settings of one deployment. Times in seconds."""

    def __init__(
        self,
        *,
        outputs: Callable[[], OutputsPort],
        counts: Counts,
        input_files: Callable[[], InputFilesPort],
        gives_tensors: Callable[[], bool],
        cancel_grace: float | None = None,
        new_folder: Callable[[], FolderPort] = no_folder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`gives_tensors`: whether outputs of a request with tensors are packed.

        `cancel_grace`: how long a run may ignore a cancel before its worker is killed; None disables the limit. `clock`
        gives seconds since the epoch.
        """
        self.outputs = outputs
        self.counts = counts
        self.input_files = input_files
        self.gives_tensors = gives_tensors
        self.cancel_grace = cancel_grace
        self.new_folder = new_folder
        self.clock = clock
