"""The calls of models by predictions that a store knows: at the end, after a restart, and from another server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.predictions.ledger import Retention
from geartrain.domain.predictions.prediction import MAX_CALLS
from geartrain.store.store import open_store
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.support.nested_calls import ECHO, MIDDLE, MIDDLE_CALLS, OUTER, Live, outline
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import ServerProcess, write_model

SLOW = [(1, "echo", "succeeded"), (1, "echo", "processing")]
CANCELED = [(1, "echo", "succeeded"), (1, "echo", "canceled")]


def is_in_second(found: dict[str, Any]) -> bool:
    """Whether the second call of `slow` runs."""
    return outline(found["calls"]) == SLOW


class Shared:
    """A store, and servers of it with the same models and keys, one after the other or together."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self._root = root
        self._keys = {}
        for name in ("ada", "bob"):
            self._keys[name] = new_key()
            add_key(root / "keys", Key(name, ("predict", "read"), digest_of(self._keys[name])))
        for name, text in {"echo": ECHO, "middle": MIDDLE, "outer": OUTER}.items():
            write_model(root / "models" / name, text)
        (root / "token").write_text("x" * 43 + "\n")

    @contextlib.asynccontextmanager
    async def server(self, *options: str) -> AsyncIterator[Live]:
        keys = ("--keys", str(self._root / "keys"))
        process = ServerProcess(str(self._root / "models"), "--store", self.url, *keys, *options)
        try:
            url = ""
            for _ in range(4):
                url = process.wait_for_one("listening", "ready").get("url", url)
            live = Live(url, self._keys)
            yield live
            await live.ada.aclose()
            await live.bob.aclose()
        finally:
            process.end()

    def reached(self) -> contextlib.AbstractAsyncContextManager[Live]:
        """A server that the others can ask."""
        return self.server("--advertise", "127.0.0.1", "--cluster-token-file", str(self._root / "token"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    if request.param == "sqlite":
        return Shared(tmp_path, f"sqlite:///{tmp_path}/store.db")
    return Shared(tmp_path, request.getfixturevalue("postgres").dropped())


@pytest.fixture
def of_several(postgres: Postgres, tmp_path: Path) -> Shared:
    return Shared(tmp_path, postgres.dropped())


async def test_calls_are_told_after_a_restart_for_as_long_as_the_prediction_is_kept(shared: Shared) -> None:
    async with shared.server() as live:
        paths = [await live.put("outer", way=way) for way in ("tree", "failures", "many", "none")]
        before = [await live.shown(path) for path in paths]
        canceled = await live.put("outer", later=True, way="slow")
        await live.until(canceled, is_in_second)
        await live.ada.post(f"{canceled}/cancel")
        ended = await live.until(canceled, lambda found: "completed_at" in found)
    tree, failures, many, none = before
    assert outline(tree["calls"]) == [*MIDDLE_CALLS, (1, "echo", "succeeded"), *MIDDLE_CALLS]
    assert failures["calls"][0]["error"] == "ValueError: no such thing"
    assert (len(many["calls"]), many["left_out"]) == (MAX_CALLS, 300 - MAX_CALLS)
    assert none["calls"] == []
    assert outline(ended["calls"]) == CANCELED
    async with shared.server() as live:
        assert [await live.shown(path) for path in paths] == before
        assert await live.shown(canceled) == ended
        unknown = await live.bob.get(f"{paths[0]}0/calls")
        hidden = await live.bob.get(f"{paths[0]}/calls")
        assert hidden.status_code == HTTPStatus.NOT_FOUND
        assert hidden.content == unknown.content
    store = await open_store(shared.url)
    try:
        assert await store.ledger.remove_old(Retention(3600.0, 0)) == len(
            [*paths, canceled]
        )  # no bytes are left for any
    finally:
        await store.close()
    async with shared.server() as live:
        assert (await live.ada.get(f"{paths[0]}/calls")).status_code == HTTPStatus.NOT_FOUND


async def test_another_server_tells_the_calls_of_a_prediction(of_several: Shared) -> None:
    async with of_several.reached() as owner, of_several.reached() as other:
        path = await owner.put("outer", later=True, way="slow")
        running = await other.until(path, is_in_second)
        assert await owner.shown(path) == running
        hidden = await other.bob.get(f"{path}/calls")
        assert (hidden.status_code, hidden.content) == (
            HTTPStatus.NOT_FOUND,
            (await other.bob.get(f"{path}0/calls")).content,
        )
        await owner.ada.post(f"{path}/cancel")
        ended = await other.until(path, lambda found: "completed_at" in found)
        assert outline(ended["calls"]) == CANCELED
        assert await owner.shown(path) == ended


async def test_a_server_that_cannot_ask_the_other_one_says_so_while_the_prediction_runs(of_several: Shared) -> None:
    async with of_several.server() as owner, of_several.server() as other:
        path = await owner.put("outer", later=True, way="slow")
        await owner.until(path, is_in_second)
        answer = await other.ada.get(f"{path}/calls")
        assert (answer.status_code, answer.headers["retry-after"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "2")
        assert "--advertise" in answer.json()["error"]
        await owner.ada.post(f"{path}/cancel")
        await owner.until(path, lambda found: "completed_at" in found)
        found = await other.shown(path)
        assert outline(found["calls"]) == CANCELED
