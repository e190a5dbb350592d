"""The package `geartrain-vllm`, with a stand-in for vLLM, which needs a GPU and an environment of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from geartrain.backends.interface import BackendError
from geartrain.backends.text import Piece, PromptError, Sampling, TextBackend
from tests.support.gates import Gates, gates

__all__ = ["gates"]

ROOT = Path(__file__).parents[3]
SITE = ROOT / "tests/support/engines/vllm_site"
PACKAGE = ROOT / "packages/geartrain-vllm/src"
OURS = ("vllm", "transformers", "geartrain_vllm")


@pytest.fixture
def backend_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[TextBackend]]:
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in OURS}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.syspath_prepend(str(PACKAGE))
    import geartrain_vllm

    yield geartrain_vllm.VllmBackend
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.modules.update(before)


def written(folder: Path) -> Path:
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


@pytest.fixture
def backend(backend_class: type[TextBackend], tmp_path: Path) -> Iterator[TextBackend]:
    backend = backend_class(written(tmp_path), {"slots": 4, "engine": {"gpu_memory_utilization": 0.5}})
    backend.load()
    yield backend
    backend.close()


def engine_of(backend: Any) -> Any:
    return backend._engine


async def pieces_of(backend: TextBackend, prompt: str, **sampling: Any) -> list[Piece]:
    return [piece async for piece in backend.generate(prompt, Sampling(**sampling))]


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_engine_gets_its_arguments(backend: TextBackend, tmp_path: Path) -> None:
    given = engine_of(backend).given
    assert (given.model, given.max_num_seqs, given.max_model_len) == (str(tmp_path), 4, None)
    assert (given.gpu_memory_utilization, given.disable_log_stats) == (0.5, True)
    assert backend.slots == 4
    assert backend.chat_template == "{{ messages[0].content }}"
    assert backend.special_tokens_map == {"eos_token": "<|end|>"}
    assert "up to 64 tokens" in backend.description


async def test_text_and_its_tokens(backend: TextBackend) -> None:
    pieces = await pieces_of(backend, "one two three")
    assert text_of(pieces) == "ONE TWO THREE "
    assert [(piece.prompt_tokens, piece.tokens, piece.finish_reason) for piece in pieces] == [
        (3, 1, ""),
        (3, 2, ""),
        (3, 3, "stop"),
    ]
    cut = await pieces_of(backend, "one two three", max_tokens=2)
    assert (text_of(cut), cut[-1].finish_reason) == ("ONE TWO ", "length")
    long = await pieces_of(backend, "one two", ignore_eos=True, max_tokens=5)
    assert (len(long), long[-1].finish_reason) == (5, "length")


async def test_sampling_has_the_names_of_the_engine(backend: TextBackend) -> None:
    await pieces_of(backend, "a", top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1, seed=7, presence_penalty=0.5)
    (asked,) = engine_of(backend).parameters
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (0.6, 0.9, 5, 0.1)  # the first of the folder's
    assert (asked.repetition_penalty, asked.presence_penalty, asked.seed, asked.max_tokens) == (1.1, 0.5, 7, None)
    await pieces_of(backend, "a", temperature=0, top_p=0)
    asked = engine_of(backend).parameters[-1]
    assert (asked.temperature, asked.top_p, asked.top_k) == (0, 1.0, 1)


async def test_probabilities(backend: TextBackend) -> None:
    (piece,) = await pieces_of(backend, "one", logprobs=3)
    (told,) = piece.logprobs
    assert (told["token"], told["logprob"]) == ("ONE ", -0.5)
    assert [each["logprob"] for each in told["top"]] == [-0.5, -1.5, -2.5]
    assert not (await pieces_of(backend, "one"))[0].logprobs


@pytest.mark.parametrize(("prompt", "said"), [("", "it is empty"), ("a " * 70, "longer than the maximum model length")])
async def test_prompts_that_are_refused(backend: TextBackend, prompt: str, said: str) -> None:
    with pytest.raises(PromptError, match=said):
        await pieces_of(backend, prompt)
    assert not engine_of(backend).live


async def test_texts_side_by_side_and_one_that_is_canceled(backend: TextBackend, gates: Gates) -> None:
    gate = str(gates["gate"].path)
    waiting = asyncio.ensure_future(pieces_of(backend, f"a {gate} b"))
    left = backend.generate(f"c {gate}", Sampling())
    async with aclosing(left):
        assert (await anext(left)).text == "C "
        assert len(engine_of(backend).live) == 2
    assert len(engine_of(backend).live) == 1
    assert len(engine_of(backend).aborted) == 1
    assert text_of(await pieces_of(backend, "d")) == "D "
    gates["gate"].open()
    assert text_of(await waiting) == f"A {gate.upper()} B "


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "slots"),
        ({"engine": [1]}, "engine"),
        ({"engine": {"model": "other"}}, "take `model` out of `parameters.engine`"),
        ({"engine": {"gpu_memory_utilization": 2}}, "vLLM cannot load it: ValueError: gpu_memory_utilization"),
        ({"engine": {"unknown": 1}}, "vLLM cannot load it: TypeError"),
    ],
)
def test_options_that_are_refused(
    backend_class: type[TextBackend], tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BackendError, match=said):
        backend_class(written(tmp_path), options).load()


def test_engine_ends_with_the_backend(backend_class: type[TextBackend], tmp_path: Path) -> None:
    backend = backend_class(written(tmp_path), {})
    backend.close()  # before it is loaded
    backend.load()
    engine = engine_of(backend)
    backend.close()
    assert engine.is_shut_down


def test_engine_that_is_missing(
    backend_class: type[TextBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(BackendError, match=r"vLLM cannot be imported: .*; install it with: pip install vllm"):
        backend_class(written(tmp_path), {}).load()
