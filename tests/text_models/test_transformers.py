"""The backend of transformers by itself: texts that share steps are those that each would be alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from geartrain.backends.interface import BackendError
from geartrain.backends.sampling import Sampler
from geartrain.backends.text import Piece, PromptError, Sampling
from geartrain.backends.transformers import TransformersBackend
from tests.text_models.tiny import ANSWERS, END, chat_of, tokenizer_of

SMALL: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "qwen": Qwen2Config(**SMALL),
    "gemma": GemmaConfig(**SMALL),
    "sliding": MistralConfig(**SMALL, sliding_window=8),  # its memory cannot be padded
    "gpt2": GPT2Config(vocab_size=400, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0),
}
GREEDY = Sampling(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["a", "one two three", "Grüß Gott " * 3, "x" * 40, "hello", "the sun"]


async def text_of(backend: TransformersBackend, prompt: str, sampling: Sampling = GREEDY) -> str:
    return "".join([piece.text async for piece in backend.generate(prompt, sampling)])


def loaded(folder: Path, **options: Any) -> TransformersBackend:
    backend = TransformersBackend(folder, {"threads": 1, **options})
    backend.load()
    return backend


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_texts_side_by_side_are_those_of_generate(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]).eval()
    model.save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(PROMPTS), eos_token=END)
    tokenizer.save_pretrained(tmp_path)
    expected = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, do_sample=False, max_new_tokens=24, min_new_tokens=24, eos_token_id=399)
        expected.append(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
    backend = loaded(tmp_path, slots=4)  # so that some have to wait for others to end
    try:

        async def ask(number: int) -> str:
            await asyncio.sleep(0.01 * number)  # they join while others run
            most = 24 - 3 * (number % 3)
            return await text_of(backend, PROMPTS[number], Sampling(temperature=0, max_tokens=most, ignore_eos=True))

        async def ask_all() -> list[str]:
            return await asyncio.gather(*map(ask, range(len(PROMPTS))))

        for answer, whole, number in zip(asyncio.run(ask_all()), expected, range(len(PROMPTS)), strict=True):
            end = "\N{REPLACEMENT CHARACTER}"  # of a character that was cut
            assert whole.startswith(answer.rstrip(end)) if number % 3 else answer == whole
    finally:
        backend.close()


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Any:
    backend = loaded(tiny)
    yield backend
    backend.close()


def steps_of(backend: TransformersBackend) -> list[int]:
    """Have the model tell the size of the batch of each of its steps, but for those of prompts."""
    sizes: list[int] = []

    def note(_module: Any, _arguments: Any, given: dict[str, Any]) -> None:
        rows, tokens = given["input_ids"].shape
        if tokens == 1:
            sizes.append(rows)

    backend.model.register_forward_pre_hook(note, with_kwargs=True)
    return sizes


def test_texts_share_steps_and_leave_within_one(backend: TransformersBackend) -> None:
    sizes = steps_of(backend)
    endless = Sampling(temperature=0, ignore_eos=True)

    async def cancel_one() -> None:
        canceled: AsyncIterator[Piece] = backend.generate("<|user|>count<|end|>", endless)
        async with aclosing(canceled):  # type: ignore[type-var]
            await anext(canceled)
            other = asyncio.create_task(text_of(backend, "<|user|>hello<|end|><|assistant|>", endless))
            while 2 not in sizes:
                await anext(canceled)
        shared = len(sizes)
        assert (await other).startswith(ANSWERS["hello"])
        assert 2 not in sizes[shared + 1 :]
        assert len(sizes) > shared + 100

    asyncio.run(cancel_one())


def test_error_of_a_step_is_that_of_its_texts(backend: TransformersBackend) -> None:
    prompt = "<|user|>hello<|end|><|assistant|>"

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    async def ask_thrice() -> None:
        pieces = backend.generate(prompt, GREEDY)
        await anext(pieces)
        hook = backend.model.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            [piece async for piece in pieces]
        with pytest.raises(RuntimeError, match="out of memory"):
            await text_of(backend, prompt)
        hook.remove()
        assert ANSWERS["hello"].startswith(await text_of(backend, prompt))

    asyncio.run(ask_thrice())


def test_lack_of_memory_where_texts_meet(backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "<|user|>hello<|end|><|assistant|>"
    cat = torch.cat

    def fail(tensors: Any, *given: Any, **options: Any) -> Any:
        if options or given:
            return cat(tensors, *given, **options)
        raise RuntimeError("out of memory")  # only texts that meet are put together along the first dimension

    async def ask_thrice() -> None:
        pieces = backend.generate(prompt, Sampling(temperature=0, ignore_eos=True))
        await anext(pieces)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "cat", fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                await text_of(backend, prompt)
            with pytest.raises(RuntimeError, match="out of memory"):
                [piece async for piece in pieces]
        assert ANSWERS["hello"].startswith(await text_of(backend, prompt))

    asyncio.run(ask_thrice())


def test_pieces_count(backend: TransformersBackend) -> None:
    async def pieces() -> list[Piece]:
        prompt = chat_of("hello", "").removesuffix(END)
        return [piece async for piece in backend.generate(prompt, Sampling(temperature=0, logprobs=2))]

    given = asyncio.run(pieces())
    assert [piece.tokens for piece in given] == list(range(1, len(given) + 1))
    assert [piece.finish_reason for piece in given] == [*[""] * (len(given) - 1), "stop"]
    assert all(len(piece.logprobs) == 1 and len(piece.logprobs[0]["top"]) == 2 for piece in given)


def test_prompt_that_is_too_long(backend: TransformersBackend) -> None:
    with pytest.raises(PromptError, match="takes 256"):
        asyncio.run(text_of(backend, "x" * 256))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"dtype": "int3"}, "dtype"), ({"slots": 0}, "slots"), ({"max_context": -1}, "max_context")],
)
def test_options_that_cannot_be(tiny: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BackendError, match=said):
        loaded(tiny, **options)


@pytest.mark.parametrize(
    ("penalty", "chosen"),
    [
        ({}, 0),
        ({"presence_penalty": 1.5}, 1),
        ({"frequency_penalty": 0.4}, 0),
        ({"frequency_penalty": 0.6}, 1),
        ({"repetition_penalty": 4.0}, 2),  # token 1 is of the prompt
    ],
)
def test_penalties(penalty: dict[str, Any], chosen: int) -> None:
    sampler = Sampler(torch, Sampling(temperature=0, **penalty), None, prompt=[1])
    logits = torch.tensor([2.0, 1.0, 0.6])
    assert sampler.choose(logits, [0, 0]).id == chosen
    assert logits.tolist() == pytest.approx([2.0, 1.0, 0.6])  # others need them as they are


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="safetensors"):
        loaded(tmp_path)
