"""The engine."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams

_USUAL = 64  # tokens that a model takes


class AsyncLLM:
    """Makes texts side by side. What it is asked and what becomes of it can be read off it."""

    def __init__(self, given: AsyncEngineArgs) -> None:
        if not (Path(given.model) / "config.json").is_file():
            raise ValueError("Invalid repository ID or local directory specified")
        self.given = given
        self.model_config = types.SimpleNamespace(
            max_model_len=given.max_model_len or _USUAL,
            get_diff_sampling_param=lambda: {"temperature": 0.6, "max_new_tokens": 9},
        )
        self.parameters: list[SamplingParams] = []
        self.live: set[str] = set()
        self.aborted: list[str] = []
        self.is_shut_down = False

    @classmethod
    def from_engine_args(cls, given: AsyncEngineArgs) -> AsyncLLM:
        """Make an engine."""
        return cls(given)

    async def generate(
        self, prompt: str, sampling_params: SamplingParams, request_id: str
    ) -> AsyncGenerator[Any, None]:
        """Yield what is made for one prompt, a word at a time."""
        assert sampling_params.output_kind is RequestOutputKind.DELTA
        assert request_id not in self.live
        ids, room = prompt.split(), self.model_config.max_model_len
        if len(ids) >= room:
            raise ValueError(
                f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of {room}."
            )
        self.parameters.append(sampling_params)
        self.live.add(request_id)
        most = min(sampling_params.max_tokens or room, room - len(ids))
        words = itertools.cycle(ids) if sampling_params.ignore_eos else ids
        try:
            for number, word in enumerate(words, 1):
                await (wait_for(word) if word.startswith("/") else asyncio.sleep(0))
                reason = "length" if number == most else "stop" if number == len(ids) else None
                yield _output(
                    ids,
                    f"{word.upper()} ",
                    number,
                    None if sampling_params.ignore_eos and reason == "stop" else reason,
                    sampling_params,
                )
                if number == most:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise
        finally:
            self.live.discard(request_id)

    def shutdown(self) -> None:
        """End the engine."""
        self.is_shut_down = True


async def wait_for(gate: str) -> None:
    """Wait until a gate opens."""
    file = await asyncio.to_thread(open, gate, "rb", 0)
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(file.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file.fileno())
        file.close()


def _output(ids: list[str], text: str, number: int, reason: str | None, asked: SamplingParams) -> Any:
    logprobs = None
    if asked.logprobs is not None:
        top = {number: types.SimpleNamespace(logprob=-0.5, rank=1, decoded_token=text)}
        others = {
            -n: types.SimpleNamespace(logprob=-0.5 - n, rank=n + 1, decoded_token="?") for n in range(1, asked.logprobs)
        }
        logprobs = [{**others, **top}]
    made = types.SimpleNamespace(text=text, token_ids=[number], finish_reason=reason, logprobs=logprobs)
    return types.SimpleNamespace(prompt_token_ids=ids, outputs=[made])
