"""SavedModels, made here, against TensorFlow called directly. TensorFlow is large, and often not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.options import usable_cpus
from geartrain.backends.tensorflow import TensorFlowBackend

tensorflow: Any = pytest.importorskip("tensorflow")
# In a worker the backend is the first to touch TensorFlow; here the models are made before, which fixes the threads.
tensorflow.config.threading.set_intra_op_parallelism_threads(usable_cpus())
tensorflow.config.threading.set_inter_op_parallelism_threads(usable_cpus())
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Model(tensorflow.Module):  # type: ignore[misc] # tensorflow is Any here
    """Numbers and texts in, numbers and texts out; and a second signature."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = tensorflow.Variable(WEIGHTS)

    def serve(self, x: Any, names: Any) -> Any:
        return {"y": x @ self.weights, "upper": tensorflow.strings.upper(names)}

    def twice(self, x: Any) -> Any:
        return {"z": x * 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, model = tmp_path_factory.mktemp("saved"), Model()
    spec = tensorflow.TensorSpec
    serve = tensorflow.function(model.serve).get_concrete_function(
        x=spec([None, 4], tensorflow.float32, name="x"), names=spec([None], tensorflow.string, name="names")
    )
    twice = tensorflow.function(model.twice).get_concrete_function(x=spec(None, tensorflow.float32, name="x"))
    tensorflow.saved_model.save(model, str(path), signatures={"serving_default": serve, "twice": twice})
    return path


def loaded(path: Path, **options: Any) -> TensorFlowBackend:
    backend = TensorFlowBackend(path, options)
    backend.load()
    return backend


def test_numbers_and_texts(folder: Path) -> None:
    backend = loaded(folder)
    assert set(backend.inputs) == {TensorSpec("x", "FP32", (-1, 4)), TensorSpec("names", "BYTES", (-1,))}
    assert set(backend.outputs) == {TensorSpec("y", "FP32", (-1, 3)), TensorSpec("upper", "BYTES", (-1,))}
    assert backend.batches
    model = tensorflow.saved_model.load(str(folder)).signatures["serving_default"]
    for count in (0, 1, 5):
        x, names = np.full((count, 4), 0.1, np.float32), np.array([b"a\xff"] * count, object)
        expected = model(x=tensorflow.constant(x), names=tensorflow.constant(names, tensorflow.string))
        found = backend.run({"x": x, "names": names})
        assert np.array_equal(found["y"], expected["y"].numpy())
        assert found["upper"].tolist() == [b"A\xff"] * count


def test_another_signature(folder: Path) -> None:
    backend = loaded(folder, signature="twice")
    assert backend.inputs == (TensorSpec("x", "FP32", (), variadic=True),)
    assert not backend.batches
    assert backend.run({"x": np.array([[1, 2]], np.float32)})["z"].tolist() == [[2, 4]]
    with pytest.raises(BackendError, match=r"no signature 'none' in it; set .* to one of serving_default, twice"):
        loaded(folder, signature="none")


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"there is no saved_model.pb in it"):
        loaded(tmp_path)
    content = (folder / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(content[: len(content) // 2])
    with pytest.raises(BackendError, match=r"TensorFlow cannot load it, perhaps because a file in it is cut"):
        loaded(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(BackendError, match=r"TensorFlow cannot load it, .*variables"):
        loaded(tmp_path)
    tensorflow.saved_model.save(tensorflow.Module(), str(tmp_path / "bare"))
    with pytest.raises(BackendError, match="it has no signatures, which say what it takes; save it with"):
        loaded(tmp_path / "bare")
