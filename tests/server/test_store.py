"""A server with a store: predictions that outlive it, run once under their id, and end once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest
from typer.testing import CliRunner

from geartrain.cli import predictions
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import LOST_ERROR, Key, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CLIENT_LEFT
from geartrain.domain.principal import ANYONE
from geartrain.service.durable.durability import Durability
from geartrain.service.durable.history import restore
from geartrain.store.errors import StoreOptionError
from geartrain.store.operations import Operation, Statement, Steps
from geartrain.store.store import Store
from tests.support import modes
from tests.support.crashes import VICTIMS, Crashes
from tests.support.durable import (
    ASYNC,
    EVENTS,
    MODEL,
    Servers,
    follow_after_a_restart,
    get,
    has_given,
    has_output,
    put,
    until,
)
from tests.support.memory_store import answered
from tests.support.receiver import receiving
from tests.support.servers import PATIENCE, LiveServer, Serve, ServerProcess, eventually, write_model


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def servers(serve: Serve, tmp_path: Path, url: str) -> Servers:
    return Servers(serve, write_model(tmp_path / "model", MODEL), url)


# one id, one run


async def test_an_id_runs_once_also_after_a_restart(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        first = await put(server, "a")
        assert (first.status_code, first.json()["output"]) == (200, ["one", "two"])
        assert first.json()["metrics"]["steps"] == 1
        again = await put(server, "a")
        assert (again.status_code, again.json()) == (200, first.json())
    async with servers.serve() as server:
        assert await get(server, "a") == first.json()
        again = await server.client.put("/predictions/a", json={"input": {"wrong": 1}})  # its input does not matter
        assert (again.status_code, again.json()) == (200, first.json())
        again = await put(server, "a", ASYNC)
        assert (again.status_code, again.json()) == (202, first.json())
        stream = await put(server, "a", EVENTS)
        assert [line[7:] for line in stream.text.splitlines() if line.startswith("event: ")] == [
            "start",
            "log",
            "metric",
            "output",
            "output",
            "completed",
        ]
        response = await server.client.post("/predictions", json={"id": "a", "input": {"name": "a"}})
        assert response.status_code == 409
        assert "known" in response.json()["error"]
        assert (await server.client.post("/predictions/a/cancel")).status_code == 404
        assert (await server.client.get("/predictions/b")).status_code == 404
    assert servers.runs() == ["a"]


async def test_many_requests_for_one_id_run_once(servers: Servers) -> None:
    async with servers.serve() as server:
        asking = [asyncio.ensure_future(put(server, "a", ASYNC)) for _ in range(8)]
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [202] * 8
        servers.open_gate()
        assert (await until(server, "a"))["status"] == "succeeded"
    assert servers.runs() == ["a"]


async def test_a_prediction_without_an_id_is_not_written(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        await server.predict({"name": "a"})
        assert (await server.client.get("/predictions")).json() == {"results": [], "next": None}


async def test_an_input_that_is_wrong_takes_no_id(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve(queue=0) as server:
        assert (await server.client.put("/predictions/a", json={"input": {}})).status_code == 422
        assert (await put(server, "a")).status_code == 200


async def test_who_leaves_cancels_what_nobody_else_waits_for(servers: Servers) -> None:
    async with servers.serve() as server:
        asking = asyncio.ensure_future(put(server, "a"))
        await eventually(lambda: has_given(server, "a"))
        asking.cancel()
        body = await until(server, "a")
        assert (body["status"], body["error"]) == ("canceled", CLIENT_LEFT)


async def test_a2_put_after_a_dropped_connection_runs(servers: Servers) -> None:
    async with servers.serve() as server:
        asking = asyncio.ensure_future(put(server, "a"))
        await eventually(lambda: has_given(server, "a"))
        asking.cancel()
        live = server.predictions.live
        await eventually(lambda: "a" not in live or live["a"].is_abandoned)  # the server has seen that it left
        servers.open_gate()
        answer = await put(server, "a")  # also while the first run is being canceled
        assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    async with servers.serve() as server:
        assert await get(server, "a") == answer.json()
    assert servers.runs() == ["a", "a"]


async def test_a2_put_after_a_dropped_connection_runs_after_a_restart(servers: Servers) -> None:
    async with servers.serve() as server:
        asking = asyncio.ensure_future(put(server, "a"))
        await eventually(lambda: has_given(server, "a"))
        asking.cancel()
        assert (await until(server, "a"))["error"] == CLIENT_LEFT
    servers.open_gate()
    async with servers.serve() as server:
        assert (await get(server, "a"))["error"] == CLIENT_LEFT
        assert (await put(server, "a")).json()["status"] == "succeeded"


async def test_a1_stream_made_by_put_goes_on_without_readers(servers: Servers) -> None:
    async with servers.serve() as server:
        asking = asyncio.ensure_future(put(server, "a", EVENTS))
        await eventually(lambda: has_given(server, "a"))
        asking.cancel()
        servers.open_gate()
        events = await put(server, "a", EVENTS)
        assert '"succeeded"' in events.text
    assert servers.runs() == ["a"]


# accepted, and run again


async def test_what_was_accepted_is_run_by_the_next_server(servers: Servers) -> None:
    async with receiving() as receiver:
        async with servers.serve() as server:
            assert (await put(server, "a", ASYNC, webhook=receiver.url())).status_code == 202
            assert (await put(server, "b", ASYNC)).status_code == 202
            await until(server, "a", has_output)
            stream = asyncio.ensure_future(put(server, "a", EVENTS))
            async with server.client.stream("PUT", "/predictions/a", headers=EVENTS) as joined:
                async for line in joined.aiter_lines():
                    if line == "event: output":
                        break
            stream.cancel()
            async with asyncio.timeout(PATIENCE):
                while not await checkpointed(server, "a"):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
        async with servers.store() as store:
            row = await store.ledger.find(Key("model", "a"))
            assert row is not None
            kept = restore(row, await store.ledger.read_events(row.ownership))
            assert (kept.status, kept.chunks, kept.logs) == (Status.PROCESSING, [b'"one"'], "begun a\n")
            assert kept.metrics == {"steps": 1}
        servers.open_gate()
        async with servers.serve() as server:
            for name in "ab":
                body = await until(server, name)
                assert (body["status"], body["output"], body["logs"]) == (
                    "succeeded",
                    ["one", "two"],
                    f"begun {name}\n",
                )
            listed = (await server.client.get("/predictions")).json()["results"]
            assert [(each["id"], each["attempts"]) for each in listed] == [("b", 2), ("a", 2)]
            assert all(isinstance(each["input"], dict) for each in listed)
            calls = await receiver.ended()
        assert [call.prediction["output"] for call in calls if call.status == "succeeded"] == [["one", "two"]]
    assert servers.runs() == ["a", "a", "b"]


async def test_what_was_accepted_is_followed_after_a_restart(servers: Servers) -> None:
    await follow_after_a_restart(servers)


async def checkpointed(server: LiveServer, name: str) -> bool:
    durability = server.app.outbound.durability
    assert isinstance(durability, Durability)
    row = await durability.find_row(Key("model", name), ANYONE)
    return row is not None and row.status is Status.PROCESSING


async def test_a_cancel_before_the_takeover_wins(servers: Servers) -> None:
    async with receiving() as receiver:
        async with servers.serve() as server:
            await put(server, "a", ASYNC, webhook=receiver.url(), webhook_events_filter=["completed"])
            await until(server, "a", has_output)
        async with servers.store() as store:
            assert await store.ledger.cancel(Key("model", "a")) is not None
        async with servers.serve() as server:
            assert (await until(server, "a"))["status"] == "canceled"
            assert [call.status for call in await receiver.ended()] == ["canceled"]
    assert servers.runs() == ["a"]


async def test_retry_never_fails_what_was_lost(servers: Servers) -> None:
    (servers.folder / "geartrain.yaml").write_text("retry: never\n")
    async with receiving() as receiver:
        async with servers.serve() as server:
            await put(server, "a", ASYNC, webhook=receiver.url(), webhook_events_filter=["completed"])
            await until(server, "a", has_output)
        async with servers.serve() as server:
            body = await until(server, "a")
            assert (body["status"], body["error"]) == ("failed", LOST_ERROR)
            assert [call.prediction["error"] for call in await receiver.ended()] == [LOST_ERROR]
    assert servers.runs() == ["a"]


async def test_attempts_are_bounded(servers: Servers) -> None:
    for _ in range(2):
        async with servers.serve(attempts=2) as server:
            if not servers.runs():
                await put(server, "a", ASYNC)
            await until(server, "a", has_output)
    async with servers.serve(attempts=2) as server:
        body = await until(server, "a")
        assert (body["status"], body["error"]) == ("failed", LOST_ERROR)
    assert servers.runs() == ["a", "a"]


async def test_files_that_came_with_the_request_are_there_again(servers: Servers) -> None:
    async with servers.serve() as server:
        files = {"file": ("note.txt", b"uploaded", "text/plain")}
        response = await server.client.put("/predictions/a", data={"name": "a"}, files=files, headers=ASYNC)
        assert response.status_code == 202, response.text
        data = base64.b64encode(b"inlined").decode()
        body = {"input": {"name": "b", "file": f"data:text/plain;base64,{data}"}}
        assert (await server.client.put("/predictions/b", json=body, headers=ASYNC)).status_code == 202
        await until(server, "a", has_output)
    servers.open_gate()
    async with servers.serve() as server:
        assert (await until(server, "a"))["output"] == ["one", "uploaded", "two"]
        assert (await until(server, "b"))["output"] == ["one", "inlined", "two"]


async def test_a_run_that_fails_and_one_that_is_canceled_have_ended(servers: Servers) -> None:
    async with servers.serve() as server:
        body = {"input": {"name": "a", "file": "data:,x"}}
        await server.client.put("/predictions/a", json=body, headers=ASYNC)
        await put(server, "b", ASYNC)
        await until(server, "a", has_output)
        assert (await server.client.post("/predictions/b/cancel")).status_code == 200  # it waits
        assert (await until(server, "b"))["status"] == "canceled"
        assert (await server.client.post("/predictions/a/cancel")).status_code == 200  # it runs
        assert (await until(server, "a"))["status"] == "canceled"
        ended = await get(server, "a"), await get(server, "b")
    async with servers.serve() as server:
        assert (await get(server, "a"), await get(server, "b")) == ended
        assert (await server.client.post("/predictions/a/cancel")).status_code == 404
    assert servers.runs() == ["a"]


async def test_s7_webhook_of_a_waiting_put_whose_server_is_killed(servers: Servers) -> None:
    """It is stored with the claim; the prediction itself is lost with its server."""
    async with receiving() as receiver:
        process = ServerProcess(str(servers.folder), "--store", servers.url, "--allow-private-urls")
        try:
            async with httpx.AsyncClient(base_url=process.wait_for("listening")["url"], timeout=PATIENCE) as client:
                fields = {"webhook": receiver.url(), "webhook_events_filter": ["completed"]}
                body = {"input": {"name": "a"}, **fields}
                async with asyncio.timeout(PATIENCE):
                    while (await client.get("/health-check")).json()["status"] != "READY":  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                asking = asyncio.ensure_future(client.put("/predictions/a", json=body))
                await eventually(lambda: servers.runs() == ["a"])
                process.end()
                with pytest.raises(httpx.TransportError):
                    await asking
        finally:
            process.end()
        async with servers.serve() as server:
            calls = await receiver.ended()
            assert [(call.status, call.prediction["error"]) for call in calls] == [("failed", LOST_ERROR)]
            assert (await get(server, "a"))["status"] == "failed"
    assert servers.runs() == ["a"]


# secrets


def stored_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("store.db*") if path.is_file())


async def test_a_secret_is_not_stored_in_the_clear(servers: Servers, tmp_path: Path) -> None:
    body = {"input": {"name": "a", "key": "hunter2hunter2"}}
    async with servers.serve() as server:
        refused = await server.client.put("/predictions/a", json=body, headers=ASYNC)
        assert refused.status_code == 422
        assert "--store-key-file" in refused.json()["detail"][0]["msg"]
        servers.open_gate()
        assert (await server.client.put("/predictions/w", json=body)).status_code == 200  # its client waits
        (servers.folder / "all").unlink()
    keys = tmp_path / "keys"
    keys.write_text(base64.b64encode(bytes(range(32))).decode())
    async with servers.serve(key_file=keys) as server:
        assert (await server.client.put("/predictions/a", json=body, headers=ASYNC)).status_code == 202
        await until(server, "a", has_output)
    assert b"hunter2hunter2" not in stored_in(tmp_path)
    servers.open_gate()
    async with servers.serve(key_file=keys) as server:
        ended = await until(server, "a")
        assert (ended["output"], ended["input"]["key"]) == (["one", "2retnuh2retnuh", "two"], "**********")


# lists


async def test_lists_are_read_page_by_page(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        for name in "abc":
            assert (await put(server, name)).status_code == 200
        first = (await server.client.get("/predictions?limit=2")).json()
        second = (await server.client.get(f"/predictions?limit=2&cursor={first['next']}")).json()
        assert [each["id"] for each in first["results"] + second["results"]] == ["c", "b", "a"]
        assert second["next"] is None
        assert (await server.client.get("/predictions?status=failed,canceled")).json()["results"] == []
        for query in ("limit=0", "limit=x", "status=done", "cursor=nonsense", "other=1"):
            assert (await server.client.get(f"/predictions?{query}")).status_code == 422, query


# a store that gives no answer


class Down:
    """Every call of a store that cannot be reached, or is full."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def __getattr__(self, name: str) -> Any:
        def fail() -> None:
            raise GeartrainError(self._code, "The store is away.")

        return lambda *_arguments, **_options: answered(fail)


