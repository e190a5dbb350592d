"""Moderations: texts in, the score of each category out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.embeddings import MOST_TEXTS
from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.parameters import Members, Parameters
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.openai_media import MediaView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer

CATEGORIES: Final = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
# The names that fields of Python can have.
_BY_FIELD: Final[dict[str, str]] = {name.replace("/", "_").replace("-", "_"): name for name in CATEGORIES}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ModerationRequest(msgspec.Struct, frozen=True):
    """Texts to be judged: the members of the model's input, for each run."""

    inputs: tuple[Members, ...]
    count: int
    names: dict[str, str]
    ignored: tuple[str, ...]


def read_moderation(members: Members, signature: Signature, view: MediaView) -> ModerationRequest:
    """Read the body of a request for moderations, but for its model. Raises `OpenAIError`."""
    if not view.moderated:
        msg = 'The model has no moderations: its run() is not declared with @endpoint("moderations").'
        raise invalid(msg, "model", "unsupported_model")
    parameters = Parameters(members)
    given = parameters.take_any("input", str | list[str | dict[str, Any]])
    if given is None:
        raise invalid("'input' is missing", "input")
    listed = [given] if isinstance(given, str) else given
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) < len(listed):
        raise unsupported("input", "the model takes texts, and this has parts")
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise invalid(f"'input' has to have 1 to {MOST_TEXTS} texts", "input")
    fields = frozenset(field.name for field in signature.inputs) - {view.moderated}
    others, ignored, names = parameters.place(view.names, fields)
    values = [_encode(text) for text in texts] if view.is_single else [_encode(texts)]
    inputs = tuple({**others, view.moderated: msgspec.Raw(value)} for value in values)
    return ModerationRequest(inputs, len(texts), {**names, view.moderated: "input"}, ignored)


def encode_moderations(
    request: ModerationRequest, outputs: Sequence[Buffer], *, view: MediaView, own_id: str, model: str
) -> bytes:
    """Return an answer with a result for each text. Raises `RUN_FAILED` for scores that do not fit."""
    results: list[Any] = []
    for output in outputs:
        value = _decode(output)
        results += [value] if view.is_single else value if isinstance(value, list) else []
    if len(results) != request.count:
        msg = f"The model gave scores for {len(results)} texts, and there are {request.count}."
        raise GeartrainError(Code.RUN_FAILED, msg)
    judged = [_result(scores, view.threshold) for scores in results]
    return _encode({"id": f"modr-{own_id}", "model": model, "results": judged})


def _result(scores: Any, threshold: float) -> dict[str, Any]:
    """Return the result for one text: OpenAI's categories, and the model's own. Those that it has not are 0."""
    if not isinstance(scores, dict):
        raise GeartrainError(Code.RUN_FAILED, "The model gave something that is no score for each category.")
    given: dict[str, Any] = scores
    own = {_BY_FIELD.get(name, name): _score(name, score) for name, score in given.items()}
    by_category: dict[str, float] = dict.fromkeys(CATEGORIES, 0.0)
    by_category.update(own)
    flags = {name: score >= threshold and name in own for name, score in by_category.items()}
    return {
        "flagged": any(flags.values()),
        "categories": flags,
        "category_scores": by_category,
        "category_applied_input_types": {name: ["text"] if name in own else [] for name in by_category},
    }


def _score(name: str, score: Any) -> float:
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise GeartrainError(Code.RUN_FAILED, f"The model gave a score that is no number, for {name[:100]!r}.")
    return float(score)
