"""One output file by HTTP PUT: redirects, retries, and the URL that the receiver gives it.

Imports httpx, so it is itself imported only when the first file is uploaded.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO, Final

import httpcore
import httpx
import msgspec

from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.files import OutputFileError, innermost, open_output
from geartrain.outbound.network import close, open_guarded_client, open_upload_client, read_rest
from geartrain.outbound.policy import AddressRefusedError
from geartrain.outbound.retries import Retries, retry

if TYPE_CHECKING:
    from geartrain.domain.predictions.calls import FileRef
    from geartrain.outbound.policy import UrlPolicy

_PIECE: Final = 1 << 20  # bytes read at a time
_SECONDS: Final = 25.0  # of silence
_SLOWEST: Final = 1 << 16  # bytes/s: a receiver that takes them slower than this holds a slot for too long
_MOST_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 307, 308})  # all repeat the PUT; a 303 asks for a GET, which uploads nothing
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_RETRIES: Final = Retries(tries=4, longest_pause=5.0, jitter=1.0, seconds=60.0)  # the slot waits meanwhile

_SLOW = (TimeoutError, httpx.TimeoutException, httpcore.TimeoutException)
_PASSING = (
    *_SLOW,
    httpx.NetworkError,
    httpx.RemoteProtocolError,
    httpcore.NetworkError,
    httpcore.RemoteProtocolError,
)


class Uploaded(msgspec.Struct, frozen=True):
    """A file that a receiver has taken: the URL of the last request, and the `Location` of its answer."""

    url: str
    location: str | None


class _RefusedError(Exception):
    def __init__(self, status: int) -> None:
        phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
        super().__init__(f"upload returned status {status}{phrase}")
        self.status = status


_FAILURES = (
    *_PASSING,
    _RefusedError,
    AddressRefusedError,
    httpx.HTTPError,
    httpx.InvalidURL,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


class UploadClient:
    """Sends files over one pool of connections; where the URLs are clients', with a pool that `policy` guards.

    A guarded pool is there only while it is in use: no connection of a client's outlives its files.
    """

    def __init__(self, user_agent: str, *, policy: UrlPolicy | None, tls: ssl.SSLContext) -> None:
        self._headers = {"User-Agent": user_agent}
        self._policy = policy
        self._tls = tls
        self._client: httpx.AsyncClient | None = None
        self._users = 0

    async def put(
        self, file: FileRef, url: str, *, headers: Mapping[str, str], around: tuple[bytes, bytes] = (b"", b"")
    ) -> Uploaded:
        """Send one file between the bytes `around` it, again if the receiver fails for a moment.

        Raises OutputFileError: the file is unreadable, or the receiver did not take it.
        """
        try:
            async with self._connections() as client:
                put = functools.partial(_put, client, file, url, headers={**self._headers, **headers}, around=around)
                return await retry(put, _passes, _RETRIES)
        except _FAILURES as error:
            raise OutputFileError(f"Failed to upload output: {_reason(error)}") from error

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._client is None:
            if self._policy is None:
                self._client = open_upload_client(timeout=_SECONDS, tls=self._tls)
            else:
                self._client = open_guarded_client(self._policy, tls=self._tls, timeout=_SECONDS)
        self._users += 1
        try:
            yield self._client
        finally:
            self._users -= 1
            if not self._users and self._policy is not None:
                await self.close()


async def _put(
    client: httpx.AsyncClient, file: FileRef, url: str, *, headers: dict[str, str], around: tuple[bytes, bytes]
) -> Uploaded:
    for _ in range(_MOST_REDIRECTS + 1):
        with open_output(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            headers["Content-Length"] = str(len(around[0]) + size + len(around[1]))
            request = client.build_request("PUT", url, content=_pieces(opened, around), headers=headers)
            async with asyncio.timeout(2 * _SECONDS + size / _SLOWEST):
                response = await client.send(request, stream=True)
                try:
                    await read_rest(response)
                finally:
                    await close(response)
        location = response.headers.get("location")
        if response.is_success:
            return Uploaded(str(request.url), location)
        if location is None or response.status_code not in _REDIRECTS:
            raise _RefusedError(response.status_code)
        headers["Referer"] = url
        url = str(request.url.join(location))
    raise OutputFileError(f"Failed to upload output: more than {_MOST_REDIRECTS} redirects")


def _passes(error: Exception) -> bool:
    """True if a failure may pass if the upload is tried again."""
    return error.status in _TRY_AGAIN if isinstance(error, _RefusedError) else isinstance(error, _PASSING)


def _reason(error: Exception) -> str:
    if isinstance(error, _SLOW):
        return "the receiver took too long"
    if isinstance(error, httpcore.UnsupportedProtocol | httpx.UnsupportedProtocol):
        return "it was redirected to a URL that is neither http: nor https:"
    return innermost(error)


async def _pieces(opened: BinaryIO, around: tuple[bytes, bytes]) -> AsyncIterator[bytes]:
    head, tail = around
    if head:
        yield head
    while piece := await off_loop(opened.read, _PIECE):
        yield piece
    if tail:
        yield tail
