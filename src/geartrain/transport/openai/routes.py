"""The paths of OpenAI's API, and of its relatives: those for reranking, and Anthropic's messages.

The model stands in the body, so a key is checked for it where the body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from geartrain.domain.errors import Code, GeartrainError
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.ports import AttachmentStorePort
from geartrain.transport.large_bodies import LargeBodies
from geartrain.transport.routing import GET, POST, Api, Begin, Params, Route
from geartrain.transport.runs import size_refusal
from geartrain.transport.wire.exchange import (
    Accepted,
    AcceptedInParts,
    Answer,
    Decision,
    Exchange,
    Head,
    PartsExchange,
    Responder,
)

_NewExchange = Callable[[Head, Responder], Exchange]
_NewPartsExchange = Callable[[Head, Responder], PartsExchange]
_RERANK: Final = ("/v1/rerank", "/v2/rerank", "/rerank")


class LateApi:
    """The answers to requests that are refused. See `Api`. What makes them is imported with the first one."""

    name = "openai"
    shows_logs = False

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        from geartrain.transport.openai.api import refuse

        return refuse(error)

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""
        from geartrain.transport.openai.api import not_found

        return not_found()

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`."""
        from geartrain.transport.openai.api import wrong_method

        return wrong_method(allowed)


class LateAnthropicApi:
    """`LateApi` in the form of Anthropic's API."""

    name = "openai"
    shows_logs = False

    def refuse(self, error: GeartrainError) -> Answer:
        """Return the answer to a request that failed."""
        from geartrain.transport.openai.text_forms import refuse_message

        return refuse_message(error)

    def not_found(self) -> Answer:
        """Return the answer where there is no such path."""
        return self.refuse(GeartrainError(Code.NOT_FOUND, "There is no such path."))

    def wrong_method(self, allowed: str) -> Answer:
        """Return the answer to another method than those `allowed`."""
        from geartrain.transport.openai.text_forms import wrong_method_of_message

        return wrong_method_of_message(allowed)


API: Final = LateApi()
ANTHROPIC: Final = LateAnthropicApi()


def is_anthropic(head: Head) -> bool:
    """Return True for a request of a client of Anthropic's API, where a path belongs to both APIs.

    `x-api-key` alone is that of a program without the official client, such as curl.
    """
    if head.header(b"anthropic-version") is not None:
        return True
    return head.header(b"x-api-key") is not None and head.header(b"authorization") is None


def _api_of_models(head: Head) -> Api:
    return ANTHROPIC if is_anthropic(head) else API


def openai_routes(
    catalogue: Catalogue,
    bodies: LargeBodies,
    max_body_bytes: int,
    *,
    new_store: Callable[[], AttachmentStorePort],
    gives_urls: bool,
) -> Iterator[Route]:
    """Yield everything of OpenAI's API. Its handlers are imported with the first request: most servers get none.

    `new_store` makes what takes the files of one form. `gives_urls`: whether output files are uploaded.
    """

    def list_all(head: Head, params: Params) -> Answer:  # noqa: ARG001 - as of `Begin`
        from geartrain.transport.openai.models import list_all

        return list_all(catalogue, head, is_anthropic=is_anthropic(head))

    def describe(head: Head, params: Params) -> Answer:
        from geartrain.transport.openai.models import find_model

        return find_model(catalogue, head, params["id"], is_anthropic=is_anthropic(head))

    def text(head: Head, responder: Responder, *, form: str) -> Exchange:
        from geartrain.transport.openai.text import TextExchange
        from geartrain.transport.openai.text_forms import FORMS

        return TextExchange(catalogue, head, responder, bodies=bodies, form=FORMS[form])

    def vectors(head: Head, responder: Responder, *, is_rerank: bool) -> Exchange:
        from geartrain.transport.openai.vectors import VectorExchange

        return VectorExchange(catalogue, head, responder, bodies=bodies, is_rerank=is_rerank)

    def no_response(head: Head, params: Params) -> Answer:  # noqa: ARG001 - as of `Begin`
        return API.refuse(GeartrainError(Code.NOT_FOUND, "There is no such response: this server keeps none."))

    yield Route(GET, "/v1/responses/{id}", no_response, API, "read", subject="none")
    yield Route(("DELETE",), "/v1/responses/{id}", no_response, API, "read", subject="none")
    yield Route(GET, "/v1/models", list_all, API, "read", subject="none", choose_api=_api_of_models)
    yield Route(GET, "/v1/models/{id}", describe, API, "read", subject="none", choose_api=_api_of_models)
    runs: list[tuple[str, _NewExchange]] = [
        ("/v1/chat/completions", partial(text, form="chat")),
        ("/v1/completions", partial(text, form="completions")),
        ("/v1/responses", partial(text, form="responses")),
        ("/v1/responses/input_tokens", partial(text, form="input_tokens")),
        ("/v1/embeddings", partial(vectors, is_rerank=False)),
        *((path, partial(vectors, is_rerank=True)) for path in _RERANK),
    ]
    begins = [(path, _by(new_exchange, max_body_bytes, API)) for path, new_exchange in runs]
    begins += _media(catalogue, max_body_bytes, new_store, gives_urls=gives_urls)
    for path, begin in begins:
        yield Route(POST, path, begin, API, "predict", subject="none")
    for path, form in (("/v1/messages", "messages"), ("/v1/messages/count_tokens", "count_tokens")):
        begin = _by(partial(text, form=form), max_body_bytes, ANTHROPIC)
        yield Route(POST, path, begin, ANTHROPIC, "predict", subject="none")


