"""Programs of PyTorch: TorchScript (.pt) and torch.export (.pt2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from geartrain.backends.interface import Backend, TensorSpec
from geartrain.backends.libraries import note, require
from geartrain.backends.torch_archive import kind_of
from geartrain.backends.torch_device import choose_device, set_threads, to_numpy, to_torch

if TYPE_CHECKING:
    import numpy as np

OPTIONS: Final = frozenset({"device", "threads", "inputs", "outputs"})


class _Program(Protocol):
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: bool
    most_rows: int | None

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]: ...


class TorchBackend(Backend):
    """A program in one file. What kind it is, its content says, and not its name."""

    platform = "pytorch_torchscript"
    options = OPTIONS

    def load(self) -> None:
        kind = kind_of(self.path)
        self._torch = require("torch", extra="torch")
        self._device = choose_device(self._torch, self.given)
        threads = set_threads(self._torch, self.given)
        self._program = self._open(kind)
        self.platform = self._program.platform
        self.inputs, self.outputs = self._program.inputs, self._program.outputs
        self.most_rows = self._program.most_rows
        note(f"{self.path.name}: PyTorch {self._torch.__version__} on {self._device}, {threads} threads")

    def _open(self, kind: str) -> _Program:
        if kind == "script":
            from geartrain.backends.torch_script import ScriptProgram

            return ScriptProgram(self._torch, self.path, self._device, options=self.given, told=self.declared)
        from geartrain.backends.torch_export import ExportProgram

        return ExportProgram(self._torch, self.path, self._device, options=self.given)

    @property
    def batches(self) -> bool:
        """True if the first dimension is variable everywhere; in a program of torch.export, by the same symbol."""
        return self._program.rows and super().batches

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        torch = self._torch
        with torch.inference_mode():
            tensors = {name: to_torch(torch, array, self._device) for name, array in inputs.items()}
            results = self._program(tensors)
            return {name: to_numpy(torch, tensor) for name, tensor in results.items()}
