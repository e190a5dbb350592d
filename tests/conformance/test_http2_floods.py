"""Attacks on HTTP/2 that cost a client little: each has its bound, and others are served meanwhile.

An attacker is told why its connection ends. What it has made the server keep stays within `GROWTH`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import hpack
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.support.attacks import ECHO, HEALTH, MANY, body, peer, resident
from tests.support.http2 import (
    END_HEADERS,
    LARGEST_WINDOW,
    PREFACE,
    Frame,
    Http2Client,
    Kind,
    data,
    frame,
    headers,
    http2,
    ping,
    reset,
    settings,
    window_update,
)
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytestmark = pytest.mark.own_wire(reason="frames are written by hand")

MIB = 1024**2
GROWTH = 32 * MIB  # of the server's memory by any flood
MOST = 200_000  # frames that an attacker sends, if nobody stops it
AT_ONCE = 500  # frames that it sends in a piece
JSON = ("content-type", "application/json")


class Server:
    """A server in a process of its own, which all attackers attack."""

    def __init__(self, process: ServerProcess, folder: Path) -> None:
        self.process = process
        self.gate = folder / "go"
        self.url = process.wait_for("listening")["url"]
        process.wait_for("ready")

    def memory(self) -> int:
        """Bytes of the server's own process, without the memory that it shares with the slots of its worker."""
        return resident(self.process.popen.pid, "RssAnon")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_model(tmp_path_factory.mktemp("floods") / "model", ECHO, MANY)
    process = ServerProcess(str(folder))
    yield Server(process, folder)
    process.end()


# the attacker


class Attacker:
    """A connection that goes on sending, whatever it is told. Plain sockets: they keep what came before a reset."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._loop = asyncio.get_running_loop()
        self._encoder = hpack.Encoder()
        self.is_stopped = False  # the server takes no more

    def head(self, stream: int, *, path: str = "/health-check", method: str = "GET", end: bool = True) -> bytes:
        """The head of a request, with `end` all of it."""
        fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost"), JSON]
        return headers(stream, self._encoder.encode(fields), end=end)

    async def send(self, content: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._socket, content)
        except ConnectionError:
            self.is_stopped = True

    async def send_all(self, frames: Iterator[bytes]) -> None:
        """Send frames, many in a piece, until the server takes no more or there are none, and then an end."""
        while not self.is_stopped:
            piece = b"".join(islice(frames, AT_ONCE))
            if not piece:
                break
            await self.send(piece)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def frames(self) -> list[Frame]:
        """Read to the end of the connection; return the frames, but for acknowledgements."""
        content = bytearray()
        with contextlib.suppress(ConnectionError):
            while piece := await self._loop.sock_recv(self._socket, 2**16):
                content += piece
        found, begin = [], 0
        while len(content) - begin >= 9:
            size = int.from_bytes(content[begin : begin + 3])
            stream = int.from_bytes(content[begin + 5 : begin + 9])
            payload = bytes(content[begin + 9 : begin + 9 + size])
            kind, flags = content[begin + 3 : begin + 5]
            if kind not in {Kind.PING, Kind.SETTINGS}:
                found.append(Frame(kind, flags, stream, payload))
            begin += 9 + size
        return found


@contextlib.asynccontextmanager
async def attacker(url: str) -> AsyncIterator[Attacker]:
    """Connect for the time of the block; the preface is sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as plain:
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
        attacking = Attacker(plain)
        await attacking.send(PREFACE + settings())
        yield attacking


# attacks


Attack = Callable[[Attacker], Iterator[bytes]]


def numbers() -> Iterator[int]:
    """The streams of a client."""
    return iter(range(1, 2 * MOST, 2))


def rapid_reset(client: Attacker) -> Iterator[bytes]:
    """CVE-2023-44487."""
    return (client.head(stream) + reset(stream) for stream in numbers())


def reset_before_the_body(client: Attacker) -> Iterator[bytes]:
    return (client.head(s, path="/predictions", method="POST", end=False) + reset(s) for s in numbers())


def resets_by_the_server(client: Attacker) -> Iterator[bytes]:
    """CVE-2025-8671: the client has the server reset its streams."""
    return (client.head(s, path="/predictions", method="POST", end=False) + window_update(s, 0) for s in numbers())


def refused_heads(client: Attacker) -> Iterator[bytes]:
    """Requests without a path, each of which is a stream's error."""
    block = hpack.Encoder().encode([(":method", "GET")], huffman=False)
    return (headers(stream, block) for stream in numbers())


def empty_continuations(client: Attacker) -> Iterator[bytes]:
    """CVE-2024-27316 and its like."""
    first = headers(1, b"\x82", end_headers=False)
    return chain([first], repeat(frame(Kind.CONTINUATION, stream=1), MOST))


def large_continuations(client: Attacker) -> Iterator[bytes]:
    first = headers(1, b"\x82", end_headers=False)
    field = b"\0\x01x\x7f\x80\x01" + b"y" * 255
    return chain([first], repeat(frame(Kind.CONTINUATION, field * 16, stream=1), MOST))


