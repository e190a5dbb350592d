"""What a batched `run()` gets, and what each request gets back, through a real engine and its socket."""

# ruff: noqa: F722, F821, UP037 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import dataclasses
import functools
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path as PlainPath
from typing import Any, NamedTuple, TypedDict

import jaxtyping as jt
import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import BaseModel, File, Input, ItemError, Path, Secret, batched
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.domain.tensors.tensor import Tensor, join_bytes, unpack
from geartrain.ipc import messages as m
from geartrain.ipc.framing import INLINE_LIMIT
from geartrain.ipc.shared_memory import LARGEST, MemoryRegion
from geartrain.worker.calls.call import Call
from geartrain.worker.values.tensor_packing import TensorPacker
from tests.support.batch_worker import Answers, Item, Worker, input_of, nested, rows, tensor, texts

Nd = np.ndarray
ONE = np.array([[1, 2]], np.float32)
TWO = np.array([[3, 4], [5, 6]], np.float32)
NONE = np.empty((0, 2), np.float32)


class Spy:
    """A batched `run()` that keeps what it was called with."""

    def __init__(self, run: Callable[..., Any], **settings: Any) -> None:
        self.calls: list[dict[str, Any]] = []

        @functools.wraps(run)
        def spying(**arguments: Any) -> Any:
            self.calls.append(arguments)
            return run(**arguments)

        self.run = batched(**settings)(spying)

    def ask(self, items: list[Item], **message: Any) -> Answers:
        return Worker(self.run).ask(items, **message)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


# by item


def shout(texts: list[str], lang: str = "en", tags: list[list[str] | None] = Input(default=None)) -> list[str]:
    return [f"{text.upper()} {lang}" for text in texts]


def test_lists_are_gathered_and_results_go_to_their_requests() -> None:
    spy = Spy(shout)
    answers = spy.ask(texts("a", "b", "c"))
    assert answers.outputs == {0: "A en", 1: "B en", 2: "C en"}
    assert spy.calls == [{"texts": ["a", "b", "c"], "lang": "en", "tags": [None, None, None]}]
    assert answers.lasts == [True]


def test_one_request_is_a_batch_as_well() -> None:
    assert Spy(shout).ask(texts("a")).outputs == {0: "A en"}


def test_shared_inputs_and_those_that_were_left_out() -> None:
    spy = Spy(shout)
    items = [Item({"texts": "a", "lang": "de", "tags": ["x"]}), Item({"texts": "b", "lang": "de"})]
    assert spy.ask(items).outputs == {0: "A de", 1: "B de"}
    assert spy.calls == [{"texts": ["a", "b"], "lang": "de", "tags": [["x"], None]}]


class Box(BaseModel):
    left: int
    label: str = "box"


def test_defaults_and_types_are_those_of_one_request() -> None:
    def run(boxes: list[Box], keys: list[Secret], words: list[dict] = Input(default={"a": 1})) -> list[str]:  # type: ignore[type-arg]
        for word in words:
            word["a"] += 1  # each request has its own
        return [
            f"{box.left}{box.label}{key.get_secret_value()}{word['a']}"
            for box, key, word in zip(boxes, keys, words, strict=True)
        ]

    items = [Item({"boxes": {"left": number}, "keys": "k"}) for number in range(3)]
    assert Spy(run).ask(items).outputs == {0: "0boxk2", 1: "1boxk2", 2: "2boxk2"}


def test_files_are_open_during_the_run_only(tmp_path: PlainPath) -> None:
    kept: list[Any] = []

    def run(files: list[File], paths: list[Path]) -> list[str]:
        kept.extend(files)
        return [file.read().decode() + path.read_text() for file, path in zip(files, paths, strict=True)]

    items = []
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        items.append(Item({"files": str(tmp_path / name), "paths": str(tmp_path / name)}))
    assert Spy(run).ask(items).outputs == {0: "aa", 1: "bb"}
    assert all(file.closed for file in kept)


class Pair(NamedTuple):
    label: list[str]
    score: list[float | None]


class Dict(TypedDict):
    label: list[str]
    score: list[float | None]


@dataclasses.dataclass
class Data:
    label: list[str]
    score: list[float | None]


class Model(BaseModel):
    label: list[str]
    score: list[float | None]


class Pydantic(pydantic.BaseModel):
    label: list[str]
    score: list[float | None]


