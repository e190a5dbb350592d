"""Output files on their way to where they are uploaded: which URL each gets, and in which form it is sent.

Two kinds of receiver. The operator's, `--upload-url`, gets each file raw at a URL of its own: observed Cog, section 16.
A client's, `output_file_prefix`, gets each as a form at the same URL: Cog's HTTP API, "File uploads".
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import ssl
import string
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, quote_from_bytes, urlsplit

from geartrain.domain.predictions.calls import INLINE, FileRef
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext
from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.outputs import OutputFiles, media_type
from geartrain.outbound.policy import target_fault

if TYPE_CHECKING:
    from geartrain.outbound.policy import UrlPolicy
    from geartrain.outbound.upload_client import UploadClient

_SYNCHRONOUS = (
    "it is for predictions that are created synchronously; those created with `Prefer: respond-async` or as an event"
    " stream upload their files only if the server runs with --upload-url"
)
_BREAKS_QUOTES = re.compile(r'[\x00-\x1f"\x7f]')


class OutputDestinations:
    """Destinations of a server's output files: the prefixes of clients, `upload_url`, or inline.

    A client's prefix is a hostile URL: every connection goes to an address that `policy` has passed. `upload_url` is
    the operator's; the policy does not apply to it, and proxies of the environment do.
    """

    def __init__(self, policy: UrlPolicy, *, upload_url: str | None = None, user_agent: str = "geartrain") -> None:
        self._policy = policy
        self._upload_url = upload_url
        self._own = _Opener(user_agent, None)
        self._guarded = _Opener(user_agent, policy)

    def fault(self, prefix: str, *, background: bool) -> str | None:
        """Return the reason against a client's files at `prefix`, as a sentence; None if it is good.

        `background`: no client waits for the answer. Such a one uploads to `upload_url` whatever its client says, or
        not at all.
        """
        if background and self._upload_url is None:
            return _SYNCHRONOUS
        return target_fault(prefix, self._policy)

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


class UploadClientSource(Protocol):
    """Gives the client that sends files."""

    async def client(self) -> UploadClient:
        """Return the client; it is opened when it is first needed."""


class UploadSink:
    """Files sent raw to the operator's URL (an `OutputSink`), each to its name below it."""

    at_once = 4

    def __init__(
        self,
        source: UploadClientSource,
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

    def __init__(self, source: UploadClientSource, prefix: str, request: RequestContext = NO_REQUEST) -> None:
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


class _Opener:
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
