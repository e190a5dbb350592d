"""Language models by vLLM: the engine, as a backend of geartrain.

The engine schedules its texts by itself; a text is a request to it, which is aborted when the text is canceled.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncGenerator
from typing import Any, Final, cast

from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import note
from geartrain.backends.options import mapping, whole_number
from geartrain.backends.text import Piece, PromptError, Sampling, TextBackend

__all__ = ["VllmBackend"]

_TOGETHER: Final = 256  # texts
_OWN: Final = frozenset({"model", "max_model_len", "max_num_seqs"})  # arguments that have parameters
_REASONS: Final = {"stop": "stop", "length": "length"}
_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VllmBackend(TextBackend):
    """A folder that vLLM can read, such as one with `config.json`, safetensors and a tokenizer."""

    platform = "vllm"
    options = frozenset({"slots", "max_context", "engine"})

    def load(self) -> None:
        self.slots = whole_number(self.given, "slots") or _TOGETHER
        arguments = {"disable_log_stats": True, **(mapping(self.given, "engine") or {})}
        for name in _OWN & arguments.keys():
            raise BackendError(
                f"take `{name}` out of `parameters.engine`: it is a parameter of the backend, or the file"
            )
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            import vllm
            from transformers import AutoTokenizer
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.sampling_params import RequestOutputKind, SamplingParams
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise BackendError(f"vLLM cannot be imported: {error}; install it with: pip install vllm") from error
        try:
            given = AsyncEngineArgs(
                model=str(self.path),
                max_model_len=whole_number(self.given, "max_context"),
                max_num_seqs=self.slots,
                **arguments,
            )
            self._engine = AsyncLLM.from_engine_args(given)
            tokenizer = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"vLLM cannot load it: {type(error).__name__}: {first}") from error
        self._make_parameters = SamplingParams
        self._deltas = RequestOutputKind.DELTA
        self._numbers = itertools.count()
        config = self._engine.model_config
        self._defaults = {name: value for name, value in config.get_diff_sampling_param().items() if name in _DEFAULTS}
        template = getattr(tokenizer, "chat_template", None)
        self.chat_template = template.get("default") if isinstance(template, dict) else template
        tokens = getattr(tokenizer, "special_tokens_map", {})
        self.special_tokens_map = {name: token for name, token in tokens.items() if isinstance(token, str)}
        self.description = f"A language model by vLLM, for up to {config.max_model_len} tokens."
        note(f"{self.path.name}: vLLM {vllm.__version__}, {self.slots} texts at the same time")

    async def generate(self, prompt: str, sampling: Sampling) -> AsyncGenerator[Piece]:
        if not prompt:
            raise PromptError("The prompt has no tokens: it is empty.")
        outputs = cast(
            "AsyncGenerator[Any]",
            self._engine.generate(prompt, self._parameters(sampling), f"text-{next(self._numbers)}"),
        )
        count, reason = 0, ""
        async with contextlib.aclosing(outputs):  # which aborts the request
            try:
                async for output in outputs:
                    (made,) = output.outputs
                    count += len(made.token_ids)
                    reason = _REASONS.get(made.finish_reason or "", "")
                    if made.finish_reason and not reason:
                        raise RuntimeError(f"vLLM has ended the text with {made.finish_reason!r}")
                    yield Piece(made.text, len(output.prompt_token_ids), count, _logprobs(made), reason)
            except ValueError as error:  # those of vLLM about a request
                raise PromptError(str(error)) from None

    def _parameters(self, sampling: Sampling) -> Any:
        given = {name: getattr(sampling, name) for name in _DEFAULTS}
        chosen = {**self._defaults, **{name: value for name, value in given.items() if value is not None}}
        if chosen.get("top_p") == 0:  # the likeliest token alone, which vLLM writes otherwise
            chosen |= {"top_p": 1.0, "top_k": 1}
        return self._make_parameters(
            max_tokens=sampling.max_tokens,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=sampling.seed,
            logprobs=sampling.logprobs,
            ignore_eos=sampling.ignore_eos,
            output_kind=self._deltas,
            **chosen,
        )

    def close(self) -> None:
        """End the engine's processes."""
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def _logprobs(made: Any) -> tuple[Any, ...]:
    """Return the probabilities of the tokens of one output, where they were asked for."""
    found = []
    for token, ranked in zip(made.token_ids, made.logprobs or (), strict=False):
        by_rank = sorted(ranked.items(), key=lambda one: one[1].rank or 0)
        top = [{"token": each.decoded_token or "", "logprob": each.logprob} for _, each in by_rank]
        own = ranked[token]
        found.append({"token": own.decoded_token or "", "logprob": own.logprob, "top": top})
    return tuple(found)
