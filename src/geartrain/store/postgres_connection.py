"""The connection to a Postgres database: made when it is needed, and made anew when it was lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.conninfo import conninfo_to_dict

from geartrain.store import sql
from geartrain.store.errors import StoreFaultError, StoreOptionError, full, other_version, unavailable
from geartrain.store.operations import Rows, Statement

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
