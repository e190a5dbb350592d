"""The wire on ASGI: heads, bodies, answers, clients that leave, and the lifespan. The test is the host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Self

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.asgi import AsgiApplication, BadHeadError, Message, read_head
from geartrain.transport.wire.exchange import (
    JSON,
    UNKNOWN_LENGTH,
    Accepted,
    AcceptedInParts,
    Answer,
    AnswerStream,
    BodyReader,
    ClientGoneError,
    Exchange,
    Head,
    PartsExchange,
    Responder,
)

LIMIT = 40.0  # seconds
DISCONNECT = {"type": "http.disconnect"}
TOO_LARGE = Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, (b"too large",))

Decision = Accepted | AcceptedInParts | Answer


def request(**fields: Any) -> dict[str, Any]:
    """A scope."""
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    return {**scope, **fields}


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


class Host:
    """An ASGI server with one request, which the test feeds by hand."""

    def __init__(self, *messages: Message) -> None:
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.is_receiving = asyncio.Event()
        for message in messages:
            self.incoming.put_nowait(message)

    async def receive(self) -> Message:
        if self.incoming.empty():
            self.is_receiving.set()
        return await self.incoming.get()

    async def send(self, message: Message) -> None:
        self.sent.put_nowait(message)

    def start(self, app: AsgiApplication, scope: dict[str, Any]) -> asyncio.Task[None]:
        return asyncio.ensure_future(app(scope, self.receive, self.send))

    async def run(self, app: AsgiApplication, scope: dict[str, Any]) -> None:
        async with asyncio.timeout(LIMIT):
            await app(scope, self.receive, self.send)

    async def next(self) -> Message:
        async with asyncio.timeout(LIMIT):
            return await self.sent.get()

    def all_sent(self) -> list[Message]:
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]

    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The whole answer that has been sent: status, headers, body."""
        start, *rest = self.all_sent()
        assert start["type"] == "http.response.start"
        assert [message["more_body"] for message in rest] == [True] * (len(rest) - 1) + [False]
        assert all(type(message["body"]) is bytes for message in rest)
        return start["status"], dict(start["headers"]), b"".join(message["body"] for message in rest)


async def ended(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(LIMIT):
        await task


class FakeExchange:
    """Keeps what the wire says to it, and answers when the test has it answer."""

    def __init__(self, responder: Responder, on_body: Callable[[FakeExchange], None]) -> None:
        self.responder = responder
        self.on_body = on_body
        self.body: Any = None
        self.abandoned = 0
        self.received = asyncio.Event()
        self.left = asyncio.Event()

    def receive(self, body: Any) -> None:
        self.body = body
        self.received.set()
        self.on_body(self)

    def abandon(self) -> None:
        self.abandoned += 1
        self.left.set()


def echo(exchange: FakeExchange) -> None:
    exchange.responder.respond(Answer(HTTPStatus.OK, (exchange.body,)))


def wait(_exchange: FakeExchange) -> None:
    """Answer later."""


class FakeHandler:
    """Accepts everything, unless it has an answer."""

    def __init__(
        self,
        on_body: Callable[[FakeExchange], None] = echo,
        *,
        answer: Answer | None = None,
        max_body: int = 100,
        in_parts: bool = False,
    ) -> None:
        self.on_body = on_body
        self.answer = answer
        self.max_body = max_body
        self.in_parts = in_parts
        self.heads: list[Head] = []
        self.exchanges: list[FakeExchange] = []

    def begin(self, head: Head) -> Decision:
        self.heads.append(head)
        if self.answer is not None:
            return self.answer
        if self.in_parts:
            return AcceptedInParts(self.new_parts_exchange, self.max_body, self.refuse_size)
        return Accepted(self.new_exchange, self.max_body, self.refuse_size)

    def new_exchange(self, responder: Responder) -> Exchange:
        self.exchanges.append(FakeExchange(responder, self.on_body))
        return self.exchanges[-1]

    def new_parts_exchange(self, responder: Responder) -> PartsExchange:
        self.exchanges.append(FakeExchange(responder, self.on_body))
        return self.exchanges[-1]

    def refuse_size(self, limit: int) -> Answer:
        return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, (b"more than %d" % limit,))