@pytest.mark.parametrize("kind", [Pair, Dict, Data, Model, Pydantic], ids=lambda kind: kind.__name__)
def test_records_are_split_by_field(kind: Any) -> None:
    def run(texts: list[str]) -> Any:
        return kind(label=texts, score=[len(text) or None for text in texts])

    run.__annotations__["return"] = kind
    assert Spy(run).ask(texts("ab", "")).outputs == {0: {"label": "ab", "score": 2}, 1: {"label": "", "score": None}}


class Inner(TypedDict):
    label: list[str]


class Outer(TypedDict):
    inner: Inner
    ids: list[int]


def test_records_in_a_list_and_within_records() -> None:
    def listed(texts: list[str]) -> list[Box]:
        return [Box(left=1, label=text) for text in texts]

    def within(texts: list[str]) -> Outer:
        return {"inner": {"label": texts}, "ids": [1, 2]}

    expected = {0: {"left": 1, "label": "a"}, 1: {"left": 1, "label": "b"}}
    assert Spy(listed).ask(texts("a", "b")).outputs == expected
    expected = {0: {"inner": {"label": "a"}, "ids": 1}, 1: {"inner": {"label": "b"}, "ids": 2}}
    assert Spy(within).ask(texts("a", "b")).outputs == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["x", "y"], ["x", "y"]),
        (("x", 1.5), ["x", 1.5]),
        ([["x"], []], [["x"], []]),
        (np.array([1, 2]), [1, 2]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"a": np.array([1.5, 2]), "b": ["x", "y"]}, [{"a": 1.5, "b": "x"}, {"a": 2, "b": "y"}]),
    ],
    ids=str,
)
def test_outputs_without_an_annotation(value: Any, expected: list[Any]) -> None:
    def run(texts: list[str]):  # type: ignore[no-untyped-def] # noqa: ANN202 - that is the point
        return value

    assert Spy(run).ask(texts("a", "b")).outputs == dict(enumerate(expected))


def test_none_for_all_where_it_is_declared() -> None:
    def run(texts: list[str]) -> list[str] | None:
        return None

    answers = Spy(run).ask(texts("a", "b"))
    assert answers.outputs == {0: None, 1: None}
    assert answers.errors == {}


def embed(texts: list[str]) -> jt.Float32[Nd, "batch 3"]:
    return np.array([[len(text), 0, 1] for text in texts], np.float32)


def test_tensors_from_texts_packed_and_as_json() -> None:
    items = [Item({"texts": "a"}, tensors=()), Item({"texts": "bcd"})]
    answers = Spy(embed).ask(items)
    assert_same(answers.outputs[0]["output"], np.array([1, 0, 1], np.float32))
    assert answers.outputs[1] == [3, 0, 1]
    answers = Spy(embed).ask([Item({"texts": "a"}, tensors=()), Item({"texts": "bcd"}, tensors=())])
    assert_same(answers.outputs[1]["output"], np.array([3, 0, 1], np.float32))


# by rows


def double(x: jt.Float32[Nd, "batch 2"]) -> jt.Float32[Nd, "batch 2"]:
    x *= 2  # it is the model's own
    return x


MIXES: dict[str, list[Item]] = {
    "packed": rows(ONE, TWO, NONE, ONE),
    "json": nested(ONE, TWO, NONE, ONE),
    "mixed": [*nested(ONE), *rows(TWO, NONE), *nested(ONE)],
    "packed between": [*rows(ONE), *nested(TWO), *rows(NONE, ONE)],
}


@pytest.mark.parametrize("name", MIXES)
def test_rows_are_stacked_in_the_order_of_requests(name: str) -> None:
    spy = Spy(double)
    answers = spy.ask(MIXES[name])
    (call,) = spy.calls
    assert_same(call["x"], np.concatenate([ONE, TWO, ONE]) * 2)  # changed in place
    for index, (item, expected) in enumerate(zip(MIXES[name], (ONE, TWO, NONE, ONE), strict=True)):
        if item.tensors is None:
            assert answers.outputs[index] == (expected * 2).tolist()
        else:
            assert_same(answers.outputs[index]["output"], expected * 2)


def test_no_rows_at_all() -> None:
    answers = Spy(double, pad_to=(4, 32)).ask(rows(NONE, NONE))
    assert_same(answers.outputs[1]["output"], NONE)
    assert Spy(double).ask(nested(NONE)).outputs == {0: []}