def _media(
    catalogue: Catalogue, max_body_bytes: int, new_store: Callable[[], AttachmentStorePort], *, gives_urls: bool
) -> Iterator[tuple[str, Begin]]:
    """Yield the paths of models of media; parameters as of `openai_routes`."""

    def transcripts(head: Head, responder: Responder, *, translates: bool) -> PartsExchange:
        from geartrain.transport.openai.transcriptions import TranscriptionExchange

        return TranscriptionExchange(catalogue, head, responder, new_store=new_store, translates=translates)

    def speech(head: Head, responder: Responder) -> Exchange:
        from geartrain.transport.openai.speech import SpeechExchange

        return SpeechExchange(catalogue, head, responder)

    def pictures(head: Head, responder: Responder, *, is_edit: bool) -> Exchange:
        from geartrain.transport.openai.images import GenerationExchange

        return GenerationExchange(catalogue, head, responder, gives_urls=gives_urls, is_edit=is_edit)

    def edits(head: Head, responder: Responder) -> PartsExchange:
        from geartrain.transport.openai.images import EditExchange

        return EditExchange(catalogue, head, responder, gives_urls=gives_urls, new_store=new_store)

    def moderations(head: Head, responder: Responder) -> Exchange:
        from geartrain.transport.openai.vectors import ModerationExchange

        return ModerationExchange(catalogue, head, responder)

    by_json = partial(_by, max_body_bytes=max_body_bytes, api=API)
    by_form = partial(_by_form, max_body_bytes=max_body_bytes)
    yield "/v1/audio/transcriptions", by_form(partial(transcripts, translates=False))
    yield "/v1/audio/translations", by_form(partial(transcripts, translates=True))
    yield "/v1/audio/speech", by_json(speech)
    yield "/v1/images/generations", by_json(partial(pictures, is_edit=False))
    yield "/v1/images/edits", _by_type(by_json(partial(pictures, is_edit=True)), by_form(edits))
    yield "/v1/moderations", by_json(moderations)


def _by(new_exchange: _NewExchange, max_body_bytes: int, api: Api) -> Begin:
    refuse_size = size_refusal(api)

    def begin(head: Head, params: Params) -> Accepted:  # noqa: ARG001 - as of `Begin`
        return Accepted(partial(new_exchange, head), max_body_bytes, refuse_size)

    return begin


def _by_form(new_exchange: _NewPartsExchange, max_body_bytes: int) -> Begin:
    refuse_size = size_refusal(API)

    def begin(head: Head, params: Params) -> AcceptedInParts:  # noqa: ARG001 - as of `Begin`
        return AcceptedInParts(partial(new_exchange, head), max_body_bytes, refuse_size)

    return begin


def _by_type(of_json: Begin, of_form: Begin) -> Begin:
    """Return the handler of requests whose body may be JSON or a form."""

    def begin(head: Head, params: Params) -> Decision:
        content_type = head.header(b"content-type") or b""
        is_json = content_type.partition(b";")[0].strip().lower() == b"application/json"
        return (of_json if is_json else of_form)(head, params)

    return begin