class Service:
    """What an application starts and stops."""

    def __init__(self, handler: FakeHandler) -> None:
        self.handler = handler
        self.events: list[str] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.app = AsgiApplication(self.start, self.stop)

    async def start(self) -> FakeHandler:
        self.events.append("start")
        self.began.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return self.handler

    async def stop(self) -> None:
        self.events.append("stop")
        if self.fault is not None:
            raise self.fault


def served(handler: FakeHandler) -> AsgiApplication:
    return Service(handler).app


# The head


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"path": "/a/b", "raw_path": b"/a%2Fb"}, b"/a%2Fb"),
        ({"path": "/a b", "raw_path": b"/a%20b?x=1"}, b"/a%20b"),
        ({"path": "/a b/ü:cancel"}, b"/a%20b/%C3%BC:cancel"),
        ({"path": "/a b", "raw_path": None}, b"/a%20b"),
        ({"path": "/new", "raw_path": b"/before/it/was/rewritten"}, b"/new"),
        ({"path": "", "raw_path": b""}, b"/"),
        ({"path": "*", "raw_path": b"*"}, b"*"),
        ({"path": "http://here:80/a", "raw_path": b"http://here:80/a"}, b"/a"),
        ({"path": "http://here", "raw_path": b"http://here"}, b"/"),
        # mounted: with the place in both, in one, in none of the two paths
        ({"root_path": "/ml", "path": "/ml/a/b", "raw_path": b"/ml/a%2Fb"}, b"/a%2Fb"),
        ({"root_path": "/ml", "path": "/a/b", "raw_path": b"/ml/a%2Fb"}, b"/a%2Fb"),
        ({"root_path": "/ml", "path": "/a/b", "raw_path": b"/a%2Fb"}, b"/a%2Fb"),
        ({"root_path": "/ml", "path": "/ml/a"}, b"/a"),
        ({"root_path": "/ml", "path": "/ml/ml/a", "raw_path": b"/ml/ml/a"}, b"/ml/a"),
        ({"root_path": "/ml", "path": "/ml/a", "raw_path": b"/ml/ml/a"}, b"/ml/a"),
        ({"root_path": "/ml", "path": "/ml", "raw_path": b"/ml"}, b"/"),
        ({"root_path": "/ml/", "path": "/ml/a", "raw_path": b"/ml/a"}, b"/a"),
        ({"root_path": "/ml", "path": "/mlops", "raw_path": b"/mlops"}, b"/mlops"),
        ({"root_path": "/my ü", "path": "/my ü/a", "raw_path": b"/my%20%c3%bc/a"}, b"/a"),
        ({"root_path": "/ml", "path": "/m%6C/a", "raw_path": b"/m%256C/a"}, b"/m%256C/a"),
    ],
)
def test_path_is_as_it_came_below_the_mount(scope: dict[str, Any], path: bytes) -> None:
    assert read_head(request(**scope)).path == path


@pytest.mark.parametrize(("root_path", "root"), [("/ml", "/ml"), ("/", ""), ("/my ü/", "/my%20%C3%BC")])
def test_links_begin_with_the_mount(root_path: str, root: str) -> None:
    assert read_head(request(root_path=root_path)).root == root


def test_target_that_is_no_path_is_refused() -> None:
    with pytest.raises(BadHeadError, match="not a path"):
        read_head(request(path="a", raw_path=b"a"))


def test_head_has_what_the_scope_has() -> None:
    head = read_head(
        request(method="PUT", path="/x", query_string=b"a=%20", headers=[(b"Host", b"h"), (b"x", b"1"), (b"x", b"2")])
    )
    assert (head.method, head.query, head.length) == ("PUT", b"a=%20", 0)
    assert head.root == ""
    assert list(head.headers) == [(b"host", b"h"), (b"x", b"1"), (b"x", b"2")]


