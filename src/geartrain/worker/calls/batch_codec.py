"""Calls of a model that takes several predictions in one invocation of `run()`, whatever their number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Token
from itertools import accumulate, chain
from operator import index as whole_number
from typing import TYPE_CHECKING, Any

from geartrain.authoring.batches import ItemError
from geartrain.authoring.metrics import registry
from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.predictions.calls import ALL, ItemEvent
from geartrain.domain.predictions.events import Log, Output
from geartrain.domain.signature.types import OutputSpec, Signature
from geartrain.domain.tensors.tensor import Buffer
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.memory import WORTHWHILE
from geartrain.worker.calls.codec import NobodyLeftError, Recovery, RefusedError, failure_of_all
from geartrain.worker.calls.memory import REMEMBERED, MemoryLimit, is_out_of_memory, parts_of
from geartrain.worker.calls.reports import (
    NO_FAILURES,
    CallLog,
    LargeOutputs,
    OutputBytes,
    Outputs,
    ReportSender,
    SmallOutputs,
    encode_output,
)
from geartrain.worker.channels.channel import MAY_WAIT, Channel
from geartrain.worker.errors import describe_error, format_error
from geartrain.worker.loading.descriptions import Compose
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.stdio.router import LineWriter, Router
from geartrain.worker.values.batches import BatchBinder, Sizes, Splitter
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.outputs import OutputEncoder
from geartrain.worker.values.padding import Shapes, cut
from geartrain.worker.values.tensor_outputs import tensor_types

if TYPE_CHECKING:
    from geartrain.worker.values.open_batches import ApartBinder


class Places:
    """The owners of the rows, or elements, of one invocation: `size` of them, padding included."""

    def __init__(self, items: Sequence[int], sizes: Sequence[int], size: int, *, shapes: Sequence[Shapes] = ()) -> None:
        """`shapes` as of `Bound`."""
        self.shapes = dict(zip(items, shapes, strict=False))  # there are none, or one for each
        self.items = items
        self.sizes = sizes
        self.size = size
        self._known_ends: list[int] | None = None

    @property
    def _ends(self) -> list[int]:
        """End of the rows of each item; seldom needed."""
        if self._known_ends is None:
            self._known_ends = list(accumulate(self.sizes))
        return self._known_ends

    def owner(self, place: int) -> int | None:
        """The item at a place; None for one that only fills the call up. Raises `IndexError`."""
        place = whole_number(place)
        if not 0 <= place < self.size:
            raise IndexError(f"there is no request {place} in a batch of {self.size}")
        at = bisect_right(self._ends, place)
        return self.items[at] if at < len(self.items) else None

    def original(self, place: int) -> int | None:
        """Return the item at a place; None for padding, a copy of the last row."""
        owner = self.owner(place)
        return self.owner(self._ends[-1] - 1) if owner is None else owner


class ItemScopes:
    """The scopes of an invocation: of all its items together, and of each, made when the author first asks for it."""

    def __init__(self, reports: ReportSender, *, router: Router, whole: LineWriter) -> None:
        """`whole` is what writes the common logs of the items."""
        self._message = reports.message
        self._reports = reports
        self._router = router
        self._whole = whole
        self._logs: list[CallLog] = []
        self._known: dict[int | None, tuple[Scope, LineWriter]] = {}
        self.places = Places((), (), 0)  # once the arguments are bound

    def of_all(self, chosen: Sequence[int]) -> Scope:
        """Make the scope of the `chosen` items together: with the context and the parameters that all of them have.

        It is the item's own if there is one only.
        """
        if len(chosen) == 1:
            return self._scope_of(chosen[0])
        items = [self._message.items[item] for item in chosen]
        context, parameters = items[0].context, items[0].parameters
        if context is not None and any(item.context != context for item in items):
            context = None
        if parameters is not None and any(item.parameters != parameters for item in items):
            parameters = None
        return Scope(
            prediction_id=self._message.id,
            context=context,
            parameters=parameters,
            emit=self._reports.emitter(ALL),
            open_item=self.open,
            place=self._message,
        )

    def open(self, place: int) -> _OpenItem:
        """Return the context that makes the item at a place the current one. Raises `IndexError`."""
        item = self.places.owner(place)
        if item not in self._known:
            self._known[item] = self._make(item)
        scope, writer = self._known[item]
        return _OpenItem(scope, writer, self._router)

    def end(self, control: Channel) -> None:
        """Let partial lines out and end the logs of items: the invocation is over."""
        for _, writer in self._known.values():
            self._router.end(writer)
        for log in self._logs:
            if log.dropped:
                log.tell_dropped(control)

    def forget_metrics(self) -> None:
        """Take out what items have recorded: they are run again."""
        for scope, _ in self._known.values():
            scope.forget_metrics()

    def _make(self, item: int | None) -> tuple[Scope, LineWriter]:
        if item is None:  # padding has no reader
            return Scope(open_item=self.open), LineWriter(lambda *_: None, self._whole)
        log = CallLog(self._reports, item)
        self._logs.append(log)
        return self._scope_of(item), LineWriter(log.write, self._whole)

    def _scope_of(self, index: int) -> Scope:
        item = self._message.items[index]
        return Scope(
            prediction_id=item.id,
            context=item.context,
            parameters=item.parameters,
            emit=self._reports.emitter(index),
            request=item,
            open_item=self.open,
            place=self._message,
        )


class _OpenItem:
    """A `with` block of one item."""

    __slots__ = ("_router", "_scope", "_scope_token", "_writer", "_writer_token")

    def __init__(self, scope: Scope, writer: LineWriter, router: Router) -> None:
        self._scope = scope
        self._writer = writer
        self._router = router

    def __enter__(self) -> Scope:
        self._writer_token: Token[LineWriter | None] = self._router.enter(self._writer)
        self._scope_token: Token[Scope | None] = set_scope(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        reset_scope(self._scope_token)
        self._router.leave(self._writer_token)


_Pack = Callable[[Any, Sizes, int], list[tuple[Buffer, ...]] | None]
"""Signature of `TensorPacker.pack`."""

_STUCK = "another request of its batch failed when this one had got a part of its output"


class BatchCodec:
    """The codec of one batched model."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        signature: Signature,
        batching: Batching,
        *,
        encoder: OutputEncoder,
        router: Router,
        compose: Compose | None = None,
    ) -> None:
        """`parameters` and `signature` are those of one prediction."""
        output = signature.output
        self.binder = BatchBinder(parameters, batching) if compose is None else _apart(parameters, compose)
        self.encoder = encoder
        self.splitter = Splitter(by_rows=batching.by_rows and not batching.apart, nullable=output.type.nullable)
        self.cuts = batching.cuts
        self.pack = (
            _pack_nothing
            if output.type.form or self.cuts
            else _packer(output, by_rows=batching.by_rows and not batching.apart)
        )
        self.retry_singly = batching.policy.retry_singly
        self.memory = MemoryLimit(registry)
        self.router = router

    def __call__(self, items: Sequence[int], reports: ReportSender, /) -> BatchInvocation:
        """Begin an invocation of `run()` for some items of a call, whose logs go to the current writer already."""
        self.memory.relieve()
        scopes = ItemScopes(reports, router=self.router, whole=self.router.target())
        return BatchInvocation(self, items, reports, scopes=scopes)