def many_settings(client: Attacker) -> Iterator[bytes]:
    """CVE-2019-9515."""
    return repeat(settings(), MOST)


def settings_of_windows(client: Attacker) -> Iterator[bytes]:
    """Each changes the windows of a hundred streams."""
    opened = (client.head(s, path="/predictions", method="POST", end=False) for s in range(1, 200, 2))
    sizes: tuple[dict[int, int], ...] = tuple({SettingCodes.INITIAL_WINDOW_SIZE: size} for size in (0, 2**30))
    return chain(opened, (settings(sizes[index % 2]) for index in range(MOST)))


def pings(client: Attacker) -> Iterator[bytes]:
    """CVE-2019-9512."""
    return repeat(ping(), MOST)


def empty_data(client: Attacker) -> Iterator[bytes]:
    """CVE-2019-9518."""
    return chain([client.head(1, path="/predictions", method="POST", end=False)], repeat(data(1), MOST))


def priorities(client: Attacker) -> Iterator[bytes]:
    """CVE-2019-9513."""
    return repeat(frame(Kind.PRIORITY, b"\0\0\0\0\x10", stream=1), MOST)


def windows_of_the_connection(client: Attacker) -> Iterator[bytes]:
    return repeat(window_update(0, 1), MOST)


def windows_of_a_stream(client: Attacker) -> Iterator[bytes]:
    """CVE-2019-9511: an answer goes out byte by byte."""
    content = body("", size=MOST)
    first = settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    asked = client.head(1, path="/predictions", method="POST", end=False) + data(1, content, end=True)
    return chain([first, asked], repeat(window_update(1, 1), MOST))


def resets_of_what_is_over(client: Attacker) -> Iterator[bytes]:
    return chain([client.head(1) + reset(1)], repeat(reset(1), MOST))


ATTACKS: tuple[Attack, ...] = (
    rapid_reset,
    reset_before_the_body,
    resets_by_the_server,
    refused_heads,
    empty_continuations,
    large_continuations,
    many_settings,
    settings_of_windows,
    pings,
    empty_data,
    priorities,
    windows_of_the_connection,
    windows_of_a_stream,
    resets_of_what_is_over,
)


class Seen(NamedTuple):
    """What others saw meanwhile."""

    served: int
    peak: int  # bytes of the server's memory


async def others(server: Server, attack: asyncio.Future[None]) -> Seen:
    """Ask over HTTP/1.1 and HTTP/2, until the attack is over and once more behind it."""
    served, peak, is_last = 0, 0, False
    async with peer(server.url) as plain, http2(server.url) as client:
        while not is_last:
            is_last = attack.done()
            await plain.send(HEALTH)
            assert (await plain.answer()).status == 200
            assert (await client.ask("GET", "/health-check")).status == 200
            served, peak = served + 1, max(peak, server.memory())
    return Seen(served, peak)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_flood_is_ended(server: Server, attack: Attack) -> None:
    before = server.memory()
    async with attacker(server.url) as client:
        flood = asyncio.ensure_future(client.send_all(attack(client)))
        watching = asyncio.ensure_future(others(server, flood))
        async with asyncio.timeout(PATIENCE):
            found = await client.frames()
            await flood
            seen = await watching
    last = [each for each in found if each.kind == Kind.GOAWAY][-1:]
    assert [each.code for each in last] == [ErrorCodes.ENHANCE_YOUR_CALM], found[-3:]
    assert seen.served
    assert seen.peak - before < GROWTH


@pytest.mark.parametrize("attack", [pings, many_settings, rapid_reset], ids=lambda attack: attack.__name__)
async def test_a_flood_of_one_who_reads_nothing_is_ended(server: Server, attack: Attack) -> None:
    before = server.memory()
    async with attacker(server.url) as client:
        flood = asyncio.ensure_future(client.send_all(attack(client)))
        async with asyncio.timeout(PATIENCE):
            seen = await others(server, flood)
            found = await client.frames()
    assert ErrorCodes.ENHANCE_YOUR_CALM in [each.code for each in found if each.kind == Kind.GOAWAY]
    assert seen.peak - before < GROWTH


# heads


async def refused_head(server: Server, fields: list[tuple[str, str]]) -> None:
    """Ask with these fields: refused, and the connection or at least the server goes on."""
    async with http2(server.url) as client:
        stream = client.open()
        block = client.block("GET", "/health-check", *fields)
        pieces = [block[begin : begin + 16_000] for begin in range(0, len(block), 16_000)]
        await client.send(headers(stream, pieces[0], end_headers=len(pieces) == 1))
        for number, piece in enumerate(pieces[1:], 2):
            flags = END_HEADERS if number == len(pieces) else 0
            await client.send(frame(Kind.CONTINUATION, piece, flags=flags, stream=stream))
        answer = client.answers[stream]
        async with asyncio.timeout(PATIENCE):
            while not answer.is_over and await client.take() is not None:
                pass
        if answer.status:
            assert answer.status == 431
        else:
            assert answer.reset is not None or client.goaway is not None
    async with http2(server.url) as later:
        assert (await later.ask("GET", "/health-check")).status == 200