@pytest.mark.parametrize(
    ("version", "method", "headers", "length"),
    [
        ("1.1", "POST", [(b"content-length", b"12")], 12),
        ("1.1", "POST", [(b"content-length", b"12"), (b"content-length", b"12")], 12),
        ("1.1", "POST", [(b"transfer-encoding", b"chunked")], UNKNOWN_LENGTH),
        ("1.1", "POST", [], 0),
        ("2", "POST", [], UNKNOWN_LENGTH),
        ("2", "POST", [(b"content-length", b"3")], 3),
        ("2", "GET", [], 0),
    ],
)
def test_length_is_that_of_the_body(version: str, method: str, headers: list[Any], length: int) -> None:
    assert read_head(request(http_version=version, method=method, headers=headers)).length == length


@pytest.mark.parametrize("value", [b"", b"+1", b"-1", b"1_0", b"1, 1", b" 1", b"0x1", "\u0661".encode(), b"1" * 5000])
async def test_length_that_is_no_number_is_refused(value: bytes) -> None:
    handler, host = FakeHandler(), Host(body(b""))
    await host.run(served(handler), request(headers=[(b"content-length", value)]))
    status, headers, text = host.answer()
    assert (status, headers[b"content-type"]) == (400, b"application/json")
    assert "Content-Length" in json.loads(text)["error"]
    assert not handler.heads


async def test_two_lengths_are_refused() -> None:
    handler, host = FakeHandler(), Host(body(b""))
    await host.run(served(handler), request(headers=[(b"content-length", b"1"), (b"content-length", b"2")]))
    assert host.answer()[0] == 400


# Whole answers


async def test_answer_at_once_reads_no_body() -> None:
    host = Host()
    answer = Answer(HTTPStatus.NOT_FOUND, (b"ab", bytearray(b"c"), memoryview(b"def")), (*JSON, (b"x", b"y")))
    await host.run(served(FakeHandler(answer=answer)), request())
    headers = {b"content-type": b"application/json", b"x": b"y", b"content-length": b"6"}
    assert host.answer() == (404, headers, b"abcdef")
    assert not host.is_receiving.is_set()


async def test_answer_to_head_has_a_length_and_no_body() -> None:
    host = Host(body(b""))
    await host.run(served(FakeHandler(answer=Answer(HTTPStatus.OK, (b"ab", b"c")))), request(method="HEAD"))
    assert host.answer() == (200, {**dict(JSON), b"content-length": b"3"}, b"")


@pytest.mark.parametrize("parts", [(), (b"",), (memoryview(b"12345678").cast("i"),)])
async def test_length_counts_bytes(parts: tuple[Buffer, ...]) -> None:
    host = Host()
    await host.run(served(FakeHandler(answer=Answer(HTTPStatus.OK, parts))), request())
    _, headers, text = host.answer()
    assert int(headers[b"content-length"]) == len(text) == sum(memoryview(part).nbytes for part in parts)


async def test_no_content_has_no_length() -> None:
    host = Host()
    await host.run(served(FakeHandler(answer=Answer(HTTPStatus.NO_CONTENT, (b"",), ()))), request())
    assert host.answer() == (204, {}, b"")


# Bodies


@pytest.mark.parametrize(
    "messages",
    [
        [body(b"hello")],
        [body(b"he", more=True), body(b"", more=True), body(b"llo")],
        [body(b"hello", more=True), {"type": "http.request"}],
    ],
)
async def test_whole_body_is_received_once(messages: list[Message]) -> None:
    handler, host = FakeHandler(), Host(*messages)
    await host.run(served(handler), request(headers=[(b"content-length", b"5")]))
    assert host.answer()[2] == b"hello"
    assert handler.exchanges[0].abandoned == 0


async def test_body_announced_as_too_large_is_refused_unread() -> None:
    handler, host = FakeHandler(max_body=4), Host()
    await host.run(served(handler), request(headers=[(b"content-length", b"5")]))
    assert (host.answer()[::2], handler.exchanges) == ((413, b"more than 4"), [])
    assert not host.is_receiving.is_set()


@pytest.mark.parametrize("in_parts", [False, True])
async def test_announced_body_is_refused_unread_in_parts_too(in_parts: bool) -> None:
    handler, host = FakeHandler(max_body=4, in_parts=in_parts), Host()
    await host.run(served(handler), request(headers=[(b"content-length", b"5")]))
    assert (host.answer()[0], handler.exchanges) == (413, [])


