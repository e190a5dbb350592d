"""MCP over two streams of bytes, such as stdin and stdout: each message is a line."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from geartrain.apis.mcp import messages
from geartrain.apis.mcp.messages import Fault, JsonObject, Message, MessageId
from geartrain.domain.predictions.request_context import NOTHING_SENT, new_context
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.mcp.methods import Caller, Methods, handshake
from geartrain.transport.mcp.routes import API
from geartrain.transport.runs import DIRECT_LIMIT

_PIECE: Final = 262_144  # bytes that are read at a time
_Line = bytes | Fault | None
_MOST_RUNNING: Final = 1024  # requests that are answered at once; no further one is read meanwhile


async def serve_streams(
    methods: Methods, source: int, target: int, *, ready: Callable[[], Awaitable[None]], max_line: int
) -> None:
    """Answer the lines of `source` on `target`, until `source` ends or `target` is closed: two file descriptors.

    A request for models waits for `ready`. Lines of more than `max_line` bytes are refused. What still runs at the end
    is canceled.
    """
    server = _StreamServer(methods, _Writer(target), ready)
    await server.serve(_Reader(source, max_line))


class _StreamServer:
    """The server of one client."""

    def __init__(self, methods: Methods, writer: _Writer, ready: Callable[[], Awaitable[None]]) -> None:
        self._methods = methods
        self._writer = writer
        self._ready = ready
        self._version = messages.UNSTATED
        self._level = "info"
        self._running: dict[MessageId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_MOST_RUNNING)

    async def serve(self, reader: _Reader) -> None:
        """Take messages until there are no more."""
        gone = asyncio.ensure_future(self._writer.gone.wait())
        try:
            while True:
                line = asyncio.ensure_future(reader.line())
                await asyncio.wait((line, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or (found := line.result()) is None:
                    line.cancel()
                    return
                if isinstance(found, Fault):
                    await self._writer.write(messages.encode_fault(found))
                elif found.strip():
                    await self._take(found)
        finally:
            gone.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, line: bytes) -> None:
        try:
            is_large = len(line) > DIRECT_LIMIT
            message = await read_aside(messages.read_message, line) if is_large else messages.read_message(line)
        except Fault as fault:
            await self._writer.write(messages.encode_fault(fault))
            return
        if message.id is None:
            self._notice(message)
            return
        await self._room.acquire()
        task = asyncio.ensure_future(self._answer(message, message.id))
        self._tasks.add(task)
        self._running[message.id] = task
        task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, own_id: MessageId, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._tasks.discard(task)
        if self._running.get(own_id) is task:
            del self._running[own_id]

    def _notice(self, message: Message) -> None:
        """Take a notification: `notifications/cancelled` ends a request."""
        canceled = message.canceled_id() if message.method == "notifications/cancelled" else None
        task = None if canceled is None else self._running.get(canceled)
        if task is not None:
            task.cancel()

    async def _answer(self, message: Message, own_id: MessageId) -> None:
        try:
            answer = messages.encode_result(own_id, await self._result(message))
        except Fault as fault:
            fault.id = own_id
            answer = messages.encode_fault(fault)
        await self._writer.write(answer)

    async def _result(self, message: Message) -> JsonObject:
        context = new_context(NOTHING_SENT, API.name, shows_logs=API.shows_logs)
        caller = Caller(self._version, self._level, context=context)
        if message.is_stateless:
            version, level = message.envelope()
            caller = Caller(version, level, context=context)
        elif message.method == "initialize":
            result = handshake(message.text("protocolVersion"))
            self._version = result["protocolVersion"]
            return result
        elif message.method == "logging/setLevel":
            self._level = messages.check_level(message.text("level"))
            return {}
        if message.method.startswith("tools/"):
            await self._ready()
        return await self._methods.answer(message, caller, self._notify)

    async def _notify(self, method: str, params: JsonObject) -> None:
        await self._writer.write(messages.encode_notification(method, params))


class _Reader:
    """Reads lines in a thread of its own: a file that is no pipe can be read in no other way.

    It reads the descriptor itself: a thread that waited in `sys.stdin` would abort the end of the interpreter. The next
    line is read when the one before has been taken.
    """

    def __init__(self, source: int, max_line: int) -> None:
        self._source = source
        self._max_line = max_line
        self._held = bytearray()  # behind the last line
        self._loop = asyncio.get_running_loop()
        self._wanted: queue.SimpleQueue[asyncio.Future[_Line]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="geartrain-mcp-reader", daemon=True).start()

    async def line(self) -> _Line:
        """Return the next line, the fault of one that is too long, or None at the end."""
        future: asyncio.Future[_Line] = self._loop.create_future()
        self._wanted.put(future)
        return await future

    def _work(self) -> None:
        while True:
            future = self._wanted.get()
            try:
                line: _Line = self._read() or None
            except OSError:
                line = None
            if not _settle(self._loop, future, line) or line is None:
                return

    def _read(self) -> bytes | Fault:
        """Return the next line; an empty one at the end. The part before the end of the source is a line, too."""
        begin, is_long = 0, False
        while (end := self._held.find(b"\n", begin)) < 0:
            begin = len(self._held)
            piece = os.read(self._source, _PIECE)
            if not piece:
                end = begin
                break
            if begin > self._max_line:
                begin, is_long = 0, True
                self._held.clear()
            self._held += piece
        line = bytes(self._held[: end + 1])
        del self._held[: end + 1]
        if is_long or len(line) > self._max_line + 1:
            return Fault(messages.INVALID_REQUEST, f"A message has at most {self._max_line} bytes.")
        return line


class _Writer:
    """Writes lines in a thread of its own, so that a client that does not read holds up its own requests alone."""

    def __init__(self, target: int) -> None:
        self.gone = asyncio.Event()
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._given: queue.SimpleQueue[tuple[bytes, asyncio.Future[bool]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="geartrain-mcp-writer", daemon=True).start()

    async def write(self, message: bytes) -> None:
        """Write a message; return when it is written. Without a reader it is dropped."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._given.put((message + b"\n", future))
        if not await future:
            self.gone.set()

    def _work(self) -> None:
        is_open = True
        while True:
            data, future = self._given.get()
            view = memoryview(data)
            while view and is_open:
                try:
                    view = view[os.write(self._target, view) :]
                except OSError:
                    is_open = False
            if not _settle(self._loop, future, is_open):
                return


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: object) -> bool:
    """Give a future its value, from another thread; return False if the loop is closed."""

    def settle() -> None:
        if not future.done():
            future.set_result(value)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return False
    return True
