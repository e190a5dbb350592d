"""Output files: from placeholders in the worker's JSON to URLs, inline or of a receiver that they are uploaded to.

Two kinds of receiver. The operator's, `--upload-url`, gets each file raw at a URL of its own: observed Cog, section 16.
A client's, `output_file_prefix`, gets each as a form at the same URL: Cog's HTTP API, "File uploads".
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import posixpath
import re
import shutil
import ssl
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, quote_from_bytes, urlsplit

import pybase64

from geartrain.domain.predictions.calls import INLINE, FileRef
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.outbound.concurrency import for_each, off_loop
from geartrain.outbound.files import OutputFileError, media_type, open_output
from geartrain.outbound.policy import target_fault

if TYPE_CHECKING:
    from geartrain.outbound.policy import UrlPolicy
    from geartrain.outbound.upload_client import UploadClient

_PIECE = 3 << 18  # bytes encoded at a time, a multiple of 3: the interpreter is free for others in between
_QUICK = 1 << 20  # bytes that are joined in no time
_SYNCHRONOUS = (
    "it is for predictions that are created synchronously; those created with `Prefer: respond-async` or as an event"
    " stream upload their files only if the server runs with --upload-url"
)
_BREAKS_QUOTES = re.compile(r'[\x00-\x1f"\x7f]')


class OutputSink(Protocol):
    """Destination of the files of one prediction's outputs."""

    at_once: int
    """Number of files that it takes in parallel."""

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


class FolderSink:
    """Moves every file into a folder."""

    at_once = 1  # a move takes no time

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder

    async def deliver(self, file: FileRef, name: str) -> bytes:
        """Move a file; its path takes the place of a URL."""
        return await off_loop(self._move, file, name)

    def _move(self, file: FileRef, name: str) -> bytes:
        target = self._folder() / name
        try:
            shutil.move(file.filename, target)
        except OSError as error:
            raise OutputFileError(f"{name} cannot be kept: {error.strerror or error}") from error
        return _as_text(str(target))


class OutputFiles:
    """Puts URLs in the place of the files in the outputs of one prediction."""

    def __init__(self, sink: OutputSink | None = None) -> None:
        self._sink: OutputSink = InlineSink() if sink is None else sink
        self.holds_content = sink is None
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


class OutputDestinations:
    """Destinations of a server's output files: the prefixes of clients, `upload_url`, or inline.

    A client's prefix is a hostile URL: every connection goes to an address that `policy` has passed. `upload_url` is
    the operator's; the policy does not apply to it, and proxies of the environment do.
    """

    def __init__(self, policy: UrlPolicy, *, upload_url: str | None = None, user_agent: str = "geartrain") -> None:
        self._policy = policy
        self._upload_url = upload_url
        self._own = _LazyUploadClient(user_agent, None)
        self._guarded = _LazyUploadClient(user_agent, policy)

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """Return the reason against a client's files at `prefix`, as a sentence; None if it is good.

        `background`: no client waits for the answer. Such a one uploads to `upload_url` whatever its client says, or
        not at all.
        """
        if background and self._upload_url is None:
            return _SYNCHRONOUS
        return target_fault(prefix, self._policy)

    @staticmethod
    def kept_in(folder: Callable[[], Path]) -> OutputFiles:
        """Create the store of files that stay on this machine: the output has their paths. `folder` makes theirs."""
        return OutputFiles(FolderSink(folder))

    def of(self, prediction_id: str, prefix: str | None, request: RequestContext = NO_REQUEST) -> OutputFiles:
        """Create the store of one prediction's files; `prefix` has been found without a fault, or is `INLINE`."""
        if prefix == INLINE:
            return OutputFiles()
        if prefix is not None:
            return OutputFiles(PrefixSink(self._guarded, prefix, request))
        if self._upload_url is not None:
            return OutputFiles(UploadSink(self._own, self._upload_url, prediction_id, request=request))
        return OutputFiles()

    async def close(self) -> None:
        """Close every connection."""
        await self._own.close()
        await self._guarded.close()


class UploadSink:
    """Files sent raw to the operator's URL (an `OutputSink`), each to its name below it."""

    at_once = 4

    def __init__(
        self,
        source: _LazyUploadClient,
        upload_url: str,
        prediction_id: str,
        *,
        request: RequestContext = NO_REQUEST,
    ) -> None:
        self._source = source
        self._request = request
        self._url = upload_url
        self._prediction_id = quote(prediction_id, safe=string.punctuation)

    async def deliver(self, file: FileRef, name: str) -> bytes:
        """Upload a file; see `OutputSink`. Its URL is what the receiver says, or where it was taken in the end."""
        client = await self._source.client()
        headers = {
            "Content-Type": media_type(file),
            "X-Prediction-Id": self._prediction_id,
            **dict(self._request.headers()),
        }
        answer = await client.put(file, url_below(self._url, name), headers=headers)
        return _as_text(_stripped(answer.location or answer.url))


class PrefixSink:
    """Files sent as forms to a client's URL (an `OutputSink`), each in a field `file` with its name."""

    at_once = 4

    def __init__(self, source: _LazyUploadClient, prefix: str, request: RequestContext = NO_REQUEST) -> None:
        self._source = source
        self._request = request
        self._prefix = prefix

    async def deliver(self, file: FileRef, name: str) -> bytes:
        """Upload a file; see `OutputSink`. Its URL is what the receiver says, or its name below the prefix."""
        client = await self._source.client()
        boundary = os.urandom(16).hex()
        filename = _BREAKS_QUOTES.sub(lambda found: f"%{ord(found[0]):02X}", name).encode(errors="replace")
        head = b'--%b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\nContent-Type: %b\r\n\r\n' % (
            boundary.encode(),
            filename,
            media_type(file).encode(),
        )
        tail = b"\r\n--%b--\r\n" % boundary.encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", **dict(self._request.headers())}
        answer = await client.put(file, self._prefix, headers=headers, around=(head, tail))
        return _as_text(_stripped(answer.location or _anonymous(url_below(self._prefix, name))))


class _LazyUploadClient:
    """Opens an upload client when the first file is sent; all predictions share it."""

    def __init__(self, user_agent: str, policy: UrlPolicy | None) -> None:
        self._user_agent = user_agent
        self._policy = policy
        self._client: UploadClient | None = None
        self._opening = asyncio.Lock()

    async def client(self) -> UploadClient:
        async with self._opening:
            if self._client is None:
                kind, tls = await off_loop(_load)
                self._client = kind(self._user_agent, policy=self._policy, tls=tls)
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def url_below(url: str, name: str) -> str:
    """The URL of a file: its name, escaped, under the path of `url`."""
    parts = urlsplit(url)
    path = posixpath.join(parts.path or "/", quote_from_bytes(os.fsencode(name), safe=""))
    return parts._replace(path=path).geturl()


def _stripped(url: str) -> str:
    """A URL without its query, which may be the signature that allowed the upload; a relative one as it is."""
    parts = urlsplit(url)
    return parts._replace(query="").geturl() if parts.scheme else url


def _anonymous(url: str) -> str:
    """A URL without user, password and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def _as_text(url: str) -> bytes:
    return json.dumps(url)[1:-1].encode()


def _load() -> tuple[type[UploadClient], ssl.SSLContext]:
    from geartrain.outbound.connection import tls_context
    from geartrain.outbound.upload_client import UploadClient  # late: it imports httpx, which costs 200 ms

    return UploadClient, tls_context()