@pytest.mark.parametrize("code", [Code.STORE_UNAVAILABLE, Code.NO_STORAGE, Code.STORE_VERSION])
async def test_without_the_store_only_what_has_no_id_goes_on(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        durability = server.app.outbound.durability
        assert isinstance(durability, Durability)
        assert (await server.health())["store"] == {"status": "available"}
        with monkeypatch.context() as patch:
            patch.setattr(durability.store, "ledger", Down(code))
            for response in (
                await put(server, "a"),
                await server.client.post("/predictions", json={"input": {"name": "a"}}, headers=ASYNC),
                await server.client.post("/predictions", json={"id": "a", "input": {"name": "a"}}),
                await server.client.get("/predictions/a"),
                await server.client.get("/predictions"),
                await server.client.post("/predictions/a/cancel"),
            ):
                assert response.status_code == 503, response.request
                assert int(response.headers["retry-after"]) >= 1
            assert (await server.health())["store"]["status"] == "unavailable"
            assert (await server.predict({"name": "b"}))["status"] == "succeeded"
        assert (await put(server, "a")).status_code == 200
        assert (await server.health())["store"] == {"status": "available"}
    assert servers.runs() == ["b", "a"]


async def test_a_full_disk_refuses_what_has_an_id_until_there_is_room(servers: Servers) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        durability = server.app.outbound.durability
        assert isinstance(durability, Durability)
        store = durability.store
        assert isinstance(store, Store)
        assert (await put(server, "a")).status_code == 200
        large = {"input": {"name": "b" * 300_000}}
        [[(pages,)]] = await ask(store, "PRAGMA page_count")
        await ask(store, f"PRAGMA max_page_count = {pages}")
        refused = await server.client.put("/predictions/b", json=large, headers=ASYNC)
        assert (refused.status_code, "full" in refused.json()["error"]) == (503, True)
        assert (await server.health())["store"]["status"] == "unavailable"
        assert (await get(server, "a"))["status"] == "succeeded"  # what is there can be read
        assert (await server.predict({"name": "c"}))["status"] == "succeeded"
        await ask(store, "PRAGMA max_page_count = 1000000")
        assert (await server.client.put("/predictions/b", json=large, headers=ASYNC)).status_code == 202
        assert (await until(server, "b"))["status"] == "succeeded"


async def ask(store: Store, statement: str) -> Any:
    """Run a statement in the store's own thread."""

    def steps() -> Steps[Any]:
        return (yield [Statement(statement, {})])

    return await store._groups.run(Operation(steps))


@pytest.mark.parametrize("bounds", [{"keep": 0.0}, {"max_bytes": 0}], ids=["age", "size"])
async def test_what_is_too_old_or_too_large_goes(servers: Servers, bounds: dict[str, Any]) -> None:
    servers.open_gate()
    async with servers.serve() as server:
        assert (await put(server, "a")).status_code == 200
    async with servers.serve(**bounds) as server, asyncio.timeout(PATIENCE):
        while (await server.client.get("/predictions/a")).status_code != 404:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        assert (await server.client.get("/predictions")).json() == {"results": [], "next": None}


async def test_the_store_of_another_version_is_not_opened(servers: Servers) -> None:
    async with servers.store() as store:
        await ask(store, "UPDATE geartrain_schema SET version = version + 1")
    with pytest.raises(StoreOptionError, match="newer geartrain"):
        async with servers.serve():
            pytest.fail("it serves")


async def test_the_document_has_the_list(servers: Servers) -> None:
    async with servers.serve() as server:
        document = (await server.client.get("/openapi.json")).json()
        whole = (await server.client.get("/docs/openapi.json")).json()
    openapi_spec_validator.validate(document)
    openapi_spec_validator.validate(whole)
    assert "get" in document["paths"]["/predictions"]
    assert "get" in whole["paths"]["/predictions"]


async def test_an_end_waits_for_the_store(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers.serve() as server:
        durability = server.app.outbound.durability
        assert isinstance(durability, Durability)
        await put(server, "a", ASYNC)
        await until(server, "a", has_output)
        with monkeypatch.context() as patch:
            patch.setattr(durability.store, "ledger", Down(Code.STORE_UNAVAILABLE))
            servers.open_gate()
            await eventually(lambda: not server.deployment.executions.live)
            assert (await get(server, "a"))["status"] == "processing"  # as nobody has been told otherwise
        assert (await until(server, "a"))["status"] == "succeeded"


# processes


def test_what_is_killed_loses_nothing(tmp_path: Path, url: str) -> None:
    if modes.current().is_hosted:
        pytest.skip("a process of its own has its own wire")
    with contextlib.closing(Crashes(url, tmp_path / "crashes", seed=16)) as crashes:
        for victims in VICTIMS:
            crashes.round(victims)
        crashes.settle()
        assert crashes.accepted
        assert crashes.faults() == []


def test_the_command_line_lists_shows_and_cancels(
    servers: Servers, server_process: Callable[..., ServerProcess]
) -> None:
    server = server_process(str(servers.folder), "--store", servers.url, "--queue", "5")
    lines = [server.wait_for_one("listening", "ready") for _ in range(2)]  # in either order
    url = next(line["url"] for line in lines if "url" in line)
    if modes.current().scheme != "http":
        pytest.skip("the command line asks no server whose certificate is made up")
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for name in "ab":
            answer = client.put(f"/predictions/{name}", json={"input": {"name": name}}, headers=ASYNC)
            assert answer.status_code == 202

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(predictions.app, [*arguments])

    listed = run("list", url)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["ID", "b", "a"]
    assert "--cursor" in run("list", url, "--limit", "1").stderr
    assert json.loads(run("list", url, "--json").stdout)["next"] is None
    assert json.loads(run("show", url, "a").stdout)["id"] == "a"
    assert run("cancel", url, "a").exit_code == run("cancel", url, "b").exit_code == 0
    for arguments, text in (
        (("cancel", url, "nobody"), "There is no such prediction"),
        (("list", url, "--status", "gone"), "is no status"),
        (("list", "example"), "is no URL"),
    ):
        wrong = run(*arguments)
        assert wrong.exit_code != 0
        assert text in wrong.stderr


def test_command_line_asks_for_predictions_of_several_models(
    server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    if modes.current().scheme != "http":
        pytest.skip("the command line asks no server whose certificate is made up")
    for name in ("one", "two"):
        write_model(tmp_path / "models" / name, "def run(text: str = 'ü') -> str:\n    return text\n")
    server = server_process(str(tmp_path / "models"), "--store", f"sqlite:///{tmp_path}/jobs.db")
    steps = [server.wait_for_one("listening", "ready") for _ in range(3)]  # in any order
    url = next(step["url"] for step in steps if "url" in step)
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for name in ("one", "two"):
            answer = client.put(f"/models/{name}/predictions/of-{name}", json={"input": {"text": "█"}})
            assert answer.status_code == 200, answer.text

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(predictions.app, [*arguments])

    rows = [line.split()[:3] for line in run("list", url).stdout.splitlines()]
    assert rows == [["MODEL", "ID", "STATUS"], ["two", "of-two", "succeeded"], ["one", "of-one", "succeeded"]]
    assert [line.split()[0] for line in run("list", url, "--model", "one").stdout.splitlines()] == ["ID", "of-one"]
    assert [line.split()[0] for line in run("list", f"{url}/models/one").stdout.splitlines()] == ["ID", "of-one"]
    assert set(json.loads(run("list", url, "--json").stdout)) == {"one", "two"}
    for arguments in ((url, "of-one"), (url, "of-two"), (url, "of-two", "-m", "two")):
        shown = run("show", *arguments).stdout
        assert '"text": "█"' in shown
        assert json.loads(shown)["id"] == arguments[1]
    assert "No such prediction" in run("show", url, "of-three").stderr
    assert "No such prediction" in run("show", url, "of-one", "-m", "two").stderr


async def test_after_sigterm_what_was_accepted_waits_for_the_next_server(
    servers: Servers, server_process: Callable[..., ServerProcess]
) -> None:
    server = server_process(str(servers.folder), "--store", servers.url, "--shutdown-grace", "200ms")
    url = server.wait_for("listening")["url"]
    server.wait_for("ready")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, **modes.current().client_options) as client:
        answer = await client.put("/predictions/a", json={"input": {"name": "a"}}, headers=ASYNC)
        assert answer.status_code == 202
    server.popen.terminate()
    assert await asyncio.to_thread(server.popen.wait, PATIENCE) == 0
    async with servers.store() as store:
        row = await store.ledger.find(Key("model", "a"))
        assert row is not None
        assert (row.state, row.is_owner_alive) == (RowState.ACCEPTED, False)
