"""Client spans: one for each request that is sent for a prediction, whether for its input, its output or its webhook.

Imports httpx, so it is itself imported only when the first of them is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import httpx

from geartrain.domain.predictions.tracing import NO_TRACER, Outgoing, Span, TraceContext, Value, current_outgoing

_FIRST_ERROR: Final = 400


class TracedClient(httpx.AsyncClient):
    """A client whose requests have a span, and tell of it, where they are for a prediction that is recorded.

    Redirects are not followed by it: one is a request of its own, as is a second try. A span begins with its request
    and ends with the body of the answer.
    """

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send one request; see `httpx.AsyncClient.send`."""
        outgoing = current_outgoing()
        if outgoing.tracer is NO_TRACER:
            return await super().send(request, stream=stream, **options)
        span = _ClientSpan(outgoing, request)
        try:
            response = await super().send(request, stream=stream, **options)
        except BaseException as error:
            span.fail(error)
            raise
        if response.is_closed:
            span.end(response.status_code)
        else:
            response.stream = _Body(cast("httpx.AsyncByteStream", response.stream), span, response.status_code)
        return response


class _ClientSpan:
    """The span of one request, whose ids go with it."""

    def __init__(self, outgoing: Outgoing, request: httpx.Request) -> None:
        self._outgoing = outgoing
        self._context: TraceContext = outgoing.tracer.child(outgoing.parent)
        self._method = request.method
        self._started = time.time()
        self._is_over = False
        url = request.url
        self._attributes: dict[str, Value] = {
            "http.request.method": request.method,
            "url.full": str(url.copy_with(username=None, password=None, query=None, fragment=None)),
            "server.address": url.host,
            "server.port": url.port or (443 if url.scheme == "https" else 80),
        }
        for name in ("traceparent", "tracestate"):
            if name in request.headers:
                del request.headers[name]
        request.headers.update(self._context.headers)

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


class _Body(httpx.AsyncByteStream):
    """The body of an answer, whose end is that of the span."""

    def __init__(self, inner: httpx.AsyncByteStream, span: _ClientSpan, status: int) -> None:
        self._inner = inner
        self._span = span
        self._status = status

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                yield piece
        except Exception as error:
            self._span.fail(error)
            raise

    async def aclose(self) -> None:
        """Close it, and end the span."""
        await self._inner.aclose()
        self._span.end(self._status)
