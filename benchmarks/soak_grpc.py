"""A million calls on one connection, and 200 streams at once for a minute: no leak, and every answer its own.

`python benchmarks/soak_grpc.py --help`. Every call has an id and a number that no other has, and its answer has to have
both. Ends with 1 if an answer is not as it must be, or if memory or descriptors are not given back. Prints markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import pathlib
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import hpack
import uvloop

from geartrain.transport.grpc.open_inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from report import machine, table
from servers import HERE, Running, Server, processes_of, running

GROWTH = 8 * 2**20  # bytes that memory may grow, since allocators keep some
WARM_UP = 20_000  # calls before memory is read first
PATIENCE = 60.0  # seconds for an answer
_SERVICE = "/inference.GRPCInferenceService/"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FRAME = 9  # bytes in front of the payload of a frame
_PREFIX = 5  # bytes in front of a message of gRPC
_LARGEST = 2**31 - 1
_CREDIT = 2**24  # bytes that have come, after which the window of the connection is opened again
_LAST_STREAM = 2**31 - 3

Response = ModelInferResponse


class SoakError(Exception):
    """An answer was not as it must be."""


# messages


def message(number: int) -> bytes:
    """A request that no other is like, in its frame of gRPC."""
    tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2, 2])
    raw = [_tensor(number)]
    request = ModelInferRequest(model_name="echo", id=str(number), inputs=[tensor], raw_input_contents=raw)
    content = request.SerializeToString()
    return b"\0" + len(content).to_bytes(4) + content


def _tensor(number: int) -> bytes:
    return struct.pack("<4I", number & 0x7F7FFFFF, 1, 2, 3)  # four FP32 whose bits tell the number


def check(response: Response, number: int) -> None:
    """Raise `SoakError` if this is not the answer to that request."""
    if response.id != str(number) or list(response.raw_output_contents) != [_tensor(number)]:
        raise SoakError(f"the answer to {number} was {response!r}")


# the client


class Call:
    """One stream. `messages` have come of its answer; `is_over`: it has ended well."""

    __slots__ = ("_buffer", "is_over", "messages", "waiter")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.is_over = False
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()

    def take(self, content: bytes) -> None:
        """Take a part of the answer."""
        self._buffer += content
        while len(self._buffer) >= _PREFIX and len(self._buffer) >= (end := _PREFIX + _number(self._buffer[1:_PREFIX])):
            self.messages.append(bytes(self._buffer[_PREFIX:end]))
            del self._buffer[:end]

    def wake(self) -> None:
        """Go on with whoever waits."""
        if not self.waiter.done():
            self.waiter.set_result(None)

    async def next(self) -> bytes:
        """Return the next message; raises `SoakError` if there is none."""
        while not self.messages:
            if self.is_over:
                raise SoakError("a call has ended without its answer")
            async with asyncio.timeout(PATIENCE):
                await self.waiter
            self.waiter = asyncio.get_running_loop().create_future()
        return self.messages.pop(0)

    async def end(self) -> None:
        """Wait for the trailers; raises `SoakError` if a message comes before."""
        while not self.is_over:
            async with asyncio.timeout(PATIENCE):
                await self.waiter
            self.waiter = asyncio.get_running_loop().create_future()
        if self.messages:
            raise SoakError("a call had more answers than requests")


class Connection(asyncio.Protocol):
    """HTTP/2 by hand, since a client library would be slower than the server.

    The server's dynamic table has no room, so a field block says the same wherever it stands.
    """

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self.is_lost = False
        self._transport: asyncio.Transport
        self._buffer = b""
        self._received = 0
        self._good: set[bytes] = set()  # blocks of trailers that tell no error, and of heads
        self._streams = itertools.count(1, 2)
        self._heads: dict[str, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]  # it is one of TCP
        settings = struct.pack(">HIHI", 0x1, 0, 0x4, _LARGEST)
        window = (_LARGEST - 65_535).to_bytes(4)
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, window))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as of `Protocol`
        """Wake everybody."""
        self.is_lost = True
        for call in self.calls.values():
            call.is_over = True
            call.wake()

    def open(self, method: str, content: bytes = b"", *, is_last: bool) -> tuple[int, Call]:
        """Begin a call, with a first message or all of it."""
        head = self._heads.get(method)
        if head is None:
            head = self._heads[method] = _head(method)
        stream = next(self._streams)
        if self.is_lost or stream > _LAST_STREAM:
            raise SoakError("the connection has ended")
        self.calls[stream] = call = Call()
        body = _frame(_DATA, _END_STREAM if is_last else 0, stream, content) if content or is_last else b""
        self._transport.write(_frame(_HEADERS, _END_HEADERS, stream, head) + body)
        return stream, call

    def send(self, stream: int, content: bytes, *, is_last: bool = False) -> None:
        """Send a further message, or the end."""
        self._transport.write(_frame(_DATA, _END_STREAM if is_last else 0, stream, content))

    def close(self) -> None:
        """Leave."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take frames."""
        buffer = self._buffer + data if self._buffer else data
        begin = 0
        while len(buffer) - begin >= _FRAME:
            head = buffer[begin : begin + _FRAME]
            end = begin + _FRAME + _number(head[:3])
            if len(buffer) < end:
                break
            self._take((head[3], head[4]), _number(head[5:]), buffer[begin + _FRAME : end])
            begin = end
        self._buffer = buffer[begin:]

    def _take(self, head: tuple[int, int], stream: int, payload: bytes) -> None:
        """Take a frame; `head`: its type and its flags."""
        kind, flags = head
        if kind == _DATA:
            self._credit(len(payload))
            call = self.calls[stream]
            call.take(payload)
            if call.messages:
                call.wake()
        elif kind == _HEADERS:
            self._take_fields(flags, stream, payload)
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._transport.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in {_RST_STREAM, _GOAWAY}:
            print(f"the server has ended stream {stream}: {payload!r}", file=sys.stderr)
            self._transport.abort()

    def _take_fields(self, flags: int, stream: int, block: bytes) -> None:
        if block not in self._good:
            fields = dict(hpack.Decoder().decode(block, raw=True))
            if fields.get(b"grpc-status", b"0") != b"0" or fields.get(b":status", b"200") != b"200":
                raise SoakError(f"stream {stream}: {fields}")
            self._good.add(block)
        if flags & _END_STREAM:
            call = self.calls.pop(stream)
            call.is_over = True
            call.wake()

    def _credit(self, size: int) -> None:
        self._received += size
        if self._received >= _CREDIT:
            self._transport.write(_frame(_WINDOW_UPDATE, 0, 0, self._received.to_bytes(4)))
            self._received = 0


