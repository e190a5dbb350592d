"""Programs of TorchScript and torch.export, trained or made here, against PyTorch called directly."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.torch import TorchBackend
from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.backend_runner import load_backend

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of the library, for TorchScript

ROWS = load_digits().data[:300].astype(np.float32)
LABELS = load_digits().target[:300]
BATCH = {0: torch.export.Dim("batch")}


def declare(**tensors: tuple[str, list[int]]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": datatype, "shape": shape} for name, (datatype, shape) in tensors.items()]


PIXELS = {"inputs": declare(input=("FP32", [-1, 64])), "outputs": declare(scores=("FP32", [-1, 10]))}


class Two(torch.nn.Module):  # type: ignore[misc] # torch is Any here
    """Two tensors in, a tuple out."""

    def forward(self, x: Any, y: Any) -> Any:
        total = x + y
        return total, total.argmax(1)


class Nested(torch.nn.Module):  # type: ignore[misc] # as above
    """A dict, a number and a keyword in; a dict out, with things that are no tensors."""

    def forward(self, given: Any, times: Any, *, added: Any) -> Any:
        return {"sum": given["a"] * times + added, "rest": (given["b"].sum(), None, 3)}


class Keyed(torch.nn.Module):  # type: ignore[misc] # as above
    """A dict out; an optional tensor, and a number that has a default."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None, times: int = 2) -> dict[str, torch.Tensor]:
        y = x * times
        if scale is not None:
            y = y * scale
        return {"y": y, "best": y.argmax(1)}


class Texts(torch.nn.Module):  # type: ignore[misc] # as above
    """An argument that is no tensor."""

    def forward(self, x: torch.Tensor, names: list[str]) -> torch.Tensor:
        return x


