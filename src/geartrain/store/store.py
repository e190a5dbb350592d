"""A store of predictions: opened by its URL, with its replicas and its outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from geartrain.domain.predictions.ledger import Replica, WantedModel
from geartrain.domain.predictions.prediction import Webhook
from geartrain.store import sql
from geartrain.store.batches import Batches
from geartrain.store.errors import StoreOptionError
from geartrain.store.files import Folder
from geartrain.store.groups import Groups
from geartrain.store.ledger import Ledger
from geartrain.store.operations import Engine, Operation, RowLock, Statement, Steps, Table
from geartrain.store.outbox import Outbox
from geartrain.store.sealing import Keys, read_keys
from geartrain.store.sqlite import SqliteEngine

_decode_webhook: Final = msgspec.msgpack.Decoder(Webhook).decode
OPTION: Final = "--store"
FILES_ABOVE: Final = 64 * 1024  # bytes
ANSWER_WITHIN: Final = 5.0  # seconds

Clock = Callable[[], float]


class Replicas:
    """The replicas of one store."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def renew(self, owner: str, *, address: str, seconds: float) -> bool:
        def steps() -> Steps[bool]:
            alive, _ = yield [
                Statement(sql.IS_ALIVE, {"owner": owner}),
                Statement(sql.RENEW, {"owner": owner, "address": address, "seconds": seconds}),
            ]
            return bool(alive)

        return await self._groups.run(Operation(steps, lock=RowLock(Table.REPLICAS, id=owner)))

    async def leave(self, owner: str) -> None:
        def steps() -> Steps[None]:
            yield [Statement(sql.LEAVE, {"owner": owner})]

        await self._groups.run(Operation(steps, lock=RowLock(Table.REPLICAS, id=owner)))

    async def alive(self) -> tuple[Replica, ...]:
        def steps() -> Steps[tuple[Replica, ...]]:
            [found] = yield [Statement(sql.REPLICAS, {})]
            return tuple(Replica(*columns) for columns in found)

        return await self._groups.run(Operation(steps, only_reads=True))

    async def want(self, model: str, *, is_wanted: bool) -> WantedModel:
        def steps() -> Steps[WantedModel]:
            [[(name, wanted, revision)]] = yield [Statement(sql.WANT, {"model": model, "is_wanted": int(is_wanted)})]
            return WantedModel(name, wanted == 1, revision)

        return await self._groups.run(Operation(steps, lock=RowLock(Table.WANTED, model)))

    async def wanted(self) -> tuple[WantedModel, ...]:
        def steps() -> Steps[tuple[WantedModel, ...]]:
            [found] = yield [Statement(sql.WANTED, {})]
            return tuple(WantedModel(name, wanted == 1, revision) for name, wanted, revision in found)

        return await self._groups.run(Operation(steps, only_reads=True))


class Store:
    """A store of predictions, as the service's `StorePort` describes it."""

    def __init__(self, engine: Engine, *, sealer: Keys, files: Folder | None, answer_within: float) -> None:
        """`answer_within`: seconds after which a call has failed if it has no answer."""
        self._groups = Groups(engine, answer_within=answer_within)
        self.ledger = Ledger(self._groups, sealer=sealer, files=files)
        self.outbox = Outbox(self._groups, sealer=sealer)
        self.replicas = Replicas(self._groups)
        self.batches = Batches(self._groups, sealer=sealer)

    async def open(self) -> None:
        await self._groups.open()

    async def remove_lost_files(self, folder: Folder) -> None:
        """Remove the files that no row names. No other server may be writing any."""

        def steps() -> Steps[frozenset[str]]:
            [found] = yield [Statement(sql.ALL_FILES, {})]
            return frozenset(file for (file,) in found)

        names = await self._groups.run(Operation(steps, only_reads=True))
        await asyncio.to_thread(folder.remove_others, names)

    async def check(self) -> None:
        def steps() -> Steps[None]:
            yield [Statement(sql.READ_VERSION, {})]

        await self._groups.run(Operation(steps, only_reads=True))

    async def close(self) -> None:
        await self._groups.close()


async def open_store(
    url: str,
    *,
    key_file: Path | None = None,
    files_above: int = FILES_ABOVE,
    answer_within: float = ANSWER_WITHIN,
    clock: Clock | None = None,
) -> Store:
    """Open a store; raise `StoreOptionError` with a sentence that names the option.

    Args:
        url: `sqlite:///PATH`, a file of this server alone that is made if it is not there; or `postgres://…`, a
            database of Postgres that servers share, as libpq writes it.
        key_file: keys that inputs are encrypted with; see `geartrain.store.sealing`. Without one, inputs with secrets
            are not accepted.
        files_above: parts of events of more bytes become files in a folder beside the file of SQLite.
        answer_within: seconds after which a call fails if it has no answer.
        clock: gives the time in seconds since the epoch. None: this machine's for SQLite, the server's for Postgres.
    """
    sealer = Keys() if key_file is None else read_keys(key_file)
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        path = _sqlite_path(url)
        folder = Folder(path.with_name(path.name + ".files"), above=files_above)
        engine = SqliteEngine(path, clock=clock)
        store = Store(engine, sealer=sealer, files=folder, answer_within=answer_within)
        await store.open()
        await store.remove_lost_files(folder)
        return store
    if scheme in {"postgres", "postgresql"}:
        try:
            from geartrain.store.postgres import PostgresEngine, check_url
        except ImportError as error:
            msg = f"{OPTION}: Postgres needs the package psycopg: pip install 'geartrain[postgres]' ({error})"
            raise StoreOptionError(msg) from error
        check_url(url)
        postgres = PostgresEngine(url, clock=clock, answer_within=answer_within)
        store = Store(postgres, sealer=sealer, files=None, answer_within=answer_within)
        await store.open()
        return store
    msg = f"{OPTION}: {_shown(url)!r} is no store; use sqlite:///PATH or postgres://USER@HOST/DATABASE"
    raise StoreOptionError(msg)


def _sqlite_path(url: str) -> Path:
    """Return the path in a URL: absolute with four slashes, relative to the working directory with three."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or parts.query or parts.fragment or not parts.path.startswith("/"):
        msg = f"{OPTION}: {url!r} names no file; write sqlite:///PATH, or sqlite:////PATH for one from the root"
        raise StoreOptionError(msg)
    found = Path(path).absolute()
    if not found.parent.is_dir():
        raise StoreOptionError(f"{OPTION}: {found.parent} is no folder; make it, or choose another file")
    if found.is_dir():
        raise StoreOptionError(f"{OPTION}: {found} is a folder; name a file in it, such as {found}/predictions.db")
    return found


def _shown(url: str) -> str:
    """Return a URL without the password that it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