class Result(NamedTuple):
    total: jt.Float64[Nd, "batch"]
    name: list[str]


def test_lists_and_optional_tensors_beside_tensors() -> None:
    def run(
        x: jt.Float32[Nd, "batch 2"],
        names: list[str],
        bias: jt.Float32[Nd, "batch"] | None = None,
        scale: float = 2.0,
    ) -> Result:
        total = x.sum(axis=1) * scale + (0 if bias is None else bias)
        return Result(total.astype(np.float64), [name + "!" for name in names])

    spy = Spy(run)
    first, second = rows(ONE, TWO)
    first.values, second.values = {"names": ["a"], "scale": 3.0}, {"names": ["b", "c"], "scale": 3.0}
    third = Item({"names": ["d"], "x": ONE.tolist(), "scale": 3.0})
    answers = spy.ask([first, third, second])
    assert spy.calls[0]["names"] == ["a", "d", "b", "c"]
    assert spy.calls[0]["bias"] is None
    assert answers.outputs[1] == {"total": [9.0], "name": ["d!"]}
    assert_same(answers.outputs[2]["total"], np.array([21.0, 33.0]))
    assert answers.outputs[2]["name"] == ["b!", "c!"]

    bias = tensor("bias", np.array([100, 200], np.float32))
    items = rows(ONE, TWO)
    items[0] = Item({"names": ["a"]}, (tensor("x", ONE), tensor("bias", np.array([50], np.float32))), 1)
    items[1] = Item({"names": ["b", "c"]}, (tensor("x", TWO), bias), 2)
    for batch in (items, [*items, Item({"names": [], "x": [], "bias": []}, rows=0)]):
        answers = spy.ask(batch)
        assert_same(answers.outputs[0]["total"], np.array([56.0]))
        assert_same(answers.outputs[1]["total"], np.array([114.0, 222.0]))


DATATYPES = [
    np.bool_,
    np.uint8,
    np.int8,
    np.uint16,
    np.int16,
    np.uint32,
    np.int32,
    np.uint64,
    np.int64,
    np.float16,
    np.float64,
]


@pytest.mark.parametrize("kind", DATATYPES, ids=lambda kind: kind.__name__)
def test_every_datatype_keeps_its_bytes(kind: Any) -> None:
    def run(x: Any) -> Any:
        return x[::-1][::-1]

    run.__annotations__ = {"x": npt.NDArray[kind], "return": npt.NDArray[kind]}
    arrays = [np.arange(4).reshape(2, 2).astype(kind), np.ones((1, 2), kind)]
    for batch in (rows(*arrays), [*rows(arrays[0]), *rows(arrays[1]), Item({"x": [[1, 0]]})]):
        answers = Spy(run).ask(batch)
        for index, array in enumerate(arrays):
            assert_same(answers.outputs[index]["output"], array)


def strings(*values: bytes) -> Item:
    return Item(tensors=(Tensor("x", "BYTES", (len(values),), join_bytes(values)),), rows=len(values))


def test_tensors_of_strings() -> None:
    def listed(x: list[bytes]) -> list[bytes]:
        return [value + b"!" for value in x]

    def array(x: npt.NDArray[np.str_]) -> list[str]:
        return [f"{value}!" for value in x]

    batches = (
        [strings(b"a", b"bc"), strings(), strings(b"d")],
        [Item({"x": ["a", "bc"]}, rows=2), strings(), strings(b"d")],
    )
    for batch in batches:
        answers = Spy(array).ask(batch)
        assert [answers.outputs[index] for index in range(3)] == [["a!", "bc!"], [], ["d!"]]
        answers = Spy(listed).ask(batch)
        assert answers.outputs[1] == {"output": []}
        assert answers.outputs[2] == {"output": [b"d!"]}
    assert Spy(listed).ask([Item({"x": ["a", "b"]}, rows=2), Item({"x": ["c"]})]).outputs == {
        0: ["a!", "b!"],
        1: ["c!"],
    }


