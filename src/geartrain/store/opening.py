"""Opens a store by its URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from geartrain.store.errors import StoreOptionError
from geartrain.store.files import Folder, NoFiles
from geartrain.store.sealing import NoKey, Sealer, read_keys
from geartrain.store.sqlite import SqliteEngine
from geartrain.store.store import Store

OPTION: Final = "--store"
FILES_ABOVE: Final = 64 * 1024  # bytes
ANSWER_WITHIN: Final = 5.0  # seconds

Clock = Callable[[], float]


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
    sealer: Sealer = NoKey() if key_file is None else read_keys(key_file)
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
            from geartrain.store.postgres import PostgresEngine
            from geartrain.store.postgres_connection import check_url
        except ImportError as error:
            msg = f"{OPTION}: Postgres needs the package psycopg: pip install 'geartrain[postgres]' ({error})"
            raise StoreOptionError(msg) from error
        check_url(url)
        postgres = PostgresEngine(url, clock=clock, answer_within=answer_within)
        store = Store(postgres, sealer=sealer, files=NoFiles(), answer_within=answer_within)
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
