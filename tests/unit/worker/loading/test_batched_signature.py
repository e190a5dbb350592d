"""The signature of a batched `run()`: what one client sees, what is shared, and what cannot be batched."""

# ruff: noqa: F722 - jaxtyping's shapes are strings that are no annotations

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jaxtyping as jt
import numpy as np
import numpy.typing as npt
import pytest

from geartrain import (
    AsyncConcatenateIterator,
    BaseModel,
    ConcatenateIterator,
    File,
    Input,
    Opaque,
    Path,
    batched,
    streaming,
)
from geartrain.domain.predictions.batching import BatchPolicy
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, TypeSpec
from geartrain.worker.loading.batched_signature import BatchedSignature, read_batched
from geartrain.worker.loading.loader import LoadError, load
from geartrain.worker.loading.signature import UnsupportedAnnotationError
from tests.support.batch_worker import models_loaded
from tests.support.ids import short

Nd = np.ndarray
EMPTY = object()
STRING, OPAQUE = TypeSpec("string"), TypeSpec("opaque")


def array(items: TypeSpec, *, nullable: bool = False) -> TypeSpec:
    return TypeSpec("array", items=items, nullable=nullable)


def tensor(datatype: str, *shape: int, nullable: bool = False, variadic: bool = False) -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=shape, nullable=nullable, variadic=variadic)


class Labels(NamedTuple):
    label: list[str]
    score: list[float]


class Faces(NamedTuple):
    boxes: jt.Float32[Nd, "batch 4"]
    names: list[str]


class Typed(TypedDict):
    label: list[str]
    embedding: jt.Float32[Nd, "batch 384"] | None


@dataclasses.dataclass
class Inner:
    label: str


class Outer(BaseModel):
    inner: Typed
    tags: list[list[str]]


class Single(TypedDict):
    label: list[str]
    model: str


class Fixed(TypedDict):
    x: jt.Float32[Nd, "2 3"]


def read(run: Callable[..., Any], **settings: Any) -> BatchedSignature:
    return read_batched(run, owner_name="run()", settings=settings)


def made(inputs: dict[str, Any], output: Any = list[str], *, generator: bool = False) -> Callable[..., Any]:
    """A batched `run()` with these annotations; a tuple is one with its default."""

    def plain(**_: Any) -> None: ...

    def generating(**_: Any) -> Any:
        yield

    parameters = ", ".join(inputs)
    body = "yield" if generator else "..."
    scope: dict[str, Any] = {}
    exec(f"def run({parameters}):\n    {body}", scope)  # noqa: S102 - a function whose parameters are data
    run = scope["run"]
    run.__annotations__ = {name: kind[0] if isinstance(kind, tuple) else kind for name, kind in inputs.items()}
    run.__defaults__ = tuple(kind[1] for kind in inputs.values() if isinstance(kind, tuple)) or None
    if output is not EMPTY:
        run.__annotations__["return"] = output
    return batched(run)  # type: ignore[no-any-return]


# by item


ITEMS: list[tuple[Any, InputField]] = [
    (list[str], InputField("x", STRING)),
    (list[int], InputField("x", TypeSpec("integer"))),
    (list[list[float]], InputField("x", array(TypeSpec("number")))),
    (list[Path], InputField("x", TypeSpec("path"))),
    (list[File], InputField("x", TypeSpec("file"))),
    (list[str | None], InputField("x", TypeSpec("string", nullable=True), required=False)),
    (list[Literal["a", "b"]], InputField("x", TypeSpec("string", choices=("a", "b")))),
    (list, InputField("x", OPAQUE)),
    (list[Any], InputField("x", OPAQUE)),
    (Annotated[list[str], Opaque], InputField("x", OPAQUE)),
    ((list[str], Input(default="en")), InputField("x", STRING, required=False, has_default=True, default="en")),
    (
        (list[int], Input(ge=1, le=9, description="How many")),
        InputField("x", TypeSpec("integer"), ge=1, le=9, description="How many"),
    ),
    ((list[str], Input(regex="a+", max_length=3)), InputField("x", STRING, regex="a+", max_length=3)),
]


@pytest.mark.parametrize(("annotation", "expected"), ITEMS, ids=short)
def test_a_list_gathers_what_a_client_sends(annotation: Any, expected: InputField) -> None:
    found = read(made({"x": annotation}))
    assert found.signature.inputs == (expected,)
    assert (found.batching.by_rows, found.batching.shared) == (False, ())


