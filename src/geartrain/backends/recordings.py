"""Recordings as the samples of one rate and one channel, a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from geartrain.backends.libraries import require
from geartrain.backends.text import PromptError

_EXTRA: Final = "speech"
_BLOCK: Final = 1.0  # seconds that are read at a time


class Recording:
    """A recording whose samples are read as they are needed: however long it is, no more than a window is held."""

    def __init__(self, path: Path, rate: int) -> None:
        """Raises `PromptError` for a file that is no recording. `rate` is that of the samples that are wanted."""
        self._rate = rate
        library: Any = require("soundfile", extra=_EXTRA)
        self._error: type[Exception] = library.SoundFileError
        try:
            self._file = library.SoundFile(str(path))
        except library.SoundFileError as error:
            msg = f"The recording cannot be read: {error}. WAV, FLAC, Ogg and MP3 are known."
            raise PromptError(msg) from None
        self.duration = float(self._file.frames / self._file.samplerate)  # seconds
        self._blocks = self._resampled()
        self._held = np.zeros(0, np.float32)

    def window(self, size: int) -> np.ndarray:
        """Return the next `size` samples, which stay; fewer at the end."""
        parts, count = [self._held], len(self._held)
        while count < size and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            count += len(block)
        self._held = np.concatenate(parts)
        return self._held[:size]

    def skip(self, size: int) -> None:
        """Let the first samples of the window go."""
        self._held = self._held[size:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _resampled(self) -> Iterator[np.ndarray]:
        own = self._file.samplerate
        stream: Any = None
        if own != self._rate:
            stream = require("soxr", extra=_EXTRA).ResampleStream(own, self._rate, 1, dtype="float32")
        for block in self._mono(int(own * _BLOCK)):
            yield block if stream is None else stream.resample_chunk(block)
        if stream is not None:
            yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def _mono(self, size: int) -> Iterator[np.ndarray]:
        """Yield blocks of samples, their channels mixed to one. Raises `PromptError` for a file that is cut."""
        while True:
            try:
                block = self._file.read(size, dtype="float32", always_2d=True)
            except self._error as error:
                raise PromptError(f"The recording cannot be read to its end: {error}") from None
            if not len(block):
                return
            yield block.mean(axis=1, dtype=np.float32)
