"""Inputs and outputs of a loaded model."""

from __future__ import annotations

from functools import cached_property

import msgspec

from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.signature.tensor_view import TensorView, view_of
from geartrain.domain.signature.validation import InputValidator


class Interface:
    """The inputs and outputs of a model, and what is derived of them. Made once when a worker has loaded the model."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info
        self.signature = info.signature
        self.validator = InputValidator(info.signature)

    @cached_property
    def plain_validator(self) -> InputValidator:
        """The check of the inputs that are no tensors, for a request that brings its tensors as such."""
        plain = tuple(field for field in self.signature.inputs if field.type.kind != "tensor")
        return InputValidator(msgspec.structs.replace(self.signature, inputs=plain))

    @cached_property
    def view(self) -> TensorView:
        """The model's inputs and outputs as tensors."""
        return view_of(self.signature)