def test_tensors_in_lists_are_ragged() -> None:
    found = read(made({"x": list[jt.Float32[Nd, "n 3"]], "texts": list[str]}))
    assert [field.type.kind for field in found.signature.inputs] == ["tensor", "string"]
    assert (found.batching.by_rows, found.batching.ragged) == (False, True)
    assert not read(made({"x": jt.Float32[Nd, "n 3"]})).batching.ragged
    assert not read(made({"x": list[str]})).batching.ragged


def filling(pad: dict[str, float], inputs: dict[str, Any], output: Any = jt.Int64[Nd, "b"]) -> BatchedSignature:
    """Read a `run()` whose inputs are filled up."""
    return read(batched(pad=pad)(made(inputs, output)))


def test_what_is_filled_up() -> None:
    inputs = {
        "ids": jt.Int64[Nd, "batch length"],
        "picture": jt.Float32[Nd, "batch 3 h w"],
        "ids_lengths": jt.Int32[Nd, "batch"],
        "picture_lengths": jt.Int64[Nd, "batch 2"],
    }
    found = filling({"ids": 0, "picture": float("-inf")}, inputs, jt.Float32[Nd, "batch w length 2"])
    assert [field.name for field in found.signature.inputs] == ["ids", "picture"]
    assert found.batching.lengths == (
        ("ids_lengths", "ids", (1,), "INT32"),
        ("picture_lengths", "picture", (2, 3), "INT64"),
    )
    assert found.batching.cuts == (("", 1, "picture", 3), ("", 2, "ids", 1))
    policy = found.batching.policy
    assert (policy.cost, policy.padded, policy.pad) == ("ids + picture", True, {"ids": 0, "picture": float("-inf")})


@pytest.mark.parametrize(
    ("pad", "annotation", "fault"),
    [
        ({"other": 0}, jt.Int64[Nd, "b n"], "there is no such input"),
        ({"x": 0}, jt.Int64[Nd, "b"], "needs a dimension of any length behind the first"),
        ({"x": 0}, jt.Int64[Nd, "b 3"], "needs a dimension of any length behind the first"),
        ({"x": 0}, jt.Int64[Nd, "b ..."], "needs a dimension of any length behind the first"),
        ({"x": 0.5}, jt.Int64[Nd, "b n"], "0.5 is no INT64"),
        ({"x": float("nan")}, jt.Int64[Nd, "b n"], "nan is no INT64"),
        ({"x": float("inf")}, jt.Int64[Nd, "b n"], "inf is no INT64"),
        ({"x": -1}, jt.UInt8[Nd, "b n"], "-1 is no UINT8"),
        ({"x": 128}, jt.Int8[Nd, "b n"], "128 is no INT8"),
        ({"x": 2**64}, jt.Float32[Nd, "b n"], f"{2**64} is no FP32"),
        ({"x": -(2**63) - 1}, jt.Float64[Nd, "b n"], f"{-(2**63) - 1} is no FP64"),
        ({"x": 0}, npt.NDArray[np.str_], "no numbers"),
        ({"x": 0}, list[str], "is no tensor"),
    ],
)
def test_what_cannot_be_filled_up(pad: dict[str, float], annotation: Any, fault: str) -> None:
    with pytest.raises(UnsupportedAnnotationError, match=re.escape(fault)):
        filling(pad, {"x": annotation, "y": jt.Int64[Nd, "b"]})


def test_lengths_have_a_type() -> None:
    inputs = {"x": jt.Int64[Nd, "b n"], "lengths": list[int]}
    with pytest.raises(UnsupportedAnnotationError, match=r"gets the lengths of 'x', and is annotated list\[int\]"):
        filling({"x": 0}, inputs)


def test_record_elements() -> None:
    found = read(made({"x": list[Inner]}))
    (field,) = found.signature.inputs
    assert (field.type.kind, field.type.title) == ("record", "Inner")
    assert found.parameters[0].convert is not None
    assert found.parameters[0].convert({"label": "a"}) == Inner("a")


def test_what_is_no_list_is_shared() -> None:
    found = read(made({"texts": list[str], "lang": (str, "en"), "options": (dict, None), "n": (int, Input(default=3))}))
    assert found.batching.shared == ("lang", "options", "n")
    assert [field.name for field in found.signature.inputs] == ["texts", "lang", "options", "n"]
    assert found.signature.inputs[1].default == "en"


