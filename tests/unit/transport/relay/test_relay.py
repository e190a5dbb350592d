"""Requests to another server of the cluster, over real sockets, to a peer that answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import ANYONE, Principal
from geartrain.transport.relay import relay as relaying_module
from geartrain.transport.relay.relay import (
    MOST_WAITING,
    NOT_HERE,
    PeerPool,
    Relay,
    RelayCounts,
    RelayedRequest,
    split_address,
)
from geartrain.transport.relay.token import ClusterToken
from geartrain.transport.wire.exchange import Head, RequestNotes

TOKEN = b"t" * 32
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-secret: no\r\ncontent-length: 2\r\n\r\n{}"

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


class Peer:
    """Another server: takes requests one after the other, and remembers them and the ends of connections."""

    def __init__(self, answer: Answering) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()  # a connection has ended
        self._answer = answer
        self._serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(request)
                await self._answer(reader, writer, request)
        self.left.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def ended(self) -> None:
        """All connections have ended."""
        await asyncio.gather(*self._serving)


class CountedRelay(Relay):
    """A relay whose counts a test sees."""

    def __init__(self) -> None:
        self.counts = RelayCounts()
        super().__init__(ClusterToken((TOKEN,)), PeerPool(None), retry_after=5, counts=self.counts)

    def ended(self) -> dict[str, int]:
        """The outcomes that there have been."""
        return {outcome: count for outcome, count in self.counts.outcomes.items() if count}


@contextlib.asynccontextmanager
async def relaying(answer: Answering) -> AsyncIterator[tuple[CountedRelay, Peer, str]]:
    peer = Peer(answer)
    server = await asyncio.start_server(peer.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    relay = CountedRelay()
    try:
        async with asyncio.timeout(40):
            yield relay, peer, f"{host}:{port}"
    finally:
        relay.close()
        server.close()
        async with asyncio.timeout(40):
            await peer.ended()


async def whole(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
    writer.write(WHOLE)


def ask(*headers: tuple[bytes, bytes], method: str = "GET", key: str = "") -> RelayedRequest:
    notes = RequestNotes(key=key, principal=Principal(f"key:{key}") if key else ANYONE)
    return RelayedRequest.of(Head(method, b"/predictions/a%2Fb", b"x=1", headers, notes=notes))


async def test_what_is_sent_is_our_own_request() -> None:
    async with relaying(whole) as (relay, peer, address):
        fields = ((b"accept", b"text/event-stream"), (b"authorization", b"Bearer secret"), (b"host", b"public"))
        forged = (
            (b"geartrain-cluster-token", b"forged"),
            (b"geartrain-cluster-key", b"root"),
            (b"geartrain-cluster-principal", b"*"),
        )
        answer = await relay.open(address, ask(*fields, *forged, method="PUT", key="ada"))
        assert await answer.read() == b"{}"
        assert await answer.read() == b""
    lines = peer.requests[0].decode().splitlines()
    assert lines == [
        "PUT /predictions/a%2Fb HTTP/1.1",
        f"host: {address}",
        f"geartrain-cluster-token: {TOKEN.decode()}",
        "accept: text/event-stream",
        "geartrain-cluster-principal: key:ada",
        "geartrain-cluster-key: ada",
        "content-length: 0",
        "",
    ]


async def test_ids_come_in_place_of_those_that_the_client_has_sent() -> None:
    head = Head("GET", b"/predictions/a", b"", [(b"x-request-id", b"old"), (b"prefer", b"respond-async")])
    request = RelayedRequest.of(head, [("X-Request-Id", "new"), ("traceparent", "00-1-2-01")])
    assert request.headers == (
        (b"prefer", b"respond-async"),
        (b"x-request-id", b"new"),
        (b"traceparent", b"00-1-2-01"),
    )


async def test_an_answer_has_the_header_fields_that_matter_and_its_connection_is_kept() -> None:
    async with relaying(whole) as (relay, peer, address):
        for _ in range(3):
            answer = await (await relay.open(address, ask())).whole()
            assert (answer.status, answer.parts) == (200, (b"{}",))
            assert answer.headers == ((b"content-type", b"application/json"),)
        assert peer.connections == 1
        await (await relay.open(address, ask())).drop()
        assert peer.connections == 1
        assert relay.ended() == {"answered": 4}
        assert sum(relay.counts.seconds.counts) == 4
        assert 0 < relay.counts.seconds.total < 4


async def test_a_kept_connection_that_has_ended_is_followed_by_a_new_one() -> None:
    async def once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(WHOLE)
        await writer.drain()
        writer.close()

    async with relaying(once) as (relay, peer, address):
        for _ in range(3):
            assert (await (await relay.open(address, ask())).whole()).status == 200
        assert len(peer.requests) == peer.connections == 3


async def test_a_stream_comes_as_it_is_sent_and_who_leaves_is_noticed() -> None:
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n")
        await reader.readexactly(1)  # until the connection ends

    async with relaying(stream) as (relay, peer, address):
        answer = await relay.open(address, ask())
        assert answer.is_stream
        assert await answer.read() == b"one"
        go_on.set()
        assert await answer.read() == b"two"
        answer.close()
        await peer.left.wait()
        with pytest.raises(GeartrainError):
            await answer.read()
        answer.close()  # once more: it is one request
        assert relay.ended() == {"left": 1}


async def test_a_stream_is_read_no_faster_than_it_is_taken() -> None:
    length = 64 << 20

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % length)
        for _ in range(64):
            writer.write(bytes(1 << 20))
            await writer.drain()

    async with relaying(flood) as (relay, _peer, address):
        answer = await relay.open(address, ask())
        size = 0
        while piece := await answer.read():
            size += len(piece)
            assert len(piece) < 2 << 20  # what is held is little, however much comes
            await asyncio.sleep(0)
        assert size == length


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\nx: " + bytes(70_000),
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    ],
)
async def test_a_server_without_an_answer_is_unreachable(said: bytes) -> None:
    async def break_off(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    async with relaying(break_off) as (relay, _peer, address):
        with pytest.raises(GeartrainError) as raised:
            await relay.open(address, ask())
        assert (raised.value.code, raised.value.retry_after) == (Code.OWNER_UNREACHABLE, 5)
        assert relay.ended() == {"unreachable": 1}
        assert sum(relay.counts.seconds.counts) == 0


async def test_a_body_that_breaks_off_is_no_answer() -> None:
    async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with relaying(cut) as (relay, _peer, address):
        answer = await relay.open(address, ask())
        with pytest.raises(GeartrainError) as raised:
            await answer.whole()
        assert raised.value.code is Code.OWNER_UNREACHABLE
        assert relay.ended() == {"incomplete": 1}


async def test_who_leaves_before_the_answer_begins_is_counted() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _request: bytes) -> None:
        asked.set()
        await reader.readexactly(1)

    asked = asyncio.Event()
    async with relaying(silent) as (relay, _peer, address):
        opening = asyncio.ensure_future(relay.open(address, ask()))
        await asked.wait()
        opening.cancel()
        await asyncio.wait([opening])
        assert relay.ended() == {"left": 1}


async def test_a_server_that_does_not_run_the_prediction_is_counted_by_itself() -> None:
    async def elsewhere(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n")

    async with relaying(elsewhere) as (relay, _peer, address):
        answer = await relay.open(address, ask())
        assert answer.status is NOT_HERE
        await answer.drop()
        assert relay.ended() == {"not_here": 1}


async def test_endless_answer_of_a_server_that_does_not_have_it_is_not_read_to_its_end() -> None:
    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
            await writer.drain()

    async with relaying(endless) as (relay, peer, address):
        answer = await relay.open(address, ask())
        await answer.drop()
        await peer.left.wait()


async def test_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.001)

    monkeypatch.setattr(relaying_module, "_PIECE_WITHIN", 0.2)
    async with relaying(drip) as (relay, peer, address):
        answer = await relay.open(address, ask())
        with pytest.raises(GeartrainError, match="its answer comes too slowly"):
            await answer.whole()
        await peer.left.wait()
        assert relay.ended() == {"incomplete": 1}


async def test_server_that_hangs_takes_so_many_connections_and_no_more() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _request: bytes) -> None:
        await reader.readexactly(1)

    async with relaying(silent) as (relay, peer, address):
        waiting = [asyncio.ensure_future(relay.open(address, ask())) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)  # each is counted as it begins
        with pytest.raises(GeartrainError, match="too many requests wait for it") as raised:
            await relay.open(address, ask())
        assert raised.value.code is Code.OWNER_UNREACHABLE
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert peer.connections <= MOST_WAITING
        again = asyncio.ensure_future(relay.open(address, ask()))
        await asyncio.wait([again], timeout=0.05)
        assert not again.done()  # there is room again
        again.cancel()
        await asyncio.wait([again])


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    relay = Relay(ClusterToken((TOKEN,)), PeerPool(None), retry_after=5)
    with pytest.raises(GeartrainError, match="cannot be reached"):
        await relay.open(f"{host}:{port}", ask())


async def test_a_server_that_does_not_have_it_says_so() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n")

    async with relaying(refuse) as (relay, _peer, address):
        assert (await relay.open(address, ask())).status is NOT_HERE


def test_addresses() -> None:
    assert split_address("models-0.models:5000") == ("models-0.models", 5000)
    assert split_address("10.0.0.7:80") == ("10.0.0.7", 80)
    assert split_address("[::1]:5000") == ("::1", 5000)
    for wrong in ("", "host", ":5000", "host:", "host:port", "host:99999", "http://host:1", "host:1/path", "u@host:1"):
        with pytest.raises(ValueError, match=r"."):
            split_address(wrong)
