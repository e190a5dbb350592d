"""The choice of the next token from what a model made of PyTorch gives for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from geartrain.backends.guides import Guide
from geartrain.backends.text import Sampling

_LEAST_PROBABILITY = 1e-6
_LEAST_TEMPERATURE = 1e-5  # below it, the likeliest token is taken


class Token(NamedTuple):
    """A token that was made; `top` are the likeliest ones in its place, with the logarithms of their probabilities."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish_reason: str = ""


class Sampler:
    """Chooses the tokens of one text."""

    def __init__(
        self, torch: Any, sampling: Sampling, defaults: Any, *, prompt: Sequence[int], guide: Guide | None = None
    ) -> None:
        """`defaults` is the generation configuration of the model, for parameters that are None.

        `guide` tells the tokens that the form of the text allows; None for any text.
        """
        self._guide = guide
        self._torch = torch
        self._sampling = sampling

        def or_default(given: float | None, name: str, otherwise: float) -> float:
            value = getattr(defaults, name, None) if given is None else given
            return otherwise if value is None else value

        self._temperature = or_default(sampling.temperature, "temperature", 1.0)
        self._top_p = max(or_default(sampling.top_p, "top_p", 1.0), _LEAST_PROBABILITY)
        self._top_k = int(or_default(sampling.top_k, "top_k", 0))
        self._min_p = or_default(sampling.min_p, "min_p", 0.0)
        self._repetition = or_default(sampling.repetition_penalty, "repetition_penalty", 1.0)
        self._prompt = sorted(set(prompt))
        self._generator: Any = None
        if sampling.seed is not None:
            self._generator = torch.Generator().manual_seed(sampling.seed % 2**63)

    def choose(self, logits: Any, made: Sequence[int]) -> Token:
        """Choose the token that follows those `made`; `logits` are 32-bit floats, one for each token."""
        scores = self._penalized(logits, made)
        if self._guide is not None:
            scores = self._guide.allowed(self._torch, scores)
        if self._temperature < _LEAST_TEMPERATURE:
            chosen = int(scores.argmax())
        else:
            chosen = self._draw(scores / self._temperature)
        if self._guide is not None:
            self._guide.take(chosen)
        if self._sampling.logprobs is None:
            return Token(chosen)
        logprobs = logits.log_softmax(-1)
        values, ids = logprobs.topk(min(self._sampling.logprobs, logprobs.numel()))
        return Token(chosen, float(logprobs[chosen]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))

    def _penalized(self, logits: Any, made: Sequence[int]) -> Any:
        sampling = self._sampling
        if self._repetition == 1.0 and not (sampling.presence_penalty or sampling.frequency_penalty):
            return logits
        logits = logits.clone()
        if self._repetition != 1.0:
            seen = self._torch.tensor(sorted({*self._prompt, *made}), device=logits.device)
            before = logits[seen]
            logits[seen] = self._torch.where(before > 0, before / self._repetition, before * self._repetition)
        if made:
            ids, counts = self._torch.tensor(made, device=logits.device).unique(return_counts=True)
            logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        return logits

    def _draw(self, scores: Any) -> int:
        """Draw a token of those that `top_k`, `top_p` and `min_p` leave."""
        torch = self._torch
        if 0 < self._top_k < scores.numel():
            scores, ids = scores.topk(self._top_k)
        else:
            ids = None
        likely = scores.softmax(-1)
        if self._min_p > 0:
            likely = torch.where(likely < self._min_p * likely.max(), 0.0, likely)
        if self._top_p < 1:
            ordered, order = likely.sort(descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self._top_p  # of those before it
            likely = likely.index_fill(0, order[beyond], 0.0)
        # Drawn on the processor: the same seed gives the same text on every device.
        drawn = int(torch.multinomial(likely.cpu(), 1, generator=self._generator))
        return drawn if ids is None else int(ids[drawn])
