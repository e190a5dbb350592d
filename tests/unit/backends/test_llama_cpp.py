"""GGUF files: the backend with a stand-in for the library, and with the library itself where that is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from geartrain.backends.interface import BackendError
from geartrain.backends.llama_cpp import LlamaCppBackend
from geartrain.backends.text import Piece, PromptError, Sampling
from tests.support.gguf import TINY_TEMPLATE, write_gguf

SITE = Path(__file__).parents[2] / "support/engines/llama_site"
GREEDY = Sampling(temperature=0)
METADATA = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": "64",
    "tokenizer.ggml.add_bos_token": "true",
    "tokenizer.chat_template": "{{ messages[0].content }}",
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in, wherever the library itself may be."""
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    yield
    sys.modules.pop("llama_cpp", None)


def written(folder: Path, **metadata: str) -> Path:
    path = folder / "tiny.gguf"
    path.write_bytes(b"GGUF" + json.dumps({**METADATA, **metadata}).encode())
    return path


@pytest.fixture
def backend(library: None, tmp_path: Path) -> Iterator[LlamaCppBackend]:
    backend = LlamaCppBackend(written(tmp_path), {"threads": 1})
    backend.load()
    yield backend
    backend.close()


def pieces_of(backend: LlamaCppBackend, prompt: str, sampling: Sampling = GREEDY) -> list[Piece]:
    async def run() -> list[Piece]:
        return [piece async for piece in backend.generate(prompt, sampling)]

    return asyncio.run(run())


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_what_a_file_says_of_itself(backend: LlamaCppBackend) -> None:
    assert backend.chat_template == METADATA["tokenizer.chat_template"]
    assert backend.special_tokens_map == {"bos_token": "<s>", "eos_token": "<|end|>"}
    assert backend.description == "A language model (tiny) for up to 64 tokens."
    assert backend.slots == 1


def test_text_comes_in_whole_characters(backend: LlamaCppBackend) -> None:
    pieces = pieces_of(backend, "grüß 𝄞")
    assert text_of(pieces) == "GRÜSS 𝄞"
    assert "\N{REPLACEMENT CHARACTER}" not in text_of(pieces)
    assert pieces[-1].finish_reason == "stop"
    assert pieces[0].prompt_tokens == 1 + len("grüß 𝄞".encode())
    assert [piece.tokens for piece in pieces] == list(range(1, len("GRÜSS 𝄞".encode()) + 2))


@pytest.mark.parametrize(
    ("sampling", "text", "reason"),
    [
        (Sampling(max_tokens=3), "ABC", "length"),
        (Sampling(max_tokens=6, ignore_eos=True), "ABCDA", "length"),
        (Sampling(max_tokens=99), "ABCD", "stop"),
        (Sampling(ignore_eos=True), None, "length"),  # as many as there is room for
    ],
)
def test_end_of_a_text(backend: LlamaCppBackend, sampling: Sampling, text: str | None, reason: str) -> None:
    pieces = pieces_of(backend, "abcd", sampling)
    assert text is None or text_of(pieces) == text
    assert pieces[-1].finish_reason == reason
    if text is None:
        assert pieces[-1].tokens + pieces[-1].prompt_tokens == 64


def test_character_that_is_cut(backend: LlamaCppBackend) -> None:
    assert text_of(pieces_of(backend, "aß𝄞", Sampling(max_tokens=4))) == "ASS\N{REPLACEMENT CHARACTER}"


def test_sampling_has_the_names_of_the_library(backend: LlamaCppBackend) -> None:
    given = Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=7,
    )
    pieces_of(backend, "a", given)
    model: Any = backend._model
    assert model.asked == {
        "temp": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
    }
    assert model.seed == 7
    pieces_of(backend, "a", Sampling())
    assert (model.asked["temp"], model.asked["top_k"], model.seed) == (0.8, 40, 0xFFFFFFFF)