class BatchInvocation:
    """One invocation of a batched `run()`."""

    __slots__ = ("_arguments", "_codec", "_given", "_items", "_reports", "_scopes", "items", "scope")

    def __init__(self, codec: BatchCodec, items: Sequence[int], reports: ReportSender, *, scopes: ItemScopes) -> None:
        self.items: Collection[int] = list(items)
        self.scope = scopes.of_all(items)
        self._codec = codec
        self._items = reports.message.items
        self._reports = reports
        self._scopes = scopes
        self._arguments: dict[str, Any] = {}
        self._given: dict[int, int] = {}  # by item: how many outputs of a stream it has had

    def bind(self, raw: Buffer) -> dict[str, Any]:
        """Return the keyword arguments for `run()`, of the input of the whole call. Raises `RefusedError`."""
        chosen = list(self.items)
        bound = self._codec.binder.bind(raw, self._items, chosen)
        if bound.refused:
            raise RefusedError(bound.refused)
        self._scopes.places = Places(chosen, bound.sizes, bound.size, shapes=bound.shapes)
        self._arguments = bound.arguments
        return bound.arguments

    def encode(self, value: object) -> Outputs:
        """Return the outputs of the items, and what is wrong with those that have none. Raises `OutputError`."""
        places, items, codec = self._scopes.places, self._items, self._codec
        if False not in [items[item].packed for item in places.items]:
            packed = codec.pack(value, places.sizes, places.size)
            if packed is not None:
                return _packed_outputs(places.items, packed)
        parts = self._split(value)
        plain = codec.encoder.encode_all_plain(parts)
        if plain is None:
            return _outputs_of(*self._encode_each(dict(zip(places.items, parts, strict=True))))
        return _plain_outputs(places.items, plain)

    def give(self, value: object, *, may_wait: bool) -> Mapping[int, BaseException]:
        """Report a yielded value, its part to each item; return the items that failed instead. Raises `OutputError`.

        An item whose part is None gets nothing. `may_wait`: see `Channel.send_soon`.
        """
        if value is None:
            return NO_FAILURES
        places, splitter = self._scopes.places, self._codec.splitter
        parts = self._split(value)
        there = set(self.items)
        own = {
            item: part
            for item, part in zip(places.items, parts, strict=True)
            if item in there and not splitter.is_nothing(part)
        }
        indexes = {item: self._given.get(item, 0) for item in own}
        self._given.update(
            {item: indexes[item] + 1 for item, part in own.items() if not isinstance(part, BaseException)}
        )
        plain = self._codec.encoder.encode_all_plain(list(own.values()))
        size = 0 if plain is None else sum(map(len, plain))
        if plain is not None and size <= INLINE_LIMIT:
            chunks = zip(own, plain, strict=True)
            outputs_of_items = tuple([ItemEvent(item, Output(chunk, indexes[item])) for item, chunk in chunks])
            if outputs_of_items and may_wait and size <= MAY_WAIT:
                self._reports.send_soon(outputs_of_items)
            elif outputs_of_items:
                self._reports.send(outputs_of_items)
            return NO_FAILURES
        outputs, failures = self._encode_each(own)
        return {**failures, **self._reports.send_outputs(outputs, indexes)}

    def cut(self, parts: Mapping[int, Any]) -> dict[int, Any]:
        """Return the parts of items without what only filled their inputs up."""
        cuts, shapes = self._codec.cuts, self._scopes.places.shapes
        return {item: cut(part, cuts, shapes[item]) for item, part in parts.items()} if cuts else dict(parts)

    def _split(self, value: object) -> list[Any]:
        places = self._scopes.places
        parts = self._codec.splitter.split(value, places.sizes, places.size)
        return list(self.cut(dict(zip(places.items, parts, strict=True))).values()) if self._codec.cuts else parts

    def drop(self, items: Collection[int]) -> None:
        """Go on without some items: they have failed."""
        self.items = [item for item in self.items if item not in items]

    def recover(self, error: BaseException, items: Sequence[int]) -> Recovery:
        """Let the items fail that are to blame, or all; have the others run again where that is possible."""
        if self._reports.message.probe:
            self._codec.memory.fill()
            return failure_of_all(items, error)
        blamed = self._blamed(error, items) if isinstance(error, ItemError) else {}
        if blamed:
            return self._without(blamed, items)
        is_final = len(items) < 2 or isinstance(error, (OutputError, NobodyLeftError))  # noqa: PLR2004 - several
        what = describe_error(error)
        parts = self._in_parts(what, items) if not is_final and is_out_of_memory(error) else None
        if parts is not None:
            return parts
        if is_final or not self._codec.retry_singly:
            return failure_of_all(items, error)
        return Recovery(
            failures={item: what for item in items if item in self._given},
            again=[[item] for item in items if item not in self._given],
            warning=f"a batch of {len(items)} failed, and is run again one by one: {what}",
        )

    def end(self, control: Channel) -> None:
        """Let the last logs of items out, and close the files that `bind` has opened."""
        self._scopes.end(control)
        self._codec.binder.release(self._arguments)

    def forget_metrics(self) -> None:
        """Take out the metrics that were recorded: the items are run again."""
        self.scope.forget_metrics()
        self._scopes.forget_metrics()

    def _in_parts(self, what: str, items: Sequence[int]) -> Recovery | None:
        """Run the items again in parts, as the whole did not fit into memory; None if parts would be no smaller."""
        padded, rows = self._codec.binder.padded, self._rows()
        limit = rows
        while limit > 1 and padded(limit) >= padded(rows):
            limit = (limit + 1) // 2
        if padded(limit) >= padded(rows):
            return None
        self._codec.memory.fail(limit)
        again = [item for item in items if item not in self._given]
        rest = f"and is run again in parts of at most {limit}, as are others of the next {REMEMBERED / 60:g} minutes"
        return Recovery(
            failures={item: what for item in items if item in self._given},
            again=parts_of(again, [self._items[item].rows for item in again], limit),
            warning=f"a batch of {rows} did not fit into memory, {rest}: {what}",
        )

    def _rows(self) -> int:
        """The rows of the items with which the invocation has begun, those included that have failed meanwhile."""
        return sum(self._scopes.places.sizes) or sum(self._items[item].rows for item in self.items)

    def _encode_each(self, parts: Mapping[int, Any]) -> tuple[dict[int, OutputBytes], dict[int, BaseException]]:
        """Encode the part of each item by itself; return the outputs, and why the others have none."""
        outputs: dict[int, OutputBytes] = {}
        failures: dict[int, BaseException] = {}
        for item, part in parts.items():
            if isinstance(part, BaseException):
                failures[item] = part
                continue
            apart = self._items[item].packed
            try:
                outputs[item] = encode_output(self._codec.encoder, part, self._reports.slot, apart=apart)
            except Exception as error:  # noqa: BLE001 - the author's objects may raise anything
                failures[item] = error
        return outputs, failures

    def _blamed(self, error: ItemError, items: Sequence[int]) -> dict[int, ItemError]:
        """The items that an error names, each with an error of its own; none if one of its places is not there."""
        blamed: dict[int, ItemError] = {}
        for place, why in error.reasons.items():
            try:
                item = self._scopes.places.original(place)
            except IndexError:
                return {}
            if (
                item is not None and item in items and item not in blamed
            ):  # the errors of the other items must not be shown
                blamed[item] = ItemError(place, why).with_traceback(error.__traceback__)
        return blamed

    def _without(self, blamed: Mapping[int, ItemError], items: Sequence[int]) -> Recovery:
        reasons = {item: why for item, own in blamed.items() for why in own.reasons.values()}
        told = {item: why if isinstance(why, str) else describe_error(why) for item, why in reasons.items()}
        rest = [item for item in items if item not in told]
        again = [item for item in rest if item not in self._given]
        return Recovery(
            failures={**told, **{item: _STUCK for item in rest if item in self._given}},
            reports=[ItemEvent(item, Log("stderr", format_error(own))) for item, own in blamed.items()],
            again=[again] if again else [],
        )