async def test_a_head_that_is_too_large(server: Server) -> None:
    await refused_head(server, [(f"x-{number}", "y" * 4000) for number in range(20)])


async def test_a_head_of_too_many_fields(server: Server) -> None:
    await refused_head(server, [(f"x-{number}", "") for number in range(1000)])


async def test_a_field_that_is_named_again_and_again(server: Server) -> None:
    """One octet stands for a field of 3 kB each time (RFC 7541, section 7.3)."""
    before = server.memory()
    await refused_head(server, [("x-bomb", "b" * 3000)] * 10_000)
    assert server.memory() - before < GROWTH


# streams


async def test_streams_beyond_the_limit_are_refused(server: Server) -> None:
    async with http2(server.url) as client:
        limit = client.settings[SettingCodes.MAX_CONCURRENT_STREAMS]
        assert 100 <= limit <= 10_000
        held = [await client.begin("POST", "/predictions", JSON) for _ in range(limit)]
        late = [await client.begin("GET", "/health-check", end=True) for _ in range(5)]
        await client.until(lambda: all(client.answers[stream].is_over for stream in late))
        assert {client.answers[stream].reset for stream in late} == {ErrorCodes.REFUSED_STREAM}
        assert not any(client.answers[stream].is_over for stream in held)
        await client.upload(held[0], body("the first"))
        assert (await client.answer(held[0])).json()["output"] == "the first"
        again = await client.ask("GET", "/health-check")
        assert again.status == 200


async def test_streams_that_come_and_go_are_not_kept(server: Server) -> None:
    """Ten thousand requests on one connection leave nothing behind."""
    async with http2(server.url) as client:
        await many(client, 1000)
        before = server.memory()
        await many(client, 10_000)
        assert server.memory() - before < 8 * MIB


async def many(client: Http2Client, count: int) -> None:
    """Ask so often, 100 streams at a time."""
    for _ in range(count // 100):
        streams = [await client.begin("GET", "/health-check", end=True) for _ in range(100)]
        for stream in streams:
            assert (await client.answer(stream)).status == 200


# answers that nobody reads


@pytest.mark.parametrize("window", [0, LARGEST_WINDOW], ids=["no window", "no reading"])
async def test_unread_answers_are_bounded(server: Server, window: int) -> None:
    """One client asks for 1600 answers of 512 KiB, which would be 800 MiB, and takes none of them.

    The server may hold 64 MiB of answers, 64 MiB of finished predictions, and the inputs and outputs of its 64 slots.
    """
    before = server.memory()
    own: dict[int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: window}
    async with http2(server.url, own, small=True) as client:
        if window:
            client.credit(0, LARGEST_WINDOW - 65_535)
        sending = asyncio.ensure_future(ask_for_much(client))
        seen = await others(server, asyncio.ensure_future(rounds(server, 100)))
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        assert seen.peak - before < 256 * MIB


async def test_s15_what_runs_counts_with_the_unread_answers(server: Server) -> None:
    """A hundred answers of 4 MB at once for a client whose window is shut; it gets all of them when it opens."""
    before = server.memory()
    async with http2(server.url, {SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
        streams = []
        for _ in range(100):
            stream = client.open()
            streams.append(stream)
            head = headers(stream, client.block("POST", "/predictions", JSON), end=False)
            await client.send(head + data(stream, body("", size=4_000_000), end=True))
        cancel = client.open()  # a request without a body does not wait
        await client.send(headers(cancel, client.block("POST", "/predictions/unknown/cancel"), end=True))
        client.credit(cancel, 65_535)
        assert (await client.answer(cancel)).status == 404
        seen = await others(server, asyncio.ensure_future(rounds(server, 100)))
        assert seen.peak - before < 160 * MIB
        client.credit(0, LARGEST_WINDOW - 65_535)
        for stream in streams:  # one at a time, or the test would hold them all
            client.credit(stream, 5_000_000)
            answer = await client.answer(stream)
            assert (answer.status, len(answer.json()["output"])) == (200, 4_000_000)
            answer.body.clear()


async def ask_for_much(client: Http2Client) -> None:
    for _ in range(1600):
        stream = client.open()
        content = body("", size=MIB // 2)
        head = headers(stream, client.block("POST", "/predictions", JSON), end=False)
        await client.send(head + data(stream, content, end=True))


async def rounds(server: Server, count: int) -> None:
    """Have so many predictions of another client served."""
    async with http2(server.url) as client:
        for number in range(count):
            answer = await client.ask("POST", "/predictions", body(str(number)))
            assert answer.status in {200, 409}
