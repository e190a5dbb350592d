"""Cog's endpoints where a store knows the predictions: what has an id is found after a restart, and runs once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import msgspec

from geartrain.apis import cog
from geartrain.apis.openapi import LISTED, MOST_LISTED
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.events import DEFAULT_CAPACITY
from geartrain.domain.predictions.ledger import Key, Row, RowFilter, RowState
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.principal import ANYONE, Principal
from geartrain.service.durable.durability import Durability
from geartrain.service.durable.runs import DurableRun
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.durable import model_of, table_of
from geartrain.service.models.entry import ModelRef
from geartrain.service.models.predictions import Predictions, unusable_id
from geartrain.service.models.waking import ModelAsleepError, when_loaded
from geartrain.service.readers import completion
from geartrain.transport.cog.api import json_answer
from geartrain.transport.cog.forms import Form
from geartrain.transport.cog.predictions import (
    PredictionEndpoints,
    PredictionExchange,
    PredictionWish,
    TrainingEndpoints,
    TrainingExchange,
    repeated_aside,
    shown_aside,
)
from geartrain.transport.cog.relaying import NOT_RUNNING_HERE, ClusterLookup, pass_on
from geartrain.transport.relay.relay import RelayedAnswer, RelayedRequest
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import Answer, Body, Head, Responder

_OK: Final = HTTPStatus.OK
_MOST_QUERY: Final = 4096  # bytes
_UNKNOWN_ID: Final = b'{"error":"No such %b: it never was, or it was removed because it is old (--store-keep)."}'
ABANDONED_MEANWHILE: Final = "The prediction of that id was canceled just now, because its client left. Try again."
_OUT_OF_REACH: Final = (
    "It runs in another server, which cannot be followed from here: start the servers with --advertise. Its state is "
    "at GET."
)
_NOT_RUNNING: Final = "It is not running now: it was accepted, and a server takes it up soon. Its state is at GET."


class StoredPredictions:
    """Predictions, or trainings, that a store knows: where they run, and how they stand."""

    def __init__(self, cluster: ClusterLookup, noun: str) -> None:
        self.cluster = cluster
        self.durability: Durability = cluster.durability
        self.noun = noun

    def key(self, model: ModelRef, prediction_id: str) -> Key:
        """Return the row key of a prediction of a model."""
        return Key(table_of(model.entry.name, self.noun), prediction_id)

    def exchange(self, endpoints: PredictionEndpoints, wish: PredictionWish) -> Callable[[Responder], _DurableSteps]:
        """Return the factory of the exchange for a prediction that the store is to know."""
        kind = DurableTrainingExchange if isinstance(endpoints, TrainingEndpoints) else DurablePredictionExchange
        return partial(kind, endpoints, wish, stored=self)

    def run(self, key: Key, principal: Principal) -> DurableRun | None:
        """Return the run of a prediction in this server; None if there is none that `principal` may see."""
        run = self.durability.runs.get(key)
        return run if run is not None and principal.may_see(run.prediction.principal) else None

    async def known_run(self, key: Key, principal: Principal) -> DurableRun | None:
        """Return the run of a prediction in this server once its row is written.

        None if there is none that `principal` may see.
        """
        run = self.run(key, principal)
        if run is None:
            return None
        await asyncio.wait((run.made,))
        return run if run.is_known else None

    async def show(self, head: Head, key: Key) -> Answer:
        """Tell how a prediction stands that runs here, in another server, or as the store has it; 404 for none."""
        run = await self.known_run(key, head.notes.principal)
        if run is not None:
            return await shown_aside(run.prediction, run.execution.place)
        found = await self._find_beyond(head, key)
        if isinstance(found, Answer):
            return found
        return await shown_aside(await self.durability.restore(found, history=DEFAULT_CAPACITY))

    async def _find_beyond(self, head: Head, key: Key) -> Answer | Row:
        """Return the row of a prediction that runs in no server; otherwise the answer of its server, or 404."""
        if head.notes.is_relayed:
            return NOT_RUNNING_HERE
        row = await self.durability.find_row(key, head.notes.principal)
        if row is None:
            return json_answer(_UNKNOWN_ID % self.noun.encode(), HTTPStatus.NOT_FOUND)
        found = await self.cluster.follow(row, RelayedRequest.of(head))
        return await found.whole() if isinstance(found, RelayedAnswer) else found

    async def show_calls(self, head: Head, key: Key) -> Answer:
        """Tell the calls by a prediction that runs here, in another server, or has ended; 404 for none.

        Raises `NOT_READY` for one that has not ended, and whose server cannot be asked.
        """
        run = await self.known_run(key, head.notes.principal)
        if run is not None:
            return json_answer(cog.encode_calls(run.prediction))
        found = await self._find_beyond(head, key)
        if isinstance(found, Answer):
            return found
        if found.state is not RowState.ENDED:
            raise self.not_followed(found)
        prediction = await self.durability.restore(found, history=DEFAULT_CAPACITY)
        prediction.record.model = model_of(key.model, self.noun)
        return json_answer(cog.encode_calls(prediction))

    def not_followed(self, row: Row) -> GeartrainError:
        """Return the error about the run of a row that has not ended, and cannot be followed from here."""
        runs_elsewhere = row.is_owner_alive and row.ownership.owner != self.durability.owner
        return GeartrainError(Code.NOT_READY, _OUT_OF_REACH if runs_elsewhere else _NOT_RUNNING, retry_after=2)

    async def cancel(self, head: Head, key: Key, tables: Sequence[Predictions]) -> Answer:
        """Ask for the end of a prediction that has not ended: 200, 404 if there is none.

        Of a relayed request, stop the run of this server: the server that asks has written to the store.
        """
        run = self.run(key, head.notes.principal)
        if head.notes.is_relayed:
            if run is None:
                return NOT_RUNNING_HERE
            run.execution.cancel()
            return json_answer(b"{}")
        found = await self._cancel(head, key, run, tables=tables)
        return json_answer(b"{}", _OK if found else HTTPStatus.NOT_FOUND)

    async def _cancel(self, head: Head, key: Key, run: DurableRun | None, *, tables: Sequence[Predictions]) -> bool:
        principal = head.notes.principal
        if run is None and any(predictions.cancel(key.id, principal) for predictions in tables):
            return True  # it is known to this server alone
        try:
            row = await self.durability.cancel(key, principal)
        finally:
            if run is not None:
                run.execution.cancel()
        if run is None and row is not None:  # it counts from now on; its server need not wait to be told
            await self.cluster.tell(row, RelayedRequest.of(head))
        return row is not None or run is not None

    async def list(self, head: Head, model: ModelRef) -> Answer:
        """List the predictions of a model that the store knows, the newest first."""
        query = _read_query(head.query)
        rows = RowFilter(self.key(model, "").model, query.statuses, head.notes.principal)
        page = await self.durability.list_rows(rows, limit=query.limit, cursor=query.cursor)
        return json_answer(cog.encode_page(page))


class _DurableSteps(PredictionExchange):
    """One request for a prediction: what has an id is looked for in the store before its input is looked at."""

    def __init__(
        self, endpoints: PredictionEndpoints, wish: PredictionWish, responder: Responder, *, stored: StoredPredictions
    ) -> None:
        super().__init__(endpoints, wish, responder)
        self._stored = stored
        self._is_named = False  # so that a client can ask for the prediction
        self._claimed: NewPrediction | None = None  # until the row is this server's, or its client is answered

    def receive(self, body: Body) -> None:
        """Receive a body. A prediction that lives here is found before its input is read."""
        receive = super().receive
        is_relayed = self._wish.head.notes.is_relayed
        if self._wish.url_id and (is_relayed or self._key() in self._stored.durability.runs):
            start(self._unless_known(lambda: receive(body)))
        else:
            receive(body)

    async def _receive_late(self, body: Body, asleep: ModelAsleepError) -> None:
        """Receive a body for a sleeping model. The model is not loaded for a known prediction."""
        receive = super()._receive_late
        if self._wish.url_id:
            await self._unless_known(lambda: start(receive(body, asleep)))
        else:
            await receive(body, asleep)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless the id is known: then neither input nor model matters."""
        fail = super().fail
        if self._wish.url_id:
            start(self._unless_known(lambda: fail(error)))
        else:
            fail(error)

    async def _unless_known(self, then: Callable[[], None]) -> None:
        """Answer for the prediction that has the id in the path; if there is none, go on with `then`."""
        try:
            is_answered = await self._answer_known()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            super().fail(error)
        else:
            if not (is_answered or self._has_left):
                then()

    def admit(self, body: NewPrediction) -> Prediction:
        """Create the prediction; with an id, in the store as well."""
        if body.keep:
            body = self._named(body)
        return super().admit(body)

    def complete(self, form: Form) -> NewPrediction:
        """Complete a form."""
        new = super().complete(form)
        return self._named(new) if new.keep else new

    def _named(self, new: NewPrediction) -> NewPrediction:
        self._is_named = True
        headers, model = self._wish.headers, self._wish.model
        self._claimed = claimed = msgspec.structs.replace(
            new,
            id=model.predictions.new_id() if new.id is None else new.id,
            accepted=headers.respond_async and not headers.event_stream,
            version=model.version,
        )
        return claimed

    def follow(self, prediction: Prediction) -> None:
        """Answer, when the store has the row."""
        run = self._stored.durability.run_of(prediction) if self._is_named else None
        if run is None or run.is_known:
            self._claimed = None
            super().follow(prediction)
        else:
            run.made.add_done_callback(partial(self._on_made, run))

    def _on_made(self, run: DurableRun, made: asyncio.Future[Row | None]) -> None:
        try:
            row = made.result()
            if row is not None:
                start(self._tell_row(row))
                return
            self._claimed = None
            if self._has_left and not run.is_accepted:
                self.forsake(run.prediction)
            else:
                super().follow(run.prediction)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self._remove_files()
            super().fail(error)

    async def _tell_row(self, row: Row) -> None:
        """Answer for the prediction that has the id already; claim the id again if that one was abandoned."""
        try:
            if not await self._answer_row(row) and not self._has_left:
                await when_loaded(self._claim_again)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            super().fail(error)
        self._remove_files()

    def _claim_again(self) -> None:
        if self._claimed is None:
            raise GeartrainError(Code.NOT_READY, ABANDONED_MEANWHILE, retry_after=1)
        prediction = super().admit(self._claimed)
        if self._is_joined:
            self._remove_files()
        self.record.prediction = prediction.record
        self.follow(prediction)

    def _remove_files(self) -> None:
        """Remove the files that came with a form which makes no prediction."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None and claimed.attachments is not None and claimed.attachments.files:
            start(claimed.attachments.folder.remove())

    def _key(self) -> Key:
        """Return the row key of the prediction that the path names."""
        return self._stored.key(self._wish.model, self._wish.url_id)

    # predictions in the store

    async def _answer_known(self) -> bool:
        """Answer for the prediction that has the id in the path; return whether there is one."""
        await self._wait_for_abandoned()
        run = await self._stored.known_run(self._key(), self._wish.head.notes.principal)
        if run is not None:
            self._join(run)
            return True
        if self._wish.head.notes.is_relayed:
            self._responder.respond(NOT_RUNNING_HERE)
            return True
        row = await self._stored.durability.find_row(self._key(), ANYONE)  # `_answer_row` tells it from an unknown one
        if row is None or (row.state is RowState.CLAIMED and not row.is_owner_alive):
            return False  # unknown, or gone
        return await self._answer_row(row)

    async def _wait_for_abandoned(self) -> None:
        """Do as for every prediction. The end that frees the id is the one in the store."""
        key, principal = self._key(), self._wish.head.notes.principal
        while (run := await self._stored.known_run(key, principal)) is not None and run.execution.is_abandoned:
            await completion(run.prediction)

    def _join(self, run: DurableRun) -> None:
        self._is_joined = True
        self._predictions = self._wish.model.predictions
        if self._wish.headers.event_stream:
            self._check(self._wish.model.deployment)
        self.record.prediction = run.prediction.record
        super().follow(run.prediction)

    async def _answer_row(self, row: Row) -> bool:
        """Answer for a prediction that does not run here; return False, without an answer, if it was abandoned."""
        if not self._wish.head.notes.principal.may_see(row.principal):
            raise unusable_id(self._stored.noun, row.ownership.key.id)
        if not self._wish.url_id:
            raise GeartrainError(Code.CONFLICT, _taken(row, self._stored.noun))
        request = RelayedRequest.of(self._wish.head, self.record.context.headers())
        found = await self._stored.cluster.follow(row, request)
        if isinstance(found, RelayedAnswer):
            if self._has_left:
                found.close()
            else:
                await pass_on(found, self._responder, hand_over=self.hand_over)
            return True
        if found.is_abandoned:
            return False
        headers, is_over = self._wish.headers, found.state is RowState.ENDED
        prediction = await self._stored.durability.restore(found, history=DEFAULT_CAPACITY)
        if headers.event_stream:
            if not is_over:
                raise self._stored.not_followed(found)
            self._check(self._wish.model.deployment)
            self._is_joined = True
            self._predictions = self._wish.model.predictions
            PredictionExchange.follow(self, prediction)
        else:
            self._responder.respond(await repeated_aside(prediction, headers))
        return True


class DurablePredictionExchange(_DurableSteps):
    """One request for a prediction."""

    __slots__ = ()


class DurableTrainingExchange(_DurableSteps, TrainingExchange):
    """One request for a training."""

    __slots__ = ()


def _taken(row: Row, noun: str) -> str:
    key = row.ownership.key
    stands = f"has {row.status}" if row.state is RowState.ENDED else "has not ended"
    return f"{noun.capitalize()} {key.id!r} is known, and {stands}. Use another id, or PUT to be told how it stands."


class _Query(msgspec.Struct, frozen=True):
    statuses: frozenset[Status]
    limit: int
    cursor: str


def _read_query(query: bytes) -> _Query:
    """Read what a list is asked for; raises `INVALID_INPUT` with the field that is wrong."""
    if len(query) > _MOST_QUERY:
        raise _wrong("cursor", "the query is too long")
    fields = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    unknown = sorted(fields.keys() - {"status", "limit", "cursor"})
    if unknown:
        raise _wrong(unknown[0][:100], "there are status, limit and cursor")
    statuses = [word for value in fields.get("status", []) for word in value.split(",") if word]
    wrong = [word for word in statuses if word not in set(Status)]
    if wrong:
        raise _wrong("status", f"{wrong[0][:100]!r} is no status; there are {', '.join(Status)}")
    limit = fields.get("limit", [str(LISTED)])[-1]
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MOST_LISTED):
        raise _wrong("limit", f"write a number from 1 to {MOST_LISTED}")
    return _Query(frozenset(map(Status, statuses)), int(limit), fields.get("cursor", [""])[-1])


def _wrong(name: str, fault: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, fault, fields=(FieldError(("query", name), fault, "value_error"),))