def _outputs_of(outputs: dict[int, OutputBytes], failures: Mapping[int, BaseException]) -> Outputs:
    """Return outputs that were encoded one by one: small tensors of all items fit into one message."""
    found = outputs.values()
    if failures or any(each.files for each in found) or sum(each.size for each in found) > WORTHWHILE:
        return LargeOutputs(outputs, failures)
    return SmallOutputs(list(outputs), [b"".join(each.parts) for each in found])


def _plain_outputs(items: Sequence[int], plain: Sequence[bytes]) -> Outputs:
    if sum(map(len, plain)) <= INLINE_LIMIT:
        return SmallOutputs(items, plain)
    return LargeOutputs({item: OutputBytes([text], len(text)) for item, text in zip(items, plain, strict=True)})


def _packed_outputs(items: Sequence[int], packed: Sequence[tuple[Buffer, ...]]) -> Outputs:
    if sum(map(len, chain(*packed))) <= WORTHWHILE:
        return SmallOutputs(items, list(map(b"".join, packed)))
    outputs = [OutputBytes(parts, sum(map(len, parts)), packed=True) for parts in packed]
    return LargeOutputs(dict(zip(items, outputs, strict=True)))


def _apart(parameters: Sequence[Parameter], compose: Compose) -> ApartBinder:
    from geartrain.worker.values.open_batches import ApartBinder  # few models need it

    return ApartBinder(parameters, compose)


def _pack_nothing(_value: Any, _sizes: Sizes, _total: int) -> None:
    """Leave outputs without tensors to the splitter."""


def _packer(output: OutputSpec, *, by_rows: bool) -> _Pack:
    if not tensor_types(output.type):
        return _pack_nothing
    from geartrain.worker.values.tensor_packing import TensorPacker  # a worker without tensors needs no numpy

    return TensorPacker(output, by_rows=by_rows).pack