def test_torch() -> None:
    torch = pytest.importorskip("torch")

    def run(x: Any) -> Any:
        return (x * torch.ones(2, requires_grad=True)).sum(dim=1)

    run.__annotations__ = {"x": jt.Float32[torch.Tensor, "batch 2"], "return": jt.Float32[torch.Tensor, "batch"]}
    spy = Spy(run, pad_to=(8, 32))
    answers = spy.ask([*rows(ONE), *nested(TWO)])
    assert spy.calls[0]["x"].shape == (8, 2)
    assert_same(answers.outputs[0]["output"], np.array([3], np.float32))
    assert answers.outputs[1] == [7, 11]


# filling up


def test_calls_are_filled_up_with_the_last_row() -> None:
    spy = Spy(double, max_size=4, pad_to=(2, 4))
    for batch in (rows(ONE, TWO), nested(ONE, TWO), [*rows(ONE), *nested(TWO)]):
        answers = spy.ask(batch)
        assert spy.calls[-1]["x"].tolist() == [[2, 4], [6, 8], [10, 12], [10, 12]]
        assert set(answers.outputs) == {0, 1}
    spy.ask(rows(TWO))
    assert len(spy.calls[-1]["x"]) == 2
    spy.ask(rows(TWO, TWO, TWO))  # one request that is larger than all sizes by itself would come like this
    assert len(spy.calls[-1]["x"]) == 6


def test_lists_are_filled_up_with_copies() -> None:
    def run(records: list[dict], n: int = 0) -> list[str]:  # type: ignore[type-arg]
        return [record.pop("a") for record in records]

    spy = Spy(run, max_size=4, pad_to=(4,))
    answers = spy.ask([Item({"records": {"a": "x"}}), Item({"records": {"a": "y"}})])
    assert answers.outputs == {0: "x", 1: "y"}
    assert len(spy.calls[0]["records"]) == 4


# the ways to travel


def test_an_input_in_a_file(tmp_path: PlainPath) -> None:
    path = tmp_path / "input"
    items = texts("a", "b")
    path.write_bytes(input_of(items))
    assert Spy(shout).ask(items, input=m.InFile(str(path))).outputs == {0: "A en", 1: "B en"}
    assert not path.exists()


@pytest.fixture
def regions() -> Iterator[tuple[MemoryRegion, MemoryRegion]]:
    down, up = MemoryRegion.create(), MemoryRegion.create()
    yield down, up
    down.close()
    up.close()


def large(x: jt.Float32[Nd, "batch"]) -> jt.Float32[Nd, "batch 40000"]:
    return np.repeat(x[:, None], 40000, axis=1)


def test_large_tensors_of_a_batch_are_one_piece_of_shared_memory(regions: tuple[MemoryRegion, MemoryRegion]) -> None:
    down, up = regions
    items = rows(np.array([1.5], np.float32), np.array([2.5, 3.5], np.float32))
    raw = input_of(items)
    down.write([raw])
    memory = m.SlotMemory(down.path, (up.path,))
    answers = Worker(Spy(large).run).ask_all([items], shared=up, input=m.InMemory(len(raw)), memory=memory)[0]
    assert len(answers.frames) == 1
    assert [answers.ways[index] for index in range(2)] == [["memory"], ["memory"]]
    assert_same(answers.outputs[1]["output"], np.repeat(np.array([[2.5], [3.5]], np.float32), 40000, axis=1))
    assert up.is_free()
    assert down.is_free(), "the worker has let go of the input"


def test_shared_memory_and_json_in_one_batch(regions: tuple[MemoryRegion, MemoryRegion]) -> None:
    _, up = regions
    items = [*rows(np.array([1], np.float32)), *nested(np.array([2], np.float32))]
    memory = m.SlotMemory(up.path, (up.path,))
    answers = Worker(Spy(large).run).ask_all([items], shared=up, memory=memory)[0]
    assert [answers.ways[index] for index in range(2)] == [["memory"], ["message"]]
    assert answers.lasts == [True]
    assert answers.outputs[0]["output"].shape == (1, 40000)
    assert answers.outputs[1] == [[2.0] * 40000]


