"""The files of one job: copies on their way to the parent, and what is to be deleted when the run is over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from geartrain.bridge.messages import FileOutput
from geartrain.domain.tensors import Buffer
from geartrain.worker.channel import Channel
from geartrain.worker.originals import TemporaryFiles
from geartrain.worker.outfiles import OutputFile

_JSON = "application/json"


class JobFiles:
    """Costs next to nothing until there is a file.

    What has been announced belongs to the parent. What has not, because a cancel or an error came in between, is
    removed by `close`, as are the author's own temporary files.
    """

    __slots__ = ("_channel", "_claim", "_made", "_outputs", "_temporary")

    def __init__(self, outputs: str | None, channel: Channel, temporary: TemporaryFiles | None) -> None:
        """`outputs` is the folder that the parent has named; `temporary` None leaves the author's files alone."""
        self._outputs = outputs
        self._channel = channel
        self._temporary = temporary
        self._claim = None if temporary is None else temporary.begin()
        self._made: set[Path] = set()  # folders that the parent does not know of

    def new_folder(self) -> Path:
        """A new folder for one file."""
        folder = Path(self._outputs or tempfile.gettempdir(), os.urandom(16).hex())
        self._made.add(folder)
        folder.mkdir()
        return folder

    def originals_of(self, path: Path) -> tuple[str, ...]:
        """What of an output's path is to be deleted when the run is over."""
        if self._temporary is None or self._claim is None:
            return ()
        return self._temporary.claim(self._claim, path)

    def announce(self, files: Sequence[OutputFile]) -> None:
        """Tell the parent of the files of an output, whose JSON follows."""
        for file in files:
            originals = tuple(name for name in file.originals if name.isprintable())  # what is no UTF-8 cannot travel
            self._announce(FileOutput(file.filename, "file", file.mime_type, file.token, originals))

    def spill(self, parts: Iterable[Buffer]) -> None:
        """Hand over an output, JSON or packed, in a file."""
        path = self.new_folder() / "output.json"
        with path.open("wb") as file:
            file.writelines(parts)
        self._announce(FileOutput(str(path), "oversized", _JSON, path.parent.name))

    def close(self) -> None:
        """The run is over, and nothing more will be announced. Repeating it is harmless."""
        self.end_claim()
        while self._made:
            shutil.rmtree(self._made.pop(), ignore_errors=True)

    def end_claim(self) -> None:
        """The run is over, and its outputs are copied: the author's own temporary files are deleted."""
        if self._temporary is not None and self._claim is not None:
            self._temporary.end(self._claim)

    def _announce(self, message: FileOutput) -> None:
        with self._channel.shield:  # a cancel in between must leave no doubt about whose it is
            self._channel.send(message)
            self._made.discard(Path(message.filename).parent)
