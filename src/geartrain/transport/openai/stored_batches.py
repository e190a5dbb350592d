"""`/v1/batches`: batches are made, shown, listed and cancelled. `geartrain.transport.openai.batch_runner` runs them."""

from __future__ import annotations

import secrets
import time
from http import HTTPStatus
from typing import Final

from geartrain.apis.openai.batches import describe_batch, encode_batch, read_batch, unknown_batch
from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.stored import PURPOSE, encode_list, over_quota, read_selection
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batch_jobs import MESSAGE_BATCH, OPEN_BATCH, Batch, BatchStatus, NewBatch
from geartrain.service.durable.durability import Durability
from geartrain.transport.openai.stored_files import find_file, is_id, needed, one_more
from geartrain.transport.runs import Request
from geartrain.transport.wire.exchange import Answer

MAX_OPEN: Final = 100
"""Batches of one principal that have not ended."""

_OK: Final = HTTPStatus.OK
_MOST_LISTED: Final = 100
_USUALLY_LISTED: Final = 20


class StoredBatches:
    """The endpoints of batches, each for one request."""

    def __init__(self, durability: Durability | None) -> None:
        self._durability = durability

    async def create(self, request: Request) -> Answer:
        """Make a batch, for any server to run. Raises `GeartrainError`."""
        durability, notes = needed(self._durability), request.head.notes
        asked = read_batch(request.body)
        file = await find_file(durability, asked.input_file, notes.principal)
        if file.purpose != PURPOSE:
            msg = f"The purpose of the file is '{file.purpose}'; upload one whose purpose is '{PURPOSE}'."
            raise invalid(msg, "input_file_id", "invalid_purpose")
        now = time.time()
        new = NewBatch(
            f"batch_{secrets.token_hex(12)}",
            asked.endpoint,
            file.id,
            asked.window,
            created_at=now,
            expires_at=now + asked.seconds,
            output_seconds=asked.output_seconds,
            metadata=asked.metadata,
            principal=notes.principal.name,
            key=notes.key,
            models=notes.models,
        )
        if not await durability.ask(durability.store.batches.add_batch(new, most=MAX_OPEN)):
            raise over_quota(f"You have {MAX_OPEN} batches that have not ended: wait for one, or cancel one.")
        durability.on_batch()
        return Answer(_OK, (encode_batch(Batch(new, BatchStatus.VALIDATING)),))

    async def describe(self, request: Request) -> Answer:
        """Return one batch. Raises `GeartrainError`."""
        durability, name = needed(self._durability), request.params["id"]
        batch = await durability.ask(durability.store.batches.find_batch(name)) if _is_batch(name) else None
        if batch is None or not request.head.notes.principal.may_see(batch.new.principal):
            raise unknown_batch(name)
        return Answer(_OK, (encode_batch(batch),))

    async def list_all(self, request: Request) -> Answer:
        """Return the batches of a client. Raises `GeartrainError`."""
        durability, head = needed(self._durability), request.head
        principal = head.notes.principal
        selection = read_selection(head.query, principal, most=_MOST_LISTED, usual=_USUALLY_LISTED, of_files=False)
        found = await durability.ask(durability.store.batches.list_batches(one_more(selection)))
        shown = [describe_batch(each) for each in found[: selection.limit]]
        return Answer(_OK, (encode_list(shown, has_more=len(found) > selection.limit),))

    async def cancel(self, request: Request) -> Answer:
        """Ask for the end of a batch. Raises `GeartrainError`."""
        durability, name = needed(self._durability), request.params["id"]
        principal = request.head.notes.principal
        batch = None
        if _is_batch(name):
            batch = await durability.ask(durability.store.batches.cancel_batch(name, principal, at=time.time()))
        if batch is None:
            raise unknown_batch(name)
        if batch.status not in OPEN_BATCH and batch.status is not BatchStatus.CANCELLED:
            raise GeartrainError(Code.CONFLICT, f"The batch is {batch.status.value}, and cannot be cancelled any more.")
        return Answer(_OK, (encode_batch(batch),))


def _is_batch(name: str) -> bool:
    return is_id(name) and not name.startswith(MESSAGE_BATCH)
