"""Common part of the backends of tables: rows of features in, one answer for each row out.

Their files say little of the tensors. The features are one tensor of numbers, or, where they are named and of several
types, one tensor for each column. A trial run on a made-up row shows the output.
"""

from __future__ import annotations

import abc
import importlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from geartrain.backends import declared, options
from geartrain.backends.arrays import datatype_of, numpy_type
from geartrain.backends.foreign import what_is
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.libraries import note
from geartrain.domain.tensors.tensor import DATATYPES, VARIABLE

if TYPE_CHECKING:
    import numpy as np

INPUT: Final = "input"

Method = Callable[[Any], Any]
"""From the features of some rows to an array with an answer for each."""

_PLACE: Final = re.compile(r"^\[[\d:]+\] \S+: ")  # of an error in a library's source
_TRIALS: Final = (0, 1)  # some models refuse one of them: a logarithm, or an unknown category


class TabularBackend(Backend):
    """A model of rows. A subclass opens the file, and says what the model can be asked."""

    options: ClassVar[frozenset[str]] = frozenset({"datatype", "inputs", "outputs", "threads"})
    default_datatype = "FP64"

    @abc.abstractmethod
    def open(self, threads: int | None) -> Mapping[str, Method]:
        """Read the file; return what the model can be asked, the usual question first. Raises `BackendError`.

        `threads`: how many it may use; None leaves it to the library.
        """

    @abc.abstractmethod
    def features(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of the opened model, where `parameters` declare none: `rows` makes them."""

    def frame(self, columns: dict[str, np.ndarray]) -> Any:
        """Make what the library takes of several columns."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise BackendError(
                "several inputs are the columns of a DataFrame, which needs pandas: pip install pandas"
            ) from None
        return pandas.DataFrame(columns)

    def rows(self, features: int | None, *, datatype: str | None = None) -> tuple[TensorSpec, ...]:
        """Return one input, of so many features in a row; of any number if that is None."""
        written = options.text(self.given, "datatype", choices=sorted(DATATYPES))
        return (TensorSpec(INPUT, written or datatype or self.default_datatype, (VARIABLE, features or VARIABLE)),)

    def load(self) -> None:
        """Raises `BackendError`."""
        if self.path.is_dir():
            raise BackendError("it is a folder, and a file is expected")
        methods = self.open(options.whole_number(self.given, "threads"))
        self.inputs = declared.tensors(self.given, "inputs") or self.features()
        for spec in self.inputs:
            if spec.shape[:1] != (VARIABLE,) or (len(self.inputs) > 1 and len(spec.shape) != 1):
                wanted = "[-1]: a column" if len(self.inputs) > 1 else "[-1, …]: its first dimension are the rows"
                raise BackendError(
                    f"`parameters.inputs`: '{spec.name}' has the shape {list(spec.shape)}; write {wanted}"
                )
        chosen = options.texts(self.given, "outputs", choices=tuple(methods)) or tuple(methods)[:1]
        self._methods = {name: methods[name] for name in chosen}
        self._types = {spec.name: numpy_type(spec.datatype) for spec in self.inputs}
        self.outputs = self._try()

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Ask the model each of the questions that were chosen; the libraries take no table without rows."""
        if not len(next(iter(inputs.values()))):
            return {spec.name: _nothing(spec) for spec in self.outputs}
        table = self._table(inputs)
        return {name: as_array(method(table)) for name, method in self._methods.items()}

    def _table(self, inputs: dict[str, np.ndarray]) -> Any:
        columns = {
            spec.name: as_texts(spec.name, inputs[spec.name]) if spec.datatype == "BYTES" else inputs[spec.name]
            for spec in self.inputs
        }
        return next(iter(columns.values())) if len(columns) == 1 else self.frame(columns)

    def _try(self) -> tuple[TensorSpec, ...]:
        """Find out what the outputs are; where no made-up row will do, say what is likely."""
        fault: Exception | None = None
        for value in _TRIALS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = self.run({spec.name: self._made_up(spec, value) for spec in self.inputs})
                return tuple(_described(name, array) for name, array in found.items())
            except BackendError:
                raise
            except Exception as error:  # noqa: BLE001 - a made-up row may make no sense to it
                fault = fault or error
        note(f"a trial run of {self.path.name} failed ({fault}), so the shapes of its outputs are not known")
        return tuple(self.likely(name) for name in self._methods)

    def likely(self, name: str) -> TensorSpec:
        """Return the usual form of an output."""
        shape = (VARIABLE,) if name == "predict" else (VARIABLE, VARIABLE)
        return TensorSpec(name, "FP64", shape)

    def _made_up(self, spec: TensorSpec, value: int) -> np.ndarray:
        import numpy as np

        shape = tuple(1 if size == VARIABLE else size for size in spec.shape)
        if spec.datatype == "BYTES":
            return np.full(shape, b"a" if value else b"", dtype=object)
        return np.full(shape, value, dtype=self._types[spec.name])

    # errors

    def not_read(self, error: BaseException, expected: str, *begins: bytes) -> BackendError:
        """Return the error for a file that the library does not read; `begins`: how one of its own may begin."""
        lines = _PLACE.sub("", str(error).strip()).splitlines()
        reason = f"{type(error).__name__}: {_clip(lines[0])}" if lines else type(error).__name__
        what = "" if begins and self.begins(*begins) else what_is(self.path)
        return BackendError(
            f"it {what}, and no {expected}" if what else f"it is no {expected}, or it is cut ({reason})"
        )

    def begins(self, *beginnings: bytes) -> bool:
        """True if the file begins with one of these."""
        try:
            with self.path.open("rb") as file:
                return file.read(max(map(len, beginnings))).startswith(beginnings)
        except OSError:
            return False


def _nothing(spec: TensorSpec) -> np.ndarray:
    import numpy as np

    return np.empty([max(size, 0) for size in spec.shape], numpy_type(spec.datatype))


def _described(name: str, array: np.ndarray) -> TensorSpec:
    if array.shape[:1] != (1,):
        raise BackendError(
            f"its output '{name}' has the shape {list(array.shape)} for one row, and no answer for each row"
        )
    return TensorSpec(name, datatype_of(array.dtype), (VARIABLE, *array.shape[1:]))


def as_array(value: Any) -> np.ndarray:
    """Return an answer as one array: sparse ones filled up, those for several targets side by side."""
    import numpy as np

    if hasattr(value, "toarray"):
        value = value.toarray()
    if isinstance(value, list) and value and all(hasattr(item, "shape") for item in value):
        if len({item.shape for item in value}) > 1:
            raise BackendError("its targets have different numbers of classes, which one tensor cannot hold")
        return np.stack(value, axis=1)
    return np.asarray(value)


def as_texts(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array of texts for one of bytes; raise `ValueError` that names the input if they are no UTF-8."""
    import numpy as np

    texts = np.empty(array.size, object)
    try:
        texts[:] = [item if isinstance(item, str) else item.decode() for item in array.ravel().tolist()]
    except UnicodeDecodeError:
        raise ValueError(f"input '{name}' is text, and its bytes are not valid UTF-8") from None
    return texts.reshape(array.shape)


def one_column(array: Any) -> Any:
    """Return an answer of one number for each row as a vector, whatever the library makes of it."""
    return array.reshape(len(array)) if array.ndim > 1 and array.size == len(array) else array


def use_folder(path: os.PathLike[str]) -> None:
    """Let what lies beside a file be imported: the classes of its pickle."""
    import sys

    folder = os.path.dirname(path)  # noqa: PTH120 - sys.path holds texts
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _clip(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