async def test_body_counted_as_too_large_is_refused_before_it_is_whole() -> None:
    handler, host = FakeHandler(max_body=4), Host(body(b"123", more=True), body(b"45", more=True))
    await host.run(served(handler), request(headers=[(b"transfer-encoding", b"chunked")]))
    assert (host.answer()[::2], handler.exchanges) == ((413, b"more than 4"), [])


async def test_body_that_never_comes_whole_starts_nothing() -> None:
    handler, host = FakeHandler(), Host(body(b"12", more=True), DISCONNECT)
    await host.run(served(handler), request())
    assert (handler.exchanges, host.all_sent()) == ([], [])


# Answers that come later


async def test_answer_comes_when_the_exchange_gives_it() -> None:
    handler, host = FakeHandler(wait), Host(body(b"hi"))
    task = host.start(served(handler), request())
    await host.is_receiving.wait()
    echo(handler.exchanges[0])
    await ended(task)
    assert host.answer()[2] == b"hi"
    assert handler.exchanges[0].abandoned == 0


async def test_disconnect_abandons_and_nothing_is_sent_afterwards() -> None:
    handler, host = FakeHandler(wait), Host(body(b"hi"), DISCONNECT)
    await host.run(served(handler), request())
    exchange = handler.exchanges[0]
    echo(exchange)
    with pytest.raises(ClientGoneError):
        await exchange.responder.open_stream(HTTPStatus.OK, ()).write(b"x")
    assert (exchange.abandoned, host.all_sent()) == (1, [])


async def test_canceled_request_abandons() -> None:
    handler, host = FakeHandler(wait), Host(body(b"hi"))
    task = host.start(served(handler), request())
    await host.is_receiving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(task)
    echo(handler.exchanges[0])
    assert (handler.exchanges[0].abandoned, host.all_sent()) == (1, [])


async def test_end_of_the_answer_is_no_disconnect() -> None:
    """A host may say that the client has left as soon as it has the last message, before `send` returns."""
    handler, host = FakeHandler(wait), Host(body(b"hi"))
    sending = asyncio.Event()

    async def send(message: Message) -> None:
        host.sent.put_nowait(message)
        if not message.get("more_body", True):
            host.incoming.put_nowait(DISCONNECT)
            sending.set()
            await heard.wait()

    async def receive() -> Message:
        message = await host.receive()
        if message is DISCONNECT:
            asyncio.get_running_loop().call_soon(heard.set)
        return message

    heard = asyncio.Event()
    task = asyncio.ensure_future(served(handler)(request(), receive, send))
    await host.is_receiving.wait()
    echo(handler.exchanges[0])
    await ended(task)
    assert sending.is_set()
    assert (host.answer()[2], handler.exchanges[0].abandoned) == (b"hi", 0)


async def test_fault_of_the_host_abandons_and_is_the_hosts() -> None:
    handler, host = FakeHandler(wait), Host(body(b"hi"))

    async def receive() -> Message:
        if host.incoming.empty():
            raise LookupError("host")
        return await host.receive()

    with pytest.raises(LookupError, match="host"):
        await served(handler)(request(), receive, host.send)
    assert handler.exchanges[0].abandoned == 1


async def test_error_of_the_socket_while_listening_is_a_disconnect() -> None:
    handler, host = FakeHandler(wait), Host(body(b"hi"))

    async def receive() -> Message:
        if host.incoming.empty():
            raise ConnectionResetError
        return await host.receive()

    await served(handler)(request(), receive, host.send)
    assert handler.exchanges[0].abandoned == 1


async def test_no_task_is_left() -> None:
    for on_body, messages in ((echo, [body(b"x")]), (wait, [body(b"x"), DISCONNECT])):
        for in_parts in (False, True):
            await Host(*messages).run(
                served(FakeHandler(on_body if on_body is wait else respond, in_parts=in_parts)), request()
            )
    assert asyncio.all_tasks() == {asyncio.current_task()}


