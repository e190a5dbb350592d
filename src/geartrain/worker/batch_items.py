"""The predictions of a running batch, each by itself: whose a row is, and whose what is printed or measured there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextvars import Token
from itertools import accumulate
from operator import index as whole_number
from typing import Any

from geartrain.authoring.scope import OpenItem, Operation, Scope, reset_scope, set_scope
from geartrain.bridge.messages import BatchItem, Metric
from geartrain.worker.channel import Channel
from geartrain.worker.joblog import JobLog
from geartrain.worker.streams import LineWriter, Router


class Places:
    """Whose the rows, or the elements, of one call are: `size` of them, those included that only fill it up."""

    def __init__(self, items: Sequence[int], sizes: Sequence[int], size: int) -> None:
        self.items = items
        self.sizes = sizes
        self.size = size
        self._known_ends: list[int] | None = None

    @property
    def _ends(self) -> list[int]:
        """Where those of each item end; seldom asked for."""
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
        """As `owner`; what only fills the call up is a copy of the last row, whose owner it is."""
        owner = self.owner(place)
        return self.owner(self._ends[-1] - 1) if owner is None else owner


class ItemScopes:
    """The scopes of a call's items, and their logs. Made when the author first asks for one."""

    def __init__(
        self, items: Sequence[BatchItem], places: Places, channel: Channel, *, router: Router, whole: LineWriter
    ) -> None:
        """`items` are those of the whole batch; `whole` is what writes the logs of the call."""
        self._items = items
        self._places = places
        self._channel = channel
        self._router = router
        self._whole = whole
        self._logs: list[JobLog] = []
        self._known: dict[int | None, tuple[Scope, LineWriter]] = {}

    def open(self, place: int) -> _OpenItem:
        """What makes the item at a place the current one, for a `with`. Raises `IndexError`."""
        item = self._places.owner(place)
        if item not in self._known:
            self._known[item] = self._make(item)
        scope, writer = self._known[item]
        return _OpenItem(scope, writer, self._router)

    def end(self, control: Channel, elapsed: float) -> None:
        """The call is over: partial lines go out, and the logs end, as `JobLog.end`."""
        for _, writer in self._known.values():
            self._router.end(writer)
        for log in self._logs:
            log.end(control, elapsed)

    def forget_metrics(self) -> None:
        """Take out what was recorded: the items are run anew."""
        for scope, _ in self._known.values():
            scope.forget_metrics()

    def _make(self, item: int | None) -> tuple[Scope, LineWriter]:
        if item is None:  # the copy of a row: nobody waits for it
            return Scope(open_item=self.open), LineWriter(lambda *_: None, self._whole)
        log = JobLog(self._channel, item)
        self._logs.append(log)
        scope = scope_of(self._items[item], self._channel, item, open_item=self.open)
        return scope, LineWriter(log.write, self._whole)


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


def scope_of(item: BatchItem, channel: Channel, index: int, *, open_item: OpenItem) -> Scope:
    """The scope of one item of a batch."""

    def emit(name: str, value: Any, mode: Operation) -> None:
        channel.send(Metric(name, value, mode, index))

    return Scope(
        prediction_id=item.id, context=item.context, parameters=item.parameters, emit=emit, open_item=open_item
    )


def scope_of_all(batch_id: str, items: Sequence[BatchItem], channel: Channel, *, open_item: OpenItem) -> Scope:
    """The scope of several items: with the context and the parameters that all of them have."""
    context, parameters = items[0].context, items[0].parameters
    if context is not None and any(item.context != context for item in items):
        context = None
    if parameters is not None and any(item.parameters != parameters for item in items):
        parameters = None
    return Scope(
        prediction_id=batch_id,
        context=context,
        parameters=parameters,
        emit=lambda name, value, mode: channel.send(Metric(name, value, mode)),
        open_item=open_item,
    )
