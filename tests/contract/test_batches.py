"""Files and batches: what `BatchesPort` promises, of every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.domain.predictions.batch_jobs import (
    OF_MESSAGES,
    BatchEnd,
    BatchFault,
    BatchOwnership,
    BatchProgress,
    BatchStatus,
    FileRemoval,
    LineAnswer,
    NewBatch,
    Selection,
    StoredFile,
)
from geartrain.domain.predictions.ledger import Hold, LeaseEndedError
from geartrain.domain.principal import Principal
from tests.support.postgres import Postgres, running_postgres
from tests.support.stores import KINDS, Bench, open_bench

ADA, BOB = Principal("key:ada"), Principal("key:bob")
MUCH = 10**9


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


def file(name: str, *, principal: str = "", seconds: float | None = 100.0, purpose: str = "batch") -> StoredFile:
    expires_at = None if seconds is None else 1_000_000.0 + seconds
    return StoredFile(name, f"{name}.jsonl", purpose, 1_000_000.0, expires_at, principal=principal)


async def upload(bench: Bench, name: str, *pieces: bytes, principal: str = "", seconds: float | None = 100.0) -> None:
    new = file(name, principal=principal, seconds=seconds)
    assert await bench.batches.add_file(new, "a", most=100, most_bytes=MUCH)
    for number, piece in enumerate(pieces):
        await bench.batches.add_piece(new, "a", piece, piece=number)
    assert await bench.batches.complete_file(name, "a", expires_at=new.expires_at) is not None


def batch(name: str, *, principal: str = "", input_file: str = "f") -> NewBatch:
    return NewBatch(name, "/v1/embeddings", input_file, "24h", 1.0, 2.0, 50.0, {"k": "v"}, principal, "key", ("m*",))


async def take(bench: Bench, owner: str = "a") -> BatchOwnership:
    [taken] = await bench.batches.take_batches(owner, limit=9)
    return BatchOwnership(taken.new.id, owner, taken.epoch)


def end(status: BatchStatus = BatchStatus.COMPLETED) -> BatchEnd:
    return BatchEnd(status, 1_000_010.0, "out", "err")


# --- files -----------------------------------------------------------------------------------------------------------


async def test_file_is_found_when_it_is_complete(bench: Bench) -> None:
    new = file("f", principal="key:ada")
    assert await bench.batches.add_file(new, "a", most=1, most_bytes=MUCH)
    assert await bench.batches.add_piece(new, "a", b"abc", piece=0) == 3
    assert await bench.batches.add_piece(new, "a", b"de", piece=1) == 5
    assert await bench.batches.find_file("f") is None
    assert await bench.batches.list_files(Selection(9)) == ()
    found = await bench.batches.complete_file("f", "a", expires_at=new.expires_at)
    assert found == StoredFile("f", "f.jsonl", "batch", 1_000_000.0, 1_000_100.0, 5, "key:ada", 2)
    assert await bench.batches.find_file("f") == found
    assert [await bench.batches.read_piece("f", number) for number in range(3)] == [b"abc", b"de", None]


async def test_piece_out_of_turn_or_of_another_server_is_not_written(bench: Bench) -> None:
    new = file("f")
    await bench.batches.add_file(new, "a", most=1, most_bytes=MUCH)
    assert await bench.batches.add_piece(new, "a", b"x", piece=1) == -1
    assert await bench.batches.add_piece(new, "b", b"x", piece=0) == -1
    assert await bench.batches.complete_file("f", "b", expires_at=None) is None


async def test_files_of_a_principal_are_limited(bench: Bench) -> None:
    await upload(bench, "f", b"12345", principal="key:ada")
    more = file("g", principal="key:ada")
    assert not await bench.batches.add_file(more, "a", most=1, most_bytes=MUCH)
    assert not await bench.batches.add_file(more, "a", most=2, most_bytes=5)
    assert await bench.batches.add_file(more, "a", most=2, most_bytes=6)
    assert await bench.batches.add_piece(more, "a", b"678", piece=0) == 8
    assert await bench.batches.add_file(file("h", principal="key:bob"), "a", most=1, most_bytes=1)


async def test_file_of_a_server_without_a_lease_is_refused(bench: Bench) -> None:
    with pytest.raises(LeaseEndedError):
        await bench.batches.add_file(file("f"), "unknown", most=1, most_bytes=MUCH)


async def test_files_are_listed_by_pages(bench: Bench) -> None:
    for name, principal in (("f", "key:ada"), ("g", "key:bob"), ("h", ""), ("i", "key:ada")):
        await upload(bench, name, b"x", principal=principal)

    async def names(selection: Selection) -> str:
        return "".join(each.id for each in await bench.batches.list_files(selection))

    assert await names(Selection(9)) == "ihgf"
    assert await names(Selection(9, principal=ADA)) == "ihf"
    assert await names(Selection(2, principal=ADA)) == "ih"
    assert await names(Selection(2, "h", principal=ADA)) == "f"
    assert await names(Selection(9, is_ascending=True, principal=BOB)) == "gh"
    assert await names(Selection(9, "g", is_ascending=True)) == "hi"
    assert await names(Selection(9, purpose="batch_output")) == ""
    assert await names(Selection(9, "unknown")) == ""


async def test_file_that_has_expired_is_gone(bench: Bench) -> None:
    await upload(bench, "f", b"x")
    await upload(bench, "for ever", b"x", seconds=None)
    bench.clock.now += 101
    await bench.join("a")
    assert await bench.batches.find_file("f") is None
    assert await bench.batches.find_file("f", is_used=True) is not None
    assert [each.id for each in await bench.batches.list_files(Selection(9))] == ["for ever"]
    assert await bench.batches.remove_old(10.0) == 1
    assert await bench.batches.find_file("f", is_used=True) is None
    assert await bench.batches.read_piece("f", 0) is None


async def test_upload_of_a_lost_server_is_removed(bench: Bench) -> None:
    await bench.batches.add_file(file("f"), "a", most=9, most_bytes=MUCH)
    await bench.batches.add_piece(file("f"), "a", b"x", piece=0)
    assert await bench.batches.remove_old(10.0) == 0
    await bench.replicas.leave("a")
    assert await bench.batches.remove_old(10.0) == 1
    assert await bench.batches.read_piece("f", 0) is None


async def test_file_that_an_open_batch_reads_stays(bench: Bench) -> None:
    await upload(bench, "f", b"x")
    await bench.batches.add_batch(batch("one"), most=9)
    bench.clock.now += 101
    await bench.join("a")
    assert await bench.batches.remove_file("f") is FileRemoval.IN_USE
    assert await bench.batches.remove_old(10.0) == 0
    await bench.batches.end_batch(await take(bench), end())
    assert await bench.batches.remove_file("f") is FileRemoval.REMOVED
    assert await bench.batches.remove_file("f") is FileRemoval.ABSENT


# --- batches ---------------------------------------------------------------------------------------------------------


async def test_batch_goes_through_its_states(bench: Bench) -> None:
    new = batch("one", principal="key:ada")
    assert await bench.batches.add_batch(new, most=1)
    assert not await bench.batches.add_batch(batch("two", principal="key:ada"), most=1)
    found = await bench.batches.find_batch("one")
    assert found is not None
    assert (found.new, found.status, found.owner, found.epoch) == (new, BatchStatus.VALIDATING, "", 0)
    mine = await take(bench)
    assert mine.epoch == 1
    assert await bench.batches.note_progress(mine, BatchProgress(3, "m", in_progress_at=5.0)) is Hold.HELD
    answers = [LineAnswer(1, is_error=False, body=b"{1}", input_tokens=2, output_tokens=1), LineAnswer(3, True, b"{3}")]
    assert await bench.batches.add_lines(mine, answers) is Hold.HELD
    assert await bench.batches.add_lines(mine, [LineAnswer(1, is_error=True, body=b"again")]) is Hold.HELD
    assert await bench.batches.answered("one") == {1, 3}
    found = await bench.batches.find_batch("one")
    assert found is not None
    assert (found.status, found.completed, found.failed, found.input_tokens) == (BatchStatus.IN_PROGRESS, 1, 1, 2)
    ended = await bench.batches.end_batch(mine, end())
    assert ended is not None
    assert ended == await bench.batches.find_batch("one")
    assert (ended.status, ended.progress.output_file, ended.progress.error_file) == ("completed", "out", "err")
    assert (ended.progress.ended_at, ended.progress.total, ended.progress.model) == (1_000_010.0, 3, "m")
    output = await bench.batches.find_file("out")
    assert output is not None
    assert (output.size, output.purpose, output.principal, output.batch) == (4, "batch_output", "key:ada", "one")
    assert output.expires_at == 1_000_060.0
    assert await bench.batches.read_lines("one", is_error=False, after=0, limit=9) == ((1, b"{1}"),)
    assert await bench.batches.read_lines("one", is_error=True, after=0, limit=9) == ((3, b"{3}"),)
    assert await bench.batches.read_lines("one", is_error=True, after=3, limit=9) == ()
    assert await bench.batches.end_batch(mine, end()) is None


async def test_batch_without_answers_makes_no_files(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one"), most=9)
    fault = BatchFault("invalid_json_line", "It is no JSON.", line=2)
    ended = await bench.batches.end_batch(await take(bench), BatchEnd(BatchStatus.FAILED, 3.0, "o", "e", (fault,)))
    assert ended is not None
    assert (ended.status, ended.progress.output_file, ended.progress.error_file) == ("failed", "", "")
    assert ended.progress.faults == (fault,)
    assert await bench.batches.find_file("o") is None


async def test_of_many_servers_one_takes_a_batch(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one"), most=9)
    taken = await asyncio.gather(*(bench.batches.take_batches(owner, limit=9) for owner in "ab" * 8))
    assert sum(map(len, taken)) == 1
    assert await bench.batches.take_batches("unknown", limit=9) == ()


async def test_batch_of_a_lost_server_is_taken_and_the_lost_one_writes_nothing(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one"), most=9)
    lost = await take(bench, "a")
    await bench.batches.add_lines(lost, [LineAnswer(1, is_error=False, body=b"one")])
    assert await bench.batches.take_batches("b", limit=9) == ()
    await bench.replicas.leave("a")
    mine = await take(bench, "b")
    assert mine.epoch == lost.epoch + 1
    late = [LineAnswer(2, is_error=False, body=b"late")]
    assert await bench.batches.add_lines(lost, late) is Hold.FENCED
    assert await bench.batches.hold_batch(lost) is Hold.FENCED
    assert await bench.batches.note_progress(lost, BatchProgress()) is Hold.FENCED
    assert await bench.batches.end_batch(lost, end()) is None
    await bench.batches.give_back(lost)
    assert await bench.batches.hold_batch(mine) is Hold.HELD
    assert await bench.batches.answered("one") == {1}


async def test_batch_that_is_given_back_is_free(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one"), most=9)
    await bench.batches.give_back(await take(bench, "a"))
    assert (await take(bench, "b")).epoch == 2


async def test_cancelled_batch_ends_so_whatever_came_of_its_lines(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one", principal="key:ada"), most=9)
    assert await bench.batches.cancel_batch("one", BOB, at=4.0) is None
    assert await bench.batches.cancel_batch("two", ADA, at=4.0) is None
    mine = await take(bench)
    await bench.batches.note_progress(mine, BatchProgress(1))
    for at in (4.0, 5.0):
        canceled = await bench.batches.cancel_batch("one", ADA, at=at)
        assert canceled is not None
        assert (canceled.status, canceled.cancelling_at) == (BatchStatus.CANCELLING, 4.0)
    assert await bench.batches.hold_batch(mine) is Hold.CANCELING
    assert await bench.batches.note_progress(mine, BatchProgress(1)) is Hold.CANCELING
    assert await bench.batches.add_lines(mine, [LineAnswer(1, is_error=False, body=b"1")]) is Hold.CANCELING
    ended = await bench.batches.end_batch(mine, end())
    assert ended is not None
    assert ended.status is BatchStatus.CANCELLED
    again = await bench.batches.cancel_batch("one", ADA, at=6.0)
    assert again == ended


async def test_batches_are_listed_by_pages(bench: Bench) -> None:
    for name, principal in (("one", "key:ada"), ("two", "key:bob"), ("three", "key:ada")):
        await bench.batches.add_batch(batch(name, principal=principal), most=9)

    async def names(selection: Selection) -> list[str]:
        return [each.new.id for each in await bench.batches.list_batches(selection)]

    assert await names(Selection(9)) == ["three", "two", "one"]
    assert await names(Selection(9, principal=ADA)) == ["three", "one"]
    assert await names(Selection(1, "three", principal=ADA)) == ["one"]
    assert await names(Selection(9, "unknown")) == []


async def test_batches_of_messages_have_lists_of_their_own(bench: Bench) -> None:
    for name in ("msgbatch_1", "batch_2", "msgbatch_3", "msgbatch_4"):
        await bench.batches.add_batch(batch(name), most=9)

    async def names(selection: Selection) -> list[str]:
        return [each.new.id for each in await bench.batches.list_batches(selection)]

    assert await names(Selection(9)) == ["batch_2"]
    assert await names(Selection(2, of_messages=True)) == ["msgbatch_4", "msgbatch_3"]
    assert await names(Selection(9, "msgbatch_3", of_messages=True)) == ["msgbatch_1"]
    assert await names(Selection(9, "msgbatch_1", is_ascending=True, of_messages=True)) == ["msgbatch_3", "msgbatch_4"]


async def test_removed_batch_takes_its_files_with_it(bench: Bench) -> None:
    new = file("f", purpose=OF_MESSAGES)
    await bench.batches.add_file(new, "a", most=9, most_bytes=MUCH)
    await bench.batches.add_piece(new, "a", b"x", piece=0)
    await bench.batches.complete_file("f", "a", expires_at=new.expires_at)
    await upload(bench, "other", b"x")
    await bench.batches.add_batch(replace(batch("msgbatch_1"), endpoint="/v1/messages"), most=9)
    mine = await take(bench)
    await bench.batches.add_lines(mine, [LineAnswer(1, False, b"1"), LineAnswer(2, True, b"2")])
    assert not await bench.batches.remove_batch("msgbatch_1")
    await bench.batches.end_batch(mine, end())
    output = await bench.batches.find_file("out")
    assert output is not None
    assert output.purpose == OF_MESSAGES
    assert [each.id for each in await bench.batches.list_files(Selection(9))] == ["other"]
    assert await bench.batches.list_files(Selection(9, purpose=OF_MESSAGES)) == ()
    assert await bench.batches.remove_batch("msgbatch_1")
    assert not await bench.batches.remove_batch("msgbatch_1")
    assert await bench.batches.find_batch("msgbatch_1") is None
    assert [await bench.batches.find_file(name, is_used=True) for name in ("f", "out", "err")] == [None] * 3
    assert await bench.batches.read_piece("f", 0) is None
    assert await bench.batches.read_lines("msgbatch_1", is_error=False, after=0, limit=9) == ()
    assert await bench.batches.read_lines("msgbatch_1", is_error=True, after=0, limit=9) == ()


async def test_old_batch_goes_after_its_files(bench: Bench) -> None:
    await bench.batches.add_batch(batch("one"), most=9)
    mine = await take(bench)
    await bench.batches.add_lines(mine, [LineAnswer(1, False, b"1"), LineAnswer(2, True, b"2")])
    await bench.batches.end_batch(mine, end())
    assert await bench.batches.remove_file("out") is FileRemoval.REMOVED
    assert await bench.batches.read_lines("one", is_error=False, after=0, limit=9) == ()
    assert len(await bench.batches.read_lines("one", is_error=True, after=0, limit=9)) == 1
    bench.clock.now += 40
    assert await bench.batches.remove_old(30.0) == 0
    bench.clock.now += 40
    assert await bench.batches.remove_old(30.0) == 1
    assert await bench.batches.remove_old(30.0) == 1
    assert await bench.batches.find_batch("one") is None
