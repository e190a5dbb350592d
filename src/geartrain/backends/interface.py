"""Interface of backends: load a file of one format, describe its tensors, run on arrays.

Other packages' backends use it as well (docs/backends.md). Importing it loads no library.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from geartrain.domain.signature.types import NOTHING_DECLARED, Declared
from geartrain.domain.tensors.tensor import VARIABLE, TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Backend", "BackendError", "TensorSpec"]


class BackendError(Exception):
    """A file that cannot be served: one sentence for the operator, which says what is wrong and what to do."""


class Backend(abc.ABC):
    """A model in a file, or in a folder, of one format.

    `load()` is called once, in a process that has no other model. From then on clients see `inputs` and `outputs`, and
    `run()` is called for one request or batch after the other, always in the same thread.

    `platform` is the format's name in the Open Inference Protocol, as in `onnx_onnxv1`; `load()` may make it more
    precise. It may also set `description` to that of the file, and `most_rows` to the rows that one call takes at most,
    where the file limits them. `options` are the keys that `parameters` of the model's `geartrain.yaml` may have: any
    other is refused before a backend is made. `declared` are the tensors in the configuration of another server, for
    files that do not describe theirs; the loader compares them with `inputs` and `outputs`.
    """

    platform: str = ""
    options: ClassVar[frozenset[str]] = frozenset()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    description: str = ""
    most_rows: int | None = None
    declared: Declared = NOTHING_DECLARED

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """`options` are plain YAML values, still to be checked: see `geartrain.backends.options`."""
        self.path = path
        self.given = options

    @abc.abstractmethod
    def load(self) -> None:
        """Import the library, read the file, set `inputs` and `outputs`. Raises `BackendError`.

        It is an error when the library is not installed (`libraries.require` says how to install it), when the file is
        wrong, cut, or of another format, and when an option has a value that cannot be.
        """

    @abc.abstractmethod
    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run on arrays by name and return the arrays of all `outputs`.

        Inputs have the datatype and the shape that `inputs` says; an optional one that a client has left out is not
        there. BYTES are arrays of `bytes` objects, and may be given as arrays of `str` or `bytes`. Where `batches`,
        there are as many rows in each output as in each input, and no row depends on another. Whatever it raises is the
        client's answer.
        """

    @property
    def batches(self) -> bool:
        """True if the first dimension is that of a batch: it is variable in every input and output."""
        specs = (*self.inputs, *self.outputs)
        return bool(self.inputs) and all(
            spec.shape[:1] == (VARIABLE,) and not spec.variadic and not spec.optional for spec in specs
        )

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Release what the library holds; nothing is called afterwards."""
