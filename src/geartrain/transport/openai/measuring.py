"""Measurements of requests for texts and vectors: counts for the metrics, and attributes for the trace.

The attributes have the names of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, Final

import msgspec

from geartrain.apis.openai.growth import Growth
from geartrain.apis.openai.parameters import Members
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.texts import Tokens, count_tokens, tokens_of
from geartrain.domain.predictions.tracing import Value
from geartrain.transport.openai.asking import Asked
from geartrain.transport.records import RequestRecord

_PROVIDER: Final = "geartrain"
_LONGEST: Final = 1024  # characters of a text of the client
_decode = msgspec.json.Decoder().decode


def _number(value: Any) -> Value | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _texts(value: Any) -> Value | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None
    return [text[:_LONGEST] for text in texts]


def _stream(value: Any) -> Value | None:
    return True if value is True else None


def _choices(value: Any) -> Value | None:
    return None if value == 1 else _number(value)


_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
_STOPS: Final = "gen_ai.request.stop_sequences"
# Parameters of requests, by the names of the APIs; of several with one attribute the last one counts.
_PARAMETERS: Final[Mapping[str, tuple[str, Callable[[Any], Value | None]]]] = {
    "max_tokens": (_MAX_TOKENS, _number),
    "max_completion_tokens": (_MAX_TOKENS, _number),
    "max_output_tokens": (_MAX_TOKENS, _number),
    "temperature": ("gen_ai.request.temperature", _number),
    "top_p": ("gen_ai.request.top_p", _number),
    "top_k": ("gen_ai.request.top_k", _number),
    "seed": ("gen_ai.request.seed", _number),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", _number),
    "presence_penalty": ("gen_ai.request.presence_penalty", _number),
    "stop": (_STOPS, _texts),
    "stop_sequences": (_STOPS, _texts),
    "n": ("gen_ai.request.choice.count", _choices),
    "stream": ("gen_ai.request.stream", _stream),
    "encoding_format": ("gen_ai.request.encoding_formats", _texts),
    "dimensions": ("gen_ai.embeddings.dimension.count", _number),
}


def describe_request(record: RequestRecord, asked: Asked, operation: str) -> None:
    """Describe a request in its span, if it has one. `operation` is the convention's name for it."""
    if record.attributes is None:
        return
    record.attributes |= {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": asked.model[:_LONGEST],
        **_parameters(asked.members),
    }


def measure_texts(
    record: RequestRecord, asked: Asked, predictions: Sequence[Prediction], *, choices: Sequence[Growth], count: int
) -> Tokens:
    """Count the tokens and times of the texts of one request, which are over; return the tokens.

    `choices` are the answers of the predictions; `count` of them have the same prompt.
    """
    now = time()
    tokens = count_tokens([prediction.metrics for prediction in predictions], count)
    counts = asked.deployment.text_counts
    counts.add_tokens(tokens)
    for prediction, choice in zip(predictions, choices, strict=True):
        ended = (prediction.completed_at or now) if choice.reason else 0.0
        made = tokens_of(prediction.metrics, "completion") or len(prediction.chunks)
        counts.add_times(prediction.record, came=record.began, ended=ended, count=made)
    return tokens


def describe_answer(
    record: RequestRecord,
    *,
    answer_id: str,
    model: str,
    tokens: Tokens,
    reasons: Sequence[str] = (),
    first: float = 0.0,
) -> None:
    """Describe the answer of a request in its span, if it has one.

    `reasons` are those of the ends of its texts; `first` is the moment of the first piece of a stream, 0 for none.
    """
    if record.attributes is None:
        return
    found: dict[str, Value] = {
        "gen_ai.response.id": answer_id,
        "gen_ai.response.model": model[:_LONGEST],
        "gen_ai.response.finish_reasons": [*reasons],
        "gen_ai.response.time_to_first_chunk": max(0.0, first - record.began) if first else 0.0,
        "gen_ai.usage.cache_read.input_tokens": tokens.cached,
        "gen_ai.usage.reasoning.output_tokens": tokens.reasoning,
    }
    if tokens:
        record.attributes["gen_ai.usage.input_tokens"] = tokens.prompt
        record.attributes["gen_ai.usage.output_tokens"] = tokens.completion
    record.attributes |= {name: value for name, value in found.items() if value}


def _parameters(members: Members) -> dict[str, Value]:
    """Return the parameters of a request that the conventions have attributes for."""
    found: dict[str, Value] = {}
    for name, (attribute, read) in _PARAMETERS.items():
        raw = members.get(name)
        value = None if raw is None else read(_decode(raw))
        if value is not None:
            found[attribute] = value
    return found
