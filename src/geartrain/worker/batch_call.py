"""One call of `run()` for several predictions, as an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from itertools import chain
from typing import Any, Final, NamedTuple

from geartrain.authoring.batches import ItemError
from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.bridge.arena import WORTHWHILE
from geartrain.bridge.framing import INLINE_LIMIT
from geartrain.bridge.messages import ALL, Log, Output, PredictBatch, WorkerLog
from geartrain.worker.batch import Batch
from geartrain.worker.batch_items import ItemScopes, Places, scope_of, scope_of_all
from geartrain.worker.channel import Channel
from geartrain.worker.faults import OutputError
from geartrain.worker.job import JobTools, describe_error, format_error
from geartrain.worker.joblog import JobLog
from geartrain.worker.sending import OutputSender, Packet
from geartrain.worker.streams import LineWriter


class _NobodyLeftError(Exception):
    """All predictions of the call have ended before its end."""


class _Outputs(NamedTuple):
    """The outputs of a call: all of them, if they fit into one message, or else packets, and who has none and why."""

    small: Sequence[bytes] | None
    packets: Mapping[int, Packet] = {}
    failures: Mapping[int, BaseException] = {}


_NOWHERE: Final = Places((), (), 0)


def first_of(message: PredictBatch, channel: Channel, tools: JobTools) -> BatchCall:
    """The first call for a batch: of all its items."""
    return BatchCall(Batch(message, channel, tools), range(len(message.items)))


class BatchCall:
    """A call for some items of a batch. It may end with calls that have to follow (`job.Runnable`)."""

    __slots__ = (
        "_arguments",
        "_batch",
        "_items",
        "_log",
        "_own",
        "_places",
        "_scope",
        "_scope_token",
        "_scopes",
        "_sender",
        "_writer",
        "id",
        "serial",
    )

    def __init__(self, batch: Batch, items: Sequence[int]) -> None:
        message, channel, tools = batch.message, batch.channel, batch.tools
        self.id = message.id
        self.serial = message.serial
        self._batch = batch
        self._own = batch.own
        self._items = list(items)
        self._sender = None if tools.temporary is None else tools.sender(channel, message)
        self._log = JobLog(channel, items[0] if len(items) == 1 else ALL)
        self._places = _NOWHERE
        self._arguments: dict[str, Any] = {}
        self._scope: Scope | None = None
        self._scope_token: Token[Scope | None] | None = None
        self._scopes: ItemScopes | None = None
        self._writer: LineWriter | None = None

    def __enter__(self) -> None:
        """Route prints and metrics of the current context to these predictions."""
        router = self._batch.tools.router
        router.install()  # as in `Job`
        self._writer = router.begin(self._log.write)
        self._scope = self._new_scope()
        self._scope_token = set_scope(self._scope)

    def __exit__(self, *_: object) -> None:
        """From here on they are nobody's; the author's files are closed."""
        tools, elapsed = self._batch.tools, self._batch.ends.elapsed
        if self._scopes is not None:
            self._scopes.end(tools.control, elapsed)
        if self._writer is not None:
            tools.router.end(self._writer)
        self._log.end(tools.control, elapsed)
        if self._scope_token is not None:
            reset_scope(self._scope_token)
        self._own.binder.release(self._arguments)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `run()`. Predictions whose values are refused have failed."""
        batch = self._batch
        items = batch.message.items
        while True:
            bound = self._own.binder.bind(batch.input(), items, self._items)
            if not bound.refused:
                break
            self._drop(bound.refused)
        self._places = Places(self._items, bound.sizes, bound.size)
        self._arguments = bound.arguments
        return bound.arguments

    def send_chunk(self, value: object, *, may_wait: bool = False) -> None:
        """Report one yielded value, its part to each; `may_wait` as of `Channel.send`."""
        if value is None:
            return
        batch, places, splitter = self._batch, self._places, self._own.splitter
        outputs: list[Output] = []
        failures: dict[int, BaseException] = {}
        for item, part in zip(places.items, splitter.split(value, places.sizes, places.size), strict=True):
            if item not in batch.left or splitter.is_nothing(part):
                continue
            if isinstance(part, BaseException):
                failures[item] = part
                continue
            batch.given.add(item)
            try:
                self._add_chunk(item, part, outputs)
            except Exception as error:  # noqa: BLE001 - the author's objects may raise anything
                failures[item] = error
        if outputs:
            batch.channel.send_all(outputs, may_wait=may_wait)
        if failures:
            self._drop(failures)

    def succeed(self, value: object) -> None:
        """Report the returned value, its part to each, and their end."""
        try:
            outputs = self._encode(value)
        except OutputError as error:
            self._fail_all(error)
            return
        if self._sender is not None:
            self._sender.files.end_claim()
        if outputs.small is not None:
            self._batch.give_small(self._places.items, outputs.small)
        else:
            self._batch.give(outputs.packets, outputs.failures, self._outputs())
        self._close_files()
        self._scope = None  # it refers to this call: without the circle, all of it is gone at once

    def succeed_stream(self) -> None:
        """Report the end of a stream of chunks."""
        self._close_files()
        self._batch.end_stream(self._items)

    def fail(self, error: BaseException) -> None:
        """Report what was raised: for whom the error is; the others are run again where that is possible."""
        self._close_files()
        blamed = self._blamed(error) if isinstance(error, ItemError) else {}
        is_final = len(self._items) == 1 or isinstance(error, (OutputError, _NobodyLeftError))
        if blamed:
            self._batch.channel.send_all([Log("stderr", format_error(own), item) for item, own in blamed.items()])
            reasons = {item: why for item, own in blamed.items() for why in own.reasons.values()}
            told = {item: why if isinstance(why, str) else describe_error(why) for item, why in reasons.items()}
            self._run_again("another request of its batch failed when this one had got a part of its output", told)
        elif self._own.retry_singly and not is_final:
            what = describe_error(error)
            text = f"a batch of {len(self._items)} failed, and is run again one by one: {what}"
            self._batch.tools.control.send(WorkerLog("geartrain.worker", "warning", text))
            self._run_again(what, {}, singly=True)
        else:
            self._fail_all(error)

    def cancelled(self) -> None:
        """Report that the batch was stopped on request."""
        self._close_files()
        self._batch.cancel()

    def close(self) -> None:
        """Delete what the batch leaves behind, and make no further call."""
        self._close_files()
        self._batch.close()

    def follow_up(self) -> BatchCall | None:
        """The next call, once this one is reported."""
        waiting = self._batch.waiting
        return BatchCall(self._batch, waiting.pop(0)) if waiting else None

    # outputs

    def _add_chunk(self, item: int, part: Any, outputs: list[Output]) -> None:
        """Add the output of one item to those that are sent together, or send it by itself."""
        batch = self._batch
        plain = batch.tools.encoder.encode_plain(part)
        if plain is not None and len(plain) <= INLINE_LIMIT:
            outputs.append(Output(plain, item=item))
            return
        sender = self._outputs()
        packet = sender.packet(part, plain, apart=batch.message.items[item].packed)
        if packet.size <= WORTHWHILE and not packet.files:
            outputs.append(Output(b"".join(packet.parts), item=item))
        else:
            sender.send(packet, lambda output, shared: Output(output, shared, item))

    def _encode(self, value: object) -> _Outputs:
        """The outputs of the items, and what is wrong with those that have none. Raises `OutputError`."""
        places, items, packer = self._places, self._batch.message.items, self._own.packer
        if packer is not None and False not in [items[item].packed for item in places.items]:
            packed = packer.pack(value, places.sizes, places.size)
            if packed is not None:
                if sum(map(len, chain(*packed))) <= WORTHWHILE:
                    return _Outputs(list(map(b"".join, packed)))
                packets = [Packet(parts, sum(map(len, parts)), packed=True) for parts in packed]
                return _Outputs(None, dict(zip(places.items, packets, strict=True)))
        parts = self._own.splitter.split(value, places.sizes, places.size)
        plain = self._batch.tools.encoder.encode_all_plain(parts)
        if plain is None:
            return self._encode_each(parts)
        if sum(map(len, plain)) <= INLINE_LIMIT:
            return _Outputs(plain)
        return _Outputs(None, {item: Packet([text], len(text)) for item, text in zip(places.items, plain, strict=True)})

    def _encode_each(self, parts: Sequence[Any]) -> _Outputs:
        sender, items = self._outputs(), self._batch.message.items
        packets: dict[int, Packet] = {}
        failures: dict[int, BaseException] = {}
        for item, part in zip(self._places.items, parts, strict=True):
            if isinstance(part, BaseException):
                failures[item] = part
                continue
            try:
                packets[item] = sender.encode(part, apart=items[item].packed)
            except Exception as error:  # noqa: BLE001 - the author's objects may raise anything
                failures[item] = error
        return _Outputs(None, packets, failures)

    def _outputs(self) -> OutputSender:
        """What sends the outputs that take more; made for the first of them."""
        if self._sender is None:
            self._sender = self._batch.tools.sender(self._batch.channel, self._batch.message)
        return self._sender

    def _close_files(self) -> None:
        if self._sender is not None:
            self._sender.files.close()

    # failures

    def _drop(self, failures: Mapping[int, BaseException]) -> None:
        """Fail some items in the midst of the call. Raises `_NobodyLeftError` if there is none left."""
        with self._batch.channel.shield:  # a cancel in between would be the end of the others only
            self._batch.fail(failures, running=True)
            self._items = [item for item in self._items if item not in failures]
        if not self._items:
            raise _NobodyLeftError

    def _blamed(self, error: ItemError) -> dict[int, ItemError]:
        """The items that an error names, each with an error of its own; none if one of its places is not there."""
        blamed: dict[int, ItemError] = {}
        for place, why in error.reasons.items():
            try:
                item = self._places.original(place)
            except IndexError:
                return {}
            if item in self._batch.left and item not in blamed:  # nobody is to read what was wrong with the others
                blamed[item] = ItemError(place, why).with_traceback(error.__traceback__)
        return blamed

    def _run_again(self, stuck: str, failures: Mapping[int, str], *, singly: bool = False) -> None:
        """Fail some items, and those that have got outputs with the error `stuck`; run the rest once more."""
        batch = self._batch
        rest = [item for item in self._items if item not in failures]
        again = [item for item in rest if item not in batch.given]
        batch.fail({**failures, **{item: stuck for item in rest if item in batch.given}})
        if not again:
            return
        for scope in (self._scope, self._scopes):
            if scope is not None:
                scope.forget_metrics()
        batch.waiting.extend([[item] for item in again] if singly else [again])

    def _fail_all(self, error: BaseException) -> None:
        """Fail the items that are left."""
        items = [item for item in self._items if item in self._batch.left]
        if items:
            self._batch.channel.send(Log("stderr", format_error(error), items[0] if len(items) == 1 else ALL))
        self._batch.fail(dict.fromkeys(items, describe_error(error)))

    # the scope

    def _new_scope(self) -> Scope:
        batch, items = self._batch, self._batch.message.items
        if len(self._items) == 1:
            item = self._items[0]
            return scope_of(items[item], batch.channel, item, open_item=self._open_item)
        if len(self._items) < len(items):
            items = tuple([items[item] for item in self._items])
        return scope_of_all(self.id, items, batch.channel, open_item=self._open_item)

    def _open_item(self, place: int) -> AbstractContextManager[Scope]:
        if self._scopes is None:
            batch, whole = self._batch, self._writer
            if whole is None:
                msg = "the batch is not running"
                raise RuntimeError(msg)
            router = batch.tools.router
            self._scopes = ItemScopes(batch.message.items, self._places, batch.channel, router=router, whole=whole)
        return self._scopes.open(place)
