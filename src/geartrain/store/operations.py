"""Operations on a database: statements of SQL, in steps that may depend on the result of the last one.

An operation knows neither which database runs it nor which others run in the same transaction. It may be run again from
its start, after a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

Rows = list[tuple[Any, ...]]
Steps = Generator[list["Statement"], list[Rows], T]
"""Yields the statements of a step, and is sent the rows that each of them has given."""


class Statement(NamedTuple):
    """SQL as `geartrain.store.sql` writes it, and the values of its parameters."""

    sql: str
    parameters: dict[str, Any]


class Table(IntEnum):
    """The tables in which an operation may have to wait until another server has committed its change of a row."""

    REPLICAS = 0
    PREDICTIONS = 1
    WANTED = 2
    OUTBOX = 3
    BATCHES = 4
    FILES = 5
    NONE = 6


class RowLock(NamedTuple):
    """The row that an operation locks first, and may have to wait for.

    Operations of one transaction lock their rows in ascending order. So no two servers ever wait for each other.
    """

    table: Table
    model: str = ""
    id: str = ""
    number: int = 0


NO_LOCK: Final = RowLock(Table.NONE)
"""Of operations that only read, or that change no row that another server has locked. They run last."""


class Operation(Generic[T]):
    """One thing that is to happen as a whole or not at all."""

    __slots__ = ("is_undo", "lock", "only_reads", "steps", "undo")

    def __init__(
        self,
        steps: Callable[[], Steps[T]],
        *,
        lock: RowLock = NO_LOCK,
        only_reads: bool = False,
        is_undo: bool = False,
        undo: Operation[None] | None = None,
    ) -> None:
        """Describe an operation.

        Args:
            steps: begins it, each time anew. It may raise `GeartrainError` before it has written anything.
            lock: the row that it locks first.
            only_reads: true if a database with a full disk can do it.
            is_undo: true if it has no waiter, and is tried until it is done.
            undo: follows if it was done and its caller has no result.
        """
        self.steps = steps
        self.lock = lock
        self.only_reads = only_reads
        self.is_undo = is_undo
        self.undo = undo


class Done(NamedTuple):
    """An operation has been done, and its transaction is committed."""

    value: Any


class Failed(NamedTuple):
    """An operation has not been done, or perhaps: see `StoreFaultError`."""

    error: Exception


Outcome = Done | Failed


class Engine(Protocol):
    """A connection to a database. All methods are called by one thread, and may block."""

    def open(self) -> None:
        """Connect, and see to the schema; raise `StoreFaultError` or `StoreOptionError` if that cannot be done."""

    def run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations in one transaction, and return what has come of each. One that fails spoils no other."""

    def close(self) -> None:
        """Disconnect. Never raises."""
