"""Stores whose disk is full, whose file is locked, whose server is gone, and those of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import (
    Checkpoint,
    Claim,
    Delivery,
    End,
    Hold,
    Key,
    Ownership,
    Retention,
    RowFilter,
    RowState,
    Submission,
    Verdict,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Webhook
from geartrain.domain.principal import Principal
from geartrain.store import sql
from geartrain.store.errors import StoreOptionError
from geartrain.store.files import Folder
from geartrain.store.ledger import KEY_PATIENCE
from geartrain.store.operations import Operation, Outcome, Statement, Steps
from geartrain.store.outbox import PIECE
from geartrain.store.postgres import PostgresEngine
from geartrain.store.sealing import Keys
from geartrain.store.sqlite import SqliteEngine
from geartrain.store.store import Store, open_store
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import eventually
from tests.support.stores import MODEL, claim

WITHOUT_BATCHES = tuple(f"DROP TABLE geartrain_{name}" for name in ("files", "file_pieces", "batches", "batch_lines"))
"""Statements that make the third schema of the fourth."""

LIMIT = 40.0  # seconds
SOON = 3600.0  # seconds: a lease that outlives the test


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.dropped()
    return f"sqlite:///{tmp_path}/store.db"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Store]:
    store = await open_store(url, answer_within=LIMIT, **options)
    try:
        await store.replicas.renew("a", address="a:1", seconds=SOON)
        yield store
    finally:
        await store.close()


async def accept(store: Store, name: str, request: bytes = b"request") -> Ownership:
    result = await store.ledger.accept(claim(name), Submission(request))
    assert result.is_granted
    return result.row.ownership


async def refusal(store: Store, name: str, request: bytes = b"request") -> Code:
    """Return why a prediction is not accepted; it must be told soon."""
    begun = time.monotonic()
    with pytest.raises(GeartrainError) as caught:
        await store.ledger.accept(claim(name), Submission(request))
    assert time.monotonic() - begun < LIMIT
    return caught.value.code


async def run(store: Store, *statements: str) -> Any:
    """Run statements in the store's own thread."""

    def steps() -> Steps[Any]:
        return (yield [Statement(statement, {}) for statement in statements])

    return await store._groups.run(Operation(steps))


# --- transactions ----------------------------------------------------------------------------------------------------


async def test_operation_that_fails_spoils_no_other(url: str) -> None:
    async with opened(url) as store:
        wrong = "INSERT INTO geartrain_replicas (owner, address, ends_at) VALUES ('w', NULL, 0)"
        right = "INSERT INTO geartrain_wanted (model, is_wanted, revision) VALUES ('half', 1, 1)"
        found = await asyncio.gather(
            *(accept(store, f"x{i}") for i in range(10)),
            run(store, right, wrong),
            *(accept(store, f"y{i}") for i in range(10)),
            return_exceptions=True,
        )
        failed = [each for each in found if isinstance(each, BaseException)]
        assert [getattr(error, "code", error) for error in failed] == [Code.INTERNAL]
        assert await store.replicas.wanted() == ()
        for name in ("x0", "x9", "y0", "y9"):
            assert await store.ledger.find(Key(MODEL, name)) is not None


async def test_many_large_inputs_at_once_are_stored(url: str) -> None:
    async with opened(url) as store:
        sizes = [20_000 + 7_000 * i for i in range(40)]
        await asyncio.gather(*(accept(store, f"x{size}", os.urandom(size)) for size in sizes))
        await asyncio.gather(*(accept(store, f"s{i}", b"r" * 3000) for i in range(300)))
        assert len(await store.ledger.owned("a")) == 340


async def test_store_opened_by_many_at_once_has_one_schema(postgres: Postgres) -> None:
    url = postgres.dropped()
    stores = await asyncio.gather(*(open_store(url) for _ in range(5)))
    await asyncio.gather(*(store.check() for store in stores))
    for store in stores:
        await store.close()


# --- versions --------------------------------------------------------------------------------------------------------


async def test_newer_schema_is_refused(url: str) -> None:
    async with opened(url) as store:
        await run(store, "UPDATE geartrain_schema SET version = 99")
    with pytest.raises(StoreOptionError, match=r"--store: .*newer geartrain \(schema 99, this one knows"):
        await open_store(url)