@pytest.fixture(scope="module")
def trained() -> Any:
    """A network that has learned a little of the digits, with a layer that does nothing once it is trained."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pixels, labels = torch.from_numpy(ROWS / 16), torch.from_numpy(LABELS)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    return model.eval()


Save = Callable[..., Path]


@pytest.fixture
def script(tmp_path: Path) -> Save:
    def save(model: Any, *example: Any, name: str = "model.pt") -> Path:
        program = torch.jit.trace(model, example) if example else torch.jit.script(model)
        program.save(tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def export(tmp_path: Path) -> Save:
    def save(model: Any, *example: Any, name: str = "model.pt2", **options: Any) -> Path:
        program = torch.export.export(model, example, **options)
        with (tmp_path / name).open("wb") as file:
            torch.export.save(program, file)
        return tmp_path / name

    return save


def loaded(path: Path, **options: Any) -> TorchBackend:
    backend = TorchBackend(path, options)
    backend.load()
    return backend


def names(specs: tuple[TensorSpec, ...]) -> list[str]:
    return [spec.name for spec in specs]


# TorchScript


@pytest.mark.parametrize("example", [(), (torch.zeros(2, 64),)], ids=["scripted", "traced"])
def test_script_answers_as_the_model_does(script: Save, trained: Any, example: tuple[Any, ...]) -> None:
    backend = loaded(script(trained, *example), **PIXELS)
    assert backend.platform == "pytorch_torchscript"
    assert backend.inputs == (TensorSpec("input", "FP32", (-1, 64)),)
    assert backend.outputs == (TensorSpec("scores", "FP32", (-1, 10)),)
    assert backend.batches
    for count in (0, 1, 300):
        with torch.inference_mode():
            expected = trained(torch.from_numpy(ROWS[:count])).numpy()
        assert np.array_equal(backend.run({"input": ROWS[:count]})["scores"], expected)


def test_a_script_that_was_saved_while_it_learned(script: Save, trained: Any) -> None:
    path = script(trained.train())
    trained.eval()
    backend = loaded(path, **PIXELS)
    with torch.inference_mode():
        assert np.array_equal(backend.run({"input": ROWS})["scores"], trained(torch.from_numpy(ROWS)).numpy())


def test_script_with_several_tensors(script: Save) -> None:
    path = script(Two(), torch.zeros(2, 3), torch.zeros(2, 3))
    outputs = declare(total=("FP32", [-1, 3]), best=("INT64", [-1]))
    ones, twos = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    shape = ("FP32", [-1, 3])
    for inputs, given in (
        (declare(y=shape, x=shape), {"x": ones, "y": twos}),
        (declare(INPUT__1=shape, INPUT__0=shape), {"INPUT__0": ones, "INPUT__1": twos}),
    ):
        found = loaded(path, inputs=inputs, outputs=outputs).run(given)
        assert {name: array.tolist() for name, array in found.items()} == {"total": [[3] * 3] * 2, "best": [0, 0]}
    with pytest.raises(ValueError, match=r"forward\(\) has returned 2 values; 1 outputs are declared"):
        loaded(path, inputs=declare(x=shape, y=shape), outputs=outputs[:1]).run({"x": ones, "y": twos})


def test_script_with_outputs_by_their_places(script: Save) -> None:
    inputs, row = declare(x=("FP32", [-1, 3]), y=("FP32", [-1, 3])), np.ones((1, 3), np.float32)
    path = script(Two(), torch.zeros(2, 3), torch.zeros(2, 3))
    backend = loaded(path, inputs=inputs, outputs=declare(OUTPUT__1=("INT64", [-1]), OUTPUT__0=("FP32", [-1, 3])))
    found = backend.run({"x": row, "y": row})
    assert {name: array.tolist() for name, array in found.items()} == {"OUTPUT__1": [0], "OUTPUT__0": [[2, 2, 2]]}
    only = loaded(path, inputs=inputs, outputs=declare(OUTPUT__1=("INT64", [-1])))
    assert names(only.outputs) == list(only.run({"x": row, "y": row})) == ["OUTPUT__1"]
    with pytest.raises(ValueError, match="has returned 2 values; there is none for 'OUTPUT__2'"):
        loaded(path, inputs=inputs, outputs=declare(OUTPUT__2=("INT64", [-1]))).run({"x": row, "y": row})


def test_what_a_configuration_declares(script: Save, export: Save, trained: Any) -> None:
    inner = DeclaredTensor("input", "FP32", (-1, 8, 8), is_reshaped=True, inner=(-1, 64))
    output = DeclaredTensor("output", "FP32", (-1, 10))
    declared = Declared("config.pbtxt", (inner,), (output,), first="batch")
    exported = export(trained, torch.zeros(2, 64), dynamic_shapes=(BATCH,))
    for path in (script(trained, torch.zeros(2, 64)), exported):
        runner = load_backend(BackendChoice("torch", str(path), {}, declared))
        assert runner.signature.inputs[0].type.shape == (-1, 8, 8)
        (answer,) = runner.run(input=ROWS[:2].reshape(2, 8, 8)).values()
        with torch.inference_mode():
            assert np.allclose(answer, trained.eval()(torch.from_numpy(ROWS[:2])).numpy())


def test_script_with_a_dict(script: Save) -> None:
    path, inputs = script(Keyed()), declare(x=("FP32", [-1, 2]))
    x = np.array([[1, 2]], np.float32)
    backend = loaded(path, inputs=inputs, outputs=declare(best=("INT64", [-1])))
    assert backend.run({"x": x}) == {"best": np.array([1])}
    scaled = declare(x=("FP32", [-1, 2]), scale=("FP32", []))
    backend = loaded(path, inputs=scaled, outputs=declare(y=("FP32", [-1, 2])))
    assert not backend.batches
    assert backend.run({"x": x, "scale": np.array(3, np.float32)})["y"].tolist() == [[6, 12]]
    with pytest.raises(ValueError, match=r"forward\(\) has returned the keys y, best; output 'z' is declared"):
        loaded(path, inputs=inputs, outputs=declare(z=("FP32", [-1, 2]))).run({"x": x})


def test_an_error_in_a_script_is_one_sentence(script: Save, trained: Any) -> None:
    backend = loaded(script(trained), **PIXELS)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 shapes cannot be multiplied"):
        backend.run({"input": ROWS[:, :3]})


def test_what_to_declare_is_shown_ready_to_paste(script: Save, trained: Any) -> None:
    traced = script(trained, torch.zeros(2, 64))
    with pytest.raises(BackendError) as error:
        loaded(traced)
    sentence, _, shown = str(error.value).partition("\nparameters:\n")
    assert "forward() is (input: Tensor) -> Tensor; put this into geartrain.yaml" in sentence
    assert yaml.safe_load(f"parameters:\n{shown}")["parameters"] == {
        "inputs": declare(input=("FP32", [-1, 64])),
        "outputs": declare(output=("FP32", [-1, 10])),
    }
    assert loaded(traced, **yaml.safe_load(shown)).batches


def test_what_to_declare_of_a_script_without_an_example(script: Save) -> None:
    with pytest.raises(BackendError) as error:
        loaded(script(Keyed()))
    sentence, _, shown = str(error.value).partition("\nparameters:\n")
    assert "(x: Tensor, scale: Optional[Tensor], times: int) -> Dict[str, Tensor]" in sentence
    assert loaded(script(Keyed()), **yaml.safe_load(shown)).inputs == (TensorSpec("x", "FP32", (-1, -1)),)


INTEGERS = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]
NUMBERS = ["bool", *INTEGERS, "float16", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_every_datatype(export: Save, name: str) -> None:
    class Same(torch.nn.Module):  # type: ignore[misc] # as above
        def forward(self, x: Any) -> Any:
            return x.clone()

    backend = loaded(export(Same(), torch.zeros(3, dtype=getattr(torch, name))))
    array = np.array([0, 1, 1], ml_dtypes.bfloat16 if name == "bfloat16" else name)
    array.flags.writeable = False
    found = backend.run({"x": array})["output"]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


# torch.export


def test_export_answers_as_the_model_does(export: Save, trained: Any) -> None:
    backend = loaded(export(trained, torch.zeros(2, 64), dynamic_shapes=(BATCH,)))
    assert backend.platform == "pytorch_export"
    assert backend.inputs == (TensorSpec("input", "FP32", (-1, 64)),)
    assert backend.outputs == (TensorSpec("output", "FP32", (-1, 10)),)
    assert backend.batches
    assert backend.most_rows is None
    for count in (0, 1, 300):
        with torch.inference_mode():
            expected = trained(torch.from_numpy(ROWS[:count])).numpy()
        assert np.array_equal(backend.run({"input": ROWS[:count]})["output"], expected)


def test_export_with_several_tensors(export: Save) -> None:
    x = torch.zeros(2, 3)
    backend = loaded(export(Two(), x, x, dynamic_shapes=(BATCH, BATCH)))
    assert (names(backend.inputs), names(backend.outputs)) == (["x", "y"], ["output_0", "output_1"])
    assert backend.batches
    ones = np.ones((4, 3), np.float32)
    assert backend.run({"x": ones, "y": ones})["output_1"].tolist() == [0] * 4


def test_export_of_what_is_nested(export: Save, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"a": torch.zeros(2, 3), "b": torch.zeros(5)}
    backend = loaded(export(Nested(), given, 2, kwargs={"added": torch.zeros(3)}))
    assert names(backend.inputs) == ["given_a", "given_b", "added"]
    assert names(backend.outputs) == ["sum", "rest_0"]
    log = capsys.readouterr().err
    assert "output 'rest_1' is no tensor. It is left out." in log
    assert "all sizes are fixed; export it with `dynamic_shapes` to have batches" in log
    arrays = {"given_a": np.ones((2, 3)), "given_b": np.ones(5), "added": np.ones(3)}
    found = backend.run({name: array.astype(np.float32) for name, array in arrays.items()})
    assert {name: array.tolist() for name, array in found.items()} == {"sum": [[3] * 3] * 2, "rest_0": 5}
    assert not backend.batches


def test_export_with_a_limit_has_smaller_batches(export: Save, trained: Any) -> None:
    limited = {0: torch.export.Dim("batch", max=16)}
    path = export(trained, torch.zeros(2, 64), dynamic_shapes=(limited,))
    batching = load_backend(BackendChoice("torch", str(path))).batching
    assert batching is not None
    assert (batching.policy.max_size, batching.policy.refuse_larger) == (16, True)


def test_rows_that_are_not_those_of_the_input(export: Save) -> None:
    class Doubled(torch.nn.Module):  # type: ignore[misc] # as above
        def forward(self, x: Any) -> Any:
            return torch.cat([x, x])

    assert not loaded(export(Doubled(), torch.zeros(3, 2), dynamic_shapes=(BATCH,))).batches


def test_the_content_says_what_it_is_and_not_the_name(export: Save, script: Save, trained: Any) -> None:
    exported = export(trained, torch.zeros(2, 64), name="exported.pt", dynamic_shapes=(BATCH,))
    assert loaded(exported).platform == "pytorch_export"
    assert loaded(script(trained, name="scripted.pt2"), **PIXELS).platform == "pytorch_torchscript"


# options


def test_threads(script: Save, trained: Any) -> None:
    path, before = script(trained), torch.get_num_threads()
    try:
        loaded(path, threads=1, device="cpu", **PIXELS)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


SHAPE = ("FP32", [-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "`parameters.device` is 'tpu'; write auto, cpu, cuda, or cuda:0 and so on"),
        (
            {"device": "cuda:99"},
            r"`parameters.device` is 'cuda:99'; this PyTorch \(.*\) finds \w+ GPUs here; write auto",
        ),
        ({"threads": 0}, "`parameters.threads` is 0"),
        ({"inputs": declare(x=SHAPE)}, "declares x; forward.. takes input: give inputs the names of the arguments"),
        (
            {"inputs": declare(input=("BYTES", [-1]))},
            "'input' is declared as BYTES, and PyTorch has no tensors of texts",
        ),
        ({"inputs": "x"}, "`parameters.inputs` is 'x'; write a list with `name`, `datatype` and `shape` of each"),
        ({"inputs": [{"name": "x"}]}, r"`parameters.inputs\[0\]` is .*; write a list with"),
        ({"inputs": declare(input=("FLOAT", [1]))}, r"`parameters.inputs\[0\].datatype` is 'FLOAT'; write one of BF16"),
        ({"inputs": declare(input=("FP32", [-2]))}, r"`parameters.inputs\[0\].shape` is \[-2\]; write a list of sizes"),
        ({"inputs": declare(input=SHAPE) * 2}, "give each tensor a name of its own"),
    ],
)
def test_wrong_options(script: Save, trained: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        loaded(script(trained), **{**PIXELS, **options})


def test_a_program_of_export_is_not_declared(export: Save, trained: Any) -> None:
    with pytest.raises(BackendError, match=r"remove `parameters.inputs`: a program of torch.export says itself"):
        loaded(export(trained, torch.zeros(2, 64)), inputs=PIXELS["inputs"])


# wrong files


def test_weights_alone_are_refused(tmp_path: Path, trained: Any) -> None:
    for content in (trained, trained.state_dict()):
        for zipped in (True, False):
            torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
            with pytest.raises(BackendError, match=r"of torch.save, weights or a Python object, and no program; make"):
                loaded(tmp_path / "model.pt")


def test_cut_files(script: Save, export: Save, trained: Any) -> None:
    for path in (script(trained), export(trained, torch.zeros(2, 64))):
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(BackendError, match="the file is cut, or damaged: its list of contents is missing"):
            loaded(path, **PIXELS)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"hello")
    with pytest.raises(BackendError, match=r"this is text; a program of TorchScript \(.pt\) or torch.export"):
        loaded(path)
    for name, message in (("a.txt", "zip archive of other things"), ("m/data/aotinductor/m/x.so", "by AOTInductor")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "")
        with pytest.raises(BackendError, match=message):
            loaded(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/code/x.py", "")
    with pytest.raises(BackendError, match="PyTorch cannot load it: "):
        loaded(path)


def test_arguments_that_are_no_tensors(script: Save) -> None:
    with pytest.raises(BackendError, match=r"argument 'names' of forward\(\) is a List\[str\], and no tensor; wrap"):
        loaded(script(Texts()))