ITEM_OUTPUTS: list[tuple[Any, OutputSpec]] = [
    (list[str], OutputSpec(STRING)),
    (list[str] | None, OutputSpec(TypeSpec("string", nullable=True))),
    (list[list[float]], OutputSpec(array(TypeSpec("number")))),
    (list[dict[str, Any]], OutputSpec(TypeSpec("object", values=TypeSpec("object", anything=True)))),
    (list[str | Exception], OutputSpec(STRING)),
    (list[str | ValueError | None], OutputSpec(TypeSpec("string", nullable=True))),
    (list, OutputSpec(OPAQUE)),
    (np.ndarray, OutputSpec(OPAQUE)),
    (Any, OutputSpec(OPAQUE)),
    (EMPTY, OutputSpec(OPAQUE)),
    (Annotated[list[str], Opaque], OutputSpec(OPAQUE)),
    (list[bytes], OutputSpec(tensor("BYTES"))),
    (jt.Float32[Nd, "batch 384"], OutputSpec(tensor("FP32", 384))),
    (jt.Float32[Nd, "batch"], OutputSpec(tensor("FP32"))),
    (npt.NDArray[np.float32], OutputSpec(tensor("FP32", -1, variadic=True))),
    (jt.Float32[Nd, "batch ... 3"], OutputSpec(tensor("FP32", -1, 3, variadic=True))),
    (jt.Float32[Nd, "... 3"], OutputSpec(tensor("FP32", -1, 3, variadic=True))),
    (Iterator[list[str]], OutputSpec(STRING, "iterator")),
    (AsyncIterator[list[str]], OutputSpec(STRING, "iterator")),
    (Iterator[jt.Int64[Nd, "batch 2"]], OutputSpec(tensor("INT64", 2), "iterator")),
    (Iterator, OutputSpec(OPAQUE, "iterator")),
    (ConcatenateIterator[list[str]], OutputSpec(STRING, "concatenate")),
    (AsyncConcatenateIterator[list[str]], OutputSpec(STRING, "concatenate")),
    (ConcatenateIterator, OutputSpec(STRING, "concatenate")),
]


@pytest.mark.parametrize(("annotation", "expected"), ITEM_OUTPUTS, ids=short)
def test_a_client_gets_one_element(annotation: Any, expected: OutputSpec) -> None:
    assert read(made({"x": list[str]}, annotation)).signature.output == expected


def test_a_client_gets_a_record_of_single_values() -> None:
    output = read(made({"x": list[str]}, Typed)).signature.output.type
    assert output.fields == (
        RecordField("label", STRING),
        RecordField("embedding", tensor("FP32", 384, nullable=True), required=False),
    )
    output = read(made({"x": list[str]}, Labels)).signature.output.type
    assert output.fields == (RecordField("label", STRING), RecordField("score", TypeSpec("number")))
    output = read(made({"x": list[str]}, Outer)).signature.output.type
    assert output.fields[0].type.fields[0] == RecordField("label", STRING)
    assert output.fields[1] == RecordField("tags", array(STRING))
    assert read(made({"x": list[str]}, list[Inner])).signature.output.type.title == "Inner"
    output = read(made({"x": list[str]}, Labels | None)).signature.output.type
    assert (output.kind, output.nullable, output.fields[0].type) == ("record", True, STRING)


def test_decorators_and_documentation_are_read_as_of_any_run() -> None:
    @batched(max_size=4)
    @streaming
    def run(texts: list[str]) -> Iterator[list[str]]:
        """Says it."""
        yield texts

    found = read(run).signature
    assert (found.streaming, found.description) == (True, "Says it.")


# by rows


def test_tensors_keep_their_shape_for_the_client() -> None:
    found = read(
        made(
            {
                "x": jt.Float32[Nd, "batch 3"],
                "mask": (jt.Bool[Nd, "batch"] | None, None),
                "names": list[str],
                "notes": (list[str] | None, None),
                "scale": (float, 1.0),
            },
            Faces,
        )
    )
    assert [field.type for field in found.signature.inputs] == [
        tensor("FP32", -1, 3),
        tensor("BOOL", -1, nullable=True),
        array(STRING),
        array(STRING, nullable=True),
        TypeSpec("number"),
    ]
    assert (found.batching.by_rows, found.batching.shared) == (True, ("scale",))
    assert [field.type for field in found.signature.output.type.fields] == [tensor("FP32", -1, 4), array(STRING)]


@pytest.mark.parametrize(
    "annotation",
    [npt.NDArray[np.float32], np.ndarray[tuple[int, int], np.dtype[np.int64]], list[bytes], jt.Int64[Nd, "n ..."]],
    ids=short,
)
def test_other_tensors_with_a_variable_first_dimension(annotation: Any) -> None:
    assert read(made({"x": annotation})).batching.by_rows


