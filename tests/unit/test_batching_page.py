"""The models of docs/batching.md do what the page says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.worker.loading.loader import LoadedRunner, load
from tests.support.batch_worker import Answers, Item, Worker, models_loaded, nested, rows

PAGE = (Path(__file__).parents[2] / "docs/batching.md").read_text(encoding="utf-8")
MODELS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TEXTS, RECORD, PARSE, BLAME, TALK, STREAM, JOINT, ASYNC, COST, PADDED, FILLED = range(11)


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with models_loaded():
        yield


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedRunner:
    tmp_path.joinpath("run.py").write_text(MODELS[request.param])
    runner = load("run.py", tmp_path)
    if runner.setup is not None:
        runner.setup()
    return runner


def only(index: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", [index], indirect=True)


def ask(model: LoadedRunner, items: list[Item]) -> Answers:
    return Worker(model.run).ask(items)


def each(name: str, *values: str) -> list[Item]:
    return [Item({name: value}) for value in values]


def test_every_model_of_the_page_is_tested() -> None:
    assert len(MODELS) == len(range(TEXTS, FILLED + 1))


@only(TEXTS)
def test_texts(model: LoadedRunner) -> None:
    assert ask(model, each("texts", "a lovely day", "a day")).outputs == {0: True, 1: False}
    assert model.batching is not None
    assert model.batching.policy == BatchPolicy(64)
    assert model.batching.shared == ("threshold",)


@only(RECORD)
def test_rows(model: LoadedRunner) -> None:
    first = Item({"x": [[1, 2, 3], [4, 5, 6]], "names": ["a", "b"]}, rows=2)
    answers = ask(model, [first, Item({"x": [[0, 0, 9]], "names": ["c"]})])
    assert str(answers.outputs[0]).replace("'", '"') in PAGE
    assert answers.outputs[1] == {"total": [9.0], "size": ["c is small"]}


@only(PARSE)
def test_exceptions_in_the_list(model: LoadedRunner) -> None:
    answers = ask(model, each("orders", '{"price": 2}', "{", "{}"))
    assert answers.outputs == {0: 2.0}
    assert sorted(error.partition(":")[0] for error in answers.errors.values()) == ["JSONDecodeError", "KeyError"]


@only(BLAME)
def test_item_error(model: LoadedRunner) -> None:
    full, empty = np.full((1, 4), 2, np.float32), np.zeros((1, 4), np.float32)
    answers = ask(model, [*rows(full), *nested(np.concatenate([full, empty])), *nested(full)])
    assert answers.errors == {1: "there is nothing in it"}
    assert answers.outputs[0]["output"].tolist() == [0.25]
    assert answers.outputs[2] == [0.25]


@only(TALK)
def test_logs_and_metrics(model: LoadedRunner) -> None:
    answers = ask(model, each("texts", "a b", "c"))
    assert answers.outputs == {0: 2, 1: 1}
    assert answers.logs == {0: "2 at once\nlooking at 'a b'\n", 1: "2 at once\nlooking at 'c'\n"}
    assert answers.metrics == {0: {"characters": 3}, 1: {"characters": 1}}


@only(STREAM)
def test_streams(model: LoadedRunner) -> None:
    answers = ask(model, each("prompts", "one two three", "four"))
    assert answers.chunks == {0: ["one ", "two ", "three "], 1: ["four "]}
    assert (model.signature.streaming, model.signature.output.mode) == (True, "concatenate")


@only(ASYNC)
def test_async(model: LoadedRunner) -> None:
    assert ask(model, each("keys", "ab", "cd")).outputs == {0: "ba", 1: "dc"}
    assert (model.is_async, model.max_concurrency) == (True, 4)


@only(JOINT)
def test_joint(model: LoadedRunner) -> None:
    async def ask(text: str, steps: int) -> list[str]:
        return [piece async for piece in model.run(text=text, steps=steps)]

    async def ask_both() -> list[list[str]]:
        return list(await asyncio.gather(ask("a", 3), ask("b", 1)))

    assert asyncio.run(ask_both()) == [["a1 ", "a2 ", "a3 "], ["b1 "]]
    assert (model.is_async, model.max_concurrency, model.signature.streaming) == (True, 32, True)


@only(COST)
def test_cost(model: LoadedRunner) -> None:
    assert ask(model, each("text", "ab", "c")).outputs == {0: 2, 1: 1}
    assert model.batching is not None
    assert model.batching.policy == BatchPolicy(256, cost="text", max_cost=16_384)


@only(PADDED)
def test_padded(model: LoadedRunner) -> None:
    assert ask(model, each("text", "ab", "c")).outputs == {0: 0, 1: 1}
    assert model.batching is not None
    assert model.batching.policy == BatchPolicy(256, cost="text", max_cost=8192, padded=True, sort=2)


def test_the_wrong_number_of_results(tmp_path: Path) -> None:
    tmp_path.joinpath("run.py").write_text(
        "from geartrain import batched\n@batched\ndef run(texts: list[str]) -> list[str]:\n    return texts[1:]\n"
    )
    answers = ask(load("run.py", tmp_path), each("texts", "a", "b", "c"))
    assert answers.errors[0] in PAGE


@only(FILLED)
def test_filling_up(model: LoadedRunner) -> None:
    found = ask(model, [Item({"ids": [[10, 20]]}), Item({"ids": [[30], [40]]}, rows=2), Item({"ids": [[1, 2, 3]]})])
    assert found.outputs == {0: [[1.0, 2.0]], 1: [[3.0], [4.0]], 2: [pytest.approx([0.1, 0.2, 0.3])]}
