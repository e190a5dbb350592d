"""A backend as a configuration of another server wants it seen: names, shapes and the dimension of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.domain.tensors.tensor import VARIABLE, describe_shape

if TYPE_CHECKING:
    import numpy as np

_VECTOR: Final = 1  # dimensions


class _Reshaping(NamedTuple):
    """The same elements in another shape. The open sizes of the two are equal, one by one."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, arrays: dict[str, np.ndarray]) -> None:
        """Reshape the array of this name, if it is there; raise `ValueError` if it is none of that shape."""
        array = arrays.get(self.name)
        if array is not None:
            if len(array.shape) != len(self.before):
                raise ValueError(f"tensor '{self.name}' has the shape {list(array.shape)}, not {list(self.before)}")
            sizes = (size for size, declared in zip(array.shape, self.before, strict=True) if declared == VARIABLE)
            arrays[self.name] = array.reshape([next(sizes) if each == VARIABLE else each for each in self.after])


class DeclaredBackend(Backend):
    """Another backend, with the inputs and outputs that are declared; those of the file where none are."""

    def __init__(self, inner: Backend, declared: Declared) -> None:
        super().__init__(inner.path, inner.given)
        self._inner = inner
        self._inner.declared = self._declared = declared

    def load(self) -> None:
        """Raises `BackendError` where the file is not what is declared of it, naming the tensor and both shapes."""
        inner, declared = self._inner, self._declared
        inner.load()
        self.platform = declared.platform or inner.platform
        self.description, self.most_rows = inner.description, inner.most_rows
        self.inputs = self._seen("input", declared.inputs, inner.inputs)
        self.outputs = self._seen("output", declared.outputs, inner.outputs)
        names = {spec.name for spec in self.inputs}
        for spec in inner.inputs:
            if spec.name not in names and not spec.optional:
                raise BackendError(f"{declared.origin} declares no input '{spec.name}', which the file needs; add it")
        if declared.columns:
            self.outputs = tuple(map(_as_column, self.outputs))
        self._before = [_Reshaping(each.name, each.shape, each.inner) for each in declared.inputs if each.is_reshaped]
        self._after = [_Reshaping(each.name, each.inner, each.shape) for each in declared.outputs if each.is_reshaped]

    @property
    def batches(self) -> bool:
        """True if the first dimension is that of a batch: as declared, or as the file says."""
        return self._inner.batches if self._declared.first == "undecided" else self._declared.first == "batch"

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for reshaping in self._before:
            reshaping.apply(inputs)
        found = self._inner.run(inputs)
        for reshaping in self._after:
            reshaping.apply(found)
        if self._declared.columns:
            return {
                name: array.reshape(len(array), 1) if array.ndim == _VECTOR else array for name, array in found.items()
            }
        return found

    def close(self) -> None:
        self._inner.close()

    # declared tensors, and those of the file

    def _seen(self, what: str, declared: Sequence[DeclaredTensor], own: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the inputs or outputs that clients see."""
        known = {spec.name: spec for spec in own}
        for tensor in declared:
            if tensor.name not in known:
                raise BackendError(
                    f"{self._declared.origin} declares an {what} '{tensor.name}', which the file does not have; "
                    f"it has {', '.join(known)}"
                )
            self._check(what, tensor, known[tensor.name])
        if self._declared.first == "batch":
            chosen = [known[tensor.name] for tensor in declared] or own
            for spec in chosen:
                self._check_batch(what, spec)
        return tuple(
            TensorSpec(tensor.name, tensor.datatype, tensor.shape, optional=tensor.optional) for tensor in declared
        ) or tuple(own)

    def _check(self, what: str, tensor: DeclaredTensor, own: TensorSpec) -> None:
        where = f"{self._declared.origin}: {what} '{tensor.name}'"
        if tensor.datatype != own.datatype:
            raise BackendError(f"{where} is declared as {tensor.datatype}, and is {own.datatype} in the file")
        shape = tensor.in_file
        fits = own.variadic or (
            len(shape) == len(own.shape)
            and all(size in {VARIABLE, wanted} for size, wanted in zip(own.shape, shape, strict=True))
        )
        if not fits:
            wanted = describe_shape(TensorSpec(tensor.name, tensor.datatype, shape))
            hint = ", the first of them that of the batch" if self._declared.first == "batch" else ""
            raise BackendError(
                f"{where} is declared with the dimensions {wanted}{hint}, and has {describe_shape(own)} in the file"
            )

    def _check_batch(self, what: str, spec: TensorSpec) -> None:
        if not spec.variadic and spec.shape[:1] != (VARIABLE,):
            raise BackendError(
                f"{self._declared.origin}: `max_batch_size` is above 0, and the first dimension of {what} "
                f"'{spec.name}' is fixed in the file, which has {describe_shape(spec)}; write 0"
            )


def _as_column(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, (*spec.shape, 1)) if len(spec.shape) == _VECTOR else spec
