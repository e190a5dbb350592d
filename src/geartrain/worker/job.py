"""One prediction in the child: its arguments, its reports to the parent, its end."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextvars import Token
from pathlib import Path
from typing import Any

from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.bridge.framing import INLINE_LIMIT
from geartrain.bridge.messages import Cancelled, Done, DroppedLogs, Failed, Log, Metric, Output, Predict
from geartrain.domain.events import LogSource, MetricMode
from geartrain.domain.tensors import Buffer, pack, unpack
from geartrain.worker.arguments import ArgumentBinder
from geartrain.worker.channel import Channel
from geartrain.worker.jobfiles import JobFiles
from geartrain.worker.originals import TemporaryFiles
from geartrain.worker.outputs import OutputEncoder
from geartrain.worker.parcels import SharedMemory
from geartrain.worker.streams import LineWriter, Router

_FRAMEWORK = f"{Path(__file__).parents[1]}{os.sep}"


_MAX_TEXT = 262_144  # characters of an error or a traceback
MAX_LOGS = 32 * 1024**2  # characters that one prediction may log; what is more would fill the parent's memory


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
    ) -> None:
        self.binder = binder
        self.encoder = encoder
        self.router = router
        self.control = control
        self.temporary = temporary
        self._memory: dict[Channel, SharedMemory] = {}

    def memory_of(self, slot: Channel) -> SharedMemory:
        """What a slot shares with the parent."""
        return self._memory.setdefault(slot, SharedMemory())


class Job:
    """Reports of one running prediction, over its slot's channel."""

    __slots__ = (
        "_arguments",
        "_began",
        "_channel",
        "_dropped",
        "_files",
        "_logged",
        "_message",
        "_scope",
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
        self._files = JobFiles(message.output_dir, channel, tools.temporary)
        self._began = time.perf_counter()
        self._logged = 0  # characters
        self._dropped = 0  # lines
        self._arguments: dict[str, Any] | None = None
        self._scope: Token[Scope | None] | None = None
        self._writer: LineWriter | None = None

    def __enter__(self) -> None:
        """Route prints and metrics of the current context to this job."""
        router = self._tools.router
        router.install()  # a model that replaced sys.stdout silences nobody but itself
        self._writer = router.begin(self._log)
        message = self._message
        scope = Scope(prediction_id=self.id, context=message.context, parameters=message.parameters, emit=self._metric)
        self._scope = set_scope(scope)

    def __exit__(self, *_: object) -> None:
        """From here on they are nobody's; the author's files are closed."""
        if self._writer is not None:
            self._tools.router.end(self._writer)
        if self._dropped:
            self._tell_dropped()
        if self._scope is not None:
            reset_scope(self._scope)
        if self._arguments is not None:
            self._tools.binder.release(self._arguments)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `run()`."""
        binder = self._tools.binder
        raw = self._input()
        self._arguments = binder.bind(*unpack(raw)) if self._message.packed else binder.bind(bytes(raw))
        return self._arguments

    def _input(self) -> Buffer:
        message = self._message
        if message.input is not None:
            return message.input
        if message.input_file is not None:
            raw = Path(message.input_file).read_bytes()
            self._remove_input()
            return raw
        if message.memory is None:
            msg = "a job came without its input"
            raise RuntimeError(msg)
        return self._tools.memory_of(self._channel).view(message.memory)

    def send_chunk(self, value: object, *, may_wait: bool = False) -> None:
        """Report one yielded value; `may_wait` as of `Channel.send`."""
        plain = self._tools.encoder.encode_plain(value)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            self._channel.send(Output(plain), may_wait=may_wait)
        else:
            self._send_encoded(value, Output, may_wait=may_wait)

    def succeed(self, value: object) -> None:
        """Report the returned value and the end."""

        def done(output: bytes, shared: int) -> Done:
            self.close()
            return Done(self.id, output, self._elapsed(), is_stream=False, shared=shared)

        self._send_encoded(value, done)

    def succeed_stream(self) -> None:
        """Report the end of a stream of chunks."""
        self.close()
        self._channel.send(Done(self.id, None, self._elapsed(), is_stream=True))

    def fail(self, error: BaseException) -> None:
        """Report what was raised: the traceback to the logs, type and message as the error."""
        self.log_traceback(error)
        self.close()
        self._channel.send(Failed(self.id, describe_error(error)))

    def cancelled(self) -> None:
        """Report that the run was stopped on request."""
        self.close()
        self._channel.send(Cancelled(self.id))

    def log_traceback(self, error: BaseException) -> None:
        """Write the author's part of the traceback to the logs."""
        self._channel.send(Log("stderr", format_error(error)))

    def close(self) -> None:
        """Delete what the run leaves behind: every report of an end does, so that the files are gone before it."""
        self._files.close()
        self._remove_input()

    def _remove_input(self) -> None:
        if self._message.input_file is not None:
            Path(self._message.input_file).unlink(missing_ok=True)

    def _send_encoded(
        self, value: object, report: Callable[[bytes, int], Output | Done], *, may_wait: bool = False
    ) -> None:
        """Announce the files of an output, and send what `report` makes of it: of its text, or of its size in memory.

        It goes into a file of its own where it is too large for either.
        """
        files = self._files
        encoded = self._tools.encoder.encode(value, files.new_folder, files.originals_of, apart=self._message.packed)
        if encoded.files:
            files.announce(encoded.files)
        parts: list[Buffer] = [encoded.json] if encoded.tensors is None else pack(encoded.json, encoded.tensors)
        memory = self._message.memory
        if memory is not None and encoded.tensors is not None:
            with self._channel.shield:  # once it is taken, the parent has to hear of it
                slot = self._tools.memory_of(self._channel)
                shared = slot.leave(memory, parts)
                if shared:
                    try:
                        self._channel.send(report(b"", shared))
                    except BaseException:
                        slot.withdraw()
                        raise
                    return
        if sum(map(len, parts)) <= INLINE_LIMIT:
            self._channel.send(report(b"".join(parts), 0), may_wait=may_wait)
        else:
            files.spill(parts)
            self._channel.send(report(b"", 0), may_wait=may_wait)

    def _log(self, source: LogSource, data: str) -> None:
        self._logged += len(data)
        if self._logged > MAX_LOGS:
            self._dropped += data.count("\n") or 1
        else:
            self._channel.send(Log(source, data))

    def _tell_dropped(self) -> None:
        """Say how many lines were one too many, to the client and to the operator."""
        note = f"[geartrain: {self._dropped} more lines were dropped; a prediction may log {MAX_LOGS >> 20} MiB]\n"
        self._channel.send(Log("stderr", note))
        milliseconds = int(self._elapsed() * 1000)
        self._tools.control.send(DroppedLogs(self._dropped, milliseconds))

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
    text = _clip(text)
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
    return _clip(text)


def _clip(text: str) -> str:
    """Make a text fit to travel: no lone surrogates, and no longer than a frame may be."""
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} […] {text[-_MAX_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
