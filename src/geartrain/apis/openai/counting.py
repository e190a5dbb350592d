"""Counts of tokens: chats that a model reads and does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import OpenAIError
from geartrain.apis.openai.growth import Call, Growth, TextAnswer
from geartrain.apis.openai.parameters import Members
from geartrain.apis.openai.text_requests import TextRequest
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.texts import counted_prompt
from geartrain.domain.signature.openai_view import COUNT, OpenAIView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer

Read = Callable[[Members, Signature, OpenAIView], TextRequest]

_TRUE: Final = msgspec.Raw(b"true")
_encode = msgspec.json.Encoder().encode


def read_count(members: Members, signature: Signature, view: OpenAIView, *, read: Read) -> TextRequest:
    """Read the body of a request for a count. `read` reads one for an answer. Raises `OpenAIError`."""
    if not view.counts:
        msg = f"The model does not count tokens: it has no input '{COUNT}', which is a bool."
        raise OpenAIError(Code.NOT_FOUND, msg, param="model", kind="unsupported_model")
    request = read(members, signature, view)
    inputs = ({**request.inputs[0], COUNT: _TRUE},)
    return msgspec.structs.replace(request, inputs=inputs, is_stream=False, shape=None)


class CountAnswer(Growth, TextAnswer):
    """The number of tokens of a request. See `TextAnswer`."""

    def __init__(self, members: dict[str, Any]) -> None:
        """`members`: those beside the count."""
        super().__init__("", stops=(), tools=frozenset())
        self._members = members

    @property
    def id(self) -> str:
        """Nothing: a count has no id."""
        return ""

    @property
    def choices(self) -> tuple[CountAnswer]:
        """The one answer."""
        return (self,)

    def take(self, piece: Buffer) -> bytes:  # noqa: ARG002 - the model need not give anything
        """Pass over what the model gives."""
        return b""

    def whole(self, metrics: Sequence[Mapping[str, Any]]) -> tuple[bytes]:
        """Return the body of the answer. Raises `RUN_FAILED` where the model has not counted."""
        count = counted_prompt(metrics[0])
        if count is None:
            raise GeartrainError(Code.RUN_FAILED, "The model has not recorded the metric 'tokens.prompt'.")
        return (_encode({**self._members, "input_tokens": count}),)

    def last(self, metrics: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the answer: there is no stream of it."""
        return self.whole(metrics)[0]

    def fault(self, error: GeartrainError) -> bytes:  # noqa: ARG002 - as of `last`
        """Return nothing: there is no stream."""
        return b""

    @property
    def text(self) -> str:
        """Nothing: a count has no text."""
        return ""

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:  # noqa: ARG002 - as of `Growth`
        return b""

    def _thought(self, text: str) -> bytes:  # noqa: ARG002 - as of `Growth`
        return b""

    def _call(self, at: int, part: Call, *, is_new: bool) -> bytes:  # noqa: ARG002 - as of `Growth`
        return b""

    def _last(self) -> bytes:
        return b""
