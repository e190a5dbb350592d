"""`/v1/messages/batches`: batches of Anthropic's API. `geartrain.transport.openai.batch_runner` runs them.

Their requests come in the body, and are kept as a file of lines that belongs to the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from geartrain.apis.anthropic import batches as form
from geartrain.apis.anthropic.models import read_page
from geartrain.apis.openai.batches import LineCutter, LineError, read_line
from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.stored import over_quota
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.batch_jobs import (
    MESSAGE_BATCH,
    MESSAGES,
    OF_MESSAGES,
    OPEN_BATCH,
    Batch,
    BatchStatus,
    NewBatch,
    Selection,
    StoredFile,
)
from geartrain.service.durable.durability import Durability
from geartrain.transport.openai.stored_batches import MAX_OPEN
from geartrain.transport.openai.stored_files import content_of, is_id, keep_requests, one_more, send_pieces
from geartrain.transport.runs import Request
from geartrain.transport.wire.exchange import Answer, Head, Responder

WINDOW: Final = 86_400.0
"""Seconds after which a batch expires."""

RESULTS_KEPT: Final = 2_505_600.0
"""Seconds after the end of a batch that its results are kept: 29 days."""

_MAX_QUERY: Final = 4096  # bytes
_OK: Final = HTTPStatus.OK
_LINES: Final = ((b"content-type", b"application/x-jsonl"),)


class MessageBatches:
    """The endpoints of batches of messages, each for one request."""

    def __init__(self, durability: Durability | None, *, max_bytes: int) -> None:
        """`max_bytes`: of all files of one client."""
        self._durability = durability
        self._max_bytes = max_bytes

    def _needed(self) -> Durability:
        if self._durability is None:
            raise form.no_store()
        return self._durability

    async def create(self, request: Request) -> Answer:
        """Make a batch, for any server to run. Raises `GeartrainError`."""
        durability, notes = self._needed(), request.head.notes
        lines, total = await asyncio.to_thread(form.read_requests, request.body)
        file = await keep_requests(durability, notes.principal, lines, max_bytes=self._max_bytes)
        now = time.time()
        new = NewBatch(
            f"{MESSAGE_BATCH}{secrets.token_hex(12)}",
            MESSAGES,
            file.id,
            "24h",
            created_at=now,
            expires_at=now + WINDOW,
            output_seconds=RESULTS_KEPT,
            principal=notes.principal.name,
            key=notes.key,
            models=notes.models,
            total=total,
        )
        is_added = False
        try:
            is_added = await durability.ask(durability.store.batches.add_batch(new, most=MAX_OPEN))
        finally:
            if not is_added:
                with contextlib.suppress(GeartrainError):  # it stays while a batch reads it
                    await durability.store.batches.remove_file(file.id)
        if not is_added:
            raise over_quota(f"You have {MAX_OPEN} batches that have not ended: wait for one, or cancel one.")
        durability.on_batch()
        return _answer(Batch(new, BatchStatus.VALIDATING))

    async def _find(self, name: str, head: Head) -> Batch:
        durability = self._needed()
        is_known = is_id(name) and name.startswith(MESSAGE_BATCH)
        batch = await durability.ask(durability.store.batches.find_batch(name)) if is_known else None
        if batch is None or not head.notes.principal.may_see(batch.new.principal):
            raise form.unknown_batch(name)
        return batch

    async def describe(self, request: Request) -> Answer:
        """Return one batch. Raises `GeartrainError`."""
        return _answer(await self._find(request.params["id"], request.head))

    async def list_all(self, request: Request) -> Answer:
        """Return the batches of a client, the newest first. Raises `GeartrainError`."""
        durability, head = self._needed(), request.head
        page = read_page(parse_qs(head.query[:_MAX_QUERY].decode("latin-1")))
        for name, cursor in (("after_id", page.after), ("before_id", page.before)):
            if cursor and not is_id(cursor):
                raise invalid(f"'{name}' is no id of a batch", name)
        selection = Selection(
            page.limit,
            page.before or page.after,
            is_ascending=page.before != "",
            principal=head.notes.principal,
            of_messages=True,
        )
        found = await durability.ask(durability.store.batches.list_batches(one_more(selection)))
        shown = [_describe(each) for each in found[: page.limit]]
        if page.before:
            shown.reverse()
        return Answer(_OK, (form.encode_list(shown, has_more=len(found) > page.limit),))

    async def cancel(self, request: Request) -> Answer:
        """Ask for the end of a batch; one that has ended stays as it is. Raises `GeartrainError`."""
        durability, head = self._needed(), request.head
        name = (await self._find(request.params["id"], head)).new.id
        batch = await durability.ask(durability.store.batches.cancel_batch(name, head.notes.principal, at=time.time()))
        if batch is None:
            raise form.unknown_batch(name)
        return _answer(batch)

    async def remove(self, request: Request) -> Answer:
        """Remove a batch that has ended, with its requests and results. Raises `GeartrainError`."""
        durability = self._needed()
        batch = await self._find(request.params["id"], request.head)
        if batch.status in OPEN_BATCH:
            raise invalid("The batch has not ended: cancel it first, or wait for its end.")
        await durability.ask(durability.store.batches.remove_batch(batch.new.id))
        return Answer(_OK, (form.encode_deleted(batch.new.id),))

    async def results(self, request: Request, responder: Responder) -> None:
        """Answer with the results of a batch, one a line. Raises `GeartrainError` before the first of them."""
        durability = self._needed()
        batch = await self._find(request.params["id"], request.head)
        if batch.status in OPEN_BATCH:
            raise invalid("The batch has not ended: its results are there when 'processing_status' is 'ended'.")
        if not _has_results(batch):
            raise invalid("The results of the batch are not kept any more: its 'archived_at' tells since when.")
        await send_pieces(responder, _LINES, _results_of(durability, batch))


def _has_results(batch: Batch) -> bool:
    until = form.archived_at(batch)
    return until is not None and time.time() < until


def _describe(batch: Batch) -> dict[str, Any]:
    return form.describe_batch(batch, has_results=_has_results(batch))


def _answer(batch: Batch) -> Answer:
    return Answer(_OK, (form.encode(_describe(batch)),))


async def _results_of(durability: Durability, batch: Batch) -> AsyncIterator[bytes]:
    """Yield the results of a batch that has ended, about a piece at once; those of requests without an answer last."""
    new = batch.new
    for is_error in (False, True):
        answers = StoredFile("", "", OF_MESSAGES, new.created_at, batch=new.id, is_errors=is_error)
        async for piece in content_of(durability, answers):
            yield piece
    if batch.completed + batch.failed >= new.total:
        return
    answered = await durability.ask(durability.store.batches.answered(new.id))
    file = await durability.ask(durability.store.batches.find_file(new.input_file, is_used=True))
    if file is None:
        return
    cutter = LineCutter()
    async for piece in content_of(durability, file):
        yield await asyncio.to_thread(_rest_of, batch.status, answered, list(cutter.cut(piece)))


def _rest_of(status: BatchStatus, answered: frozenset[int], lines: list[tuple[int, bytes]]) -> bytes:
    rest = bytearray()
    for number, text in lines:
        if number not in answered:
            with contextlib.suppress(LineError):  # each was read when the batch was made
                rest += form.rest_of(read_line(number, text, MESSAGES), status) + b"\n"
    return bytes(rest)
