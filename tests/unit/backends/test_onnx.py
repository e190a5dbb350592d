"""ONNX files, made by onnx and skl2onnx, against onnxruntime called directly: equal to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.onnx import OnnxBackend
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import load_backend

Info = onnx.ValueInfoProto
Make = Callable[..., Path]

OPSET = helper.make_opsetid("", 20)
PIXELS, DIGITS = load_digits(return_X_y=True)
ROWS = PIXELS[:400].astype(np.float32)


def info(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = ("n",)) -> Info:
    return helper.make_tensor_value_info(name, kind, shape)


def identity(kind: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = ("n",)) -> onnx.GraphProto:
    return graph([("Identity", "x", "y")], [info("x", kind, shape)], [info("y", kind, shape)])


def graph(
    nodes: Sequence[tuple[str, str, str]], inputs: list[Info], outputs: list[Info], weights: Any = ()
) -> onnx.GraphProto:
    """A graph of operators with names of inputs and outputs, separated by blanks."""
    made = [helper.make_node(operator, given.split(), gives.split()) for operator, given, gives in nodes]
    return helper.make_graph(made, "made", inputs, outputs, list(weights))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(content: onnx.GraphProto | bytes, name: str = "model.onnx", **fields: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, onnx.GraphProto):
            fields = {"opset_imports": [OPSET], "ir_version": 9, **fields}
            content = helper.make_model(content, **fields).SerializeToString()
        path.write_bytes(content)
        return path

    return write


def loaded(path: Path, **options: Any) -> OnnxBackend:
    backend = OnnxBackend(path, options)
    backend.load()
    return backend


def directly(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        assert array.shape == expected[name].shape
        assert array.tolist() == expected[name].tolist()


# datatypes and shapes


NUMBERS = {
    "BOOL": (TensorProto.BOOL, np.array([True, False, True])),
    **{
        f"{prefix}INT{bits}": (getattr(TensorProto, f"{prefix}INT{bits}"), np.array([limits.min, 0, limits.max], dtype))
        for prefix, letter in (("U", "u"), ("", "i"))
        for bits in (8, 16, 32, 64)
        for dtype in (np.dtype(f"{letter}{bits // 8}"),)
        for limits in (np.iinfo(dtype),)
    },
    "FP16": (TensorProto.FLOAT16, np.array([-65504, 0.5, np.inf], np.float16)),
    "FP32": (TensorProto.FLOAT, np.array([-3.4e38, 0.1, -0.0], np.float32)),
    "FP64": (TensorProto.DOUBLE, np.array([-1.7e308, 0.1, 5e-324])),
}


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_datatype(make: Make, datatype: str) -> None:
    kind, array = NUMBERS[datatype]
    path = make(identity(kind))
    backend = loaded(path)
    assert backend.inputs == (TensorSpec("x", datatype, (-1,)),)
    assert backend.outputs == (TensorSpec("y", datatype, (-1,)),)
    assert_same(backend.run({"x": array}), directly(path, {"x": array}))


def test_bfloat16(make: Make) -> None:
    nodes = [("Identity", "x", "y"), ("Cast", "x", "wide")]
    made = graph(nodes, [info("x", TensorProto.BFLOAT16)], [info("y", TensorProto.BFLOAT16), info("wide")])
    made.node[1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    backend = loaded(make(made))
    assert [spec.datatype for spec in (*backend.inputs, *backend.outputs)] == ["BF16", "BF16", "FP32"]
    for numbers in ([1.5, -2.0, 3e38], []):
        array = np.array(numbers, ml_dtypes.bfloat16)
        found = backend.run({"x": array})
        assert_same(found, {"y": array, "wide": array.astype(np.float32)})


def test_texts(make: Make) -> None:
    path = make(identity(TensorProto.STRING, ("n", 2)))
    backend = loaded(path)
    assert backend.inputs == (TensorSpec("x", "BYTES", (-1, 2)),)
    given = np.array([["a\0b", ""], ["ä", "日本"]], object)
    in_bytes = np.array([[text.encode() for text in row] for row in given.tolist()], object)
    expected = directly(path, {"x": given})
    assert_same(backend.run({"x": in_bytes}), expected)
    assert_same(backend.run({"x": given}), expected)
    with pytest.raises(ValueError, match="input 'x': element 1 is no UTF-8 text"):
        backend.run({"x": np.array([[b"a", b"\xff"]], object)})


@pytest.mark.parametrize(
    ("shape", "expected", "given", "batches"),
    [
        (("n", 3), (-1, 3), (5, 3), True),
        ((None, 3), (-1, 3), (0, 3), True),
        ((2, 3), (2, 3), (2, 3), False),
        ((), (), (), False),
        (("n", "n"), (-1, -1), (2, 2), False),  # of each row against each other
        (("seq_len",), (-1,), (4,), False),  # one text, and not as many as it is long
        (("unk__7", "unk__8"), (-1, -1), (2, 1), True),
        ((1, "n"), (1, -1), (1, 4), False),
    ],
)
def test_shapes(
    make: Make, shape: tuple[Any, ...], expected: tuple[int, ...], given: tuple[int, ...], *, batches: bool
) -> None:
    path = make(identity(shape=shape))
    backend = loaded(path)
    assert backend.inputs == (TensorSpec("x", "FP32", expected),)
    assert backend.batches is batches
    array = np.ones(given, np.float32)
    assert_same(backend.run({"x": array}), directly(path, {"x": array}))


def test_a_shape_that_the_file_leaves_open(make: Make) -> None:
    backend = loaded(make(identity(shape=None)))
    assert backend.inputs == (TensorSpec("x", "FP32", (), variadic=True),)
    assert not backend.batches
    for shape in ((), (2,), (1, 2, 3)):
        assert backend.run({"x": np.ones(shape, np.float32)})["y"].shape == shape


def test_dimensions_with_other_names_are_not_one_batch(make: Make) -> None:
    inputs = [info("a", shape=("batch",)), info("b", shape=("others",))]
    outputs = [info("y", shape=("batch",)), info("z", shape=("others",))]
    assert not loaded(make(graph([("Neg", "a", "y"), ("Neg", "b", "z")], inputs, outputs))).batches


def test_inputs_with_a_value_in_the_graph_keep_it(make: Make) -> None:
    weight = numpy_helper.from_array(np.array([2], np.float32), "w")
    inputs = [info("x"), info("w", shape=(1,))]
    backend = loaded(make(graph([("Mul", "x w", "y")], inputs, [info("y")], [weight])))
    assert [spec.name for spec in backend.inputs] == ["x"]
    assert backend.run({"x": np.array([3], np.float32)})["y"].tolist() == [6]


def test_arrays_in_any_order_of_memory(make: Make) -> None:
    backend = loaded(make(identity(shape=("n", 3))))
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert backend.run({"x": array})["y"].tolist() == array.tolist()


# models of scikit-learn


@pytest.fixture(scope="module")
def classifier() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=50, tol=0.1)).fit(ROWS, DIGITS[:400])


def test_classifier(make: Make, classifier: Any) -> None:
    path = make(to_onnx(classifier, ROWS[:1], options={"zipmap": False}).SerializeToString())
    backend = loaded(path)
    assert backend.inputs == (TensorSpec("X", "FP32", (-1, 64)),)
    assert backend.outputs == (TensorSpec("label", "INT64", (-1,)), TensorSpec("probabilities", "FP32", (-1, 10)))
    assert backend.batches
    for count in (0, 1, 7, 400):
        assert_same(backend.run({"X": ROWS[:count]}), directly(path, {"X": ROWS[:count]}))
    assert np.array_equal(backend.run({"X": ROWS})["label"], classifier.predict(ROWS))


def test_zipmap_is_left_out(make: Make, classifier: Any, capsys: pytest.CaptureFixture[str]) -> None:
    backend = loaded(make(to_onnx(classifier, ROWS[:1]).SerializeToString()))
    assert [spec.name for spec in backend.outputs] == ["output_label"]
    assert backend.batches
    assert np.array_equal(backend.run({"X": ROWS})["output_label"], classifier.predict(ROWS))
    log = capsys.readouterr().err
    assert "output 'output_probability' is a seq(map(int64,tensor(float))) and no tensor; export it with" in log
    assert "'zipmap': False" in log


def test_classifier_of_texts(make: Make) -> None:
    names = np.array([f"digit {digit}" for digit in DIGITS[:400]])
    model = LogisticRegression(max_iter=50, tol=0.1).fit(ROWS / 16, names)
    path = make(to_onnx(model, ROWS[:1], options={"zipmap": False}).SerializeToString())
    backend = loaded(path)
    assert backend.outputs[0] == TensorSpec("label", "BYTES", (-1,))
    assert_same(backend.run({"X": ROWS[:5] / 16}), directly(path, {"X": ROWS[:5] / 16}))


def test_regressor(make: Make) -> None:
    model = GradientBoostingRegressor(n_estimators=5).fit(ROWS, DIGITS[:400])
    path = make(to_onnx(model, ROWS[:1]).SerializeToString())
    backend = loaded(path)
    assert backend.outputs == (TensorSpec("variable", "FP32", (-1, 1)),)
    assert_same(backend.run({"X": ROWS}), directly(path, {"X": ROWS}))


# what the file says of itself


def test_description(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(identity(), doc_string="What it is for.", producer_name="us", model_version=3)
    assert load_backend(BackendChoice("onnx", str(path))).signature.description == "What it is for."
    log = capsys.readouterr().err
    assert "model.onnx: What it is for." in log
    assert f"onnxruntime {onnxruntime.__version__} with CPUExecutionProvider" in log
    assert loaded(make(identity(), producer_name="us", model_version=3)).description == "made version 3, made with us"
    assert loaded(make(identity())).description == "made"


# options


@pytest.mark.parametrize(
    "options",
    [
        {"providers": "CPUExecutionProvider"},
        {"providers": ["CPUExecutionProvider"]},
        {"providers": [{"CPUExecutionProvider": {"use_arena": True}}]},
        {"intra_op_threads": 1, "inter_op_threads": 2},
        {"session_options": {"graph_optimization_level": "basic", "execution_mode": "parallel"}},
        {"session_options": {"enable_mem_pattern": False, "log_severity_level": 3}},
        {"session_options": {"session.intra_op.allow_spinning": True, "session.dynamic_block_base": 4}},
    ],
)
def test_options_change_no_answer(make: Make, options: dict[str, Any]) -> None:
    path = make(graph([("Softmax", "x", "y")], [info("x", shape=("n", 64))], [info("y", shape=("n", 64))]))
    assert_same(loaded(path, **options).run({"x": ROWS}), directly(path, {"x": ROWS}))


def test_threads_do_not_spin_unless_they_are_told_to(make: Make) -> None:
    path = make(identity())
    chosen = loaded(path, intra_op_threads=3)._session.get_session_options()
    assert chosen.intra_op_num_threads == 3
    assert chosen.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert chosen.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    settings = {"session.intra_op.allow_spinning": True}
    chosen = loaded(path, inter_op_threads=2, session_options=settings)._session.get_session_options()
    assert chosen.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert chosen.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": ["TPUExecutionProvider"]}, "`parameters.providers` is 'TPUExecutionProvider'; this onnxruntime"),
        ({"providers": []}, r"`parameters.providers` is \[\]; write a list of names"),
        ({"providers": [7]}, "is 7; write a name, or a name and below it"),
        ({"intra_op_threads": 0}, "`parameters.intra_op_threads` is 0; write a whole number of at least 1"),
        ({"session_options": {"no": 1}}, "`parameters.session_options.no` is not known; there are graph_optimiz"),
        ({"session_options": {"execution_mode": "fast"}}, "session_options.execution_mode` is 'fast'; write one of"),
        ({"session_options": {"enable_mem_reuse": 1}}, "session_options.enable_mem_reuse` is 1; write true or false"),
    ],
)
def test_wrong_options(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        loaded(make(identity()), **options)


# wrong files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "this is empty; an ONNX model is expected"),
        (b"hello\nworld\n", "this is text; an ONNX model is expected"),
        (b"PK\x03\x04" + bytes(50), "this is a zip archive"),
        (b"\x80\x04" + bytes(50), "this is a pickle of Python"),
        (b"version https://git-lfs.github.com/spec/v1\n", "only a pointer of Git LFS: fetch the file itself"),
        (bytes(100), "this is another kind of file; an ONNX model is expected"),
        (b"\x08\x09", "this is another kind of file"),  # a message, and no graph in it
    ],
)
def test_foreign_files(make: Make, content: bytes, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        loaded(make(content))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot be read: No such file"):
        loaded(tmp_path / "model.onnx")
    with pytest.raises(BackendError, match="this is a folder"):
        loaded(tmp_path)


def test_cut_anywhere(make: Make) -> None:
    whole = make(identity()).read_bytes()
    for end in range(1, len(whole)):
        with pytest.raises(BackendError):
            loaded(make(whole[:end]))
    with pytest.raises(BackendError, match=r"the file is cut: at least \d+ bytes are missing at its end"):
        loaded(make(whole[: whole.index(b"made")]))


def test_what_onnxruntime_refuses(make: Make) -> None:
    unknown = graph([("Nonsense", "x", "y")], [info("x")], [info("y")])
    with pytest.raises(BackendError, match=r"^onnxruntime cannot load it: .*Nonsense") as error:
        loaded(make(unknown))
    assert "ONNXRuntimeError" not in str(error.value)
    with pytest.raises(BackendError, match="Unsupported model IR version: 99"):
        loaded(make(identity(), ir_version=99))


def test_what_is_no_tensor(make: Make) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ("n",))
    with pytest.raises(BackendError, match=r"output 's' is a seq\(tensor\(float\)\) and no tensor$"):
        loaded(make(graph([("SequenceConstruct", "x", "s")], [info("x")], [sequence])))
    with pytest.raises(BackendError, match=r"input 's' is a seq\(tensor\(float\)\); only tensors can be sent"):
        loaded(make(graph([("SequenceLength", "s", "y")], [sequence], [info("y", TensorProto.INT64, ())])))


def test_external_data(make: Make, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    made = graph([("Add", "x w", "y")], [info("x", shape=("n", 64))], [info("y", shape=("n", 64))], [weight])
    model = helper.make_model(made, opset_imports=[OPSET], ir_version=9)
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    onnx.save_model(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    assert_same(loaded(path).run({"x": ROWS}), directly(path, {"x": ROWS}))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(BackendError, match=r"in model.onnx.data, which is cut: it has 100 of at least 256 bytes"):
        loaded(path)
    data.unlink()
    with pytest.raises(BackendError, match=r"in model.onnx.data, which is not there; put that file into"):
        loaded(path)
