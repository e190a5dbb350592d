"""Clocks that are set an hour forward or back: that of a store, and that of the machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.server.stored import is_dead, new_owner
from tests.support.cluster import ASYNC, Cluster, put, running_cluster, until
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import PATIENCE

pytestmark = [
    pytest.mark.one_server(reason="a cluster of its own"),
    pytest.mark.without_store(reason="it has its own store"),
    pytest.mark.own_wire(reason="it starts its own servers"),
]
IN_MODULE = pytest.mark.asyncio(loop_scope="module")
HOUR = 3600


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("c"), postgres.emptied(), 2) as cluster:
        yield cluster


def set_clock(postgres: Postgres, seconds: int) -> None:
    """Move all that a store compares with its clock: the clock has been set by as much, as far as servers can see."""
    postgres.execute(
        f"UPDATE geartrain_replicas SET ends_at = ends_at - {seconds}",  # noqa: S608
        f"UPDATE geartrain_outbox SET due_at = due_at - {seconds}",  # noqa: S608
        f"UPDATE geartrain_predictions SET ended_at = ended_at - {seconds}",  # noqa: S608
    )


def leases(postgres: Postgres) -> set[tuple[str, float]]:
    """The leases of all servers, each with its end."""
    return {(owner, ends) for owner, ends in postgres.execute("SELECT owner, ends_at FROM geartrain_replicas")}


@IN_MODULE
async def test_forward_jump_of_the_store_refuses_no_prediction(cluster: Cluster, postgres: Postgres) -> None:
    async with cluster.clients() as clients:
        for number, client in enumerate(clients * 3):
            await asyncio.to_thread(set_clock, postgres, HOUR)
            answers = await asyncio.gather(
                *[put(client, f"free-{number}-{each}") for each in range(20)],
                put(client, f"free-{number}-accepted", ASYNC),
            )
            assert [answer.status_code for answer in answers] == [200] * 20 + [202], answers[0].text


@IN_MODULE
async def test_forward_jump_of_the_store_has_nothing_taken_over_from_a_server_that_lives(
    cluster: Cluster, postgres: Postgres
) -> None:
    async with cluster.clients() as clients:
        for number, client in enumerate(clients):
            assert (await put(client, f"held-{number}", ASYNC)).status_code == 202
            await until(client, f"held-{number}", lambda body: "output" in body)
        await asyncio.to_thread(set_clock, postgres, HOUR)
        for _ in range(2):  # each renews its lease, looks what there is to be taken over, and renews it again
            before = await asyncio.to_thread(leases, postgres)
            deadline = time.monotonic() + PATIENCE
            while (await asyncio.to_thread(leases, postgres)) & before:
                assert time.monotonic() < deadline
        rows = await asyncio.to_thread(
            postgres.execute, "SELECT id, epoch FROM geartrain_predictions WHERE id LIKE 'held-%' ORDER BY id"
        )
        assert rows == [("held-0", 1), ("held-1", 1)]
        cluster.open_gate("all")
        for number, client in enumerate(clients):
            assert (await until(client, f"held-{number}"))["output"] == ["one", "two"]
    assert sorted(cluster.runs("held")) == ["held-0", "held-1"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_clock_of_the_machine_that_is_set_declares_no_live_server_dead(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs a mount namespace of its own")
    stat = tmp_path / "stat"
    lines = Path("/proc/stat").read_text().splitlines()
    stat.write_text(
        "".join(f"btime {int(x.split()[1]) + HOUR}\n" if x.startswith("btime") else f"{x}\n" for x in lines)
    )
    owner = new_owner()
    script = f'mount --bind {stat} /proc/stat; exec "$@"'
    code = f"from geartrain.server.stored import is_dead; print(is_dead({owner!r}))"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "False\n"


def test_server_that_has_ended_is_dead_and_one_of_an_older_version_is_not() -> None:
    assert not is_dead(new_owner())
    place, pid, started, token = new_owner().split("/")
    assert is_dead(f"{place}/{pid}/{started}0/{token}")  # another process had the number
    assert not is_dead(f"{place}/{pid}/1795509582.12/{token}")  # as older servers write it
    assert not is_dead(f"elsewhere/{pid}/{started}0/{token}")
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(PATIENCE)
    assert is_dead(f"{place}/{process.pid}/{started}/{token}")
