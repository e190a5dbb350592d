"""SQLite: a file of one server, with what Python brings along.

The file is safe after each transaction (write-ahead log, `synchronous=FULL`). A lock beside it keeps other servers out:
what a server has not ended belongs to the next one that opens the file, at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from geartrain.domain.errors import GeartrainError
from geartrain.store import sql
from geartrain.store.errors import StoreFaultError, StoreOptionError, full, other_version, unavailable
from geartrain.store.operations import Done, Failed, Operation, Outcome, Rows

logger = logging.getLogger(__name__)

OPTION: Final = "--store"
OLDEST_SQLITE: Final = (3, 35, 0)  # has RETURNING
LOCK_WAIT: Final = 3.0  # seconds
CHECKED_AT_START: Final = 256 * 1024**2  # bytes; to check so many takes about a second
_STEPS: Final = 10_000  # of a check, until it looks for the end of the server: about a millisecond
_LOG_LIMIT: Final = 64 * 1024**2  # bytes of the write-ahead log that stay on disk

DIALECT: Final = sql.Dialect(
    now=":now",
    next_place="coalesce((SELECT max(place) FROM geartrain_predictions), 0) + 1",
    next_revision="coalesce((SELECT max(revision) FROM geartrain_wanted), 0) + 1",
    skip_locked="",
    blob="BLOB",
    double="REAL",
    place="INTEGER PRIMARY KEY",
    counter="INTEGER PRIMARY KEY AUTOINCREMENT",
)
_render: Final = cache(DIALECT.render)
_OTHER_SCHEMA: Final = ("no such table", "no such column", "has no column")


class SqliteEngine:
    """The connection to one file."""

    _connection: sqlite3.Connection

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] | None = None,
        lock_wait: float = LOCK_WAIT,
        checked_at_start: int = CHECKED_AT_START,
    ) -> None:
        """Describe a connection.

        Args:
            path: of the file.
            clock: gives the time in seconds since the epoch. None: this machine's clock when the store is opened, which
                then goes on however that is set: rows are not too old at once, and leases and loans go on.
            lock_wait: seconds for which another program, such as a backup, may hold the file.
            checked_at_start: bytes up to which a file is checked for damage before it is used. A larger one is checked
                by a thread, and the log has an error if it is damaged.
        """
        self._path = path
        self._clock = clock or _steady_clock()
        self._lock_wait = lock_wait
        self._checked_at_start = checked_at_start
        self._closing = contextlib.ExitStack()

    def open(self) -> None:
        """Lock and open the file, and make it if it is not there."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            msg = f"{OPTION}: SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed, or Postgres"
            raise StoreOptionError(msg)
        self._lock()
        try:
            self._connect()
            self._check()
            self._prepare_schema()
            self._execute(sql.END_LEASES, {})
            self._connection.commit()
        except sqlite3.Error as error:
            if _is_damage(error):
                raise StoreOptionError(f"{OPTION}: {_damaged(self._path, str(error))}") from error
            raise StoreOptionError(f"{OPTION}: {self._path} cannot be opened: {error}") from error

    def run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations in one transaction; if it fails, run each of them so that it harms no other."""
        try:
            return self._run_together(operations)
        except sqlite3.Error as error:
            self._roll_back()
            fault = _environmental_fault(error)
            if fault is not None:
                return self._run_reading(operations, fault)
        except Exception:  # noqa: BLE001 - told to the one whose it is, below
            self._roll_back()
        try:
            return self._run_apart(operations)
        except sqlite3.Error as error:
            self._roll_back()
            return self._run_reading(operations, _fault(error))

    def close(self) -> None:
        """Close the file, and give up its lock."""
        self._closing.close()

    def _lock(self) -> None:
        path = self._path.with_name(self._path.name + ".lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreOptionError(f"{OPTION}: {path} cannot be opened: {error.strerror}") from error
        self._closing.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            msg = (
                f"{OPTION}: {self._path} is in use by another server. Give each server a file of its own, or all of "
                "them a Postgres database"
            )
            raise StoreOptionError(msg) from error

    def _connect(self) -> None:
        # The file may hold inputs: it is its owner's alone.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(self._path, timeout=self._lock_wait, isolation_level=None)
        self._closing.callback(self._connection.close)
        if self._connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            msg = f"{OPTION}: {self._path} is on a file system that has no shared memory; choose a local disk"
            raise StoreOptionError(msg)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(f"PRAGMA journal_size_limit={_LOG_LIMIT}")

    def _check(self) -> None:
        """Raise `StoreOptionError` for a damaged file; have a thread check a large one."""
        if self._path.stat().st_size <= self._checked_at_start:
            fault = _find_damage(self._connection)
            if fault:
                raise StoreOptionError(f"{OPTION}: {_damaged(self._path, fault)}")
            return
        aside = sqlite3.connect(self._path, timeout=self._lock_wait, check_same_thread=False)
        is_closing = threading.Event()
        aside.set_progress_handler(is_closing.is_set, _STEPS)
        thread = threading.Thread(target=self._check_aside, args=(aside,), name="geartrain-store-check", daemon=True)
        self._closing.callback(aside.close)
        self._closing.callback(thread.join)
        self._closing.callback(is_closing.set)
        thread.start()

    def _check_aside(self, connection: sqlite3.Connection) -> None:
        try:
            fault = _find_damage(connection)
        except sqlite3.Error as error:
            fault = str(error) if _is_damage(error) else ""  # otherwise the server ends, or the file is locked
        if fault:
            logger.error("the store is damaged", extra={"reason": _damaged(self._path, fault)})

    def _prepare_schema(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        tables = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        if not tables:
            for statement in sql.CREATE:
                self._execute(statement, {})
            return
        if ("geartrain_schema",) not in tables:
            raise StoreOptionError(f"{OPTION}: {self._path} is the database of another program; choose another file")
        (version,) = self._connection.execute(sql.READ_VERSION).fetchone()
        for statement in sql.migration(version, f"{OPTION}: {self._path}"):
            self._execute(statement, {"version": sql.VERSION})

    def _run_together(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        self._connection.execute("BEGIN" if all(each.only_reads for each in operations) else "BEGIN IMMEDIATE")
        outcomes = [self._attempt(operation) for operation in operations]
        self._connection.execute("COMMIT")
        return outcomes

    def _run_apart(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations in one transaction, each behind a savepoint."""
        outcomes: list[Outcome] = []
        self._connection.execute("BEGIN IMMEDIATE")
        for operation in operations:
            self._connection.execute("SAVEPOINT one")
            try:
                outcomes.append(self._attempt(operation))
            except Exception as error:  # whatever it is, it is one operation's
                if isinstance(error, sqlite3.Error) and _environmental_fault(error) is not None:
                    raise
                self._connection.execute("ROLLBACK TO one")
                outcomes.append(Failed(_fault(error) if isinstance(error, sqlite3.Error) else error))
            self._connection.execute("RELEASE one")
        self._connection.execute("COMMIT")
        return outcomes

    def _run_reading(self, operations: Sequence[Operation[Any]], fault: Exception) -> list[Outcome]:
        """Run what only reads: a file that cannot be written can be read, often."""
        outcomes: list[Outcome] = []
        for operation in operations:
            if not operation.only_reads:
                outcomes.append(Failed(fault))
                continue
            try:
                outcomes.append(self._attempt(operation))
            except sqlite3.Error as error:
                outcomes.append(Failed(_fault(error)))
        return outcomes

    def _attempt(self, operation: Operation[Any]) -> Outcome:
        steps = operation.steps()
        try:
            statements = next(steps)
            while True:
                statements = steps.send([self._execute(each.sql, each.parameters) for each in statements])
        except StopIteration as end:
            return Done(end.value)
        except GeartrainError as refusal:
            return Failed(refusal)

    def _execute(self, template: str, parameters: dict[str, Any]) -> Rows:
        parameters["now"] = self._clock()
        return self._connection.execute(_render(template), parameters).fetchall()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _steady_clock() -> Callable[[], float]:
    begun = time.time() - time.monotonic()
    return lambda: begun + time.monotonic()


def _find_damage(connection: sqlite3.Connection) -> str:
    """Return the first fault of a file, empty if there is none."""
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    return "" if found == "ok" else found.replace("\n", " ")


def _damaged(path: Path, fault: str) -> str:
    return (
        f"{path} is damaged ({fault}). Restore a backup, or save what can be read with `sqlite3 {path} .recover`. "
        f"To begin with an empty store, move {path}, {path.name}-wal, {path.name}-shm and {path.name}.files away"
    )


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _environmental_fault(error: sqlite3.Error) -> StoreFaultError | None:
    """Return the fault for an error that every operation would meet; None if it is one operation's."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full()
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return unavailable("another program has locked its file")
    if code == sqlite3.SQLITE_IOERR:
        return unavailable(f"its file cannot be read or written ({error})", may_be_done=True)
    if _is_damage(error):
        return unavailable(f"its file is damaged ({error}); end the server, which says at its start what can be done")
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
        return unavailable(f"its file cannot be written ({error})")
    if any(clause in str(error) for clause in _OTHER_SCHEMA):
        return other_version("its file has another schema than this version of geartrain writes")
    return None


def _fault(error: sqlite3.Error) -> Exception:
    return _environmental_fault(error) or error