def test_outputs_above_the_limit_travel_in_several_frames_and_in_files(tmp_path: PlainPath) -> None:
    sizes = [INLINE_LIMIT // 2, INLINE_LIMIT // 2, 10, INLINE_LIMIT + 1, INLINE_LIMIT // 2]

    def run(texts: list[str]) -> list[str]:
        return ["x" * size for size in sizes]

    answers = Spy(run).ask(texts(*"abcde"), output_dir=str(tmp_path))
    assert [len(answers.outputs[index]) for index in range(5)] == sizes
    assert [answers.ways[index] for index in range(5)] == [["message"]] * 3 + [["file"], ["message"]]
    assert list(tmp_path.glob("*/*")) == [], "each file is deleted by whoever reads it"
    assert answers.lasts.count(True) == 1
    assert answers.lasts[-1]
    assert len(answers.lasts) == 3, "as many to a frame as fit"


def test_tensors_beyond_shared_memory(tmp_path: PlainPath, regions: tuple[MemoryRegion, MemoryRegion]) -> None:
    def run(x: jt.UInt8[Nd, "batch"]) -> jt.UInt8[Nd, "batch n"]:
        return np.zeros((len(x), LARGEST // 2 + 1), np.uint8)

    _, up = regions
    items = rows(np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    memory = m.SlotMemory(up.path, (up.path,))
    worker = Worker(Spy(run).run)
    answers = worker.ask_all([items], shared=up, memory=memory, output_dir=str(tmp_path))[0]
    assert [answers.ways[index] for index in range(2)] == [["memory"], ["file"]]
    assert answers.lasts == [True]


def test_files_of_outputs_go_with_their_own_request(tmp_path: PlainPath) -> None:
    made = tmp_path / "made"
    made.mkdir()

    def run(texts: list[str]) -> list[Path | None]:
        paths: list[Path | None] = []
        for text in texts:
            path = Path(made / f"{text}.txt") if text else None
            if path is not None:
                path.write_text(text)
            paths.append(path)
        return paths

    answers = Spy(run).ask(texts("a", "", "c"), output_dir=str(tmp_path))
    for index, text in ((0, "a"), (2, "c")):
        (file,) = answers.files[index]
        assert answers.outputs[index] == file.token
        assert PlainPath(file.filename).read_text() == text
        assert PlainPath(file.filename).name == f"{text}.txt"
    assert answers.outputs[1] is None
    assert answers.lasts == [True]


def test_the_authors_temporary_files_are_gone_before_the_first_end(tmp_path: PlainPath) -> None:
    made: list[PlainPath] = []

    def run(texts: list[str]) -> list[Path]:
        made.extend(tmp_path / f"{text}.txt" for text in texts)
        for path in made:
            path.write_text(path.name)
        return [Path(path) for path in made]

    outputs = tmp_path / "outputs"
    outputs.mkdir()
    model = tmp_path / "model"
    model.mkdir()
    answers = Worker(Spy(run).run, temporary=model).ask(texts("a", "b"), output_dir=str(outputs))
    assert not any(path.exists() for path in made)
    for index in range(2):
        assert PlainPath(answers.files[index][0].filename).read_text() == made[index].name


def test_plain_outputs_of_any_kind_go_in_one_message() -> None:
    values = ["text", 1.5, None, [1, 2.5], {"b": [1], "a": {}}, [["x"], {"y": None}]]

    def run(texts: list[str]):  # type: ignore[no-untyped-def] # noqa: ANN202 - any value
        return tuple(values)

    answers = Worker(batched(run)).ask(texts(*"abcdef"))
    assert answers.outputs == dict(enumerate(values))
    assert answers.texts[4] == [b'{"a":{},"b":[1]}']
    assert answers.lasts == [True]


def test_half_a_character_fails_its_request() -> None:
    def run(texts: list[str]) -> list[str]:
        return ["a", "\ud800", "c"]

    answers = Worker(batched(run)).ask(texts(*"abc"))
    assert answers.outputs == {0: "a", 2: "c"}
    assert "half a character" in answers.errors[1]


class Shapes(NamedTuple):
    wide: jt.Float32[Nd, "batch n"]
    more: jt.Bool[Nd, "batch"]


def test_tensors_of_the_same_shapes_and_of_others_in_one_batch_after_the_other() -> None:
    def run(x: jt.Float32[Nd, "batch 1"]) -> Shapes:
        return Shapes(np.repeat(x, int(x[0, 0]), axis=1), x[:, 0] > 1)

    a, b, c = (np.array(values, np.float32)[:, None] for values in ([1], [2, 3], [3]))
    worker = Worker(batched(run))
    for arrays in ([a, b], [a, b], [b, c], [b, b], [c], [a, c, b, c], [c, a]):
        answers = worker.ask(rows(*arrays))
        for index, array in enumerate(arrays):
            assert_same(answers.outputs[index]["wide"], np.repeat(array, int(arrays[0][0, 0]), axis=1))
            assert_same(answers.outputs[index]["more"], array[:, 0] > 1)


@pytest.mark.parametrize(("run", "items"), [(shout, texts("a", "b")), (double, rows(ONE, TWO))])
def test_nothing_of_a_batch_waits_for_the_garbage_collection(run: Callable[..., Any], items: list[Item]) -> None:
    def calls() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each) is Call}

    worker = Worker(batched(run))
    gc.collect()
    gc.disable()
    try:
        before = calls()
        worker.ask(items)
        assert not calls() - before
    finally:
        gc.enable()


def test_batches_one_after_the_other() -> None:
    worker = Worker(Spy(shout).run)
    first, second = worker.ask_all([texts("a", "b"), texts("c", "d")])
    assert (first.outputs, second.outputs) == ({0: "A en", 1: "B en"}, {0: "C en", 1: "D en"})


# any mix


@batched(pad_to=(4, 64))
def negate(x: jt.Float32[Nd, "batch 2"], names: list[str]) -> Result:
    bad = {place: name for place, name in enumerate(names) if name.startswith("bad")}
    if bad:
        raise ItemError(bad)
    wrong: list[Any] = [ValueError(name) if name.startswith("wrong") else name for name in names]
    return Result(-x.sum(axis=1, dtype=np.float64), wrong)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["fine", "bad", "wrong"])), min_size=1, max_size=6
)