def test_probabilities(backend: LlamaCppBackend) -> None:
    first, *_ = pieces_of(backend, "ab", Sampling(temperature=0, logprobs=2))
    (told,) = first.logprobs
    assert told["token"] == "A"
    assert -1e-4 < told["logprob"] <= 0
    assert len(told["top"]) == 2
    assert told["top"][0]["token"] == "A"
    (told,) = pieces_of(backend, "ab", Sampling(logprobs=0))[0].logprobs
    assert told["top"] == []


@pytest.mark.parametrize(("prompt", "said"), [("a" * 70, "the model takes 64"), ("a" * 63, "has 64 tokens")])
def test_prompts_that_are_refused(backend: LlamaCppBackend, prompt: str, said: str) -> None:
    with pytest.raises(PromptError, match=said):
        pieces_of(backend, prompt)


def test_empty_prompt(library: None, tmp_path: Path) -> None:
    backend = LlamaCppBackend(written(tmp_path, **{"tokenizer.ggml.add_bos_token": "false"}), {})
    backend.load()
    with pytest.raises(PromptError, match="it is empty"):
        pieces_of(backend, "")
    backend.close()


def test_beginning_of_the_template_and_of_the_tokenizer_are_one(backend: LlamaCppBackend) -> None:
    model: Any = backend._model
    tokenize = model.tokenize
    model.tokenize = lambda text, **options: [model.token_bos(), *tokenize(text, **options)]
    assert pieces_of(backend, "ab")[0].prompt_tokens == 3


async def test_text_whose_client_leaves_is_made_no_further(backend: LlamaCppBackend) -> None:
    pieces = backend.generate("abcd", Sampling(ignore_eos=True))
    async with aclosing(pieces):
        assert (await anext(pieces)).text == "A"
    other = [piece.text async for piece in backend.generate("x", GREEDY)]  # only then is the thread free
    assert "".join(other) == "X"
    model: Any = backend._model
    assert model.made == 2


async def test_fault_of_the_library_is_that_of_the_text(backend: LlamaCppBackend) -> None:
    model: Any = backend._model

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("llama_decode returned -1")

    generate, model.generate = model.generate, fail
    with pytest.raises(RuntimeError, match="returned -1"):
        await anext(backend.generate("a", GREEDY))
    model.generate = generate
    assert [piece.text async for piece in backend.generate("a", GREEDY)] == ["A", ""]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"threads": 0}, "threads"), ({"gpu_layers": -2}, "gpu_layers"), ({"max_context": "all"}, "max_context")],
)
def test_options_that_are_refused(library: None, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BackendError, match=said):
        LlamaCppBackend(written(tmp_path), options).load()


def test_file_that_is_none(library: None, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"nothing")
    with pytest.raises(BackendError, match=r"llama\.cpp cannot load it: ValueError: Failed to load model"):
        LlamaCppBackend(tmp_path / "cut.gguf", {}).load()


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed")
def test_library_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"install it with: pip install 'geartrain\[llama-cpp\]'"):
        LlamaCppBackend(written(tmp_path), {}).load()


# the library itself


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppBackend]:
    pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python is not installed: there are no wheels, a build takes long"
    )
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_gguf(path)
    backend = LlamaCppBackend(path, {"threads": 1})
    backend.load()
    yield backend
    backend.close()


def test_library_itself(real: LlamaCppBackend) -> None:
    assert real.chat_template == TINY_TEMPLATE
    greedy = Sampling(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
    pieces = pieces_of(real, "one two three", greedy)
    assert pieces[-1].tokens == 12
    assert pieces[-1].finish_reason == "length"
    assert text_of(pieces) == text_of(pieces_of(real, "one two three", greedy))
    for piece in pieces:
        (told,) = piece.logprobs
        assert told["top"][0]["logprob"] == pytest.approx(told["logprob"])
        assert len(told["top"]) == 3
    drawn = [text_of(pieces_of(real, "one", Sampling(temperature=2, max_tokens=20, seed=seed))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(PromptError, match="the model takes"):
        pieces_of(real, "one " * 300)
