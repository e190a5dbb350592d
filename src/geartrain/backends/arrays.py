"""Between the datatypes of the Open Inference Protocol and those of numpy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from geartrain.backends.interface import BackendError
from geartrain.domain.tensors.tensor import ARRAY_NAMES

if TYPE_CHECKING:
    import numpy as np

_DATATYPES = {name: datatype for datatype, name in ARRAY_NAMES.items()}
_TEXTS = "USO"  # the kinds of numpy's types that hold texts, or objects


def datatype_of(dtype: Any) -> str:
    """Return the datatype of a numpy type: BYTES of texts and objects. Raises `BackendError` if there is none."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind in _TEXTS:
        return "BYTES"
    try:
        return _DATATYPES[kind.name]
    except KeyError:
        raise BackendError(f"the Open Inference Protocol has no datatype for {kind.name}") from None


def numpy_type(datatype: str) -> np.dtype[Any]:
    """Return the numpy type of a datatype: objects for BYTES, that of the package ml_dtypes for BF16."""
    import numpy as np

    if datatype == "BYTES":
        return np.dtype(object)
    if datatype == "BF16":
        import importlib

        kind: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return kind
    return np.dtype(ARRAY_NAMES[datatype])


def decoded(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array of `str` of one of `bytes`; raise `ValueError` that names the input and the element."""
    import numpy as np

    texts = np.empty(array.size, object)
    for index, element in enumerate(array.ravel().tolist()):
        try:
            texts[index] = element.decode() if isinstance(element, bytes) else element
        except UnicodeDecodeError:
            raise ValueError(f"input '{name}': element {index} is no UTF-8 text, which the model needs") from None
    return texts.reshape(array.shape)


Dimension = int | str | None
"""A size, the name of a size that is variable, or a variable one without a name."""

_NO_ROWS: Final = re.compile(r"seq|len|time|frame|token|chars|word", re.IGNORECASE)
"""Names of dimensions whose elements belong together: what is said of one row depends on those beside it."""


def are_rows(inputs: Sequence[Sequence[Dimension]], outputs: Sequence[Sequence[Dimension]]) -> bool:
    """True if requests may be laid one behind the other along the first dimension of every tensor.

    It must be variable everywhere, and where it has a name, the same everywhere and in no other place: a model that
    gives [n, n] for n rows compares them with each other. Without inputs, or with doubt, the answer is no.
    """
    shapes = (*inputs, *outputs)
    if not inputs or any(not shape or isinstance(shape[0], int) for shape in shapes):
        return False
    names = {shape[0] for shape in shapes} - {None}
    elsewhere = {dimension for shape in shapes for dimension in shape[1:]}
    return len(names) <= 1 and not names & elsewhere and not any(_NO_ROWS.search(str(name)) for name in names)
