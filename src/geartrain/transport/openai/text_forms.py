"""The forms of requests for text: those of OpenAI's API, and Anthropic's messages."""

from __future__ import annotations

from functools import partial
from time import time
from typing import Any, Final

import msgspec

from geartrain.apis.anthropic.answers import MessageAnswer, encode_error, encode_fault
from geartrain.apis.anthropic.requests import read_message
from geartrain.apis.openai.counting import CountAnswer, read_count
from geartrain.apis.openai.response_answers import ResponseAnswer
from geartrain.apis.openai.response_requests import read_response
from geartrain.apis.openai.text_answers import ChoicesAnswer, Heading
from geartrain.apis.openai.text_requests import TextRequest, read_chat, read_completion
from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.transport.openai.api import refusal, refuse, wrong_method
from geartrain.transport.openai.text import Form
from geartrain.transport.wire.exchange import Answer

_ID_HEADER: Final = b"request-id"  # of Anthropic's API; that of OpenAI's, x-request-id, is in every answer


def refuse_message(error: GeartrainError) -> Answer:
    """Return Anthropic's answer to a request that failed."""
    return refuse(error, encode_error)


def wrong_method_of_message(allowed: str) -> Answer:
    """Return Anthropic's answer to another method than those `allowed`."""
    body = encode_fault(f"Method not allowed: use {allowed}.", "invalid_request_error")
    return msgspec.structs.replace(wrong_method(allowed), parts=(body,))


def _choices(request: TextRequest, predictions: list[Prediction], model: str, *, is_chat: bool) -> ChoicesAnswer:
    kind = "chatcmpl" if is_chat else "cmpl"
    return ChoicesAnswer(Heading(f"{kind}-{predictions[0].id}", int(time()), model, is_chat), request)


def _response(request: TextRequest, predictions: list[Prediction], model: str) -> ResponseAnswer:
    return ResponseAnswer(request, predictions[0].id, model)


def _message(request: TextRequest, predictions: list[Prediction], model: str) -> MessageAnswer:
    return MessageAnswer(request, predictions[0].id, model=model, metrics=predictions[0].metrics)


def _count(
    request: TextRequest,  # noqa: ARG001 - as of `Form`
    predictions: list[Prediction],  # noqa: ARG001
    model: str,  # noqa: ARG001
    **members: Any,
) -> CountAnswer:
    return CountAnswer(members)


_refuse_message = partial(refusal, encode=encode_error)

FORMS: Final[dict[str, Form]] = {
    "chat": Form(read_chat, partial(_choices, is_chat=True), refusal, "chat"),
    "completions": Form(
        read_completion,
        partial(_choices, is_chat=False),
        refusal,
        "completions",
        operation="text_completion",
    ),
    "responses": Form(read_response, _response, refusal, "responses"),
    "input_tokens": Form(
        partial(read_count, read=read_response),
        partial(_count, object="response.input_tokens"),
        refusal,
        "responses",
        operation="",
    ),
    "messages": Form(read_message, _message, _refuse_message, "messages", id_header=_ID_HEADER),
    "count_tokens": Form(
        partial(read_count, read=read_message),
        _count,
        _refuse_message,
        "messages",
        id_header=_ID_HEADER,
        operation="",
    ),
}
