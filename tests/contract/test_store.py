"""What `StorePort` promises, of every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.ledger import (
    LISTED_ECHO,
    LONGEST_PAUSE,
    ROW_STEPS,
    Checkpoint,
    ClaimResult,
    Delivery,
    End,
    Hold,
    Key,
    Owned,
    Ownership,
    Retention,
    RowFilter,
    RowState,
    RowStep,
    Submission,
    Verdict,
)
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CLIENT_LEFT, Webhook
from geartrain.domain.principal import Principal
from tests.support.postgres import Postgres, running_postgres
from tests.support.stores import KINDS, LEASE, MODEL, Bench, claim, open_bench

EVERY = RowFilter()
FOREVER = Retention(1e9, 10**12)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    opened = await open_bench(request.param, tmp_path, server)
    await opened.join("a", "b")
    yield opened
    await opened.store.close()


def succeeded(events: bytes = b"", *deliveries: Delivery, part: int = 0) -> End:
    return End(Status.SUCCEEDED, 20.0, events=events, part=part, deliveries=deliveries)


def receiver(name: str) -> Delivery:
    return Delivery(Webhook(f"http://{name}/hook", frozenset({"completed"}), (("X-Request-Id", "1"),)), name.encode())


async def lose(bench: Bench, owner: str) -> None:
    """Let the lease of a replica end, and that of the other one run."""
    await bench.replicas.leave(owner)


# --- ids -------------------------------------------------------------------------------------------------------------


async def test_claim_of_a_free_id_is_granted(bench: Bench) -> None:
    result = await bench.ledger.claim(claim("x"))
    row = result.row
    assert result.is_granted
    assert row.ownership == Ownership(Key(MODEL, "x"), "a", 1)
    assert (row.state, row.status, row.version, row.created_at) == (RowState.CLAIMED, Status.STARTING, "3", 7.5)
    assert (row.echo, row.attempts, row.is_cancel_requested) == (b'{"x":1}', 1, False)
    assert (row.started_at, row.completed_at, row.error) == (None, None, "")
    assert (row.owner_address, row.is_owner_alive) == ("a:5000", True)
    assert await bench.ledger.find(Key(MODEL, "x")) == row


async def test_claim_of_a_taken_id_returns_the_row_there_is(bench: Bench) -> None:
    first = await bench.ledger.claim(claim("x", "a"))
    for owner in ("a", "b"):
        second = await bench.ledger.claim(claim("x", owner, reuse=True))
        assert not second.is_granted
        assert second.row == first.row


async def test_of_many_claims_at_once_one_is_granted(bench: Bench) -> None:
    results = await asyncio.gather(*(bench.ledger.claim(claim("x", owner)) for owner in ("a", "b") * 20))
    assert sum(result.is_granted for result in results) == 1
    assert len({result.row.ownership for result in results}) == 1


async def test_ids_of_two_models_are_apart(bench: Bench) -> None:
    await bench.ledger.claim(claim("x", model="one"))
    assert (await bench.ledger.claim(claim("x", model="two"))).is_granted


async def test_id_of_a_claim_whose_owner_is_lost_is_free(bench: Bench) -> None:
    lost = await bench.claim("x", "a")
    await bench.ledger.cancel(lost.key)
    await lose(bench, "a")
    result = await bench.ledger.claim(claim("x", "b"))
    assert result.is_granted
    assert result.row.ownership == Ownership(lost.key, "b", 2)
    assert not result.row.is_cancel_requested
    assert await bench.ledger.finish(lost, succeeded()) is Hold.FENCED


async def test_id_of_an_accepted_one_whose_owner_is_lost_is_taken(bench: Bench) -> None:
    accepted = await bench.accept("x", "a")
    await lose(bench, "a")
    result = await bench.ledger.accept(claim("x", "b"), Submission(b"another"))
    assert not result.is_granted
    assert result.row.ownership == accepted
    assert not result.row.is_owner_alive


async def test_id_of_one_that_has_ended_is_reused_on_request(bench: Bench) -> None:
    first = await bench.claim("x", "a")
    await bench.ledger.finish(first, succeeded(b"old"))
    kept = await bench.ledger.claim(claim("x", "b"))
    assert not kept.is_granted
    assert kept.row.status is Status.SUCCEEDED
    again = await bench.claim("x", "b", reuse=True)
    assert again == Ownership(first.key, "b", 2)
    assert await bench.ledger.read_events(again) == ()
    row = await bench.ledger.find(first.key)
    assert row is not None
    assert (row.state, row.status, row.completed_at) == (RowState.CLAIMED, Status.STARTING, None)
    assert await bench.ledger.finish(first, succeeded()) is Hold.FENCED


@pytest.mark.parametrize("error", ["", CLIENT_LEFT], ids=["on request", "client left"])
async def test_a2_id_of_one_whose_client_left_is_free(bench: Bench, error: str) -> None:
    first = await bench.claim("x", "a")
    await bench.ledger.finish(first, End(Status.CANCELED, completed_at=9.0, error=error))
    row = await bench.ledger.find(first.key)
    assert row is not None
    assert row.is_abandoned == bool(error)
    again = await bench.ledger.claim(claim("x", "b"))
    assert again.is_granted == bool(error)
    assert again.row.ownership == (Ownership(first.key, "b", 2) if error else first)


async def test_own_claim_becomes_accepted_in_its_epoch(bench: Bench) -> None:
    first = await bench.claim("x", "a")
    await bench.ledger.cancel(first.key)
    result = await bench.ledger.accept(claim("x", "a"), Submission(b"request"))
    assert result.is_granted
    assert result.row.ownership == first
    assert (result.row.state, result.row.is_cancel_requested) == (RowState.ACCEPTED, True)
    assert not (await bench.ledger.accept(claim("x", "a"), Submission(b"request"))).is_granted
    other = await bench.claim("y", "a")
    assert (await bench.ledger.accept(claim("y", "b"), Submission(b"request"))).row.ownership == other


async def test_who_has_no_lease_gets_no_id(bench: Bench) -> None:
    for attempt in (bench.ledger.claim(claim("x", "c")), bench.ledger.accept(claim("x", "c"), Submission(b""))):
        with pytest.raises(GeartrainError) as caught:
            await attempt
        assert caught.value.code is Code.STORE_UNAVAILABLE
    taken = await bench.claim("x", "a")
    assert (await bench.ledger.claim(claim("x", "c"))).row.ownership == taken


async def test_release_frees_the_id_for_its_owner_alone(bench: Bench) -> None:
    held = await bench.accept("x", "a")
    await bench.ledger.release(Ownership(held.key, "b", held.epoch))
    await bench.ledger.release(Ownership(held.key, "a", held.epoch + 1))
    assert await bench.ledger.find(held.key) is not None
    await bench.ledger.release(held)
    assert await bench.ledger.find(held.key) is None
    ended = await bench.claim("y", "a")
    await bench.ledger.finish(ended, succeeded())
    await bench.ledger.release(ended)
    assert await bench.ledger.find(ended.key) is not None


async def test_id_that_no_database_takes_is_refused(bench: Bench) -> None:
    for name in ("a\x00b", "a\ud800b"):
        with pytest.raises(GeartrainError) as caught:
            await bench.ledger.claim(claim(name))
        assert caught.value.code is Code.INVALID_INPUT
        assert await bench.ledger.find(Key(MODEL, name)) is None
        assert await bench.ledger.cancel(Key(MODEL, name)) is None
    assert (await bench.ledger.claim(claim("ä🙂'\"%s:x{now}"))).is_granted


async def test_input_with_a_secret_is_refused_without_a_key(bench: Bench) -> None:
    with pytest.raises(GeartrainError) as caught:
        await bench.ledger.accept(claim("x"), Submission(b"token", has_secret=True))
    assert caught.value.code is Code.UNSUPPORTED
    assert await bench.ledger.find(Key(MODEL, "x")) is None


# --- runs ------------------------------------------------------------------------------------------------------------


async def test_checkpoints_add_up(bench: Bench) -> None:
    mine = await bench.accept("x")
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, 9.0, b"one", 0)) is Hold.HELD
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"", 1)) is Hold.HELD
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"two", 1)) is Hold.HELD
    assert await bench.ledger.read_events(mine) == (b"one", b"two")
    assert await bench.ledger.read_events(mine, 1) == (b"two",)
    assert await bench.ledger.read_events(mine, 2) == ()
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert (row.status, row.started_at) == (Status.PROCESSING, 9.0)


async def test_part_is_written_once(bench: Bench) -> None:
    mine = await bench.accept("x")
    for events in (b"first", b"again"):
        await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, events, 0))
    assert await bench.ledger.read_events(mine) == (b"first",)


@pytest.mark.parametrize("size", [10, 1001, 3_000_000])
async def test_events_of_any_size_are_kept(bench: Bench, size: int) -> None:
    mine = await bench.accept("x")
    parts = (b"p" * size, b"", b"q" * size)
    await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, parts[0], 0))
    assert await bench.ledger.finish(mine, succeeded(parts[2], part=2)) is Hold.HELD
    assert await bench.ledger.read_events(mine) == (parts[0], parts[2])


async def test_finish_writes_the_end_and_its_webhooks(bench: Bench) -> None:
    mine = await bench.accept("x")
    end = End(
        Status.FAILED,
        20.0,
        started_at=10.0,
        error="Bad\x00 \ud800 input.",
        events=b"last",
        deliveries=(receiver("one"), receiver("two")),
    )
    assert await bench.ledger.finish(mine, end) is Hold.HELD
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert (row.state, row.status, row.started_at, row.completed_at) == (RowState.ENDED, Status.FAILED, 10.0, 20.0)
    assert row.error.startswith("Bad")
    entries = await bench.outbox.lease("a", limit=10, seconds=60)
    assert [(entry.key, entry.delivery, entry.attempts) for entry in entries] == [
        (mine.key, receiver("one"), 1),
        (mine.key, receiver("two"), 1),
    ]


async def test_one_end_is_the_only_one(bench: Bench) -> None:
    mine = await bench.accept("x")
    assert await bench.ledger.finish(mine, succeeded(b"", receiver("one"))) is Hold.HELD
    other = End(Status.FAILED, 30.0, error="late", deliveries=(receiver("two"),))
    assert await bench.ledger.finish(mine, other) is Hold.HELD  # as after a call that was not answered
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert (row.status, row.completed_at, row.error) == (Status.SUCCEEDED, 20.0, "")
    assert [entry.delivery for entry in await bench.outbox.lease("a", limit=10, seconds=60)] == [receiver("one")]
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING, None, b"late", 5)) is Hold.FENCED
    assert await bench.ledger.read_events(mine) == ()


async def test_of_many_ends_at_once_one_counts(bench: Bench) -> None:
    mine = await bench.accept("x")
    ends = [End(Status.FAILED, float(i), error=str(i), deliveries=(receiver(f"r{i}"),)) for i in range(20)]
    assert set(await asyncio.gather(*(bench.ledger.finish(mine, end) for end in ends))) == {Hold.HELD}
    [entry] = await bench.outbox.lease("a", limit=10, seconds=60)
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert entry.delivery == receiver(f"r{row.error}")


async def test_who_is_fenced_off_writes_nothing(bench: Bench) -> None:
    old = await bench.accept("x", "a")
    await bench.ledger.checkpoint(old, Checkpoint(Status.PROCESSING, 5.0, b"old", 0))
    await lose(bench, "a")
    [taken] = await bench.ledger.take_over("b", limit=10)
    new = taken.row.ownership
    await bench.join("a")  # it is back, and believes that it has the row
    assert await bench.ledger.checkpoint(old, Checkpoint(Status.PROCESSING, 6.0, b"late" * 500, 1)) is Hold.FENCED
    assert await bench.ledger.finish(old, succeeded(b"late" * 500, receiver("late"))) is Hold.FENCED
    assert await bench.ledger.read_events(old) == ()
    assert await bench.ledger.read_events(new) == ()
    await bench.ledger.release(old)
    row = await bench.ledger.find(old.key)
    assert row == taken.row
    assert await bench.ledger.finish(new, succeeded(b"new", receiver("new"))) is Hold.HELD
    assert await bench.ledger.finish(old, succeeded()) is Hold.FENCED
    assert await bench.ledger.read_events(new) == (b"new",)
    assert [entry.delivery for entry in await bench.outbox.lease("b", limit=10, seconds=60)] == [receiver("new")]


async def test_ownership_of_nothing_is_fenced_off(bench: Bench) -> None:
    nothing = Ownership(Key(MODEL, "none"), "a", 1)
    assert await bench.ledger.checkpoint(nothing, Checkpoint(Status.PROCESSING)) is Hold.FENCED
    assert await bench.ledger.finish(nothing, succeeded(b"", receiver("one"))) is Hold.FENCED
    await bench.ledger.release(nothing)
    assert await bench.outbox.lease("a", limit=10, seconds=60) == ()


# --- a lost owner ----------------------------------------------------------------------------------------------------


async def test_rows_of_a_lost_owner_are_taken_over(bench: Bench) -> None:
    accepted = await bench.accept("x", "a")
    await bench.ledger.checkpoint(accepted, Checkpoint(Status.PROCESSING, 5.0, b"old", 0))
    assert await bench.ledger.take_over("b", limit=10) == ()
    bench.clock.now += LEASE - 1
    await bench.join("b")
    assert await bench.ledger.take_over("b", limit=10) == ()
    bench.clock.now += 1
    [taken] = await bench.ledger.take_over("b", limit=10)
    assert taken.row.ownership == Ownership(accepted.key, "b", 2)
    assert (taken.verdict, taken.request) == (Verdict.RUN, b"request of x")
    assert (taken.row.state, taken.row.status, taken.row.attempts) == (RowState.ACCEPTED, Status.STARTING, 2)
    assert (taken.row.started_at, taken.row.owner_address) == (None, "b:5000")
    assert await bench.ledger.find(accepted.key) == taken.row
    assert await bench.ledger.take_over("b", limit=10) == ()


async def test_oldest_rows_are_taken_over_first(bench: Bench) -> None:
    names = [f"x{i}" for i in range(5)]
    for name in names:
        await bench.accept(name, "a")
    await lose(bench, "a")
    found = [[taken.row.ownership.key.id for taken in await bench.ledger.take_over("b", limit=2)] for _ in range(4)]
    assert found == [names[:2], names[2:4], names[4:], []]


async def test_each_row_goes_to_one_replica(bench: Bench) -> None:
    names = {f"x{i}" for i in range(30)}
    await asyncio.gather(*(bench.accept(name, "a") for name in names))
    await bench.join("c", "d")
    await lose(bench, "a")
    taken = await asyncio.gather(*(bench.ledger.take_over(owner, limit=7) for owner in ("b", "c", "d") * 3))
    found = [each.row.ownership.key.id for share in taken for each in share]
    assert sorted(found) == sorted(names)


async def test_replica_without_a_lease_takes_nothing_over(bench: Bench) -> None:
    await bench.accept("x", "a")
    await lose(bench, "a")
    assert await bench.ledger.take_over("c", limit=10) == ()
    assert await bench.ledger.take_over("a", limit=10) == ()


async def test_claim_of_a_lost_owner_can_only_be_ended(bench: Bench) -> None:
    await bench.claim("x", "a")
    await lose(bench, "a")
    [taken] = await bench.ledger.take_over("b", limit=10)
    assert (taken.verdict, taken.request) == (Verdict.LOST, b"")
    assert await bench.ledger.finish(taken.row.ownership, End(Status.FAILED, 1.0, error="lost")) is Hold.HELD


async def test_prediction_that_must_not_run_again_is_lost(bench: Bench) -> None:
    await bench.accept("x", "a", retry="never")
    await lose(bench, "a")
    [taken] = await bench.ledger.take_over("b", limit=10)
    assert (taken.verdict, taken.request) == (Verdict.LOST, b"request of x")


async def test_prediction_runs_so_many_times_at_most(bench: Bench) -> None:
    await bench.accept("x", "a", attempts=3)
    found = []
    for owner, other in (("a", "b"), ("b", "a"), ("a", "b")):
        await lose(bench, owner)
        await bench.join(other)
        [taken] = await bench.ledger.take_over(other, limit=10)
        found.append((taken.row.attempts, taken.row.ownership.epoch, taken.verdict))
    assert found == [(2, 2, Verdict.RUN), (3, 3, Verdict.RUN), (4, 4, Verdict.LOST)]


async def test_cancel_wins_over_a_takeover(bench: Bench) -> None:
    mine = await bench.accept("x", "a")
    row = await bench.ledger.cancel(mine.key)
    assert row is not None
    assert row.is_cancel_requested
    await lose(bench, "a")
    [taken] = await bench.ledger.take_over("b", limit=10)
    assert (taken.verdict, taken.request, taken.row.is_cancel_requested) == (
        Verdict.CANCEL,
        b"request of x",
        True,
    )


async def test_owner_is_told_of_a_cancel(bench: Bench) -> None:
    mine, other = await bench.accept("x", "a"), await bench.claim("y", "a")
    await bench.accept("z", "b")
    ended = await bench.claim("e", "a")
    await bench.ledger.finish(ended, succeeded())
    await bench.ledger.cancel(mine.key)
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING)) is Hold.CANCELING
    assert set(await bench.ledger.owned("a")) == {
        Owned(mine, RowState.ACCEPTED, is_cancel_requested=True),
        Owned(other, RowState.CLAIMED, is_cancel_requested=False),
    }
    assert await bench.ledger.finish(mine, succeeded()) is Hold.HELD


async def test_cancel_of_what_has_ended_changes_nothing(bench: Bench) -> None:
    mine = await bench.accept("x", "a")
    await bench.ledger.finish(mine, succeeded())
    row = await bench.ledger.cancel(mine.key)
    assert row is not None
    assert (row.status, row.is_cancel_requested) == (Status.SUCCEEDED, False)
    assert await bench.ledger.cancel(Key(MODEL, "none")) is None


# --- principals ------------------------------------------------------------------------------------------------------

ADA, BOB, ROOT = Principal("key:ada"), Principal("key:bob"), Principal("key:root", sees_all=True)


async def own(bench: Bench, name: str, principal: Principal, owner: str = "a") -> ClaimResult:
    return await bench.ledger.claim(msgspec.structs.replace(claim(name, owner, reuse=True), principal=principal.name))


async def test_s5_row_says_whose_it_is(bench: Bench) -> None:
    result = await own(bench, "x", ADA)
    row = await bench.ledger.find(Key(MODEL, "x"))
    assert row is not None
    assert (result.row.principal, row.principal) == ("key:ada", "key:ada")
    await lose(bench, "a")
    [taken] = await bench.ledger.take_over("b", limit=1)
    assert taken.row.principal == "key:ada"


async def test_s5_cancel_of_another_principal_changes_nothing(bench: Bench) -> None:
    mine = (await own(bench, "x", ADA)).row.ownership
    assert await bench.ledger.cancel(mine.key, BOB) is None
    assert await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING)) is Hold.HELD
    for principal in (ADA, ROOT):
        row = await bench.ledger.cancel(mine.key, principal)
        assert row is not None
        assert row.is_cancel_requested


async def test_s5_lists_are_of_ones_own(bench: Bench) -> None:
    everybodys = Principal("")
    for i, principal in enumerate((ADA, BOB, everybodys, ADA, BOB)):
        result = await own(bench, f"x{i}", principal)
        await bench.ledger.finish(result.row.ownership, End((Status.FAILED, Status.SUCCEEDED)[i % 2], 1.0))

    async def listed(principal: Principal, *statuses: Status, limit: int = 9) -> list[str]:
        rows = RowFilter(MODEL, frozenset(statuses), principal)
        pages = [await bench.ledger.list_rows(rows, limit=limit)]
        while pages[-1].cursor:
            pages.append(await bench.ledger.list_rows(rows, limit=limit, cursor=pages[-1].cursor))
        return [row.ownership.key.id for page in pages for row in page.rows]

    assert await listed(ADA) == await listed(ADA, limit=1) == ["x3", "x2", "x0"]
    assert await listed(BOB, limit=2) == ["x4", "x2", "x1"]
    assert await listed(ADA, Status.SUCCEEDED) == ["x3"]
    assert await listed(BOB, Status.FAILED, Status.SUCCEEDED) == ["x4", "x2", "x1"]
    assert await listed(everybodys) == ["x2"]
    assert await listed(ROOT, limit=2) == ["x4", "x3", "x2", "x1", "x0"]


async def test_s5_id_of_another_principal_is_never_free(bench: Bench) -> None:
    ended = (await own(bench, "ended", ADA)).row.ownership
    await bench.ledger.finish(ended, succeeded())
    await own(bench, "lost", ADA)
    await lose(bench, "a")
    for name in ("ended", "lost"):
        refused = await own(bench, name, BOB, "b")
        assert (refused.is_granted, refused.row.principal) == (False, "key:ada")
        assert (await own(bench, name, ADA, "b")).is_granted


async def test_s7_webhook_of_a_lost_claim_is_taken_over(bench: Bench) -> None:
    assert (await bench.ledger.claim(msgspec.structs.replace(claim("x"), request=b"webhook"))).is_granted
    await bench.claim("y")
    await lose(bench, "a")
    taken = await bench.ledger.take_over("b", limit=9)
    assert [(each.verdict, each.request) for each in taken] == [(Verdict.LOST, b"webhook"), (Verdict.LOST, b"")]


# --- lists -----------------------------------------------------------------------------------------------------------


async def test_list_has_the_newest_first_page_by_page(bench: Bench) -> None:
    for i in range(5):
        await bench.claim(f"x{i}")
    pages = [await bench.ledger.list_rows(EVERY, limit=2)]
    await bench.claim("new")
    while pages[-1].cursor:
        pages.append(await bench.ledger.list_rows(EVERY, limit=2, cursor=pages[-1].cursor))
    assert [[row.ownership.key.id for row in page.rows] for page in pages] == [["x4", "x3"], ["x2", "x1"], ["x0"]]
    whole = await bench.ledger.find(Key(MODEL, "x4"))
    assert whole is not None
    assert pages[0].rows[0] == whole


async def test_list_leaves_out_long_inputs(bench: Bench) -> None:
    for name, echo in (("longest", b"x" * LISTED_ECHO), ("longer", b"x" * (LISTED_ECHO + 1))):
        await bench.ledger.claim(msgspec.structs.replace(claim(name), echo=echo))
    listed = (await bench.ledger.list_rows(EVERY, limit=2)).rows
    assert [len(row.echo) for row in listed] == [0, LISTED_ECHO]


async def test_list_is_of_some_states_and_of_one_model(bench: Bench) -> None:
    for model in ("one", "two"):
        for i, status in enumerate((Status.SUCCEEDED, Status.FAILED, Status.CANCELED)):
            result = await bench.ledger.claim(claim(f"x{i}", model=model))
            await bench.ledger.finish(result.row.ownership, End(status, 1.0))
        result = await bench.ledger.claim(claim("running", model=model))
        await bench.ledger.checkpoint(result.row.ownership, Checkpoint(Status.PROCESSING))

    async def listed(model: str, *statuses: Status) -> list[tuple[str, str]]:
        page = await bench.ledger.list_rows(RowFilter(model, frozenset(statuses)), limit=100)
        assert page.cursor == ""
        return [(row.ownership.key.model, row.ownership.key.id) for row in page.rows]

    assert len(await listed("")) == 8
    assert await listed("one", Status.FAILED, Status.PROCESSING) == [("one", "running"), ("one", "x1")]
    assert await listed("", Status.CANCELED) == [("two", "x2"), ("one", "x2")]
    assert await listed("three") == []


async def test_pages_of_several_states_follow_each_other(bench: Bench) -> None:
    ends = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
    for i in range(9):
        await bench.ledger.finish(await bench.claim(f"x{i}"), End(ends[i % 3], 1.0))
    wanted = RowFilter(statuses=frozenset({Status.SUCCEEDED, Status.CANCELED}))
    pages = [await bench.ledger.list_rows(wanted, limit=4)]
    while pages[-1].cursor:
        pages.append(await bench.ledger.list_rows(wanted, limit=4, cursor=pages[-1].cursor))
    found = [[row.ownership.key.id for row in page.rows] for page in pages]
    assert found == [["x8", "x6", "x5", "x3"], ["x2", "x0"]]


@pytest.mark.parametrize("cursor", ["x", "-1", "1; DROP TABLE", "٣", "9" * 30])
async def test_cursor_that_no_page_has_given_is_refused(bench: Bench, cursor: str) -> None:
    with pytest.raises(GeartrainError) as caught:
        await bench.ledger.list_rows(EVERY, limit=2, cursor=cursor)
    assert caught.value.code is Code.INVALID_INPUT


# --- retention -------------------------------------------------------------------------------------------------------


async def test_old_ends_are_removed(bench: Bench) -> None:
    names = [f"x{i}" for i in range(4)]
    for name in names:
        mine = await bench.accept(name)
        bench.clock.now += 10
        await bench.join("a")
        await bench.ledger.finish(mine, succeeded(b"e" * 2000, receiver(name)))
    await bench.accept("open")
    assert await bench.ledger.remove_old(Retention(20.0, 10**9)) == 2
    assert [row.ownership.key.id for row in (await bench.ledger.list_rows(EVERY, limit=9)).rows] == ["open", "x3", "x2"]
    assert await bench.ledger.remove_old(Retention(0.0, 10**9), limit=1) == 1
    assert await bench.ledger.remove_old(Retention(0.0, 10**9), limit=1) == 1
    assert await bench.ledger.remove_old(Retention(0.0, 10**9), limit=1) == 0
    assert len(await bench.outbox.lease("a", limit=10, seconds=60)) == 4
    assert (await bench.ledger.claim(claim("x0"))).row.ownership.epoch == 1


async def test_oldest_ends_are_removed_beyond_a_size(bench: Bench) -> None:
    for i in range(5):
        mine = await bench.accept(f"x{i}")
        bench.clock.now += 1
        await bench.ledger.finish(mine, succeeded(b"e" * 2000))
    assert await bench.ledger.remove_old(Retention(1e9, 10**6)) == 0
    assert await bench.ledger.remove_old(Retention(1e9, 5000)) == 3
    assert [row.ownership.key.id for row in (await bench.ledger.list_rows(EVERY, limit=9)).rows] == ["x4", "x3"]
    assert await bench.ledger.remove_old(FOREVER) == 0


# --- outbox ----------------------------------------------------------------------------------------------------------


async def end_with_webhooks(bench: Bench, *names: str) -> None:
    for name in names:
        await bench.ledger.finish(await bench.claim(name), succeeded(b"", receiver(name)))


async def test_entries_are_lent_and_come_back(bench: Bench) -> None:
    await end_with_webhooks(bench, "one", "two", "three")
    first = await bench.outbox.lease("a", limit=2, seconds=30)
    assert [(entry.key.id, entry.attempts) for entry in first] == [("one", 1), ("two", 1)]
    assert [entry.key.id for entry in await bench.outbox.lease("a", limit=2, seconds=30)] == ["three"]
    assert await bench.outbox.lease("a", limit=2, seconds=30) == ()
    await bench.outbox.remove([first[0].number])
    bench.clock.now += 30
    again = await bench.outbox.lease("a", limit=9, seconds=30)
    # That their loans have ended is the fault of a server that was lost, and no try of theirs that has failed.
    assert [(entry.key.id, entry.attempts) for entry in again] == [("two", 1), ("three", 1)]


async def test_entry_is_tried_later(bench: Bench) -> None:
    await end_with_webhooks(bench, "one")
    [entry] = await bench.outbox.lease("a", limit=1, seconds=5)
    await bench.outbox.retry_later(entry.number, 100)
    bench.clock.now += 99
    assert await bench.outbox.lease("a", limit=1, seconds=5) == ()
    bench.clock.now += 1
    [entry] = await bench.outbox.lease("a", limit=1, seconds=5)
    assert entry.attempts == 2
    await bench.outbox.remove([entry.number, entry.number + 1])
    await bench.outbox.retry_later(entry.number, 0)
    await bench.outbox.remove([])
    bench.clock.now += 1000
    assert await bench.outbox.lease("a", limit=1, seconds=5) == ()


async def test_entry_is_due_after_a_clock_was_set_far_back(bench: Bench) -> None:
    await end_with_webhooks(bench, "one")
    bench.clock.now -= 365 * 86_400
    [entry] = await bench.outbox.lease("a", limit=1, seconds=5)
    assert await bench.outbox.lease("a", limit=1, seconds=5) == ()
    await bench.outbox.retry_later(entry.number, LONGEST_PAUSE)
    assert await bench.outbox.lease("a", limit=1, seconds=5) == ()


async def test_entry_goes_first_to_the_replica_that_has_ended_its_prediction(bench: Bench) -> None:
    await bench.join("b")
    await end_with_webhooks(bench, "one", "two")
    assert await bench.outbox.lease("b", limit=9, seconds=5) == ()
    assert await bench.outbox.lease("", limit=9, seconds=5) == ()
    [first] = await bench.outbox.lease("a", limit=1, seconds=5)
    await bench.outbox.retry_later(first.number, 0)
    assert [entry.key.id for entry in await bench.outbox.lease("b", limit=9, seconds=5)] == ["one"]
    await bench.claim("two", "b", reuse=True)
    assert [entry.key.id for entry in await bench.outbox.lease("b", limit=9, seconds=5)] == ["two"]


async def test_entry_of_a_replica_that_is_lost_goes_to_anyone(bench: Bench) -> None:
    await end_with_webhooks(bench, "one")
    await bench.replicas.leave("a")
    assert [entry.key.id for entry in await bench.outbox.lease("b", limit=9, seconds=5)] == ["one"]


async def test_each_entry_goes_to_one_who_asks(bench: Bench) -> None:
    names = [f"n{i}" for i in range(20)]
    await end_with_webhooks(bench, *names)
    shares = await asyncio.gather(*(bench.outbox.lease("a", limit=3, seconds=60) for _ in range(10)))
    assert sorted(entry.key.id for share in shares for entry in share) == sorted(names)


async def test_number_of_an_entry_is_never_given_again(bench: Bench) -> None:
    await end_with_webhooks(bench, "one")
    [first] = await bench.outbox.lease("a", limit=1, seconds=5)
    await bench.outbox.remove([first.number])
    await end_with_webhooks(bench, "two")
    [second] = await bench.outbox.lease("a", limit=1, seconds=5)
    assert second.number > first.number


# --- replicas --------------------------------------------------------------------------------------------------------


async def test_lease_runs_until_its_end(bench: Bench) -> None:
    assert [(each.owner, each.address, each.lease) for each in await bench.replicas.alive()] == [
        ("a", "a:5000", LEASE),
        ("b", "b:5000", LEASE),
    ]
    bench.clock.now += 10
    assert await bench.replicas.renew("a", address="a:6000", seconds=LEASE)
    bench.clock.now += 5
    assert [(each.owner, each.address, each.lease) for each in await bench.replicas.alive()] == [("a", "a:6000", 10.0)]
    assert not await bench.replicas.renew("b", address="", seconds=LEASE)
    assert not await bench.replicas.renew("new", address="", seconds=LEASE)
    await bench.replicas.leave("a")
    await bench.replicas.leave("nobody")
    assert [each.owner for each in await bench.replicas.alive()] == ["b", "new"]


async def test_row_tells_where_its_owner_is_asked(bench: Bench) -> None:
    mine = await bench.claim("x")
    await bench.replicas.renew("a", address="elsewhere:1", seconds=1)
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert (row.owner_address, row.is_owner_alive) == ("elsewhere:1", True)
    bench.clock.now += 1
    row = await bench.ledger.find(mine.key)
    assert row is not None
    assert (row.owner_address, row.is_owner_alive) == ("elsewhere:1", False)


async def test_models_are_wanted_or_not(bench: Bench) -> None:
    assert await bench.replicas.wanted() == ()
    first = await bench.replicas.want("m", is_wanted=True)
    second = await bench.replicas.want("n", is_wanted=False)
    third = await bench.replicas.want("m", is_wanted=True)
    assert first.revision < second.revision < third.revision
    assert await bench.replicas.wanted() == (third, second)
    assert (third.is_wanted, second.is_wanted) == (True, False)


# --- the table -------------------------------------------------------------------------------------------------------


async def bring_to(bench: Bench, state: RowState, name: str) -> Ownership:
    if state is RowState.ABSENT:
        return Ownership(Key(MODEL, name), "a", 1)
    mine = await (bench.accept(name) if state is RowState.ACCEPTED else bench.claim(name))
    if state is RowState.ENDED:
        await bench.ledger.finish(mine, succeeded())
    return mine


async def take(bench: Bench, step: RowStep, mine: Ownership) -> None:
    """Take a step as it would succeed where the table has it."""
    name = mine.key.id
    match step:
        case RowStep.CLAIM:
            await lose(bench, "a")
            await bench.ledger.claim(claim(name, "b", reuse=True))
        case RowStep.ACCEPT:
            await lose(bench, "a")
            await bench.ledger.accept(claim(name, "b", reuse=True), Submission(b""))
        case RowStep.CHECKPOINT:
            await bench.ledger.checkpoint(mine, Checkpoint(Status.PROCESSING))
        case RowStep.CANCEL:
            await bench.ledger.cancel(mine.key)
        case RowStep.TAKE_OVER:
            await lose(bench, "a")
            await bench.ledger.take_over("b", limit=1)
        case RowStep.FINISH:
            await bench.ledger.finish(mine, succeeded())
        case RowStep.RELEASE:
            await bench.ledger.release(mine)
        case RowStep.REMOVE:
            await bench.ledger.remove_old(Retention(0.0, 0))


async def test_steps_are_those_of_the_table(bench: Bench) -> None:
    for state, steps in ROW_STEPS.items():
        for step in RowStep:
            await bench.join("a", "b")
            name = f"{state}-{step}"
            mine = await bring_to(bench, state, name)
            before = await bench.ledger.find(mine.key)
            await take(bench, step, mine)
            row = await bench.ledger.find(mine.key)
            after = RowState.ABSENT if row is None else row.state
            assert after is steps.get(step, state), (state, step)
            if step not in steps and row is not None and before is not None:
                assert (row.ownership, row.status) == (before.ownership, before.status)
            if row is not None and row.state is not RowState.ENDED:  # leave none to be taken over
                await bench.ledger.finish(row.ownership, succeeded())