def respond(exchange: FakeExchange) -> None:
    exchange.responder.respond(Answer(HTTPStatus.OK, (b"done",)))


# Streams


class Streaming:
    """A request whose answer streams; `write` and `end` are the handler's."""

    def __init__(
        self, *, send: Callable[[Message], Coroutine[Any, Any, None]] | None = None, method: str = "POST"
    ) -> None:
        self.handler = FakeHandler(wait)
        self.host = Host(body(b""))
        app = served(self.handler)
        self.task = asyncio.ensure_future(app(request(method=method), self.host.receive, send or self.host.send))
        self.stream: AnswerStream

    async def __aenter__(self) -> Self:
        await self.host.is_receiving.wait()
        self.stream = self.exchange.responder.open_stream(HTTPStatus.OK, ((b"content-type", b"text/event-stream"),))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))

    @property
    def exchange(self) -> FakeExchange:
        return self.handler.exchanges[0]


async def test_stream_sends_its_pieces_in_order() -> None:
    async with Streaming() as streaming:
        start = await streaming.host.next()
        assert start["headers"] == [(b"content-type", b"text/event-stream")]
        for piece in (b"one", b"two"):
            await streaming.stream.write(piece)
            assert streaming.host.all_sent() == [{"type": "http.response.body", "body": piece, "more_body": True}]
        streaming.stream.end()
        await ended(streaming.task)
        assert streaming.host.all_sent() == [{"type": "http.response.body", "body": b"", "more_body": False}]
        assert streaming.exchange.abandoned == 0


async def test_stream_that_is_broken_off_stays_incomplete() -> None:
    async with Streaming() as streaming:
        await streaming.host.next()
        await streaming.stream.write(b"one")
        streaming.stream.abort()
        await ended(streaming.task)
        assert streaming.host.all_sent() == [{"type": "http.response.body", "body": b"one", "more_body": True}]


async def test_stream_in_answer_to_head_has_no_body() -> None:
    async with Streaming(method="HEAD") as streaming:
        await streaming.stream.write(b"one")
        streaming.stream.end()
        await ended(streaming.task)
        assert streaming.host.answer()[2] == b""


async def test_write_waits_until_the_host_has_taken_it() -> None:
    may_send, sent = asyncio.Event(), asyncio.Queue[Message]()

    async def send(message: Message) -> None:
        sent.put_nowait(message)
        if message["type"] == "http.response.body":
            await may_send.wait()

    async with Streaming(send=send) as streaming:
        await sent.get()
        writing = asyncio.ensure_future(streaming.stream.write(b"x"))
        await sent.get()
        assert not writing.done()
        may_send.set()
        await ended(writing)


@pytest.mark.parametrize("how", ["disconnect", "cancel", "OSError"])
async def test_write_ends_when_the_client_leaves(how: str) -> None:
    never, sending = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            if how == "OSError":
                raise OSError
            await never.wait()

    async with Streaming(send=send) as streaming:
        writing = asyncio.ensure_future(streaming.stream.write(b"x"))
        await sending.wait()
        if how == "disconnect":
            streaming.host.incoming.put_nowait(DISCONNECT)
        elif how == "cancel":
            streaming.task.cancel()
        with pytest.raises(ClientGoneError):
            await ended(writing)
        with pytest.raises(ClientGoneError):
            await streaming.stream.write(b"y")
        streaming.stream.end()
        await streaming.exchange.left.wait()
        assert streaming.exchange.abandoned == 1


async def test_writer_that_gives_up_does_not_disturb() -> None:
    may_send, sent = asyncio.Event(), asyncio.Queue[Message]()

    async def send(message: Message) -> None:
        sent.put_nowait(message)
        if message["type"] == "http.response.body":
            await may_send.wait()

    async with Streaming(send=send) as streaming:
        await sent.get()
        writing = asyncio.ensure_future(streaming.stream.write(b"x"))
        await sent.get()
        writing.cancel()
        may_send.set()
        streaming.stream.end()
        await ended(streaming.task)
        assert [message["body"] for message in (sent.get_nowait(),)] == [b""]


# Bodies in parts


