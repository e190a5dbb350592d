"""The spans of requests that are sent, over a transport of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from geartrain.domain.predictions.tracing import Span, TraceContext, outgoing
from geartrain.outbound.network import TracedClient
from tests.support.tracers import KeepingTracer

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "vendor=1")
URL = "https://user:secret@example.org:8443/path?signature=secret#part"


class Whole(httpx.AsyncByteStream):
    """A body in pieces."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"some"
        yield b"more"


class Broken(httpx.AsyncByteStream):
    """A body that breaks off."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"some"
        raise httpx.ReadError("it broke off")


async def send(answer: Callable[[httpx.Request], httpx.Response]) -> tuple[httpx.Request, Span, Exception | None]:
    """Send a request and read its answer; return it, its span, and what was raised."""
    tracer, requests = KeepingTracer(), list[httpx.Request]()

    def take(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answer(request)

    raised = None
    async with TracedClient(transport=httpx.MockTransport(take)) as client:
        with outgoing(tracer, PARENT):
            request = client.build_request("PUT", URL, headers={"traceparent": "another", "tracestate": "other=1"})
            try:
                response = await client.send(request, stream=True)
                assert response.is_closed or tracer.spans == []  # it lasts as long as the body
                try:
                    await response.aread()
                finally:
                    await response.aclose()
            except httpx.HTTPError as error:
                raised = error
    (span,) = tracer.spans
    return requests[0], span, raised


async def test_success() -> None:
    request, span, raised = await send(lambda _: httpx.Response(201, stream=Whole()))
    assert raised is None
    assert (span.name, span.kind, span.parent, span.is_failed) == ("PUT", "client", PARENT, False)
    assert span.attributes == {
        "http.request.method": "PUT",
        "url.full": "https://example.org:8443/path",
        "server.address": "example.org",
        "server.port": 8443,
        "http.response.status_code": 201,
    }
    assert request.headers.get_list("traceparent") == [span.context.traceparent]
    assert request.headers.get_list("tracestate") == ["vendor=1"]


async def test_refusal() -> None:
    _, span, _ = await send(lambda _: httpx.Response(503))
    assert (span.is_failed, span.attributes["error.type"]) == (True, "503")


async def test_no_answer() -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody is there")

    _, span, raised = await send(fail)
    assert isinstance(raised, httpx.ConnectError)
    assert (span.is_failed, span.error, span.attributes["error.type"]) == (True, "nobody is there", "ConnectError")


async def test_body_that_breaks_off() -> None:
    _, span, raised = await send(lambda _: httpx.Response(200, stream=Broken()))
    assert isinstance(raised, httpx.ReadError)
    assert (span.is_failed, span.error) == (True, "it broke off")


async def test_cancel_is_no_error() -> None:
    tracer, begun = KeepingTracer(), asyncio.Event()

    async def wait(_: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with TracedClient(transport=httpx.MockTransport(wait)) as client:
        with outgoing(tracer, PARENT):
            sending = asyncio.ensure_future(client.get(URL))
        await begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    (span,) = tracer.spans
    assert (span.is_failed, span.attributes["error.type"]) == (False, "CancelledError")


async def test_outside_of_a_trace_nothing_is_changed() -> None:
    seen = list[httpx.Request]()

    def take(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    async with TracedClient(transport=httpx.MockTransport(take)) as client:
        await client.get(URL, headers={"traceparent": "another"})
    assert seen[0].headers["traceparent"] == "another"
