"""One prediction in the child: its arguments, its reports to the parent, its end."""

from __future__ import annotations

import os
import time
import traceback
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.bridge.framing import INLINE_LIMIT
from geartrain.bridge.messages import Cancelled, Done, Failed, Log, Metric, Output, Predict, PredictBatch
from geartrain.domain.events import MetricMode
from geartrain.domain.tensors import unpack
from geartrain.worker.arguments import ArgumentBinder
from geartrain.worker.channel import Channel
from geartrain.worker.jobfiles import JobFiles
from geartrain.worker.joblog import JobLog
from geartrain.worker.originals import TemporaryFiles
from geartrain.worker.outputs import OutputEncoder
from geartrain.worker.parcels import SharedMemory, read_input, remove_input
from geartrain.worker.sending import OutputSender
from geartrain.worker.streams import LineWriter, Router

if TYPE_CHECKING:
    from geartrain.worker.batch import BatchTools

_FRAMEWORK = f"{Path(__file__).parents[1]}{os.sep}"
_MAX_TEXT = 262_144  # characters of an error or a traceback


class JobTools:
    """What all jobs of a worker share: made once, after the model is loaded."""

    def __init__(
        self,
        binder: ArgumentBinder,
        encoder: OutputEncoder,
        router: Router,
        *,
        control: Channel,
        temporary: TemporaryFiles | None,
        batch: BatchTools | None = None,
    ) -> None:
        """`batch` is what a model that takes batches needs beside the rest."""
        self.binder = binder
        self.encoder = encoder
        self.router = router
        self.control = control
        self.temporary = temporary
        self.batch = batch
        self._memory: dict[Channel, SharedMemory] = {}

    def memory_of(self, slot: Channel) -> SharedMemory:
        """What a slot shares with the parent."""
        memory = self._memory.get(slot)
        if memory is None:
            memory = self._memory[slot] = SharedMemory()
        return memory

    def sender(self, slot: Channel, message: Predict | PredictBatch) -> OutputSender:
        """What sends the outputs of one call for a message that came on a slot.

        Where the author's temporary files are deleted, it has to be there before the call.
        """
        files = JobFiles(message.output_dir, slot, self.temporary)
        return OutputSender(slot, self.encoder, files, memory=message.memory, shared=self.memory_of(slot))


class Runnable(Protocol):
    """One call of `run()`, as an engine sees it: of a prediction, or of a batch of them."""

    @property
    def id(self) -> str:
        """Of the job that this is a call of."""

    @property
    def serial(self) -> int:
        """Which job of its slot that is."""

    def __enter__(self) -> None:
        """Route prints and metrics of the current context to this call."""

    def __exit__(self, *_: object) -> None:
        """From here on they are nobody's; the author's files are closed."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `run()`."""

    def send_chunk(self, value: object, *, may_wait: bool = False) -> None:
        """Report one yielded value; `may_wait` as of `Channel.send`."""

    def succeed(self, value: object) -> None:
        """Report the returned value and the end."""

    def succeed_stream(self) -> None:
        """Report the end of a stream of chunks."""

    def fail(self, error: BaseException) -> None:
        """Report what was raised: the traceback to the logs, type and message as the error."""

    def cancelled(self) -> None:
        """Report that the job was stopped on request."""

    def close(self) -> None:
        """Delete what the job leaves behind, and make no further call."""

    def follow_up(self) -> Runnable | None:
        """The next call that this job needs, once this one is reported; None if the job has ended."""


