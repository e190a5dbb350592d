"""The wire on ASGI under real servers, bare and mounted in a FastAPI application. The handler is the test's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

import fastapi
import httpx
import pytest

from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.asgi import AsgiApplication
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import (
    Accepted,
    AcceptedInParts,
    Answer,
    BodyReader,
    ClientGoneError,
    Exchange,
    Head,
    PartsExchange,
    Responder,
)
from tests.support import hosts
from tests.support.wire import connection

LARGE = 1_000_000  # bytes, in one write more than the kernel takes
TEXT = ((b"content-type", b"text/plain"),)


class Echo:
    """Answers with the path and the body."""

    def __init__(self, responder: Responder, head: Head) -> None:
        self._responder = responder
        self._path = head.path

    def receive(self, body: Buffer) -> None:
        self._responder.respond(Answer(HTTPStatus.OK, (self._path, b" ", body), TEXT))

    def abandon(self) -> None:
        pytest.fail("it was answered at once")


class Flood:
    """Streams until nobody reads any more."""

    def __init__(self, responder: Responder, has_left: asyncio.Event) -> None:
        self._responder = responder
        self._has_left = has_left

    def receive(self, body: Buffer) -> None:
        start(self._write(int(body)))

    async def _write(self, pieces: int) -> None:
        stream = self._responder.open_stream(HTTPStatus.OK, TEXT)
        with contextlib.suppress(ClientGoneError):
            for _ in range(pieces):
                await stream.write(b"x" * LARGE)
            stream.end()

    def abandon(self) -> None:
        self._has_left.set()


class Never:
    """Does not answer."""

    def __init__(self, has_left: asyncio.Event) -> None:
        self.has_begun = asyncio.Event()
        self._has_left = has_left

    def receive(self, body: Buffer) -> None:
        self.has_begun.set()

    def abandon(self) -> None:
        self._has_left.set()


class Count:
    """Answers with the number of bytes that have come."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def receive(self, body: BodyReader) -> None:
        start(self._count(body))

    async def _count(self, body: BodyReader) -> None:
        count = 0
        while piece := await body.read():
            count += len(piece)
        self._responder.respond(Answer(HTTPStatus.OK, (b"%d" % count,), TEXT))

    def abandon(self) -> None:
        pytest.fail("it was answered")


class Handler:
    """Decides by the first step of the path."""

    def __init__(self) -> None:
        self.has_left = asyncio.Event()
        self.never = Never(self.has_left)
        self.events: list[str] = []
        self.app = AsgiApplication(self.start, self.stop)

    async def start(self) -> Handler:
        self.events.append("start")
        return self

    async def stop(self) -> None:
        self.events.append("stop")

    def begin(self, head: Head) -> Accepted | AcceptedInParts | Answer:
        def count(responder: Responder) -> PartsExchange:
            return Count(responder)

        new_exchanges: dict[bytes, Callable[[Responder], Exchange]] = {
            b"echo": lambda responder: Echo(responder, head),
            b"flood": lambda responder: Flood(responder, self.has_left),
            b"never": lambda _responder: self.never,
        }
        step = head.path.split(b"/")[1]
        if step == b"count":
            return AcceptedInParts(count, 10 * LARGE, refuse_size)
        if step in new_exchanges:
            return Accepted(new_exchanges[step], 2 * LARGE, refuse_size)
        return Answer(HTTPStatus.NOT_FOUND, (b"nothing here",), TEXT)


def refuse_size(_limit: int) -> Answer:
    return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, (b"too large",), TEXT)


class Hosted:
    """A handler, where it is served."""

    def __init__(self, handler: Handler, url: str, client: httpx.AsyncClient) -> None:
        self.handler = handler
        self.url = url
        self.client = client

    @property
    def mount(self) -> str:
        return httpx.URL(self.url).path.rstrip("/")


@pytest.fixture(params=[(name, mount) for name in hosts.NAMES for mount in ("", "/ml")], ids="".join)
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Hosted]:
    name, mount = request.param
    handler = Handler()
    app: object = handler.app
    if mount:
        app = fastapi.FastAPI(lifespan=handler.app.lifespan)
        app.mount(mount, handler.app)
    async with hosts.hosted(name, app) as url, httpx.AsyncClient(base_url=url + mount, timeout=20) as client:
        yield Hosted(handler, url + mount, client)
    assert handler.events == ["start", "stop"]


async def pieces(count: int, size: int = LARGE) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


async def test_path_and_body_arrive(host: Hosted) -> None:
    assert (await host.client.post("/echo/a%2Fb?c=d", content=b"hello")).content == b"/echo/a%2Fb hello"
    assert (await host.client.post("/echo", content=pieces(3, 2))).content == b"/echo xxxxxx"
    answer = await host.client.get("/echo")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"/echo ", "6")


async def test_head_has_a_length_and_no_body(host: Hosted) -> None:
    answer = await host.client.head("/echo")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "6")
    assert (await host.client.get("/")).status_code == 404


async def test_body_in_parts_is_bounded_and_counted(host: Hosted) -> None:
    assert (await host.client.post("/count", content=pieces(3))).content == b"%d" % (3 * LARGE)


async def test_body_that_is_too_large_is_refused(host: Hosted) -> None:
    async with connection(host.url) as wire:
        head = f"POST {host.mount}/echo HTTP/1.1\r\nhost: test\r\ncontent-length: {3 * LARGE}\r\n"
        answer = await wire.ask(f"{head}expect: 100-continue\r\n\r\n".encode())
        if answer.status == 100:  # from hypercorn, whatever the application says
            answer = await wire.answer()
        assert (answer.status, answer.body) == (413, b"too large")
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # a host may close while the rest is being sent
        assert (await host.client.post("/echo", content=pieces(3))).status_code == 413


async def test_stream_comes_whole(host: Hosted) -> None:
    assert len((await host.client.post("/flood", content=b"3")).content) == 3 * LARGE


async def test_client_that_leaves_while_it_waits_is_noticed(host: Hosted) -> None:
    async with connection(host.url) as wire:
        await wire.send(f"POST {host.mount}/never HTTP/1.1\r\nhost: test\r\ncontent-length: 1\r\n\r\nx".encode())
        async with asyncio.timeout(40):
            await host.handler.never.has_begun.wait()
    async with asyncio.timeout(40):
        await host.handler.has_left.wait()


async def test_client_that_leaves_a_stream_is_noticed(host: Hosted) -> None:
    async with connection(host.url) as wire:
        await wire.send(f"POST {host.mount}/flood HTTP/1.1\r\nhost: test\r\ncontent-length: 3\r\n\r\n999".encode())
        assert (await wire.head()).status == 200
        assert await wire.chunk()
    async with asyncio.timeout(40):
        await host.handler.has_left.wait()


async def test_http2_needs_no_length() -> None:
    handler = Handler()
    async with (
        hosts.hosted("hypercorn", handler.app) as url,
        httpx.AsyncClient(base_url=url, http1=False, http2=True, timeout=20) as client,
    ):
        answer = await client.post("/echo", content=pieces(2, 2))
        assert (answer.http_version, answer.content) == ("HTTP/2", b"/echo xxxx")
        assert (await client.post("/count", content=pieces(2))).content == b"%d" % (2 * LARGE)
