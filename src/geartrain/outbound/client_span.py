"""The span of a request that is sent for a prediction."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from geartrain.domain.predictions.tracing import OutgoingTrace, Span, TraceContext, Value

TRACE_FIELDS: Final = ("traceparent", "tracestate")
_FIRST_ERROR: Final = 400


class ClientSpan:
    """The span of one request. It begins when it is made."""

    def __init__(self, outgoing: OutgoingTrace, method: str, *, url: str, host: str, port: int) -> None:
        """`url` has neither user and password nor a query, which may be secret."""
        self._outgoing = outgoing
        self._context: TraceContext = outgoing.tracer.child(outgoing.parent)
        self._method = method
        self._started = time.time()
        self._is_over = False
        self._attributes: dict[str, Value] = {
            "http.request.method": method,
            "url.full": url,
            "server.address": host,
            "server.port": port,
        }

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The header fields with its ids, in place of all others of the names in `TRACE_FIELDS`."""
        return self._context.headers

    def end(self, status: int) -> None:
        """Record it with the status of the answer."""
        is_failed = status >= _FIRST_ERROR
        more: dict[str, Value] = {"error.type": str(status)} if is_failed else {}
        self._record({"http.response.status_code": status, **more}, is_failed=is_failed)

    def fail(self, error: BaseException) -> None:
        """Record it without a whole answer. That its prediction was canceled is no error."""
        is_failed = not isinstance(error, asyncio.CancelledError)
        self._record({"error.type": type(error).__name__}, is_failed=is_failed, error=str(error) if is_failed else "")

    def _record(self, attributes: dict[str, Value], *, is_failed: bool, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._outgoing.tracer.record(
            Span(
                name=self._method,
                context=self._context,
                parent=self._outgoing.parent,
                kind="client",
                start=self._started,
                end=time.time(),
                attributes={**self._attributes, **attributes},
                is_failed=is_failed,
                error=error,
            )
        )
