"""Tokens of texts, such as those of chats. A model records them as the metric `tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


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
