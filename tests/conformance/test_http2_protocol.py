"""Every rule of RFC 9113 that concerns a server, over a socket: frames are sent, and a real server reacts.

The rows say which frames and which reaction. All of them are sent to one server, each on a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import hpack
import pytest

from tests.support.attacks import ECHO, MANY
from tests.support.http2 import Frame, Http2Client, Kind, http2, raw_connection
from tests.support.http2_rows import (
    ACK,
    ANY_STATUS,
    END_STREAM,
    NO_ERROR,
    PREFACE,
    ROWS,
    Answered,
    Goaway,
    PingAcknowledged,
    Reset,
    Row,
    SettingsAcknowledged,
    frame,
)
from tests.support.servers import PATIENCE, ServerProcess, write_model

LIVENESS = b"alive???"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(str(write_model(tmp_path_factory.mktemp("rows") / "model", ECHO, MANY)))
    found = process.wait_for("listening")["url"]
    process.wait_for("ready")
    yield found
    process.end()


class Peer:
    """Sends bytes, and keeps the frames that come."""

    def __init__(self, client: Http2Client) -> None:
        self.client = client
        self.seen: list[Frame] = []

    async def until(self, condition: Callable[[Frame], bool], count: int = 1) -> Frame:
        """Read frames until as many as that fit a condition."""
        async with asyncio.timeout(PATIENCE):
            while (found := await self.client.read()) is not None:
                self.seen.append(found)
                count -= condition(found)
                if not count:
                    return found
        pytest.fail(f"the connection has ended: {self.seen}")

    def codes(self, kind: Kind) -> list[tuple[int, int]]:
        """The streams and the codes of the frames of this kind that tell an error."""
        return [(each.stream, each.code) for each in self.seen if each.kind == kind and each.code != NO_ERROR]


def ends(stream: int) -> Callable[[Frame], bool]:
    """Whether a frame ends an answer."""
    return lambda found: found.stream == stream and found.kind <= Kind.HEADERS and bool(found.flags & END_STREAM)


def is_acknowledgement(found: Frame) -> bool:
    return (found.kind, found.flags) == (Kind.SETTINGS, ACK)


async def reacts(peer: Peer, row: Row) -> None:
    """Wait for the reaction of a row."""
    match row.reaction:
        case Reset(stream, code):
            found = await peer.until(lambda each: each.kind == Kind.RST_STREAM and each.code != NO_ERROR)
            assert (found.stream, found.code) == (stream, code)
        case Answered(stream, status):
            await peer.until(ends(stream))
            assert status in {ANY_STATUS, status_of(peer.seen, stream)}
        case SettingsAcknowledged(count):
            await peer.until(is_acknowledgement, count)
        case PingAcknowledged(payload):
            found = await peer.until(lambda each: each.kind == Kind.PING)
            assert (found.flags, found.payload) == (ACK, payload)


def status_of(seen: list[Frame], stream: int) -> int:
    """The status of an answer whose head is in one frame."""
    [block] = [each.payload for each in seen if (each.kind, each.stream) == (Kind.HEADERS, stream)]
    return _status(block)


def _status(block: bytes) -> int:
    (_, status), *_ = hpack.Decoder().decode(block, raw=True)
    return int(status)


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_reaction(url: str, row: Row) -> None:
    async with raw_connection(url) as streams:
        peer = Peer(Http2Client(streams, url, {}))
        await peer.client.send(row.opening)
        if url.startswith("http:") and not row.opening.startswith(PREFACE):
            async with asyncio.timeout(PATIENCE):  # what does not begin as HTTP/2 is HTTP/1.1
                assert await streams[0].readexactly(9) == b"HTTP/1.1 "
            return
        if row.before:
            await peer.client.send(row.before)
            await peer.until(ends(1))
        await peer.client.send(row.sent)
        if isinstance(row.reaction, Goaway):
            found = await peer.until(lambda each: each.kind == Kind.GOAWAY)
            assert found.code == row.reaction.code
            if url.startswith("http:"):  # TLS has no end of one direction: the server waits for the client to leave
                assert await peer.client.read() is None
            return
        await reacts(peer, row)
        await peer.client.send(frame(Kind.PING, 0, 0, LIVENESS))
        await peer.until(lambda each: each.kind == Kind.PING and each.payload == LIVENESS)
        assert peer.codes(Kind.GOAWAY) == []
        reset = row.reaction.stream if isinstance(row.reaction, Reset) else None
        assert [stream for stream, _ in peer.codes(Kind.RST_STREAM)] == ([*row.resets] if reset is None else [reset])


async def test_the_server_goes_on(url: str) -> None:
    """After all that it serves others."""
    async with http2(url) as client:
        assert (await client.ask("GET", "/health-check")).status == 200
