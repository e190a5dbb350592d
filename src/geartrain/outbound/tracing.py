"""A client of httpx whose requests have spans, for the inputs and outputs of predictions.

Imports httpx, so it is itself imported only when the first of them is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx

from geartrain.domain.predictions.tracing import NO_TRACER, current_outgoing
from geartrain.outbound.client_span import TRACE_FIELDS, ClientSpan


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
        url = request.url
        span = ClientSpan(
            outgoing,
            request.method,
            url=str(url.copy_with(username=None, password=None, query=None, fragment=None)),
            host=url.host,
            port=url.port or (443 if url.scheme == "https" else 80),
        )
        for name in TRACE_FIELDS:
            request.headers.pop(name, None)
        request.headers.update(span.headers)
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


class _Body(httpx.AsyncByteStream):
    """The body of an answer, whose end is that of the span."""

    def __init__(self, inner: httpx.AsyncByteStream, span: ClientSpan, status: int) -> None:
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