def _number(data: bytes | bytearray) -> int:
    return int.from_bytes(data, "big")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _head(method: str) -> bytes:
    """A field block that does not touch the dynamic table."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _SERVICE + method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return hpack.Encoder().encode([(name, value, True) for name, value in fields.items()])


@contextlib.asynccontextmanager
async def connected(server: Running) -> AsyncIterator[Connection]:
    """Connect for the time of the block; at the end no call may be open."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", server.grpc_port)
    try:
        yield connection
        if connection.calls or connection.is_lost:
            raise SoakError(f"{len(connection.calls)} calls are still open")
    finally:
        connection.close()


# the trials


async def make_calls(server: Running, count: int, at_once: int) -> int:
    """Make so many calls on one connection, some at once; return how many were answered."""
    numbers = iter(range(count))
    answered = 0

    async def one_after_the_other(connection: Connection) -> None:
        nonlocal answered
        for number in numbers:
            _, call = connection.open("ModelInfer", message(number), is_last=True)
            check(Response.FromString(await call.next()), number)
            await call.end()
            answered += 1

    async with connected(server) as connection:
        await asyncio.gather(*(one_after_the_other(connection) for _ in range(at_once)))
    return answered


async def hold_streams(server: Running, count: int, seconds: float) -> int:
    """Have so many streams open on one connection, each of which asks again and again; return the answers."""
    numbers = itertools.count(10**7)
    answered = 0
    until = time.monotonic() + seconds

    async def stream(connection: Connection) -> None:
        nonlocal answered
        number, call = connection.open("ModelStreamInfer", is_last=False)
        while time.monotonic() < until:
            asked = next(numbers)
            connection.send(number, message(asked))
            told = ModelStreamInferResponse.FromString(await call.next())
            if told.error_message:
                raise SoakError(told.error_message)
            check(told.infer_response, asked)
            answered += 1
        connection.send(number, b"", is_last=True)
        await call.end()

    async with connected(server) as connection:
        await asyncio.gather(*(stream(connection) for _ in range(count)))
    return answered


