"""Calls of other models by the author's code of a worker, as the service sees them."""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.bridge.channels import CallSocket
from geartrain.domain.predictions.calls import nothing
from geartrain.domain.signature.types import OutputMode
from geartrain.domain.tensors.tensor import Buffer, Tensor, unpack
from geartrain.ipc.framing import INLINE_LIMIT, FrameError, frame
from geartrain.ipc.memory import HEADER, WORTHWHILE, Region, give_room, lease_of
from geartrain.ipc.messages import Handle, InFile, Inline, ModelAnswer, ModelCall, ModelRunEnd, Payload, encode
from geartrain.ipc.payload import PayloadReader, PayloadWriter

Read = Callable[[Handle], Buffer]
"""Returns what lies in shared memory. Raises `OSError`."""

MOST: Final = 10_000  # calls of a worker that run at once


class WorkerModelCall:
    """One call of another model (`ModelCallPort`)."""

    __slots__ = (
        "_forget",
        "_held",
        "_is_over",
        "_lies_at",
        "_may_share",
        "_may_stay",
        "_new_file",
        "_number",
        "_socket",
        "_unsent",
        "_writing",
        "input",
        "model",
        "on_end",
        "place",
        "tensors",
        "version",
    )

    def __init__(
        self,
        message: ModelCall,
        json: bytes,
        tensors: tuple[Tensor, ...] | None,
        *,
        socket: CallSocket,
        new_file: Callable[[], Path],
        may_share: bool,
        forget: Callable[[int], None],
    ) -> None:
        """`new_file` gives the path of an output that fits no message. `may_share`: the worker opens memory of others.

        `forget` is called with the number of the call when the worker has all of the answer.
        """
        self.model = message.model
        self.version = message.version
        self.input = json
        self.tensors = tensors
        self.on_end: Callable[[], None] = nothing
        self._number = message.number
        self._socket = socket
        self._new_file = new_file
        self._may_share = may_share
        self._forget = forget
        self.place = (message.slot, message.serial)  # of the call that makes it
        self._held: tuple[Buffer, Region] | None = None  # an output in memory that the worker reads
        self._lies_at: Handle | None = None  # the place of that
        self._may_stay = False  # the worker may keep it there
        self._unsent: deque[tuple[ModelAnswer, Buffer]] = deque()  # behind an output that is being written to a file
        self._writing: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """True if it has ended and only its output is still being read."""
        return self._held is not None

    @property
    def output(self) -> Buffer | None:
        """The output in memory that the worker reads."""
        return None if self._held is None else self._held[0]

    def held(self, place: Handle) -> Buffer | None:
        """Return a part of the output that the worker reads; None if that is at another place."""
        lying, held = self._lies_at, self._held
        if held is None or lying is None or lying.path != place.path:
            return None
        begin = place.offset - lying.offset
        return held[0][begin : begin + place.size] if 0 <= begin <= lying.size - place.size else None

    def give(self, output: Buffer, *, packed: bool, record: bool, files: tuple[str, ...]) -> None:
        """Send an output of a stream."""
        self._send_output(ModelAnswer(self._number, None, packed, record, files), output)

    def end(
        self,
        output: Buffer | None,
        mode: OutputMode,
        *,
        packed: bool = False,
        record: bool = False,
        files: tuple[str, ...] = (),
    ) -> None:
        """Send the end."""
        self._send_output(ModelAnswer(self._number, None, packed, record, files, mode), output)

    def fail(self, model: str, code: str, error: str) -> None:
        """Send the reason for which there is no answer."""
        self._unsent.clear()
        self._send(ModelAnswer(self._number, error=error or "the model gave no reason", code=code, model=model))

    def release(self) -> None:
        """Let go of what the worker has read, and send no more."""
        self._is_over = True
        self._unsent.clear()
        held, self._held = self._held, None
        if held is not None:
            held[1].close()
        on_end, self.on_end = self.on_end, nothing
        on_end()

    def _send_output(self, answer: ModelAnswer, output: Buffer | None) -> None:
        """Send an answer with its output: now, or when it, and those before it, have been written to files."""
        if output is None:
            output, payload = b"", None
        else:
            payload = self._place(output, is_last=bool(answer.mode))
        if self._writing is None and (payload is not None or not output):
            self._send(msgspec.structs.replace(answer, output=payload, may_stay=self._may_stay))
            return
        self._unsent.append((answer, output))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    def _place(self, output: Buffer, *, is_last: bool) -> Payload | None:
        """Return an output as it travels: where it lies, if the worker can read it there; None for a file."""
        if is_last and self._may_share and len(output) > WORTHWHILE:
            shared = share(output)
            if shared is not None:
                self._lies_at, region = shared
                self._held = output, region
                lease = lease_of(output)
                self._may_stay = lease is not None and lease.hold is not None and lease.hold()
                return self._lies_at
        return Inline(bytes(output)) if len(output) <= INLINE_LIMIT else None

    async def _write(self) -> None:
        writer = PayloadWriter(tuple, self._new_file)
        try:
            while self._unsent:
                answer, output = self._unsent.popleft()
                payload: Payload | None = None
                if len(output) > INLINE_LIMIT:
                    payload = await asyncio.to_thread(writer.to_file, [output])
                elif output:
                    payload = Inline(bytes(output))
                self._send(msgspec.structs.replace(answer, output=payload))
        except OSError as error:
            self.fail(self.model, "no_storage", f"its output cannot be handed over: {error.strerror or error}")
        finally:
            self._writing = None

    def _send(self, answer: ModelAnswer) -> None:
        if self._is_over:
            return
        self._socket.write(frame(encode(answer)))
        if (answer.mode or answer.error) and self._held is None:
            self._is_over = True
            self._forget(self._number)