async def test_older_schema_is_refused_without_a_migration(url: str) -> None:
    async with opened(url) as store:
        await run(store, "UPDATE geartrain_schema SET version = 0")
    with pytest.raises(StoreOptionError, match=r"--store: .*older geartrain \(schema 0\)"):
        await open_store(url)


async def test_older_schema_is_migrated_in_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(url) as store:
        mine = await accept(store, "x")
        await run(store, "DROP TABLE geartrain_wanted", "UPDATE geartrain_schema SET version = 0")
    [create] = [each for each in sql.CREATE if "geartrain_wanted" in each]
    monkeypatch.setattr(sql, "MIGRATIONS", {0: (create,), 1: (), 2: (), 3: ()})
    async with opened(url) as store:
        assert await store.replicas.wanted() == ()
        assert await store.ledger.find(mine.key) is not None
        [[(version,)]] = await run(store, sql.READ_VERSION)
        assert version == sql.VERSION


async def test_s5_rows_of_the_first_schema_stay_and_belong_to_everybody(url: str) -> None:
    async with opened(url) as store:
        old, ended = await accept(store, "old"), await accept(store, "ended")
        await store.ledger.finish(ended, End(Status.SUCCEEDED, 2.0, events=b"kept"))
        await run(
            store,
            "DROP INDEX geartrain_predictions_principal",
            "ALTER TABLE geartrain_predictions DROP COLUMN principal",
            "ALTER TABLE geartrain_outbox DROP COLUMN pieces",
            "DROP TABLE geartrain_outbox_pieces",
            *WITHOUT_BATCHES,
            "UPDATE geartrain_schema SET version = 1",
        )
    ada = Principal("key:ada")
    async with opened(url) as store:
        listed = await store.ledger.list_rows(RowFilter(principal=ada), limit=9)
        assert [(row.ownership.key, row.principal) for row in listed.rows] == [(ended.key, ""), (old.key, "")]
        assert await store.ledger.read_events(ended) == (b"kept",)
        assert await store.ledger.cancel(old.key, ada) is not None
        await store.replicas.renew("a", address="", seconds=60.0)
        made = await store.ledger.claim(Claim(Key(MODEL, "new"), "a", principal="key:ada"))
        assert made.row.principal == "key:ada"


async def test_webhooks_of_the_second_schema_stay(url: str) -> None:
    told = Delivery(Webhook("http://a"), b"b" * (2 * PIECE))
    async with opened(url) as store:
        mine = await accept(store, "old")
        await store.ledger.finish(mine, End(Status.SUCCEEDED, 2.0, deliveries=(told,)))
        await run(
            store,
            "UPDATE geartrain_outbox SET body = (SELECT body FROM geartrain_outbox_pieces WHERE piece = 0), pieces = 0",
            "ALTER TABLE geartrain_outbox DROP COLUMN pieces",
            "DROP TABLE geartrain_outbox_pieces",
            *WITHOUT_BATCHES,
            "UPDATE geartrain_schema SET version = 2",
        )
    async with opened(url) as store:
        await store.replicas.renew("a", address="", seconds=60.0)
        another = await accept(store, "new")
        await store.ledger.finish(another, End(Status.SUCCEEDED, 2.0, deliveries=(told,)))
        entries = await store.outbox.lease("a", limit=9, seconds=60.0)
        assert [entry.delivery.body for entry in entries] == [b"b" * PIECE, told.body]


async def test_migration_that_fails_leaves_the_schema_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(url) as store:
        await run(store, "UPDATE geartrain_schema SET version = 0")
    monkeypatch.setattr(sql, "MIGRATIONS", {0: ("DROP TABLE geartrain_wanted", "no SQL"), 1: (), 2: (), 3: ()})
    with pytest.raises(StoreOptionError, match="--store: "):
        await open_store(url)
    monkeypatch.setattr(sql, "MIGRATIONS", {0: ("DELETE FROM geartrain_wanted",), 1: (), 2: (), 3: ()})
    async with opened(url) as store:
        assert await store.replicas.wanted() == ()


async def test_schema_that_changes_while_the_store_is_open_is_an_error_of_its_own(url: str) -> None:
    async with opened(url) as store:
        await run(store, "ALTER TABLE geartrain_predictions RENAME COLUMN nonce TO other")
        assert await refusal(store, "x") is Code.STORE_VERSION


