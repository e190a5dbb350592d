"""A PUT that is sent again, to another server of the same store, after its connection was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cluster import Cluster, put, until
from tests.support.postgres import running_postgres
from tests.support.servers import PATIENCE, eventually, write_model

if TYPE_CHECKING:
    import httpx

MODEL = """
    import asyncio, os
    from geartrain import BaseRunner, Path, concurrent

    def note(text: str) -> None:
        with open("runs", "a") as runs:
            runs.write(text + "\\n")

    async def passed(gate: str) -> None:
        while not os.path.exists(gate):
            await asyncio.sleep(0.005)

    class Runner(BaseRunner):
        @concurrent(max=32)
        async def run(self, name: str, file: Path | None = None) -> str:
            note(f"{name} begun")
            try:
                await passed(f"{name} goes on")
            except asyncio.CancelledError:
                note(f"{name} canceled")
                await passed(f"{name} ends")
                raise
            return name if file is None else file.read_text()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_postgres() as postgres:
        cluster = Cluster(write_model(tmp_path_factory.mktemp("retries") / "model", MODEL), postgres.url, lease=60)
        try:
            cluster.start(2)
            yield cluster
        finally:
            cluster.end()


async def drop(cluster: Cluster, client: httpx.AsyncClient, name: str) -> None:
    """Begin a synchronous PUT and hang up; the run does not end before the gate `ends` is open."""
    asking = asyncio.ensure_future(put(client, name))
    await eventually(lambda: cluster.runs(name) == [f"{name} begun"])
    asking.cancel()
    await eventually(lambda: cluster.runs(name) == [f"{name} begun", f"{name} canceled"])
    cluster.open_gate(f"{name} goes on")


async def running(client: httpx.AsyncClient, name: str) -> None:
    """Wait until the retry has come, which takes the place of the run that was canceled."""
    async with asyncio.timeout(PATIENCE):
        while (await client.get(f"/predictions/{name}")).json()["status"] != "processing":  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


async def test_a2_retry_that_goes_to_another_server_runs(cluster: Cluster) -> None:
    async with cluster.clients() as (first, second):
        await drop(cluster, first, "plain")
        asking = asyncio.ensure_future(put(second, "plain"))
        await running(second, "plain")
        cluster.open_gate("plain ends")
        answer = await asking
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "succeeded", "plain")
        assert await until(first, "plain") == answer.json()
    assert cluster.runs("plain") == ["plain begun", "plain canceled", "plain begun"]


async def test_a2_retry_of_a_form_that_goes_to_another_server_runs(cluster: Cluster) -> None:
    async with cluster.clients() as (first, second):
        await drop(cluster, first, "form")
        form: dict[str, Any] = {"files": {"file": ("a.txt", b"content")}, "data": {"name": "form"}}
        asking = asyncio.ensure_future(second.put("/predictions/form", **form))
        await running(second, "form")
        cluster.open_gate("form ends")
        answer = await asking
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "succeeded", "content")
        assert await until(first, "form") == answer.json()
    assert cluster.runs("form") == ["form begun", "form canceled", "form begun"]


async def test_a2_retries_everywhere_run_once(cluster: Cluster) -> None:
    async with cluster.clients() as (first, second):
        await drop(cluster, first, "many")
        asking = [asyncio.ensure_future(put(client, "many")) for client in (first, second) * 4]
        await running(second, "many")
        cluster.open_gate("many ends")
        answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert (await until(second, "many"))["status"] == "succeeded"
    assert cluster.runs("many") == ["many begun", "many canceled", "many begun"]
