"""The items of one invocation: to which of them rows, prints and metrics belong."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextvars import Token
from itertools import accumulate
from operator import index as whole_number

from geartrain.authoring.scope import Scope, reset_scope, set_scope
from geartrain.ipc.messages import ALL
from geartrain.worker.calls.logs import CallLog
from geartrain.worker.calls.reports import ReportSender
from geartrain.worker.channels.channel import Channel
from geartrain.worker.stdio.router import LineWriter, Router


class Places:
    """The owners of the rows, or elements, of one invocation: `size` of them, padding included."""

    def __init__(self, items: Sequence[int], sizes: Sequence[int], size: int) -> None:
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
