"""The files of a prediction's output: from placeholders in the worker's JSON to URLs."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import re
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

import pybase64

from geartrain.outbound.concurrency import for_each, off_loop
from geartrain.outbound.files import OutputFileError

if TYPE_CHECKING:
    from geartrain.domain.predictions.calls import FileRef

__all__ = ["InlineSink", "OutputFileError", "OutputFiles", "OutputSink", "open_output"]

_PIECE = 3 << 18  # bytes encoded at a time, a multiple of 3: the interpreter is free for others in between
_QUICK = 1 << 20  # bytes that are joined in no time
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*", re.ASCII)
_UNKNOWN = "application/octet-stream"


class OutputSink(Protocol):
    """Destination of the files of one prediction's outputs."""

    at_once: int
    """How many files it takes in parallel."""

    async def deliver(self, file: FileRef, name: str) -> bytes:
        """Take one file, under a name that no other of the prediction has; return its URL in ASCII, as JSON text.

        Bytes, not text: a `data:` URL may have 100 MB, and every change of form is a copy.

        Raises OutputFileError: it is missing, unreadable or not accepted.
        """


class InlineSink:
    """Makes a `data:` URL of every file."""

    at_once = 1  # encoding takes the interpreter's whole time

    async def deliver(self, file: FileRef, name: str = "") -> bytes:  # noqa: ARG002 - a URL of data has no name
        """Read and encode a file in a thread, holding it in memory once and only as base64."""
        return await off_loop(_data_url, file)


class OutputFiles:
    """Puts URLs in the place of the files in the outputs of one prediction."""

    def __init__(self, sink: OutputSink | None = None) -> None:
        self._sink: OutputSink = InlineSink() if sink is None else sink
        self._names = UniqueNames()
        self._gate = asyncio.Semaphore(self._sink.at_once)

    async def deliver(self, output: bytes, files: Sequence[FileRef]) -> bytes:
        """The JSON text `output` with every string that is a file's token replaced by the file's URL.

        One of the files may hold the text itself. The order is the model's, whatever order the files arrive in. Holds
        the URLs and the result at a time: for `data:` URLs 2.7 times the size of the files.

        Raises OutputFileError: a file is missing, unreadable or was not accepted.
        """
        named = [(file, self._names.make(posixpath.basename(file.filename))) for file in files if not file.is_output]
        for file in files:
            if file.is_output:
                output = await off_loop(_read, file)
        if not named:
            return output
        urls: dict[bytes, bytes] = {}

        async def deliver(named: tuple[FileRef, str]) -> None:
            file, name = named
            async with self._gate:
                urls[file.token.encode()] = await self._sink.deliver(file, name)

        await for_each(named, deliver, at_once=min(self._sink.at_once, len(named)))
        size = len(output) + sum(map(len, urls.values()))
        return _spliced(output, urls) if size < _QUICK else await off_loop(_spliced, output, urls)


class UniqueNames:
    """Names of files, all different: `a.png`, `a-1.png`, `a-2.png`."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}  # the number that each name was given last

    def make(self, name: str) -> str:
        """The name, with a number if it is taken."""
        unique = name
        if name in self._latest:
            stem, extension = posixpath.splitext(name)
            number = self._latest[name]
            while unique in self._latest:
                number += 1
                unique = f"{stem}-{number}{extension}"
            self._latest[name] = number
        self._latest[unique] = 0
        return unique


def open_output(file: FileRef) -> BinaryIO:
    """Open a file that a model returned, for reading.

    Raises OutputFileError: it does not exist, is not a regular file, or may not be read.
    """
    try:
        opened = open(file.filename, "rb", opener=_opener)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError as error:
        raise OutputFileError(f"The model returned the file {file.filename!r}, which does not exist.") from error
    except OSError as error:
        reason = f"which cannot be read: {error.strerror}"
        raise OutputFileError(f"The model returned the file {file.filename!r}, {reason}.") from error
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OutputFileError(f"The model returned {file.filename!r}, which is not a regular file.")
    return opened


def media_type(file: FileRef) -> str:
    """The media type of an output file, checked to be one, for it goes into URLs and headers as it is."""
    return file.mime_type if _MEDIA_TYPE.fullmatch(file.mime_type) else _UNKNOWN


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a named pipe without a writer must not hold the thread


def _read(file: FileRef) -> bytes:
    with open_output(file) as opened:
        return opened.read()


def _data_url(file: FileRef) -> bytes:
    url = io.BytesIO()  # its value is taken out without a copy
    url.write(f"data:{media_type(file)};base64,".encode())
    with open_output(file) as opened:
        while piece := opened.read(_PIECE):
            url.write(pybase64.b64encode(piece))
    return url.getvalue()


def _spliced(output: bytes, urls: dict[bytes, bytes]) -> bytes:
    """`output` with every string that is a key of `urls` replaced, in one pass."""
    if not urls:
        return output
    lengths = sorted({len(token) for token in urls})
    # Strings are found by their length and looked up: with a thousand files that is one search, not a thousand. The
    # closing quote is left where it is, for what looks like one may be the opening quote of a token.
    candidate = re.compile(rb'(?<!\\)"(' + b"|".join(rb'[^"\\]{%d}' % length for length in lengths) + rb')(?=")')
    rest = memoryview(output)
    parts: list[bytes | memoryview] = []
    end = 0
    for found in candidate.finditer(output):
        url = urls.get(found[1])
        if url is not None:
            parts += (rest[end : found.start(1)], url)
            end = found.end(1)
    parts.append(rest[end:])
    return b"".join(parts)
