"""The parameters of a text."""

from __future__ import annotations

import dataclasses
import enum


class RequestOutputKind(enum.Enum):
    """What each output holds."""

    CUMULATIVE = 0
    DELTA = 1


@dataclasses.dataclass
class SamplingParams:
    """How tokens are chosen."""

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
