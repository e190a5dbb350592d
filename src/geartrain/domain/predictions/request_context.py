"""The request that a prediction comes from: the ids by which its traces are found in the tools of others.

`X-Request-Id` is a custom of proxies and servers. `traceparent` and `tracestate` are those of W3C Trace Context
(https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import urandom
from typing import Final, NamedTuple

import msgspec

from geartrain.domain.predictions.caching import CacheControl, read_cache_control

MAX_REQUEST_ID: Final = 128  # characters
_MAX_TRACESTATE: Final = 512  # characters; W3C asks for as many at least
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,%d}" % MAX_REQUEST_ID)
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?", re.DOTALL
)
_TRACESTATE: Final = re.compile(rb"[ -~\t]{1,%d}" % _MAX_TRACESTATE)
_FIRST_VERSION: Final = b"00"
_CREDENTIALS: Final = ("authorization", "proxy-authorization", "cookie", "x-api-key")


class RequestContext(msgspec.Struct, frozen=True, gc=False):
    """The ids of one request, and its protocol.

    Attributes:
        request_id: printable ASCII without spaces, at most `MAX_REQUEST_ID` characters.
        traceparent: a valid one, of version 00.
        tracestate: empty if the client has sent none.
        protocol: the name of the one by which the client asks, such as `cog`. Each protocol names itself.
            `system` is every request that runs no model; `none` is no request at all.
        cache: the wish of the client about kept answers.
        shows_logs: true if the answers of the protocol have a place for the prints of a run.
        fields: header fields that are parameters of the run, with names in lower case.
    """

    request_id: str
    traceparent: str
    tracestate: str = ""
    protocol: str = "none"
    shows_logs: bool = True
    cache: CacheControl = ""
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def trace_id(self) -> str:
        """The id of the trace in `traceparent`: 32 hexadecimal digits, empty without a request."""
        return self.traceparent[3:35]

    def headers(self) -> list[tuple[str, str]]:
        """Return the header fields that carry the ids to somebody else; none without a request."""
        if not self.request_id:
            return []
        fields = [("X-Request-Id", self.request_id), ("traceparent", self.traceparent)]
        return [*fields, ("tracestate", self.tracestate)] if self.tracestate else fields


NO_REQUEST: Final = RequestContext("", "")
"""Of a prediction that no request asks for, such as one of the command line."""


class ForwardedFields(NamedTuple):
    """The header fields that are parameters of a model's runs: a pattern for names, over HTTP and over gRPC.

    Names are in lower case, and case does not count. Those of credentials match none.
    """

    http: re.Pattern[str] | None = None
    grpc: re.Pattern[str] | None = None

    def of(self, headers: Sequence[tuple[bytes, bytes]], *, is_grpc: bool) -> tuple[tuple[str, str], ...]:
        """Return the fields whose names match in some part; of a name that comes twice, both."""
        pattern = self.grpc if is_grpc else self.http
        if pattern is None:
            return ()
        decoded = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        return tuple(each for each in decoded if each[0] not in _CREDENTIALS and pattern.search(each[0]))


class SentIds(msgspec.Struct, frozen=True, gc=False):
    """The ids that a client has sent and that are valid, and its wish about kept answers; the others are empty."""

    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    cache: CacheControl = ""


NOTHING_SENT: Final = SentIds()


def read_ids(
    request_ids: list[bytes],
    traceparents: list[bytes],
    tracestates: list[bytes],
    *,
    cache_controls: Sequence[bytes] = (),
) -> SentIds:
    """Return the ids in the values of the header fields of a request.

    An id that is too long, has other characters or comes twice is left out, and so is a `tracestate` without a valid
    `traceparent`.
    """
    cache = read_cache_control(b",".join(cache_controls)) if cache_controls else ""
    if not request_ids and not traceparents and not cache:
        return NOTHING_SENT
    request_id = traceparent = tracestate = ""
    if len(request_ids) == 1 and _REQUEST_ID.fullmatch(request_ids[0]) is not None:
        request_id = request_ids[0].decode()
    if len(traceparents) == 1:
        traceparent = _read_traceparent(traceparents[0])
    joined = b",".join(tracestates)  # a list may come in several fields
    if traceparent and _TRACESTATE.fullmatch(joined) is not None:
        tracestate = joined.decode().strip()
    return SentIds(request_id, traceparent, tracestate, cache)


def _read_traceparent(value: bytes) -> str:
    """Return a `traceparent` as version 00 writes it, empty for one that is not valid."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None or (match[1] == _FIRST_VERSION and match[3] is not None):
        return ""
    return f"00-{match[2].decode()}"


def new_contexts(protocol: str, count: int, *, shows_logs: bool = True) -> list[RequestContext]:
    """Return contexts of requests that come without ids; as `new_context`, and many take a fraction of the time."""
    digits = urandom(16 * count).hex()
    made = [digits[start : start + 32] for start in range(0, len(digits), 32)]
    return [RequestContext(each, f"00-{each}-{each[16:]}-01", "", protocol, shows_logs) for each in made]


def new_context(sent: SentIds, protocol: str, *, shows_logs: bool = True) -> RequestContext:
    """Create the context of a request: the client's ids, and new ones in place of missing ones.

    A new trace is marked as sampled: no sender before has decided about it, and a receiver that follows the flag would
    drop it otherwise.
    """
    (made,) = new_contexts(protocol, 1, shows_logs=shows_logs)
    return RequestContext(
        sent.request_id or made.request_id,
        sent.traceparent or made.traceparent,
        sent.tracestate,
        protocol,
        shows_logs,
        sent.cache,
    )