class InParts:
    """A request whose body is read in pieces."""

    def __init__(self, *messages: Message, max_body: int = 100) -> None:
        self.handler = FakeHandler(wait, max_body=max_body, in_parts=True)
        self.host = Host(*messages)
        self.task = self.host.start(served(self.handler), request(headers=[(b"transfer-encoding", b"chunked")]))

    async def __aenter__(self) -> Self:
        await self.host.is_receiving.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))

    @property
    def exchange(self) -> FakeExchange:
        return self.handler.exchanges[0]

    @property
    def reader(self) -> BodyReader:
        reader: BodyReader = self.exchange.body
        return reader


async def test_parts_come_as_they_are_read() -> None:
    async with InParts() as parts:
        reading = asyncio.ensure_future(parts.reader.read())
        parts.host.incoming.put_nowait(body(b"", more=True))
        parts.host.incoming.put_nowait(body(b"one", more=True))
        assert await reading == b"one"
        parts.host.incoming.put_nowait(body(b"two"))
        assert [await parts.reader.read() for _ in range(3)] == [b"two", b"", b""]
        respond(parts.exchange)
        await ended(parts.task)
        assert (parts.host.answer()[2], parts.exchange.abandoned) == (b"done", 0)


async def test_no_more_is_read_than_one_piece_ahead() -> None:
    async with InParts() as parts:
        parts.host.is_receiving.clear()
        for piece in (b"one", b"two", b"three"):
            parts.host.incoming.put_nowait(body(piece, more=True))
        reading = asyncio.ensure_future(parts.reader.read())
        assert await reading == b"one"
        assert parts.host.incoming.qsize() >= 1
        assert [await parts.reader.read() for _ in range(2)] == [b"two", b"three"]


async def test_answer_before_the_body_is_whole_ends_the_request() -> None:
    async with InParts() as parts:
        respond(parts.exchange)
        await ended(parts.task)
        assert parts.host.answer()[2] == b"done"
        with pytest.raises(ClientGoneError):
            await parts.reader.read()


async def test_parts_beyond_the_limit_are_an_error() -> None:
    async with InParts(max_body=4) as parts:
        parts.host.incoming.put_nowait(body(b"123", more=True))
        parts.host.incoming.put_nowait(body(b"45", more=True))
        assert await parts.reader.read() == b"123"
        for _ in range(2):
            with pytest.raises(GeartrainError) as caught:
                await parts.reader.read()
            assert caught.value.code is Code.TOO_LARGE
        parts.exchange.responder.respond(TOO_LARGE)
        await ended(parts.task)
        assert parts.host.answer()[0] == 413


async def test_reader_hears_of_a_disconnect() -> None:
    async with InParts() as parts:
        reading = asyncio.ensure_future(parts.reader.read())
        parts.host.incoming.put_nowait(DISCONNECT)
        with pytest.raises(ClientGoneError):
            await reading
        await ended(parts.task)
        assert (parts.exchange.abandoned, parts.host.all_sent()) == (1, [])


async def test_disconnect_is_noticed_after_the_body() -> None:
    async with InParts() as parts:
        parts.host.incoming.put_nowait(body(b"all"))
        parts.host.incoming.put_nowait(DISCONNECT)
        await ended(parts.task)
        assert parts.exchange.abandoned == 1
        assert [await parts.reader.read() for _ in range(2)] == [b"all", b""]


# Other scopes


async def test_websocket_is_closed() -> None:
    host = Host({"type": "websocket.connect"})
    await host.run(served(FakeHandler()), {"type": "websocket", "path": "/"})
    assert host.all_sent() == [{"type": "websocket.close", "code": 1000}]


async def test_unknown_scope_is_an_error() -> None:
    with pytest.raises(ValueError, match="carrier pigeon"):
        await Host().run(served(FakeHandler()), {"type": "carrier pigeon"})


# The lifespan


