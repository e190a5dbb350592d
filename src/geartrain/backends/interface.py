"""What a backend is: it loads a file of one format, says which tensors it takes and gives, and runs on arrays.

This is also what the backends of others are written against (docs/backends.md). Importing it loads no library.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from geartrain.domain.signature.declared import NOTHING_DECLARED, Declared
from geartrain.domain.tensors.tensor import VARIABLE, TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Backend", "BackendError", "TensorSpec"]


class BackendError(Exception):
    """A file that cannot be served: one sentence for the operator, which says what is wrong and what to do."""


class Backend(abc.ABC):
    """A model in a file, or in a folder, of one format.

    `load()` is called once, in a process that has no other model. From then on `inputs` and `outputs` are what a client
    sees, and `run()` is called for one request or batch after the other, always in the same thread.

    `platform` is what the Open Inference Protocol calls the format, as in `onnx_onnxv1`; `load()` may make it more
    precise. It may also set `description` to what the file says of itself, and `most_rows` to the rows that one call
    takes at most, where the file limits them. `options` are the keys that `parameters` of the model's `geartrain.yaml`
    may have: any other is refused before a backend is made. `declared` is what the configuration of another server says
    of the tensors, for files that do not say it; whoever makes the backend compares it with `inputs` and `outputs`.
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
        """Whether the first dimension is that of a batch: it is variable in every input and output."""
        specs = (*self.inputs, *self.outputs)
        return bool(self.inputs) and all(
            spec.shape[:1] == (VARIABLE,) and not spec.variadic and not spec.optional for spec in specs
        )

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Release what the library holds; nothing is called afterwards."""