@dataclasses.dataclass(frozen=True)
class State:
    """What the server holds: bytes of its own process and of the worker (RSS), and descriptors of both."""

    parent: int
    worker: int
    descriptors: int

    @classmethod
    def of(cls, server: Running) -> State:
        """Look."""
        pids = processes_of(server.pid)
        memory = [_resident(pid) for pid in pids]
        descriptors = sum(len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        return cls(memory[0], sum(memory[1:]), descriptors)

    def kept(self, before: State) -> list[str]:
        """What has not been given back."""
        found = [
            f"the {name} has grown by {(now - then) / 2**20:.1f} MiB"
            for name, now, then in (
                ("server's own process", self.parent, before.parent),
                ("worker", self.worker, before.worker),
            )
            if now - then > GROWTH
        ]
        if self.descriptors > before.descriptors:
            found.append(f"{self.descriptors - before.descriptors} descriptors are open still")
        return found


def _resident(pid: int) -> int:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


async def settled(server: Running, before: State) -> State:
    """Wait until the server has seen the end of a connection; what is never given back is told then."""
    for _ in range(200):
        if State.of(server).descriptors <= before.descriptors:
            break
        await asyncio.sleep(0.05)
    return State.of(server)


Trial = tuple[str, Callable[[Running], Awaitable[int]]]


async def soak(server: Running, trials: list[Trial]) -> bool:
    """Run the trials and print a table; whether everything was as it must be."""
    await make_calls(server, WARM_UP, 64)
    await hold_streams(server, 200, 3)
    rows, violations = [], []
    first = State.of(server)
    for name, trial in trials:
        before = await settled(server, first)
        begin = time.monotonic()
        answered = await trial(server)
        seconds = time.monotonic() - begin
        after = await settled(server, before)
        memory = [f"{then / 2**20:.1f} → {now / 2**20:.1f}" for then, now in _pairs(before, after)]
        rows.append([name, f"{answered:,}", f"{seconds:,.0f}", f"{answered / seconds:,.0f}", *memory])
        violations += [f"{name}: {text}" for text in after.kept(before)]
    print(table(["trial", "good answers", "seconds", "answers/s", "server, MiB", "worker, MiB"], rows))
    for text in violations:
        print(text, file=sys.stderr)
    return not violations


def _pairs(before: State, after: State) -> list[tuple[int, int]]:
    return [(before.parent, after.parent), (before.worker, after.worker)]


def main() -> None:
    """Parse the command line, soak, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000, help="on one connection (default: 1,000,000)")
    parser.add_argument("--at-once", type=int, default=64, help="of these calls (default: 64)")
    parser.add_argument("--streams", type=int, default=200, help="on one connection (default: 200)")
    parser.add_argument("--seconds", type=float, default=60, help="that the streams are held (default: 60)")
    options = parser.parse_args()
    trials: list[Trial] = [
        (f"calls, {options.at_once} at once", lambda server: make_calls(server, options.calls, options.at_once)),
        (f"{options.streams} streams", lambda server: hold_streams(server, options.streams, options.seconds)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "echo"
        shutil.copytree(HERE / "models/tensor_async", model)
        script = pathlib.Path(sys.executable).with_name("geartrain")
        address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "{grpc}")
        server = Server(name="geartrain", command=(str(script), "serve", str(model), *address))
        print(f"{machine()}.\n")
        with running(server) as started:
            is_good = uvloop.run(soak(started, trials))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
