"""SavedModels of TensorFlow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from geartrain.backends.arrays import datatype_of
from geartrain.backends.cpus import usable_cpus
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.libraries import note, require
from geartrain.backends.options import text, whole_number
from geartrain.domain.tensors.tensor import VARIABLE

if TYPE_CHECKING:
    import numpy as np

_DEFAULT = "serving_default"
_CONTENTS = ("saved_model.pb", "variables")


class TensorFlowBackend(Backend):
    """A folder with a `saved_model.pb`; what is run is one of its signatures."""

    platform = "tensorflow_savedmodel"
    options = frozenset({"signature", "intra_op_threads", "inter_op_threads"})

    def load(self) -> None:
        wanted = text(self.given, "signature") or _DEFAULT
        within = whole_number(self.given, "intra_op_threads") or usable_cpus()
        between = whole_number(self.given, "inter_op_threads") or usable_cpus()
        if not (self.path / _CONTENTS[0]).is_file():
            raise BackendError(f"there is no {_CONTENTS[0]} in it; the folder of a SavedModel is expected")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # it tells of the processor's instructions at each start
        tensorflow = require("tensorflow", extra="tensorflow")
        tensorflow.config.threading.set_intra_op_parallelism_threads(within)
        tensorflow.config.threading.set_inter_op_parallelism_threads(between)
        try:
            self._model = tensorflow.saved_model.load(str(self.path))  # the file is freed with it
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"TensorFlow cannot load it, perhaps because a file in it is cut: {first}") from error
        self._tensorflow = tensorflow
        self._signature = self._named(wanted)
        self._kinds = dict(self._signature.structured_input_signature[1])
        self.inputs = tuple(_spec(f"input '{name}'", name, kind) for name, kind in self._kinds.items())
        results = self._signature.structured_outputs
        self.outputs = tuple(_spec(f"output '{name}'", name, kind) for name, kind in results.items())
        self.description = f"Signature {wanted} of a SavedModel."
        note(f"{self.path.name}: TensorFlow {tensorflow.__version__}, signature {wanted}, {within} threads")

    def _named(self, wanted: str) -> Any:
        signatures = self._model.signatures
        if not signatures:
            fix = "save it with model.export(folder) of Keras, or tf.saved_model.save(model, folder, signatures=...)"
            raise BackendError(f"it has no signatures, which say what it takes; {fix}")
        if wanted not in signatures:
            names = ", ".join(signatures)
            raise BackendError(f"there is no signature '{wanted}' in it; set `parameters.signature` to one of {names}")
        return signatures[wanted]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        constant = self._tensorflow.constant
        tensors = {name: constant(inputs[name], dtype=kind.dtype) for name, kind in self._kinds.items()}
        return {name: _array(result) for name, result in self._signature(**tensors).items()}

    def close(self) -> None:
        self._model = self._signature = None


def _spec(what: str, name: str, kind: Any) -> TensorSpec:
    dtype = getattr(kind, "dtype", None)
    if dtype is None or not hasattr(kind, "shape") or dtype.name in {"resource", "variant"}:
        raise BackendError(f"{what} is a {type(kind).__name__}, and no tensor; save a signature that has tensors alone")
    try:
        datatype = "BYTES" if dtype.name == "string" else datatype_of(dtype.as_numpy_dtype)
    except BackendError as error:
        raise BackendError(f"{what}: {error}") from None
    if kind.shape.rank is None:
        return TensorSpec(name, datatype, (), variadic=True)
    return TensorSpec(name, datatype, tuple(VARIABLE if size is None else size for size in kind.shape.as_list()))


def _array(result: Any) -> np.ndarray:
    import numpy as np

    return np.asarray(result.numpy(), dtype=object if result.dtype.name == "string" else None)