def share(contents: Buffer) -> tuple[Handle, Region] | None:
    """Return the place of lent contents, and their memory with a descriptor of its own, which the caller closes.

    None for contents in memory of this process alone, or of a worker that is gone.
    """
    lease = lease_of(contents)
    if type(contents) is not memoryview or lease is None or not len(contents):
        return None
    try:
        region = lease.region.duplicate()
    except OSError:
        return None
    array: Any = contents.obj
    begin = ctypes.addressof(ctypes.c_char.from_buffer(contents)) - ctypes.addressof(array)
    return Handle(region.path, begin - HEADER, len(contents)), region


class WorkerModelCalls:
    """The calls of other models that the code of one worker has begun and whose answer it does not have yet."""

    def __init__(self, socket: CallSocket, new_file: Callable[[], Path]) -> None:
        self._socket = socket
        self._new_file = new_file
        self._running: dict[int, WorkerModelCall] = {}
        self._loading: set[asyncio.Task[None]] = set()  # inputs that are being read from files

    def begin(
        self, message: ModelCall, tell: Callable[[WorkerModelCall], None], *, read: Read | None, may_share: bool
    ) -> None:
        """Read the input of a call and pass the call on. `read` reads what lies in shared memory.

        Raises `FrameError` for an input that is not where it is said to be.
        """
        if len(self._running) + len(self._loading) >= MOST:
            self.refuse(message, f"a worker has at most {MOST} calls of other models at a time")
        elif type(message.input) is InFile:
            loading = asyncio.ensure_future(self._load(message, tell, may_share=may_share))
            self._loading.add(loading)
            loading.add_done_callback(self._loading.discard)
        elif type(message.input) is Inline:
            self._begin(message, message.input.data, tell, may_share=may_share)
        elif type(message.input) is Handle and read is not None:
            try:
                data = read(message.input)
            except OSError as error:
                raise FrameError(str(error)) from error
            self._begin(message, data, tell, may_share=may_share)

    def refuse(self, message: ModelCall, reason: str) -> None:
        """Answer that a call is not possible."""
        answer = ModelAnswer(message.number, error=reason, code="internal", model=message.model)
        self._socket.write(frame(encode(answer)))

    def end(self, number: int) -> None:
        """Note that the worker needs no more of an answer."""
        call = self._running.pop(number, None)
        if call is not None:
            call.release()

    def end_run(self, message: ModelRunEnd) -> None:
        """Let go of the outputs that the code of a run has read, or never will: the worker is done with it."""
        for number, call in [*self._running.items()]:
            if call.is_held and call.place == (message.slot, message.serial) and number not in message.kept:
                self.end(number)

    def held(self, place: Handle) -> Buffer | None:
        """Return an answer to the worker, or a part of one, that it passes on; None if there is none at this place."""
        for call in self._running.values():
            found = call.held(place)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """End all calls: the worker is gone."""
        running, self._running = self._running, {}
        for call in running.values():
            call.release()

    async def _load(self, message: ModelCall, tell: Callable[[WorkerModelCall], None], *, may_share: bool) -> None:
        reader = PayloadReader(_no_memory)
        try:
            data = await asyncio.to_thread(reader.read, message.input)
        except OSError as error:
            self.refuse(message, f"the input could not be read: {error}")
            return
        self._begin(message, data, tell, may_share=may_share)

    def _begin(
        self, message: ModelCall, data: Buffer, tell: Callable[[WorkerModelCall], None], *, may_share: bool
    ) -> None:
        json, tensors = (bytes(data), None) if not message.packed else _unpacked(data)
        if message.passed is not None:
            tensors = self._passed(message.passed, tensors)
        call = self._running[message.number] = WorkerModelCall(
            message,
            json,
            tensors,
            socket=self._socket,
            new_file=self._new_file,
            may_share=may_share,
            forget=self._forget,
        )
        tell(call)

    def _passed(self, place: Handle, tensors: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        """Return the only tensor of an input, with contents that have been answered before. Raises `FrameError`."""
        for call in self._running.values():
            contents = call.held(place)
            if contents is not None and call.output is not None and tensors is not None and len(tensors) == 1:
                give_room(call.output)
                return (msgspec.structs.replace(tensors[0], data=contents),)
        msg = "the input of a model is said to be an output of another one, and there is none"
        raise FrameError(msg)

    def _forget(self, number: int) -> None:
        self._running.pop(number, None)


def _unpacked(data: Buffer) -> tuple[bytes, tuple[Tensor, ...]]:
    json, tensors = unpack(data)
    return json, tuple(tensors)


def _no_memory(path: str) -> Any:
    msg = f"there is no memory {path}"
    raise OSError(msg)
