"""Codecs of calls of one and of several predictions: values become arguments, results become outputs.

An engine runs a call in the same way whatever its number of items. The codec of a call gives, for each invocation of
`run()`, an object that binds the input to arguments, splits what `run()` gives into the outputs of the items, and
decides the end of the items if `run()` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from geartrain.authoring.scope import Scope
from geartrain.domain.predictions.calls import ALL, ItemEvent, Report
from geartrain.domain.predictions.events import Log, Output
from geartrain.domain.tensors.tensor import Buffer, unpack
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.memory import WORTHWHILE
from geartrain.worker.calls.reports import (
    NO_FAILURES,
    LargeOutputs,
    OutputBytes,
    Outputs,
    ReportSender,
    SmallOutput,
    encode_output,
)
from geartrain.worker.channels.channel import MAY_WAIT, Channel
from geartrain.worker.errors import describe_error, format_error
from geartrain.worker.values.arguments import ArgumentBinder
from geartrain.worker.values.outputs import OutputEncoder


class RefusedError(Exception):
    """The values of some items cannot be bound: the call goes on without these items."""

    def __init__(self, failures: Mapping[int, Exception]) -> None:
        """`failures` has the error of each item."""
        super().__init__(failures)
        self.failures = failures


class NobodyLeftError(Exception):
    """All items of an invocation have ended before its end."""


class Recovery(NamedTuple):
    """The outcome of the items of an invocation that raised.

    The `reports` come first: tracebacks. Then items fail with an error each. `again` are the items of each invocation
    that follows. A `warning`, if it is not empty, is for the operator.
    """

    failures: Mapping[int, str]
    reports: Sequence[Report] = ()
    again: Sequence[Sequence[int]] = ()
    warning: str = ""


class Invocation(Protocol):
    """One invocation of `run()`, for all items of a call or for some."""

    items: Collection[int]
    """The indexes of the items that have not failed meanwhile, in their order."""
    scope: Scope

    def bind(self, raw: Buffer) -> dict[str, Any]:
        """Return the keyword arguments for `run()`, of the input of the whole call.

        Raises `RefusedError` for items whose values are refused, and any other error for all.
        """

    def encode(self, value: object) -> Outputs:
        """Return the outputs of a value that `run()` has returned. Raises `OutputError` if there are none."""

    def give(self, value: object, *, may_wait: bool) -> Mapping[int, BaseException]:
        """Report a value that `run()` has yielded; return the items that have failed instead.

        `may_wait`: see `Channel.send_soon`. Raises `OutputError` if the value is no output at all.
        """

    def drop(self, items: Collection[int]) -> None:
        """Go on without some items: they have failed."""

    def recover(self, error: BaseException, items: Sequence[int]) -> Recovery:
        """Say what becomes of `items`, those whose end is not reported, when `error` was raised."""

    def end(self, control: Channel) -> None:
        """Let the last logs of items out, and close the files that `bind` has opened."""

    def forget_metrics(self) -> None:
        """Take out the metrics that were recorded: the items are run again."""


CallCodec = Callable[[Sequence[int], ReportSender], Invocation]
"""Begins an invocation of `run()` for some items of a call, whose logs go to the current writer already."""


def failure_of_all(items: Sequence[int], error: BaseException) -> Recovery:
    """Let all items fail with one error, whose traceback is logged once."""
    if not items:
        return Recovery({})
    log = ItemEvent(items[0] if len(items) == 1 else ALL, Log("stderr", format_error(error)))
    return Recovery(dict.fromkeys(items, describe_error(error)), (log,))


_NO_ARGUMENTS: Final[dict[str, Any]] = {}


class SingleTools(NamedTuple):
    """Shared tools of the invocations of calls of one item."""

    binder: ArgumentBinder
    encoder: OutputEncoder


class SingleInvocation:
    """The invocation of a call of one item, whose input is that of `run()`, and whose output is what `run()` gives."""

    __slots__ = ("_arguments", "_given", "_packed", "_reports", "_tools", "items", "scope")

    def __init__(self, tools: SingleTools, items: Sequence[int], reports: ReportSender) -> None:
        item = reports.message.items[0]
        self.items: Collection[int] = items
        self.scope = Scope(item.id, item.context, reports.metric_of_first, request=item, place=reports.message)
        if item.parameters:
            self.scope.parameters = dict(item.parameters)  # a keyword would also cost calls without parameters
        self._tools = tools
        self._reports = reports
        self._packed = item.packed
        self._arguments = _NO_ARGUMENTS
        self._given = 0  # outputs of a stream

    def bind(self, raw: Buffer) -> dict[str, Any]:
        """Return the keyword arguments for `run()`. Raises `ArgumentError`."""
        binder = self._tools.binder
        self._arguments = binder.bind(*unpack(raw)) if self._packed else binder.bind(raw)
        return self._arguments

    def encode(self, value: object) -> Outputs:
        """Return the output of a value that `run()` has returned. Raises `OutputError`."""
        encoder = self._tools.encoder
        plain = encoder.encode_plain(value)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            return SmallOutput(plain)
        output = self._encode_large(value, plain, encoder)
        if output.size <= WORTHWHILE and not output.files:
            return SmallOutput(b"".join(output.parts))  # small tensors: nothing is to be placed
        return LargeOutputs({0: output})

    def give(self, value: object, *, may_wait: bool) -> Mapping[int, BaseException]:
        """Report a value that `run()` has yielded. Raises `OutputError`."""
        index = self._given
        self._given = index + 1
        encoder = self._tools.encoder.chunks
        plain = encoder.encode_plain(value)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            reports = self._reports
            send = reports.send_soon if may_wait and len(plain) <= MAY_WAIT else reports.send
            send((ItemEvent(0, Output(plain, index)),))
            return NO_FAILURES
        return self._reports.send_outputs({0: self._encode_large(value, plain, encoder)}, {0: index})

    def drop(self, items: Collection[int]) -> None:
        """Go on without the item, if it is among those that failed."""
        if items:
            self.items = ()

    def recover(self, error: BaseException, items: Sequence[int]) -> Recovery:
        """Let the item fail."""
        return failure_of_all(items, error)

    def end(self, control: Channel) -> None:  # noqa: ARG002 - the item's log is that of the call
        """Close the files that `bind` has opened."""
        self._tools.binder.release(self._arguments)

    def forget_metrics(self) -> None:
        """Take out the metrics that were recorded."""
        self.scope.forget_metrics()

    def _encode_large(self, value: object, plain: bytes | None, encoder: OutputEncoder) -> OutputBytes:
        """Encode a value that is no small JSON; `plain` is what it is as JSON, None if it takes more."""
        if plain is not None:
            return OutputBytes([plain], len(plain))
        return encode_output(encoder, value, self._reports.slot, apart=self._packed)


class UnbatchedInvocation(SingleInvocation):
    """The invocation of a call of several items where the model takes one at a time: all of them fail."""

    __slots__ = ()

    def bind(self, raw: Buffer) -> dict[str, Any]:  # noqa: ARG002 - never read
        """Raise `RuntimeError`: the parent never sends such a call."""
        raise RuntimeError(f"a call of {len(self.items)} items came to a model that takes one at a time")