# --- SQLite: the file ------------------------------------------------------------------------------------------------


async def test_file_belongs_to_one_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    async with opened(url):
        with pytest.raises(StoreOptionError, match=r"--store: .* is in use by another server"):
            await open_store(url)
    async with opened(url):
        pass


async def test_file_is_its_owners_alone(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/store.db", files_above=10) as store:
        mine = await accept(store, "x")
        await store.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"e" * 100))
        assert modes(tmp_path) == {
            "store.db": 0o600,
            "store.db-shm": 0o600,
            "store.db-wal": 0o600,
            "store.db.files": 0o700,
            "store.db.lock": 0o600,
        }


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def wrong_files(folder: Path) -> dict[str, str]:
    """Return URLs of files that are no store, and what is said of them."""
    (folder / "text.db").write_text("no database, but a text of some length" * 200)
    with contextlib.closing(sqlite3.connect(folder / "other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    return {
        f"sqlite:///{folder}/text.db": "is damaged (file is not a database)",
        f"sqlite:///{folder}/other.db": "is the database of another program",
        f"sqlite:///{folder}/none/store.db": "none is no folder",
        f"sqlite:///{folder}": "is a folder; name a file in it",
        "sqlite://store.db": "names no file",
        "sqlite:store.db": "names no file",
        "sqlite:///": "names no file",
        "sqlite:////proc/store.db": "cannot be opened",
        "mysql://user:hidden@host/name": "'mysql://host/name' is no store",
        "store.db": "'store.db' is no store",
        "postgres://host/?nonsense=1": "the URL of the Postgres database is not valid",
        f"postgres://user:hidden@/name?host={folder}": "the Postgres database cannot be used",
    }


async def test_url_that_names_no_store_is_refused(tmp_path: Path) -> None:
    for url, reason in wrong_files(tmp_path).items():
        with pytest.raises(StoreOptionError) as caught:
            await open_store(url, answer_within=5)
        assert str(caught.value).startswith("--store: ")
        assert reason in str(caught.value)
        assert "hidden" not in str(caught.value)


async def test_missing_package_of_postgres_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geartrain.store.postgres", None)
    with pytest.raises(StoreOptionError, match=r"--store: .*pip install 'geartrain\[postgres\]'"):
        await open_store("postgres://localhost/")


async def test_relative_path_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened("sqlite:///my%20store.db"):
        assert (tmp_path / "my store.db").exists()


CHILD = """
import asyncio, sys
from geartrain.domain.predictions.ledger import Checkpoint, Claim, Key, Submission
from geartrain.domain.predictions.lifecycle import Status
from geartrain.store.store import open_store

async def main():
    store = await open_store(sys.argv[1], files_above=10)
    await store.replicas.renew("lost", address="", seconds=3600)
    for i in range(100000):
        result = await store.ledger.accept(Claim(Key("model", f"x{i}"), "lost"), Submission(b"request"))
        await store.ledger.checkpoint(result.row.ownership, Checkpoint(Status.PROCESSING, None, b"large enough"))
        print(i, flush=True)

asyncio.run(main())
"""


def accept_until_killed(url: str) -> list[int]:
    """Return what a process has accepted by the time at which it was killed."""
    with subprocess.Popen([sys.executable, "-c", CHILD, url], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        accepted = [int(child.stdout.readline()) for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        return accepted + [int(line) for line in child.stdout.read().split(b"\n")[:-1]]


async def test_what_was_accepted_outlives_its_server_and_is_the_next_ones_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    accepted = await asyncio.to_thread(accept_until_killed, url)
    files = tmp_path / "store.db.files"
    (files / ("0" * 32)).write_bytes(b"of a row that was never written")
    (files / "notes.txt").write_bytes(b"not ours")
    async with opened(url) as store:
        found = {each.row.ownership.key.id: each for each in await store.ledger.take_over("a", limit=100_000)}
        assert {f"x{i}" for i in accepted} <= found.keys()
        assert {each.verdict for each in found.values()} == {Verdict.RUN}
        assert [path.name for path in files.iterdir()] == ["notes.txt"]  # those of earlier epochs have gone too


async def test_files_go_with_their_rows(tmp_path: Path) -> None:
    files = tmp_path / "store.db.files"

    def count() -> int:
        return len(list(files.iterdir()))

    async def has_three() -> bool:
        return count() == 3

    async with opened(f"sqlite:///{tmp_path}/store.db", files_above=10) as store:
        mine = await accept(store, "x")
        await store.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"e" * 100))
        assert await store.ledger.finish(mine, End(Status.SUCCEEDED, 1.0, events=b"f" * 100, part=1)) is Hold.HELD
        assert count() == 2
        stale = Ownership(mine.key, "b", 1)
        assert await store.ledger.finish(stale, End(Status.FAILED, 1.0, events=b"g" * 100)) is Hold.FENCED
        assert count() == 2
        other = await accept(store, "y")
        await store.ledger.checkpoint(other, Checkpoint(Status.PROCESSING, None, b"e" * 100))
        await store.ledger.release(other)
        assert count() == 2
        for _ in range(2):
            again = await store.ledger.claim(claim("z", reuse=True))
            await store.ledger.finish(again.row.ownership, End(Status.FAILED, 1.0, events=b"z" * 100))
        await until(has_three)
        next(path for path in files.iterdir() if path.read_bytes() == b"e" * 100).unlink()
        with pytest.raises(GeartrainError) as caught:
            await store.ledger.read_events(mine)
        assert caught.value.code is Code.STORE_UNAVAILABLE
        assert await store.ledger.remove_old(Retention(0, 0)) == 2
        assert count() == 0


async def test_events_of_an_id_go_when_it_is_used_again(url: str) -> None:
    async with opened(url, files_above=10) as store:
        for epoch in (1, 2, 3):
            result = await store.ledger.claim(claim("x", reuse=True))
            assert result.is_granted
            end = End(Status.SUCCEEDED, 1.0, events=b"e" * 100)
            assert await store.ledger.finish(result.row.ownership, end) is Hold.HELD
            assert await run(store, "SELECT epoch FROM geartrain_parts") == [[(epoch,)]]
            assert await store.ledger.read_events(result.row.ownership) == (b"e" * 100,)


# --- SQLite: disk and locks ------------------------------------------------------------------------------------------


async def test_full_disk_is_an_error_until_there_is_room(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/store.db") as store:
        mine = await accept(store, "before")
        [[(pages,)]] = await run(store, "PRAGMA page_count")
        await run(store, f"PRAGMA max_page_count = {pages + 5}")
        assert await refusal(store, "large", b"r" * 200_000) is Code.NO_STORAGE
        found = await asyncio.gather(
            store.ledger.find(mine.key),
            store.ledger.accept(claim("other"), Submission(b"r" * 200_000)),
            return_exceptions=True,
        )
        assert found[0] is not None
        assert getattr(found[1], "code", None) is Code.NO_STORAGE
        assert await store.ledger.find(Key(MODEL, "large")) is None
        await run(store, f"PRAGMA max_page_count = {pages + 500}")
        await accept(store, "large", b"r" * 200_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here: that takes root, and rights in a container")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def test_disk_that_is_really_full_is_an_error_until_there_is_room(small_disk: Path) -> None:
    async with opened(f"sqlite:///{small_disk}/store.db") as store:
        mine = await accept(store, "before")
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"b" * 4096)
        assert await refusal(store, "large", b"r" * 60_000) is Code.NO_STORAGE
        with pytest.raises(GeartrainError) as caught:  # in a file
            await store.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"e" * 100_000))
        assert caught.value.code is Code.NO_STORAGE
        assert await store.ledger.find(mine.key) is not None
        ballast.unlink()
        await accept(store, "large", b"r" * 60_000)
        assert await store.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"e" * 100_000)) is Hold.HELD


