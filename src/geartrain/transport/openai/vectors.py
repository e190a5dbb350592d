"""Embeddings, rerank and moderations: requests for vectors and scores."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis.openai.embeddings import (
    Embeddings,
    check_dimensions,
    encode_embeddings,
    encode_ranks,
    read_embedding,
    read_rerank,
    rows_of,
)
from geartrain.apis.openai.errors import unsupported
from geartrain.apis.openai.moderations import encode_moderations, read_moderation
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.texts import count_tokens
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.openai.api import ignored
from geartrain.transport.openai.asking import (
    Asked,
    check_ignored,
    check_served,
    prepare,
    read_asked,
    read_inputs,
    read_request,
)
from geartrain.transport.openai.measuring import describe_answer, describe_request
from geartrain.transport.openai.whole import WholeExchange
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import JSON, Answer, Body, Head, Responder

_OK: Final = HTTPStatus.OK


class VectorExchange(WholeExchange):
    """One request for vectors or scores."""

    def __init__(
        self, catalogue: Catalogue, head: Head, responder: Responder, *, bodies: LargeBodies, is_rerank: bool
    ) -> None:
        super().__init__(catalogue, head, responder)
        self._bodies = bodies
        self._is_rerank = is_rerank

    def receive(self, body: Body) -> None:
        """Read the body, run the model, and answer."""
        self.respond(self._answer(body))

    async def _answer(self, body: Body) -> Answer:
        # The answer to a rerank has the documents.
        holds = not self._is_rerank
        asked = await read_asked(self.catalogue, self.head, body, bodies=self._bodies, may_hold=holds)
        del body
        check_served(asked.deployment, "rerank" if self._is_rerank else "embeddings")
        return await (self._rerank(asked) if self._is_rerank else self._embed(asked))

    async def _embed(self, asked: Asked) -> Answer:
        request, inputs = await read_inputs(asked, read_embedding, bodies=self._bodies)
        describe_request(self.record, asked, "embeddings")
        asked = msgspec.structs.replace(asked, members={}, held=None)  # a run may take long
        check_ignored(asked.deployment, request.ignored)
        may_cut = asked.deployment.settings.openai.matryoshka
        if request.dimensions and asked.view.width:
            _check_dimensions(request.dimensions, asked.view.width, may_cut=may_cut)
        predictions = await self.complete(asked, inputs, self.plainly(asked, request.names))
        tokens = count_tokens([prediction.metrics for prediction in predictions])
        asked.deployment.text_counts.add_tokens(msgspec.structs.asdict(tokens))
        describe_answer(self.record, answer_id="", model=asked.model, tokens=tokens)
        wanted = Embeddings(
            asked.model,
            request.count,
            asked.view.is_single,
            request.is_base64,
            tokens.prompt,
            request.dimensions,
            may_cut,
        )
        body = await self._encoded(asked, [prediction.output or b"null" for prediction in predictions], wanted)
        return Answer(_OK, (body,), (*JSON, *ignored(request.ignored)))

    async def _encoded(self, asked: Asked, outputs: list[Buffer], wanted: Embeddings) -> Buffer:
        """Return the answer; a large one is written beside the loop. Raises `OpenAIError` for other `dimensions`."""
        interface = asked.deployment.interface
        try:
            if sum(map(len, outputs)) > DIRECT_LIMIT:
                return await self._bodies.embeddings(interface, outputs, wanted)
            return encode_embeddings(wanted, outputs, interface.view)
        except GeartrainError as error:
            if error.code is Code.INVALID_INPUT:
                raise unsupported("dimensions", error.message) from error
            raise

    async def _rerank(self, asked: Asked) -> Answer:
        request = await read_request(asked, read_rerank)
        given = await prepare(asked, request.given, names={}, bodies=self._bodies)
        (prediction,) = await self.complete(asked, (given,), self.plainly(asked, {}))
        (scores,) = rows_of(prediction.output or b"null", asked.deployment.interface.view, is_single=True, kind="d")
        return Answer(_OK, (encode_ranks(request, scores.tolist(), own_id=prediction.id, model=asked.model),))


def _check_dimensions(wanted: int, width: int, *, may_cut: bool) -> None:
    try:
        check_dimensions(wanted, width, may_cut=may_cut)
    except GeartrainError as error:
        raise unsupported("dimensions", error.message) from None


class ModerationExchange(WholeExchange):
    """One request for moderations."""

    def receive(self, body: Body) -> None:
        """Read the body, run the model, and answer."""
        self.respond(self._answer(body))

    async def _answer(self, body: Body) -> Answer:
        asked = await read_asked(self.catalogue, self.head, body)
        del body
        check_served(asked.deployment, "moderations")
        media = asked.view.media
        request = read_moderation(asked.members, asked.signature, media)
        check_ignored(asked.deployment, request.ignored)
        predictions = await self.complete(asked, request.inputs, self.plainly(asked, request.names))
        outputs = [prediction.output or b"null" for prediction in predictions]
        encoded = encode_moderations(request, outputs, view=media, own_id=predictions[0].id, model=asked.model)
        return Answer(_OK, (encoded,), (*JSON, *ignored(request.ignored)))