async def test_lifespan_starts_and_stops() -> None:
    service, host = Service(FakeHandler()), Host({"type": "lifespan.startup"})
    task = host.start(service.app, {"type": "lifespan"})
    assert await host.next() == {"type": "lifespan.startup.complete"}
    assert service.events == ["start"]
    other = Host(body(b"x"))
    await other.run(service.app, request())
    assert other.answer()[2] == b"x"
    host.incoming.put_nowait({"type": "lifespan.shutdown"})
    await ended(task)
    assert host.all_sent() == [{"type": "lifespan.shutdown.complete"}]
    assert service.events == ["start", "stop"]


async def test_failed_startup_says_why() -> None:
    service, host = Service(FakeHandler()), Host({"type": "lifespan.startup"})
    service.fault = RuntimeError("no such model")
    await host.run(service.app, {"type": "lifespan"})
    assert host.all_sent() == [{"type": "lifespan.startup.failed", "message": "no such model"}]
    assert service.events == ["start"]


async def test_failed_shutdown_says_why() -> None:
    service, host = Service(FakeHandler()), Host({"type": "lifespan.startup"})
    task = host.start(service.app, {"type": "lifespan"})
    await host.next()
    service.fault = LookupError()
    host.incoming.put_nowait({"type": "lifespan.shutdown"})
    await ended(task)
    assert host.all_sent() == [{"type": "lifespan.shutdown.failed", "message": "LookupError"}]


async def test_canceled_lifespan_stops() -> None:
    service, host = Service(FakeHandler()), Host({"type": "lifespan.startup"})
    task = host.start(service.app, {"type": "lifespan"})
    await host.next()
    task.cancel()
    await asyncio.wait((task,))
    assert service.events == ["start", "stop"]


async def test_lifespan_canceled_while_it_starts_ends_the_start() -> None:
    service, host = Service(FakeHandler()), Host({"type": "lifespan.startup"})
    service.gate.clear()
    task = host.start(service.app, {"type": "lifespan"})
    await service.began.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    service.gate.set()
    async with service.app.lifespan():
        assert service.events == ["start", "start"]


async def test_without_a_lifespan_the_first_requests_start_once() -> None:
    service = Service(FakeHandler())
    service.gate.clear()
    hosts = [Host(body(b"x")) for _ in range(3)]
    first, *others = [host.start(service.app, request()) for host in hosts]
    await service.began.wait()
    first.cancel()  # takes the start from nobody
    await asyncio.wait((first,))
    service.gate.set()
    for task in others:
        await ended(task)
    assert [host.answer()[2] for host in hosts[1:]] == [b"x", b"x"]
    await Host(body(b"x")).run(service.app, request())
    assert service.events == ["start"]


async def test_request_tries_again_after_a_failed_start() -> None:
    service = Service(FakeHandler())
    service.fault = RuntimeError("not yet")
    with pytest.raises(RuntimeError, match="not yet"):
        await Host(body(b"x")).run(service.app, request())
    service.fault = None
    host = Host(body(b"x"))
    await host.run(service.app, request())
    assert (host.answer()[0], service.events) == (200, ["start", "start"])


async def test_lifespan_takes_over_what_a_request_has_started() -> None:
    service = Service(FakeHandler())
    await Host(body(b"x")).run(service.app, request())
    async with service.app.lifespan():
        assert service.events == ["start"]
    assert service.events == ["start", "stop"]


async def test_blocks_overlap_and_may_follow_each_other() -> None:
    service = Service(FakeHandler())
    async with service.app.lifespan(), service.app.lifespan(object()):
        assert service.events == ["start"]
    assert service.events == ["start", "stop"]
    async with service.app.lifespan():
        host = Host(body(b"x"))
        await host.run(service.app, request())
        assert host.answer()[0] == 200
    assert service.events == ["start", "stop"] * 2


async def test_request_after_the_end_starts_nothing() -> None:
    service = Service(FakeHandler())
    async with service.app.lifespan():
        pass
    host = Host(body(b"x"))
    await host.run(service.app, request())
    status, _, text = host.answer()
    assert (status, json.loads(text)) == (503, {"error": "The server is shutting down."})
    assert service.events == ["start", "stop"]


def test_another_loop_is_told_what_to_do() -> None:
    service = Service(FakeHandler())
    asyncio.run(Host(body(b"x")).run(service.app, request()))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(Host(body(b"x")).run(service.app, request()))