ROW_OUTPUTS: list[tuple[Any, OutputSpec]] = [
    (list[str], OutputSpec(array(STRING))),
    (jt.Float32[Nd, "batch 384"], OutputSpec(tensor("FP32", -1, 384))),
    (Iterator[list[str]], OutputSpec(array(STRING), "iterator")),
    (Iterator[jt.Int64[Nd, "batch 2"]], OutputSpec(tensor("INT64", -1, 2), "iterator")),
    (EMPTY, OutputSpec(OPAQUE)),
]


@pytest.mark.parametrize(("annotation", "expected"), ROW_OUTPUTS, ids=short)
def test_outputs_of_rows_are_as_they_are_written(annotation: Any, expected: OutputSpec) -> None:
    assert read(made({"x": jt.Float32[Nd, "batch 3"]}, annotation)).signature.output == expected


def test_a_named_tuple_of_lists_is_a_record_also_without_a_tensor() -> None:
    output = read(made({"x": jt.Float32[Nd, "batch 3"]}, Labels)).signature.output.type
    assert output.fields == (RecordField("label", array(STRING)), RecordField("score", array(TypeSpec("number"))))


# what cannot be batched


X = jt.Float32[Nd, "batch 3"]
REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({}, list[str], "none of its inputs is a list or a tensor: annotate what each request brings as list"),
    ({"a": str, "b": int}, list[str], "none of its inputs is a list or a tensor"),
    ({"a": list[str] | None}, list[str], "'a' is annotated .*always gets the list.*list.str . None."),
    ({"a": (list[str], ["x"])}, list[str], "'a' has a list as its default.*Input.default='en'."),
    ({"a": (list[str], Input(default=3))}, list[str], "'a': its default 3 is not a string"),
    ({"a": list[set[str]]}, list[str], "'a' is annotated list.set.str..; set.str. is not supported"),
    ({"a": list[str], "image": Path}, list[str], "'image' is annotated Path, and no two.*write list.Path."),
    ({"a": list[str], "image": File}, list[str], "'image' is annotated File"),
    ({"x": jt.Float32[Nd, "1 3"]}, list[str], r"'x' is annotated Float32\[.*first dimension.*\"batch 3\""),
    ({"x": jt.Float32[Nd, ""]}, list[str], "the first dimension of a tensor has any size"),
    ({"x": (X, [[1, 2, 3]])}, list[str], "'x' has a default, which cannot have as many rows.*make it None"),
    ({"x": X, "names": (list[str], [])}, list[str], "'names' has a default"),
    ({"x": (X | None, None)}, list[str], "has no tensor that every request brings"),
    ({"x": X, "image": pathlib.Path}, list[str], "'image' is annotated Path"),
    ({"a": list[str]}, str, "what it returns is annotated str, which has no parts; .*return a list"),
    ({"a": list[str]}, dict, "annotated dict, which has no parts; .*a TypedDict of lists"),
    ({"a": list[str]}, Single, "annotated Single, and its field 'model' is a single string"),
    ({"a": list[str]}, Inner, "annotated Inner, and its field 'label' is a single string"),
    ({"a": list[str]}, Fixed, r"annotated Fixed, and its field 'x' is a tensor of the fixed shape \[2, 3\]: let the"),
    ({"a": list[str]}, jt.Float32[Nd, "2 3"], "whose first dimension is fixed: let the first one be the batch"),
    ({"a": list[str | Exception]}, list[str], "Exception is not supported"),
    ({"a": list[str]}, Iterator[str], "annotated str, which has no parts"),
    ({"a": list[str]}, ConcatenateIterator[str], "annotated str, which has no parts"),
    ({"a": list[str]}, ConcatenateIterator[list[int]], "only text can be concatenated"),
    ({"x": X}, ConcatenateIterator, "a request with tensors has rows, not one text: use Iterator"),
    ({"x": X}, str, "annotated str, which has no parts"),
]


@pytest.mark.parametrize(("inputs", "output", "text"), REFUSED, ids=short)
def test_what_cannot_be_batched_says_what_to_write(inputs: dict[str, Any], output: Any, text: str) -> None:
    with pytest.raises(UnsupportedAnnotationError, match=text):
        read(made(inputs, output))