class Job:
    """One running prediction: its reports, over its slot's channel."""

    __slots__ = (
        "_arguments",
        "_began",
        "_channel",
        "_log",
        "_message",
        "_scope",
        "_sender",
        "_tools",
        "_writer",
        "id",
        "serial",
    )

    def __init__(self, message: Predict, channel: Channel, tools: JobTools) -> None:
        self.id = message.id
        self.serial = message.serial
        self._message = message
        self._channel = channel
        self._tools = tools
        self._sender = None if tools.temporary is None else tools.sender(channel, message)
        self._began = time.perf_counter()
        self._log = JobLog(channel)
        self._arguments: dict[str, Any] | None = None
        self._scope: Token[Scope | None] | None = None
        self._writer: LineWriter | None = None

    def __enter__(self) -> None:
        """Route prints and metrics of the current context to this job."""
        router = self._tools.router
        router.install()  # a model that replaced sys.stdout silences nobody but itself
        self._writer = router.begin(self._log.write)
        message = self._message
        scope = Scope(prediction_id=self.id, context=message.context, parameters=message.parameters, emit=self._metric)
        self._scope = set_scope(scope)

    def __exit__(self, *_: object) -> None:
        """From here on they are nobody's; the author's files are closed."""
        if self._writer is not None:
            self._tools.router.end(self._writer)
        self._log.end(self._tools.control, self._elapsed())
        if self._scope is not None:
            reset_scope(self._scope)
        if self._arguments is not None:
            self._tools.binder.release(self._arguments)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `run()`."""
        message, binder = self._message, self._tools.binder
        raw = read_input(message, self._tools.memory_of(self._channel))
        self._arguments = binder.bind(*unpack(raw)) if message.packed else binder.bind(bytes(raw))
        return self._arguments

    def send_chunk(self, value: object, *, may_wait: bool = False) -> None:
        """Report one yielded value; `may_wait` as of `Channel.send`."""
        plain = self._tools.encoder.chunks.encode_plain(value)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            self._channel.send(Output(plain), may_wait=may_wait)
        else:
            sender = self._outputs()
            packet = sender.packet(value, plain, apart=self._message.packed, chunk=True)
            sender.send(packet, Output, may_wait=may_wait)

    def succeed(self, value: object) -> None:
        """Report the returned value and the end."""
        plain = self._tools.encoder.encode_plain(value)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            self._channel.send(self._done(plain, 0))
        else:
            sender = self._outputs()
            sender.send(sender.packet(value, plain, apart=self._message.packed), self._done)

    def succeed_stream(self) -> None:
        """Report the end of a stream of chunks."""
        self.close()
        self._channel.send(Done(self.id, None, self._elapsed(), is_stream=True))

    def fail(self, error: BaseException) -> None:
        """Report what was raised: the traceback to the logs, type and message as the error."""
        self._channel.send(Log("stderr", format_error(error)))
        self.close()
        self._channel.send(Failed(self.id, describe_error(error)))

    def cancelled(self) -> None:
        """Report that the run was stopped on request."""
        self.close()
        self._channel.send(Cancelled(self.id))

    def close(self) -> None:
        """Delete what the run leaves behind: every report of an end does, so that the files are gone before it."""
        if self._sender is not None:
            self._sender.files.close()
        remove_input(self._message)

    def follow_up(self) -> None:
        """A prediction is one call."""

    def _done(self, output: bytes, shared: int) -> Done:
        self.close()
        return Done(self.id, output, self._elapsed(), is_stream=False, shared=shared)

    def _outputs(self) -> OutputSender:
        if self._sender is None:
            self._sender = self._tools.sender(self._channel, self._message)
        return self._sender

    def _metric(self, name: str, value: Any, mode: MetricMode) -> None:
        self._channel.send(Metric(name, value, mode))

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


def describe_error(error: BaseException) -> str:
    """Return `Type: message`, whatever the exception's own `str` does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = "(its message could not be made)"
    text = clip(text)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def format_error(error: BaseException) -> str:
    """Return the traceback from the author's first line on, as Python prints it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FRAMEWORK):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = f"{describe_error(error)}\n"
    return clip(text)


def clip(text: str) -> str:
    """Make a text fit to travel: no lone surrogates, and no longer than a frame may be."""
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} […] {text[-_MAX_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