@asynccontextmanager
async def engine_opened(engine: SqliteEngine, *, answer_within: float = LIMIT) -> AsyncIterator[Store]:
    store = Store(engine, sealer=Keys(), files=None, answer_within=answer_within)
    await store.open()
    try:
        await store.replicas.renew("a", address="", seconds=SOON)
        yield store
    finally:
        await store.close()


async def test_locked_file_is_an_error_until_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with engine_opened(SqliteEngine(path, lock_wait=0.1)) as store:
        mine = await accept(store, "before")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await refusal(store, "x") is Code.STORE_UNAVAILABLE
            assert await store.ledger.find(mine.key) is not None
            other.execute("ROLLBACK")
            await accept(store, "x")


class HeldUp(SqliteEngine):
    """Tells nobody what it has done, from `may_go_on.clear()` until it is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_held_up = threading.Event()

    def run(self, operations: Sequence[Operation[Any]]) -> list[Outcome]:
        outcomes = super().run(operations)
        if not self.may_go_on.is_set():
            self.is_held_up.set()
            assert self.may_go_on.wait(LIMIT)
        return outcomes


async def until(condition: Callable[[], Any]) -> Any:
    """Ask until the answer is true, and return it."""
    async with asyncio.timeout(LIMIT):
        while not (found := await condition()):  # noqa: ASYNC110 - a database tells nobody
            await asyncio.sleep(0.01)
    return found


async def attempts(store: Store, engine: HeldUp, attempt: Callable[[str], Awaitable[Any]]) -> list[str]:
    """Try until the engine has done it without telling anybody; return the ids that were tried."""
    names: list[str] = []
    engine.may_go_on.clear()
    store._groups._deadlines.within = 0.1
    while not engine.is_held_up.is_set():  # on a busy machine, the time may be up before it has begun
        names.append(f"x{len(names)}")
        with pytest.raises(GeartrainError) as caught:
            await attempt(names[-1])
        assert caught.value.code is Code.STORE_UNAVAILABLE
    store._groups._deadlines.within = LIMIT
    engine.may_go_on.set()
    return names


async def test_what_was_accepted_without_telling_anybody_is_taken_over(tmp_path: Path) -> None:
    engine = HeldUp(tmp_path / "store.db")
    async with engine_opened(engine) as store:
        names = await attempts(store, engine, lambda name: store.ledger.accept(claim(name), Submission(b"request")))
        [taken] = await until(lambda: store.ledger.take_over("a", limit=10))
        assert taken.row.ownership.key.id in names
        assert (taken.verdict, taken.request) == (Verdict.RUN, b"request")


async def test_id_that_was_claimed_without_telling_anybody_is_freed(tmp_path: Path) -> None:
    engine = HeldUp(tmp_path / "store.db")
    async with engine_opened(engine) as store:
        names = await attempts(store, engine, lambda name: store.ledger.claim(claim(name)))

        async def is_granted(name: str) -> bool:
            return (await store.ledger.claim(claim(name))).is_granted

        for name in names:
            assert await until(partial(is_granted, name))


# --- Postgres: the server --------------------------------------------------------------------------------------------


async def test_server_that_is_gone_is_an_error_until_it_is_back(postgres: Postgres) -> None:
    async with opened(postgres.dropped()) as store:
        mine = await accept(store, "before")
        postgres.stop()
        try:
            for _ in range(2):
                assert await refusal(store, "x") is Code.STORE_UNAVAILABLE
                with pytest.raises(GeartrainError):
                    await store.ledger.find(mine.key)
        finally:
            await asyncio.to_thread(postgres.start)
        row = await store.ledger.find(mine.key)
        assert row is not None
        assert row.state is RowState.ACCEPTED
        await accept(store, "x")


async def test_connection_that_was_lost_while_idle_is_made_anew_unseen(postgres: Postgres) -> None:
    async with opened(postgres.dropped()) as store:
        for name in ("x", "y"):
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'geartrain'"
            )
            await accept(store, name)


async def test_servers_that_change_the_same_rows_never_wait_for_each_other(postgres: Postgres) -> None:
    url = postgres.dropped()
    logged = len(postgres.log)
    names = [f"{number:02}" for number in range(40)]
    async with opened(url) as one, opened(url) as other:
        for round_ in range(10):
            claims = [
                store.ledger.claim(claim(f"{round_}-{name}"))
                for store, order in ((one, names), (other, names[::-1]))
                for name in order
            ]
            granted = [result.row.ownership for result in await asyncio.gather(*claims) if result.is_granted]
            assert {each.key.id for each in granted} == {f"{round_}-{name}" for name in names}
            ends = [
                store.ledger.finish(each, End(Status.SUCCEEDED, 2.0))
                for store, order in ((one, granted), (other, granted[::-1]))
                for each in order
            ]
            assert set(await asyncio.gather(*ends)) == {Hold.HELD}
    assert "deadlock" not in postgres.log[logged:]


async def test_servers_that_deliver_the_same_webhooks_never_wait_for_each_other(postgres: Postgres) -> None:
    url = postgres.dropped()
    logged = len(postgres.log)
    async with opened(url) as one, opened(url) as other:
        for round_ in range(10):
            mine = [await accept(one, f"{round_}-{number}") for number in range(4)]
            end = End(Status.FAILED, 2.0, deliveries=(Delivery(Webhook("http://host/"), b"{}"),) * 10)
            await asyncio.gather(*(one.ledger.finish(each, end) for each in mine))
            numbers = [entry.number for entry in await one.outbox.lease("a", limit=100, seconds=0)]
            assert len(numbers) == 40
            orders = ((one, numbers), (other, numbers[::-1]))
            await asyncio.gather(*(store.outbox.retry_later(each, 0) for store, order in orders for each in order))
            await asyncio.gather(*(store.outbox.remove([each]) for store, order in orders for each in order))
    assert "deadlock" not in postgres.log[logged:]


async def test_server_that_does_not_answer_is_an_error_until_it_does(postgres: Postgres) -> None:
    url = postgres.dropped()
    engine = PostgresEngine(url, clock=None, answer_within=LIMIT)
    store = Store(engine, sealer=Keys(), files=None, answer_within=LIMIT)
    await store.open()
    await store.replicas.renew("a", address="", seconds=SOON)
    mine = await accept(store, "before")
    server = psutil.Process(postgres.pid)
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        process.suspend()
    engine._answer_within = 0.5
    try:
        for _ in range(2):
            assert await refusal(store, "x") is Code.STORE_UNAVAILABLE
    finally:
        engine._answer_within = LIMIT
        for process in processes:
            process.resume()
    assert await store.ledger.find(mine.key) is not None
    await accept(store, "y")
    await store.close()


async def test_full_disk_of_a_server_is_told(postgres: Postgres) -> None:
    async with opened(postgres.dropped()) as store:
        postgres.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
            "CREATE TRIGGER fail BEFORE INSERT ON geartrain_predictions EXECUTE FUNCTION fail()",
        )
        assert await refusal(store, "x") is Code.NO_STORAGE
        postgres.execute("DROP TRIGGER fail ON geartrain_predictions")
        await accept(store, "x")


async def test_standby_is_an_error_until_it_is_promoted(postgres: Postgres) -> None:
    async with opened(postgres.dropped()) as store:
        restart = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'geartrain'"
        try:
            postgres.execute("ALTER ROLE geartrain SET default_transaction_read_only = on", restart)
            assert await refusal(store, "x") is Code.STORE_UNAVAILABLE
        finally:
            postgres.execute("SET default_transaction_read_only = off", "ALTER ROLE geartrain RESET ALL")
        await accept(store, "x")


async def test_store_is_durable_where_the_server_is_not_by_default(postgres: Postgres) -> None:
    try:
        postgres.execute("ALTER ROLE geartrain SET synchronous_commit = off")
        async with opened(postgres.dropped()) as store:
            assert await run(store, "SELECT current_setting('synchronous_commit')") == [[("on",)]]
    finally:
        postgres.execute("ALTER ROLE geartrain RESET ALL")


async def test_time_is_the_databases(postgres: Postgres) -> None:
    async with opened(postgres.dropped()) as store:
        [replica] = await store.replicas.alive()
        assert SOON - LIMIT < replica.lease <= SOON
        [[(difference,)]] = await run(store, "SELECT ends_at - {now} FROM geartrain_replicas")
        assert SOON - LIMIT < difference <= SOON


# --- secrets ---------------------------------------------------------------------------------------------------------

KEY = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="
OTHER_KEY = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI="
SECRET = b"the value of a secret"


async def accept_secret(store: Store, name: str) -> Ownership:
    result = await store.ledger.accept(claim(name), Submission(SECRET, has_secret=True))
    assert result.is_granted
    return result.row.ownership


async def test_secrets_are_stored_encrypted(url: str, tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text(KEY)
    async with opened(url, key_file=key_file) as store:
        mine = await accept_secret(store, "x")
        webhook = Webhook("https://user:password@host/")
        await store.ledger.finish(
            await accept_secret(store, "y"), End(Status.FAILED, 1.0, deliveries=(Delivery(webhook, b"body"),))
        )
        stored = await run(store, "SELECT request FROM geartrain_predictions", "SELECT webhook FROM geartrain_outbox")
        for rows in stored:
            for (value,) in rows:
                assert SECRET not in value
                assert b"password" not in value
        [entry] = await store.outbox.lease("a", limit=1, seconds=0)
        assert entry.delivery.webhook == webhook
        await store.replicas.leave("a")
        await store.replicas.renew("b", address="", seconds=SOON)
        [taken] = await store.ledger.take_over("b", limit=10)
        assert (taken.row.ownership.key, taken.request) == (mine.key, SECRET)
        assert await run(store, "SELECT request FROM geartrain_predictions WHERE id = 'y'") == [[(b"",)]]


async def test_row_waits_for_a_server_that_has_its_key(url: str, tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text(KEY)
    now = [1_000_000.0]
    async with opened(url, key_file=key_file, clock=lambda: now[0]) as store:
        await accept_secret(store, "x")
        await accept_secret(store, "y")
        await store.replicas.leave("a")
    key_file.write_text(OTHER_KEY)
    async with opened(url, key_file=key_file, clock=lambda: now[0]) as store:
        await store.replicas.leave("a")
        await store.replicas.renew("b", address="", seconds=SOON)
        await store.ledger.accept(claim("plain", "b"), Submission(b"request"))
        assert await store.ledger.take_over("b", limit=10) == ()
        now[0] += KEY_PATIENCE
        [taken] = await store.ledger.take_over("b", limit=1)
        assert (taken.row.ownership.key.id, taken.verdict, taken.request) == ("x", Verdict.UNREADABLE, b"")
        await store.replicas.leave("b")
    key_file.write_text(f"{OTHER_KEY}\n{KEY}\n")
    async with opened(url, key_file=key_file, clock=lambda: now[0]) as store:
        await store.replicas.leave("a")
        await store.replicas.renew("c", address="", seconds=SOON)
        verdicts = {each.row.ownership.key.id: each.verdict for each in await store.ledger.take_over("c", limit=10)}
        assert verdicts == {"x": Verdict.RUN, "y": Verdict.RUN, "plain": Verdict.RUN}


# --- files -----------------------------------------------------------------------------------------------------------


def test_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no folder")
    with pytest.raises(GeartrainError) as caught:
        Folder(tmp_path / "files", above=1).write(b"part")
    assert caught.value.code is Code.STORE_UNAVAILABLE


# --- damage ----------------------------------------------------------------------------------------------------------


async def damaged(folder: Path) -> Path:
    """A file of SQLite whose page of the first rows is lost."""
    path = folder / "store.db"
    async with opened(f"sqlite:///{path}") as store:
        for number in range(200):
            await accept(store, f"x{number}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'geartrain_predictions'")
        [(page_size,)] = connection.execute("PRAGMA page_size")
    with path.open("r+b") as file:
        file.seek((root - 1) * page_size)
        file.write(bytes(range(256)) * (page_size // 256))
    return path


async def test_s8_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = await damaged(tmp_path)
    with pytest.raises(StoreOptionError, match=r"--store: .*store\.db is damaged \(.*\)\. Restore a backup") as caught:
        await open_store(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)


async def test_s8_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreOptionError, match=r"store\.db is damaged"):
        await open_store(f"sqlite:///{path}")


async def test_s8_large_file_is_checked_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = await damaged(tmp_path)
    engine = SqliteEngine(path, checked_at_start=0)
    try:
        engine.open()
        await eventually(lambda: "the store is damaged" in caplog.text)
    finally:
        engine.close()
    [record] = [record for record in caplog.records if record.message == "the store is damaged"]
    assert "Restore a backup" in record.__dict__["reason"]
    assert record.levelname == "ERROR"


def test_s8_check_aside_ends_with_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        engine = SqliteEngine(tmp_path / "store.db", checked_at_start=0)
        engine.open()
        engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "geartrain-store-check"]
    assert not caplog.records
