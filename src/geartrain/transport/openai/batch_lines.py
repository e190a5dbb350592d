"""Requests of batches, asked inside the server through the routes of OpenAI's API.

A line has the rights of the key that made its batch. It starts only while no other request of its model waits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batch_jobs import NewBatch
from geartrain.domain.predictions.prediction import NO_PREDICTION
from geartrain.domain.principal import Principal
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.waking import ModelAsleepError
from geartrain.transport.access.guard import Grant
from geartrain.transport.openai.asking import find
from geartrain.transport.openai.routes import ANTHROPIC, API
from geartrain.transport.wire.bodies import too_large
from geartrain.transport.wire.exchange import (
    Accepted,
    Answer,
    AnswerStream,
    Handler,
    Head,
    Record,
    Records,
    RequestNotes,
)

MOST_AT_ONCE: Final = 256
"""Lines of one model that are asked at once."""

_PEER: Final = "batch"  # in place of the address of a client


class Reply(msgspec.Struct, frozen=True):
    """The answer to a line: a status of HTTP, a body of JSON, and the id of the request."""

    status: int
    body: bytes
    request_id: str


class _LineResponder:
    """Receiver of the answer to a line. See `Responder`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def is_starting(self) -> bool:
        """True until the line has a run, or an answer without one."""
        return getattr(self.record, "prediction", None) is NO_PREDICTION and not self.answer.done()

    def respond(self, answer: Answer) -> None:
        """Take the answer."""
        if not self.answer.done():
            self.record.error = answer.error
            self.record.end(answer.status)
            self.answer.set_result(answer)

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:  # noqa: ARG002 - as of `Responder`
        """Refuse a stream, which has no place in a file."""
        raise GeartrainError(Code.UNSUPPORTED, "A batch has no streams.")


class Lines:
    """Asks the lines of batches."""

    def __init__(self, catalogue: Catalogue, handler: Handler, records: Records) -> None:
        """`handler` has the routes of OpenAI's API, without a guard."""
        self._catalogue = catalogue
        self._handler = handler
        self._records = records
        self._asked: defaultdict[str, set[_LineResponder]] = defaultdict(set)  # without an answer yet, by their models

    def check_model(self, new: NewBatch, model: str) -> None:
        """Raise `GeartrainError` for a model that is not there for the key of a batch."""
        try:
            self._find(new, model)
        except ModelAsleepError:
            return

    def has_room(self, new: NewBatch, model: str) -> bool:
        """True if one more line may start now. Raises `GeartrainError` if its model is gone or not ready."""
        try:
            deployment = self._find(new, model)
        except ModelAsleepError:
            return model not in self._asked  # the first line wakes it
        deployment.workers.check_ready()
        scheduler, permits = deployment.scheduler, deployment.workers.permits
        own = self._asked.get(deployment.name, ())
        starting = sum(each.is_starting for each in own)
        size = scheduler.pending.max_size
        if not scheduler.is_batching:
            return scheduler.waiting == 0 and starting < permits.idle and len(own) < MOST_AT_ONCE
        if len(own) >= min(2 * permits.size * size, MOST_AT_ONCE):
            return False
        of_others = scheduler.waiting + sum(call.size for call in scheduler.running) - (len(own) - starting)
        return of_others <= 0 or (scheduler.waiting == 0 and starting < size)

    def _find(self, new: NewBatch, model: str) -> Deployment:
        try:
            return find(self._catalogue, _head_of(new, 0), model)
        except GeartrainError as error:
            if error.code is Code.NOT_FOUND and self._may_come(model):
                raise GeartrainError(Code.NOT_READY, f"The model '{model}' is not loaded yet.") from error
            raise

    def _may_come(self, model: str) -> bool:
        """True while a model of this name is loaded, or another one, which may have the name as an alias."""
        entries = {name: self._catalogue.entry(name) for name in self._catalogue.names()}
        own = [entries[name] for name in (model, model.rpartition("@")[0]) if name in entries]
        return any(entry.loading.tasks for entry in own or entries.values())

    async def ask(self, new: NewBatch, model: str, body: bytes) -> Reply:
        """Ask a line. If the caller is cancelled, its run is."""
        head = _head_of(new, len(body))
        decision, api = self._handler.begin(head), ANTHROPIC if new.is_of_messages else API
        responder = _LineResponder(self._records(head)(_PEER))
        name = self._name_of(new, model)
        self._asked[name].add(responder)
        exchange = None
        try:
            if isinstance(decision, Accepted) and len(body) <= decision.max_body:
                exchange = decision.new_exchange(responder)
                exchange.receive(body)
            elif isinstance(decision, Accepted):
                responder.respond(api.refuse(too_large(decision.max_body)))
            elif isinstance(decision, Answer):
                responder.respond(decision)
            else:
                responder.respond(api.refuse(GeartrainError(Code.UNSUPPORTED, "A batch has no forms.")))
            answer = await responder.answer
        except BaseException:
            if exchange is not None:
                exchange.abandon()
            responder.record.leave()
            raise
        finally:
            self._asked[name].discard(responder)
            if not self._asked[name]:
                del self._asked[name]
        context = getattr(responder.record, "context", None)
        return Reply(int(answer.status), b"".join(answer.parts), getattr(context, "request_id", ""))

    def _name_of(self, new: NewBatch, model: str) -> str:
        try:
            return self._find(new, model).name
        except (GeartrainError, ModelAsleepError):
            return model


def _head_of(new: NewBatch, size: int) -> Head:
    grant = Grant(f"key '{new.key}'", frozenset(), new.models)
    sees_all = not new.principal
    notes = RequestNotes(
        key=new.key, principal=Principal(new.principal, sees_all=sees_all), check_model=grant.check_model
    )
    headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % size))
    return Head("POST", new.endpoint.encode(), b"", headers, length=size, notes=notes)