@given(REQUESTS)
@settings(max_examples=60)
def test_every_request_of_any_batch_gets_its_own_rows(requests: list[tuple[int, bool, str]]) -> None:
    items, arrays = [], []
    for index, (size, packed, kind) in enumerate(requests):
        array = np.arange(2 * size, dtype=np.float32).reshape(size, 2) + 100 * index
        arrays.append(array)
        values: dict[str, Any] = {"names": [f"{kind} {index}"] * size}
        if packed:
            items.append(Item(values, (tensor("x", array),), size))
        else:
            items.append(Item({**values, "x": array.tolist()}, rows=size))
    answers = Worker(negate).ask(items)
    for index, ((size, packed, kind), array) in enumerate(zip(requests, arrays, strict=True)):
        if size and kind != "fine":
            error = f"{kind} {index}"
            assert answers.errors[index] == (error if kind == "bad" else f"ValueError: {error}")
            continue
        output = answers.outputs[index]
        assert output["name"] == [f"{kind} {index}"] * size
        if packed:
            assert_same(output["total"], -array.sum(axis=1, dtype=np.float64))
        else:
            assert output["total"] == (-array.sum(axis=1)).tolist()
    assert answers.lasts.count(True) == 1
    assert answers.lasts[-1]


def test_a_batched_model_without_arrays_loads_no_array_package() -> None:
    script = (
        "import sys; from geartrain import batched\n"
        "from geartrain.worker.calls import batch_codec, call\n"
        "from geartrain.worker.runtime import session\n"
        "from geartrain.worker.loading.batched_signature import read_batched\n"
        "from geartrain.worker.values.outputs import OutputEncoder\n"
        "@batched\n"
        "def run(x: list[str]) -> list[dict]: ...\n"
        "read = read_batched(run, owner_name='run()', settings={})\n"
        "encoder = OutputEncoder(read[1].output)\n"
        "call.tools_of_model(*read, encoder=encoder, router=None, control=None)\n"
        "print(*{'numpy', 'torch', 'jaxtyping', 'ml_dtypes'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_o7_rows_of_variadic_parts_are_packed_and_checked() -> None:
    part = TypeSpec("tensor", datatype="FP32", shape=(-1, 3), variadic=True)
    packer = TensorPacker(OutputSpec(part), by_rows=False)
    packed = packer.pack(np.arange(12, dtype="f").reshape(2, 2, 3), (1, 1), 2)
    assert packed is not None
    assert [[one.shape for one in unpack(b"".join(parts))[1]] for parts in packed] == [[(2, 3)], [(2, 3)]]
    assert packer.pack(np.zeros((2, 2, 4), "f"), (1, 1), 2) is None  # the slower way says what is wrong
