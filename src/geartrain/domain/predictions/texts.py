"""Tokens and times of texts, such as those of chats. A model records its tokens as the metric `tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.prediction import PredictionRecord
from geartrain.domain.predictions.statistics import Buckets, Histogram

TOKEN_KINDS: Final = ("prompt", "completion", "cached", "reasoning")


class Tokens(msgspec.Struct, frozen=True):
    """The tokens that runs have taken and given, as they have recorded them."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def __bool__(self) -> bool:
        """True if runs have recorded any."""
        return bool(self.prompt or self.completion)


def count_tokens(metrics: Sequence[Mapping[str, Any]], count: int = 1) -> Tokens:
    """Add up the tokens of runs. `metrics` are those of each run; `count` of them have the same prompt."""
    prompts = metrics[::count]
    return Tokens(
        sum(tokens_of(each, "prompt") for each in prompts),
        sum(tokens_of(each, "completion") for each in metrics),
        sum(tokens_of(each, "cached") for each in prompts),
        sum(tokens_of(each, "reasoning") for each in metrics),
    )


def counted_prompt(metrics: Mapping[str, Any]) -> int | None:
    """Return the number of tokens in a run's prompt; None if the run has not recorded it."""
    tokens = metrics.get("tokens")
    return tokens_of(metrics, "prompt") if isinstance(tokens, dict) and "prompt" in tokens else None


def tokens_of(metrics: Mapping[str, Any], kind: str) -> int:
    """Return the number of tokens of a kind that a run has recorded; 0 for what is no number of tokens."""
    tokens = metrics.get("tokens")
    value = tokens.get(kind) if isinstance(tokens, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0


class TextCounts:
    """Counts of the texts of a model version. Times in seconds.

    Attributes:
        first_token: from the arrival of a request to the first piece of its text, of texts that come in pieces.
        per_token: between two tokens of such a text, on average; between two pieces where the model counts no tokens.
        tokens: numbers by kind, one for each of `TOKEN_KINDS`.
    """

    __slots__ = ("first_token", "per_token", "tokens")

    def __init__(self, buckets: Buckets) -> None:
        self.first_token = Histogram(buckets.seconds)
        self.per_token = Histogram(buckets.seconds)
        self.tokens = dict.fromkeys(TOKEN_KINDS, 0)

    def add_tokens(self, tokens: Tokens) -> None:
        """Count the tokens of a request."""
        for kind in TOKEN_KINDS:
            self.tokens[kind] += getattr(tokens, kind)

    def add_times(self, record: PredictionRecord, *, came: float, ended: float, count: int) -> None:
        """Count the times of a text of `count` tokens, or pieces.

        `came`: the arrival of its request, `ended`: the end of the text, 0 if it broke off. Moments are in seconds
        since the epoch. A clock that was set back gives no negative time.
        """
        first = record.first_output
        if not first:
            return
        self.first_token.observe(max(0.0, first - came))
        if ended and count > 1:
            self.per_token.observe(max(0.0, ended - first) / (count - 1))
