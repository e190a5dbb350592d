"""Between the datatypes of the Open Inference Protocol and those of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
