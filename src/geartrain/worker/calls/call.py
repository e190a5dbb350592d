"""One call as an engine runs it: one invocation of `run()` for its items, and further ones where that one failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from functools import cache, partial
from time import perf_counter
from typing import Any

from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.calls import ALL, Canceled, Failed, ItemEnd, Succeeded
from geartrain.domain.predictions.tracing import TraceContext, read_context
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.messages import CallItem, Inline, Predict, WorkerLog
from geartrain.ipc.payload import discard
from geartrain.worker.calls.codec import (
    CallCodec,
    Invocation,
    NobodyLeftError,
    RefusedError,
    SingleInvocation,
    SingleTools,
    UnbatchedInvocation,
)
from geartrain.worker.calls.memory import MemoryLimit, parts_of
from geartrain.worker.calls.reports import CallLog, ReportSender, failure_reports
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import Slot
from geartrain.worker.errors import clip, code_of
from geartrain.worker.loading.descriptions import Compose
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.stdio.router import LineWriter, Router
from geartrain.worker.values.arguments import ArgumentBinder, ComposingBinder
from geartrain.worker.values.outputs import OutputEncoder


class CallTools:
    """The codecs of one model, the router of what it prints, and the control channel."""

    __slots__ = ("control", "memory", "of_one", "of_several", "router")

    def __init__(
        self,
        of_one: CallCodec,
        of_several: CallCodec,
        *,
        router: Router,
        control: Channel,
        memory: MemoryLimit | None = None,
    ) -> None:
        """`of_one` is the codec of calls of one item, `of_several` that of all others.

        A call is cut into invocations that keep the limit of `memory`.
        """
        self.of_one = of_one
        self.of_several = of_several
        self.memory = memory
        self.router = router
        self.control = control


def tools_of_model(
    parameters: Sequence[Parameter],
    signature: Signature,
    batching: Batching | None,
    *,
    encoder: OutputEncoder,
    router: Router,
    control: Channel,
    compose: Compose | None = None,
) -> CallTools:
    """Make the tools for a model; `parameters`, `signature` and `encoder` are those of one prediction.

    `batching` is None for a model that takes one prediction at a time. `compose`: of a model that takes whole requests.
    """
    binder = ArgumentBinder(parameters) if compose is None else ComposingBinder(parameters, compose)
    single = SingleTools(binder, encoder)
    of_one: CallCodec = partial(SingleInvocation, single)
    if batching is None:
        return CallTools(of_one, partial(UnbatchedInvocation, single), router=router, control=control)
    from geartrain.worker.calls.batch_codec import BatchCodec  # few models need it

    of_several = BatchCodec(parameters, signature, batching, encoder=encoder, router=router, compose=compose)
    first = of_one if batching.takes_singles else of_several
    return CallTools(first, of_several, router=router, control=control, memory=of_several.memory)


@cache
def _beginning(count: int) -> tuple[frozenset[int], tuple[Sequence[int], ...]]:
    """Return the first state of a call: the items whose end is not reported, and the items of each invocation."""
    items = tuple(range(count))
    return frozenset(items), (items,)


class Call:
    """A call from its message to the end of each of its items, which are named by their index.

    An engine makes invocations of `run()` as long as some are `waiting`, each inside `with call:`. It reports each
    invocation with exactly one of `succeed`, `succeed_stream`, `fail` and `cancelled` after the `with` block, unless it
    gives the call up with `close`.
    """

    __slots__ = (
        "_input",
        "_invocation",
        "_left",
        "_log",
        "_message",
        "_reports",
        "_room",
        "_scope_token",
        "_slot",
        "_tools",
        "_writer",
        "serial",
        "waiting",
    )

    def __init__(self, message: Predict, slot: Slot, tools: CallTools) -> None:
        self.serial = message.serial
        self._message = message
        self._slot = slot
        self._tools = tools
        self._reports = ReportSender(message, slot, perf_counter())
        self._left, self.waiting = _beginning(len(message.items))
        memory = tools.memory
        if memory is not None and memory.rows and not message.probe:
            items = message.items
            self.waiting = tuple(parts_of(range(len(items)), [item.rows for item in items], memory.rows))
        self._input: Buffer | None = None  # once it has been read

    @property
    def id(self) -> str:
        """The id that the parent has given to the call."""
        return self._message.id

    def __enter__(self) -> None:
        """Begin the next invocation: route prints and metrics of the current context to its items."""
        items, self.waiting = self.waiting[0], self.waiting[1:]
        message, slot, tools, reports = self._message, self._slot, self._tools, self._reports
        begin = tools.of_one if len(message.items) == 1 else tools.of_several
        files = slot.files
        if message.regions:
            slot.regions = message.regions
        files.folder = message.output_dir
        if files.has_runs:
            files.begin()
        tools.router.install()  # a model that replaced sys.stdout silences only itself
        self._log = CallLog(reports, items[0] if len(items) == 1 else ALL)
        self._writer: LineWriter = tools.router.begin(self._log.write)
        self._invocation: Invocation = begin(items, reports)
        self._scope_token: Token[Scope | None] = set_scope(self._invocation.scope)
        if message.probe and tools.memory is not None:
            self._room = tools.memory.confined(message.probe)
            self._room.__enter__()

    def __exit__(self, *_: object) -> None:
        """End the routing: what is written from here on belongs to no prediction.

        The author's input files are closed.
        """
        tools = self._tools
        if self._message.probe and tools.memory is not None:
            self._room.__exit__(None, None, None)
        self._invocation.end(tools.control)
        tools.router.end(self._writer)
        if self._log.dropped:
            self._log.tell_dropped(tools.control)
        reset_scope(self._scope_token)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `run()`. Items whose values are refused have failed.

        Raises `NobodyLeftError` if all of them have, and whatever else keeps the call from being made.
        """
        if self._input is None:
            payload = self._message.input
            self._input = payload.data if type(payload) is Inline else self._slot.reader.read(payload)
        while True:
            try:
                return self._invocation.bind(self._input)
            except RefusedError as refused:
                self._drop(refused.failures)

    def send_chunk(self, value: object, *, may_wait: bool = False) -> None:
        """Report one yielded value; `may_wait`: see `Channel.send_soon`.

        Raises `OutputError` for a value that is no output of the call, `NobodyLeftError` if all items have failed.
        """
        failures = self._invocation.give(value, may_wait=may_wait)
        if failures:
            self._drop(failures)

    def succeed(self, value: object) -> None:
        """Report the returned value, and with it the end of the items. Raises as `send_chunk`, before any report."""
        invocation = self._invocation
        outputs = invocation.encode(value)
        files = self._slot.files
        if files.has_runs:
            files.end_run()
        is_last = len(invocation.items) == len(self._left)
        if is_last and type(self._message.input) is not Inline:
            self._release()
        outputs.end(self._reports, idle=is_last)
        self._left = self._left.difference(invocation.items)

    def succeed_stream(self) -> None:
        """Report the end of a stream of chunks."""
        self._slot.files.close()
        items = self._invocation.items
        elapsed = self._reports.elapsed()
        self._left = self._left.difference(items)
        ends = [ItemEnd(item, Succeeded(None, elapsed)) for item in items]
        self._reports.send_all(ends, idle=self._is_over())

    def failure(self, error: BaseException) -> Callable[[], None]:
        """Return a report of what was raised, to be called once.

        It lets go of the exception, whose traceback may refer to the frame that holds the report.
        """
        held = [error]
        return lambda: self.fail(held.pop())

    def fail(self, error: BaseException) -> None:
        """Report what was raised, to the items that it concerns; the others are run again where that is possible."""
        self._slot.files.close()
        invocation = self._invocation
        plan = invocation.recover(error, [item for item in invocation.items if item in self._left])
        if plan.warning:
            self._tools.control.send(WorkerLog("geartrain.worker", "warning", plan.warning))
        self._left = self._left.difference(plan.failures)
        code = code_of(error)
        ends = [ItemEnd(item, Failed(clip(text), code)) for item, text in plan.failures.items()]
        self._reports.send_all([*plan.reports, *ends], idle=self._is_over())
        if plan.again:
            invocation.forget_metrics()
            self.waiting = (*self.waiting, *plan.again)

    def cancelled(self) -> None:
        """Report that the call was stopped on request."""
        self.close()
        ends = [ItemEnd(item, Canceled()) for item in sorted(self._left)]
        self._left = frozenset()
        self._reports.send_all(ends, idle=True)

    def close(self) -> None:
        """Delete what the call leaves behind, and make no further invocation."""
        self._slot.files.close()
        self._release()

    def _is_over(self) -> bool:
        """Tell whether all items have ended; the input is let go of then."""
        if self._left:
            return False
        self._release()
        return True

    def _release(self) -> None:
        self.waiting = ()
        self._input = None
        discard(self._message.input)

    def _drop(self, failures: Mapping[int, BaseException]) -> None:
        """Fail some items in the midst of an invocation. Raises `NobodyLeftError` if there is none left."""
        with self._slot.channel.shield:  # a cancel in between would be the end of the others only
            self._reports.send_all(failure_reports(failures.items()))
            self._left = self._left.difference(failures)
            self._invocation.drop(failures.keys())
        if not self._invocation.items:
            raise NobodyLeftError


def traced(kind: type[Call]) -> type[Call]:
    """Return a kind of calls of a model that may record spans: OpenTelemetry's current span is that of the run.

    The run of a batch is that of the first item that is recorded.
    """
    from geartrain.telemetry.current_span import enter, leave  # OpenTelemetry, where traces are on

    class TracedCall(kind):  # type: ignore[misc, valid-type]  # mypy knows no classes that are parameters
        """A call whose invocations have a current span."""

        __slots__ = ("_span_token",)

        def __enter__(self) -> None:
            super().__enter__()
            self._span_token: Token[Any] = enter(
                _run_of([self._message.items[item] for item in self._invocation.items])
            )

        def __exit__(self, *arguments: object) -> None:
            leave(self._span_token)
            super().__exit__(*arguments)

    return TracedCall


def _run_of(items: Sequence[CallItem]) -> TraceContext:
    """Return the trace context of the first item that is recorded, or else of the first one."""
    runs = [read_context(item.traceparent, item.tracestate) for item in items]
    return next((run for run in runs if run.is_sampled), runs[0])