def test_a_generator_that_is_annotated_as_what_it_gives_in_the_end() -> None:
    assert read(made({"x": list[str]}, list[list[str]], generator=True)).signature.output == OutputSpec(
        STRING, "iterator"
    )
    with pytest.raises(UnsupportedAnnotationError, match="has no parts"):
        read(made({"x": list[str]}, list[str], generator=True))


# the policy


def test_settings_of_the_operator_come_before_those_of_the_decorator() -> None:
    @batched(max_size=16, max_delay=0.01, preferred_sizes=(4, 8, 16))
    def run(texts: list[str]) -> list[str]:
        return texts

    assert read(run).batching.policy == BatchPolicy(16, 0.01, (4, 8, 16))
    assert read(run, max_delay=0.0, retry_singly=True).batching.policy == BatchPolicy(
        16, 0.0, (4, 8, 16), retry_singly=True
    )
    assert read(run, max_size=8).batching.policy == BatchPolicy(8, 0.01, (4, 8))
    assert read(run, max_size=1).batching.policy == BatchPolicy(1, 0.01)
    assert read(run, preferred_sizes=[2], pad_to=[2, 16], refuse_larger=False).batching.policy == BatchPolicy(
        16, 0.01, (2,), (2, 16), refuse_larger=False
    )


def test_costs_name_inputs() -> None:
    @batched(cost="texts + tokens", max_cost=100)
    def run(texts: list[str], tokens: list[int], files: list[Path], length: int = 3) -> list[str]:
        return texts

    policy = read(run).batching.policy
    assert (policy.cost, policy.max_cost, policy.sort) == ("texts + tokens", 100, 0)
    assert read(run, sort=4, max_cost=7).batching.policy.sort == 4
    automatic = read(run, max_cost="auto").batching.policy
    assert (automatic.max_cost, automatic.auto_cost) == (0, True)
    for cost, words in (("text", "there is no input 'text'; there are: texts, tokens"), ("files", "is a file")):
        with pytest.raises(UnsupportedAnnotationError, match=rf"the batching of run\(\): cost: .*{words}"):
            read(run, cost=cost)


def test_settings_that_do_not_fit() -> None:
    @batched(max_size=16, pad_to=(8, 16))
    def run(texts: list[str]) -> list[str]:
        return texts

    with pytest.raises(UnsupportedAnnotationError, match=r"the batching of run\(\): pad_to=\(8, 16\): no size"):
        read(run, max_size=32)
    with pytest.raises(UnsupportedAnnotationError, match=r"the batching of run\(\): max_size='many'"):
        read(run, max_size="many")
    with pytest.raises(UnsupportedAnnotationError, match=r"the batching of run\(\): .*typo"):
        read(run, typo=1)


# loading


MODEL = """
from geartrain import batched

class Runner:
    {decorator}
    def run(self, texts: {kind}) -> list[str]:
        return texts

@batched
def train(texts: list[str]) -> list[str]:
    return texts
"""


@pytest.fixture
def interpreter() -> Iterator[None]:
    with models_loaded():
        yield


def write(tmp_path: pathlib.Path, *, decorator: str = "@batched(max_size=4)", kind: str = "list[str]") -> pathlib.Path:
    tmp_path.joinpath("run.py").write_text(MODEL.format(decorator=decorator, kind=kind))
    return tmp_path


def test_a_loaded_runner_says_how_it_takes_batches(interpreter: None, tmp_path: pathlib.Path) -> None:
    runner = load("run.py", write(tmp_path), batching={"max_size": 2})
    assert runner.batching is not None
    assert runner.batching.policy.max_size == 2
    assert runner.signature.inputs == (InputField("texts", STRING),)
    assert [parameter.field for parameter in runner.parameters] == [*runner.signature.inputs]


def test_a_model_without_the_decorator(interpreter: None, tmp_path: pathlib.Path) -> None:
    root = write(tmp_path, decorator="")
    assert load("run.py", root).batching is None
    with pytest.raises(LoadError, match=r"^run.py:6: there are settings for batching \(max_size\), and Runner.run\(\)"):
        load("run.py", root, batching={"max_size": 2})


def test_load_errors_name_the_line(interpreter: None, tmp_path: pathlib.Path) -> None:
    with pytest.raises(LoadError, match=r"^run.py:5: Runner.run\(\) is batched, and none of its inputs"):
        load("run.py", write(tmp_path, kind="str"))
    with pytest.raises(
        LoadError, match=r"^run.py:9: train\(\) has the decorator @batched, and trainings run one by one"
    ):
        load("run.py:train", write(tmp_path), "train")
