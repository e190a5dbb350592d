"""Postgres: a database that servers share.

Operations of a group are sent without waiting for each other (libpq's pipeline), step by step, in one transaction. The
connection lives on an event loop of its own, in the store's thread: so everything has a time limit, and decoding rows
holds no request up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.conninfo import conninfo_to_dict

from geartrain.domain.errors import GeartrainError
from geartrain.store import sql
from geartrain.store.errors import StoreFaultError, StoreOptionError, full, other_version, unavailable
from geartrain.store.operations import Done, Failed, Operation, Outcome, Rows, Statement, Steps

OPTION: Final = "--store"

Database = AsyncConnection[tuple[Any, ...]]
Cursor = AsyncCursor[tuple[Any, ...]]

_SCHEMA_LOCK: Final = 0x67656172  # of all servers, while one of them looks after the schema
_DISK_FULL: Final = "53100"
_OTHER_SCHEMA: Final = frozenset({"42P01", "42703", "3F000"})  # no such table, column or schema
# The classes of errors that are not of one statement: connection, resources, intervention, system, a standby, rights.
_ENVIRONMENTAL: Final = re.compile(r"08...|53...|57...|58...|25006|42501|28...|3D000|XX...")

_DATABASE_TIME: Final = "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
_GIVEN_TIME: Final = "CAST(:now AS DOUBLE PRECISION)"

_SETTINGS: Final = """
SELECT set_config('statement_timeout', %(limit)s, false), set_config('lock_timeout', %(limit)s, false),
    set_config('idle_in_transaction_session_timeout', %(limit)s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END"""
T = TypeVar("T")

_TRIES: Final = 3  # of a group that others were in the way of
_IN_THE_WAY: Final = frozenset({"40001", "40P01", "55P03"})  # serialization, deadlock, lock timeout
_READ_ONLY: Final = "25006"  # a standby; perhaps there is another primary by now
_MOMENT: Final = 0.05  # seconds

# Data that is sent before an answer is read. It has to fit into the buffer of the socket: psycopg does not send the
# rest of it while it waits for answers.
_BATCH_STATEMENTS: Final = 64
_BATCH_BYTES: Final = 32 * 1024
_STATEMENT_BYTES: Final = 200  # besides its texts and bytes


def check_url(url: str) -> None:
    """Raise `StoreOptionError` for a URL that libpq does not take."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise StoreOptionError(f"{OPTION}: the URL of the Postgres database is not valid: {text_of(error)}") from None


class Connection:
    """One connection, with the schema seen to."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None, answer_within: float) -> None:
        """`clock`: see `open_store`. `answer_within`: seconds for which the database may work at a statement."""
        self._url = url
        self._clock = clock or (lambda: 0.0)
        self._answer_within = answer_within
        self._database: Database | None = None
        dialect = sql.Dialect(
            now=_DATABASE_TIME if clock is None else _GIVEN_TIME,
            next_place="nextval('geartrain_places')",
            next_revision="nextval('geartrain_places')",
            skip_locked="FOR UPDATE SKIP LOCKED",
            blob="BYTEA",
            double="DOUBLE PRECISION",
            place="BIGINT PRIMARY KEY",
            counter="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        )
        self._render = cache(lambda template: _in_psycopg(dialect.render(template)))

    @property
    def is_open(self) -> bool:
        """True if there is a connection, as far as is known."""
        return self._database is not None and not self._database.closed

    async def get(self) -> Database:
        """Return the connection, made now if there is none; raise `psycopg.Error`, `StoreOptionError`."""
        if self._database is not None and not self._database.closed:
            return self._database
        self._database = await AsyncConnection.connect(self._url, autocommit=True, **self._defaults())
        try:
            limit = str(round(self._answer_within * 1000))
            await self._database.execute(_SETTINGS, {"limit": limit})
            await self._prepare_schema(self._database)
        except BaseException:
            self.close()
            raise
        return self._database

    def close(self) -> None:
        """Close the connection at once, whatever is under way on it."""
        database, self._database = self._database, None
        if database is not None:
            database.pgconn.finish()

    async def send(self, database: Database, statement: Statement) -> Cursor:
        """Begin a statement; `rows_of` returns what it gives."""
        parameters: Mapping[str, Any] = {**statement.parameters, "now": self._clock()}
        return await database.cursor(binary=True).execute(self._render(statement.sql), parameters)

    def _defaults(self) -> dict[str, Any]:
        """Return the defaults for libpq, where the operator's URL is silent."""
        seconds = max(2, round(self._answer_within))
        defaults: dict[str, Any] = {
            "application_name": "geartrain",
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": seconds,
            "keepalives_count": 2,
            "tcp_user_timeout": seconds * 1000,
        }
        given = conninfo_to_dict(self._url)
        return {name: value for name, value in defaults.items() if name not in given}

    async def _prepare_schema(self, database: Database) -> None:
        async with database.transaction():
            await database.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            [(table,)] = await rows_of(await database.execute("SELECT to_regclass('geartrain_schema')::text"))
            if table is None:
                await database.execute("CREATE SEQUENCE geartrain_places")
                for statement in sql.CREATE:
                    await self.send(database, Statement(statement, {}))
                return
            [(version,)] = await rows_of(await self.send(database, Statement(sql.READ_VERSION, {})))
            for statement in sql.migration(version, f"{OPTION}: the Postgres database"):
                await self.send(database, Statement(statement, {"version": sql.VERSION}))


async def rows_of(cursor: Cursor) -> Rows:
    """Return the rows that a statement has given, none for one that gives none."""
    return await cursor.fetchall() if cursor.description is not None else []


def environmental_fault(error: psycopg.Error) -> StoreFaultError | None:
    """Return the fault for an error that every operation would meet; None if it is one operation's."""
    state = error.sqlstate or ""
    if state == _DISK_FULL:
        return full()
    if state in _OTHER_SCHEMA:
        return other_version("its schema is not the one that this version of geartrain writes")
    if _ENVIRONMENTAL.fullmatch(state) is not None or (not state and isinstance(error, psycopg.OperationalError)):
        return unavailable(text_of(error), may_be_done=True)
    return None


def text_of(error: Exception) -> str:
    """Return the first line of an error, which says what is wrong."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")


def _in_psycopg(text: str) -> str:
    """Return SQL with its parameters as psycopg writes them."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", text.replace("%", "%%"))


