"""The tensors of a model whose one input may be sent under any name, and as numbers of any datatype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from geartrain.domain.signature.tensor_view import Bound, TensorView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import ARRAY_NAMES, Tensor, check_size

_CONVERTED: Final = frozenset(ARRAY_NAMES) - {"BF16"}  # which numpy does not have


def view_of(signature: Signature) -> TensorView:
    """Return a model's inputs and outputs as tensors."""
    return AnyInputView(signature) if signature.takes_any else TensorView(signature)


class AnyInputView(TensorView):
    """A view that gives the tensor of a request the name and the datatype of the model's one input."""

    def bind(self, tensors: Sequence[Tensor]) -> Bound:
        """Bind one tensor of any name; it is converted from any datatype.

        Numbers that the datatype of the model cannot hold are rounded, as conversions of numpy do.
        """
        if len(tensors) != 1:
            return super().bind(tensors)
        wanted, tensor = self.inputs[0], tensors[0]
        data, datatype = tensor.data, tensor.datatype
        if datatype != wanted.datatype and {datatype, wanted.datatype} <= _CONVERTED:
            import numpy as np

            check_size(tensor)
            array = np.frombuffer(data, ARRAY_NAMES[datatype])
            with np.errstate(invalid="ignore", over="ignore"):
                data = array.astype(ARRAY_NAMES[wanted.datatype]).tobytes()
            datatype = wanted.datatype
        return super().bind((Tensor(wanted.name, datatype, tensor.shape, data),))
