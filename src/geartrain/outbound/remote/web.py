"""A file on a web server, and what the hub has: ranges over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from geartrain.domain.remote.progress import UNKNOWN_SIZE
from geartrain.domain.remote.reference import RemoteReference
from geartrain.outbound.remote.source import (
    ChangedError,
    Listing,
    RemoteError,
    RemoteFile,
    UnreachableError,
    without_secrets,
)

if TYPE_CHECKING:
    import httpx

_CHUNK: Final = 1024**2  # bytes of a piece
_CONNECT: Final = 10.0  # seconds
_STALLED: Final = 60.0  # seconds without a byte
_REDIRECTS: Final = 10
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_TRANSIENT: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


class WebFiles:
    """Reads files over HTTP."""

    def __init__(self, shown: str, headers: Mapping[str, str] | None = None) -> None:
        """`shown` names what is read in errors. `headers` go with each request, but to no other host."""
        import httpx

        self._shown = shown
        self._api = httpx
        self._client = httpx.AsyncClient(
            headers={"user-agent": "geartrain", **(headers or {}), "accept-encoding": "identity"},
            follow_redirects=True,
            max_redirects=_REDIRECTS,
            timeout=httpx.Timeout(_STALLED, connect=_CONNECT),
        )

    async def look(self, url: str, name: str) -> RemoteFile:
        """Return the file behind a URL; raises as `Source.look` does."""
        # A HEAD is refused where a URL is signed for GET.
        try:
            async with self._client.stream("GET", url, headers={"range": "bytes=0-0"}) as response:
                if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return RemoteFile(path=name, address=url, size=0)
                self._check(response)
                ranged = _RANGE.fullmatch(response.headers.get("content-range", ""))
                etag = response.headers.get("etag", "") or response.headers.get("last-modified", "")
                if response.status_code == HTTPStatus.PARTIAL_CONTENT and ranged is not None:
                    validator = _validator(response)
                    return RemoteFile(
                        path=name,
                        address=url,
                        size=int(ranged[3]),
                        etag=etag,
                        has_ranges=bool(validator),
                        if_range=validator,
                    )
                length = response.headers.get("content-length", "")
                size = int(length) if length.isascii() and length.isdecimal() else UNKNOWN_SIZE
                return RemoteFile(path=name, address=url, size=size, etag=etag, has_ranges=False)
        except self._api.HTTPError as error:
            raise self._broken(error) from error
        except self._api.InvalidURL as error:
            raise RemoteError(f"{self._shown}: this is no URL") from error

    async def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Give bytes of a file; see `Source.read`."""
        if start == end:
            return
        is_part = start > 0 or end != file.size
        headers = {"range": f"bytes={start}-{end - 1}"} if is_part and end != UNKNOWN_SIZE else {}
        if headers and file.if_range:
            headers["if-range"] = file.if_range
        try:
            async with self._client.stream("GET", file.address, headers=headers) as response:
                self._check(response)
                if headers:
                    self._check_range(response, file, start)
                async for piece in response.aiter_raw(_CHUNK):
                    yield piece
        except self._api.HTTPError as error:
            raise self._broken(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            return
        if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
            raise RemoteError(f"{self._shown}: there is no such file ({status}); check the name")
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise RemoteError(
                f"{self._shown}: access is denied ({status}); sign the URL anew, or check the credentials"
            )
        what = f"{self._shown}: the server answers {status} {response.reason_phrase}".rstrip()
        if status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UnreachableError(what)
        raise RemoteError(what)

    def _check_range(self, response: httpx.Response, file: RemoteFile, start: int) -> None:
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT and found is not None
        if not is_part or found is None or int(found[1]) != start or int(found[3]) != file.size:
            raise ChangedError(f"{self._shown}: it has changed during the download")

    def _broken(self, error: Exception) -> RemoteError:
        reason = without_secrets(str(error)) or type(error).__name__
        if isinstance(error, self._api.TooManyRedirects | self._api.UnsupportedProtocol):
            return RemoteError(f"{self._shown}: {reason}")
        return UnreachableError(f"{self._shown}: {reason}")


class WebSource:
    """The one file that a URL leads to. See `Source`."""

    def __init__(self, reference: RemoteReference) -> None:
        self._reference = reference
        self._files = WebFiles(reference.shown)

    async def look(self) -> Listing:
        file = await self._files.look(self._reference.url, self._reference.file_name)
        return Listing(files=(file,), is_single=True)

    def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        return self._files.read(file, start, end)

    async def close(self) -> None:
        await self._files.close()


def _validator(response: httpx.Response) -> str:
    """Return the validator of a file's state for `If-Range`; "" if there is none."""
    etag = response.headers.get("etag", "")
    return str(etag if etag and not etag.startswith("W/") else response.headers.get("last-modified", ""))