class PostgresEngine:
    """The engine of one database."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None, answer_within: float) -> None:
        """`clock`: see `open_store`. `answer_within`: seconds after which the server counts as lost."""
        self._answer_within = answer_within
        self._has_begun = False  # of the last transaction; if not, the connection was lost while unused
        self._connection = Connection(url, clock=clock, answer_within=answer_within)
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)

    def open(self) -> None:
        """Connect, and make or check the schema."""
        try:
            self._runner.run(self._in_time(self._connection.get()))
        except (TimeoutError, psycopg.Error) as error:
            reason = self._no_answer if isinstance(error, TimeoutError) else text_of(error)
            raise StoreOptionError(f"{OPTION}: the Postgres database cannot be used: {reason}") from None

    def run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations in one transaction; if it fails, run each of them so that it harms no other."""
        order = sorted(range(len(operations)), key=lambda index: operations[index].lock)
        outcomes = self._runner.run(self._run([operations[index] for index in order]))
        return [outcome for _, outcome in sorted(zip(order, outcomes, strict=True), key=lambda pair: pair[0])]

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()
        self._runner.close()

    @property
    def _no_answer(self) -> str:
        return f"the database has not answered within {self._answer_within:g} s"

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, and raise `TimeoutError` when the time is up."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._answer_within
        # First: psycopg would wait for the server's word on what it cancels.
        timer = loop.call_at(ends, self._connection.close)
        try:
            async with asyncio.timeout_at(ends + _MOMENT):
                return await work
        except psycopg.Error as error:
            if loop.time() >= ends:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()

    async def _run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        try:
            return await self._in_time(self._run_in_turns(operations))
        except TimeoutError:
            self._connection.close()
            fault = unavailable(self._no_answer, may_be_done=True)
        except psycopg.Error as error:
            if error.sqlstate == _READ_ONLY:
                self._connection.close()
            fault = environmental_fault(error) or unavailable(text_of(error), may_be_done=True)
        except StoreOptionError as error:  # the connection was made anew, and the schema is another one now
            fault = other_version(str(error))
        return [Failed(fault)] * len(operations)

    async def _run_in_turns(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations together, again if others were in the way, and apart if one of them fails."""
        for _ in range(_TRIES):
            database = await self._connection.get()
            try:
                return await self._run_together(database, operations)
            except psycopg.Error as error:
                if error.sqlstate in _IN_THE_WAY or not self._has_begun:
                    continue
                if not self._connection.is_open or environmental_fault(error) is not None:
                    raise
            except Exception:  # noqa: BLE001 - told to the one whose it is, below
                await self._connection.get()
            return await self._run_apart(await self._connection.get(), operations)
        fault = unavailable("the connection is lost, or others change the same rows, all the time")
        return [Failed(fault)] * len(operations)

    async def _run_together(self, database: Database, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run all operations in one transaction: the first steps of all, then the next of those that have one."""
        running = [_Running(operation) for operation in operations]
        self._has_begun = False
        async with database.transaction():
            self._has_begun = True
            while steps := [each for each in running if not each.is_over]:
                given = iter(await self._send_all(database, [one for each in steps for one in each.statements]))
                for each in steps:
                    each.go_on([next(given) for _ in each.statements])
        return [each.outcome for each in running]

    async def _send_all(self, database: Database, statements: Sequence[Statement]) -> list[Rows]:
        """Run statements, small ones without waiting for each other, and return what each has given."""
        given: list[Rows] = []
        for batch in _batches(statements):
            if len(batch) == 1:
                given.append(await rows_of(await self._connection.send(database, batch[0])))
                continue
            async with database.pipeline():
                cursors = [await self._connection.send(database, statement) for statement in batch]
            given += [await rows_of(cursor) for cursor in cursors]
        return given

    async def _run_apart(self, database: Database, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        """Run operations in one transaction, each behind a savepoint."""
        outcomes: list[Outcome] = []
        async with database.transaction():
            for operation in operations:
                try:
                    async with database.transaction():
                        outcomes.append(await self._run_alone(database, operation))
                except psycopg.Error as error:
                    if not self._connection.is_open or environmental_fault(error) is not None:
                        raise
                    outcomes.append(Failed(error))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is one operation's
                    outcomes.append(Failed(error))
        return outcomes

    async def _run_alone(self, database: Database, operation: Operation[Any]) -> Outcome:
        running = _Running(operation)
        while not running.is_over:
            cursors = [await self._connection.send(database, statement) for statement in running.statements]
            running.go_on([await rows_of(cursor) for cursor in cursors])
        return running.outcome


class _Running:
    """An operation on its way through its steps."""

    outcome: Outcome

    def __init__(self, operation: Operation[Any]) -> None:
        self._steps: Steps[Any] = operation.steps()
        self.statements: list[Statement] = []
        self.is_over = False
        self._advance(lambda: next(self._steps))

    def go_on(self, rows: list[Rows]) -> None:
        """Take what the statements have given."""
        self._advance(lambda: self._steps.send(rows))

    def _advance(self, step: Callable[[], list[Statement]]) -> None:
        try:
            self.statements = step()
        except StopIteration as end:
            self.outcome = Done(end.value)
            self.is_over = True
        except GeartrainError as refusal:
            self.outcome = Failed(refusal)
            self.is_over = True


def _batches(statements: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    """Cut statements into batches that may be sent at once, in their order."""
    batch: list[Statement] = []
    size = 0
    for statement in statements:
        weight = _STATEMENT_BYTES + sum(
            len(value) for value in statement.parameters.values() if isinstance(value, bytes | str)
        )
        if batch and (len(batch) == _BATCH_STATEMENTS or size + weight > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(statement)
        size += weight
    if batch:
        yield batch
