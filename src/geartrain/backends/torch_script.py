"""A program in TorchScript. It knows the names of its arguments, and neither datatypes nor shapes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.backends import declared
from geartrain.backends.arrays import are_rows
from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.options import Options
from geartrain.backends.torch_archive import was_traced
from geartrain.backends.torch_device import datatype_of
from geartrain.domain.signature.types import NOTHING_DECLARED, Declared, DeclaredTensor
from geartrain.domain.tensors.tensor import VARIABLE

_PLACE: Final = re.compile(r".+__(\d+)")  # Triton's names, such as INPUT__0


class _Argument(NamedTuple):
    name: str
    required: bool


class ScriptProgram:
    """A program, with the tensors that the options declare."""

    platform = "pytorch_torchscript"
    most_rows: int | None = None

    def __init__(
        self, torch: Any, path: Path, device: str, *, options: Options, told: Declared = NOTHING_DECLARED
    ) -> None:
        """`told`: the tensors, where the options do not declare them. Raises `BackendError`."""
        self._torch = torch
        self._path = path
        self._module = self._load(device)
        arguments = self._arguments()
        inputs = declared.tensors(options, "inputs") or _in_file(told.inputs)
        outputs = declared.tensors(options, "outputs") or _in_file(told.outputs)
        if inputs is None or outputs is None:
            raise self._undeclared(arguments)
        for spec in (*inputs, *outputs):
            if spec.datatype == "BYTES":
                raise BackendError(f"tensor '{spec.name}' is declared as BYTES, and PyTorch has no tensors of texts")
        self.inputs = inputs
        self.outputs = outputs
        self._order = self._matched(arguments)
        self._places = _places([spec.name for spec in outputs])
        dimensions = [[None if size == VARIABLE else size for size in spec.shape] for spec in (*inputs, *outputs)]
        self.rows = are_rows(dimensions[: len(inputs)], dimensions[len(inputs) :])

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Run on tensors by name; raise `ValueError` if what comes back is not what was declared."""
        try:
            result = self._module(**{argument: tensors[name] for argument, name in self._order.items()})
        except RuntimeError as error:  # with a traceback through the program, and the files it was made from
            raise RuntimeError(str(error).strip().rpartition("\n")[2].removeprefix("RuntimeError: ")) from error
        names = [spec.name for spec in self.outputs]
        if isinstance(result, dict):
            absent = next((name for name in names if name not in result), None)
            if absent is not None:
                given = ", ".join(map(str, result))
                raise ValueError(f"forward() has returned the keys {given}; output '{absent}' is declared")
            return {name: self._tensor(name, result[name]) for name in names}
        items = result if isinstance(result, (tuple, list)) else (result,)
        if not self._places and len(items) != len(names):
            raise ValueError(f"forward() has returned {len(items)} values; {len(names)} outputs are declared")
        if self._places and len(items) <= max(self._places):
            raise ValueError(f"forward() has returned {len(items)} values; there is none for '{self._last_output()}'")
        chosen = [items[place] for place in self._places] or items
        return {name: self._tensor(name, item) for name, item in zip(names, chosen, strict=True)}

    def _last_output(self) -> str:
        return self.outputs[self._places.index(max(self._places))].name

    def _tensor(self, name: str, value: Any) -> Any:
        if not isinstance(value, self._torch.Tensor):
            raise TypeError(f"forward() has returned a {type(value).__name__} as output '{name}', and no tensor")
        return value

    def _load(self, device: str, **further: Any) -> Any:
        with warnings.catch_warnings():  # PyTorch deprecates TorchScript in favour of torch.export
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                return self._torch.jit.load(str(self._path), map_location=device, **further).eval()
            except RuntimeError as error:
                raise BackendError(f"PyTorch cannot load it: {str(error).strip().splitlines()[0]}") from error

    def _arguments(self) -> list[_Argument]:
        if not hasattr(self._module, "forward"):
            raise BackendError("the program has no forward()")
        found = []
        for argument in self._module.forward.schema.arguments[1:]:  # without `self`
            kind = str(argument.type)
            if kind in {"Tensor", "Optional[Tensor]"}:
                found.append(_Argument(argument.name, not argument.has_default_value()))
            elif not argument.has_default_value():
                fix = "wrap the model in a module whose forward() takes tensors alone"
                raise BackendError(f"argument '{argument.name}' of forward() is a {kind}, and no tensor; {fix}")
        return found

    def _matched(self, arguments: Sequence[_Argument]) -> dict[str, str]:
        """The input for each argument: of the same name, or by a number in it, as in Triton's INPUT__0."""
        names = [spec.name for spec in self.inputs]
        known = [argument.name for argument in arguments]
        required = {argument.name for argument in arguments if argument.required}
        if required <= set(names) <= set(known):
            return {name: name for name in names}
        places = [int(found[1]) for name in names if (found := _PLACE.fullmatch(name))]
        if sorted(places) == list(range(len(names))) and len(required) <= len(names) <= len(known):
            return {known[place]: name for place, name in zip(places, names, strict=True)}
        raise BackendError(
            f"`parameters.inputs` declares {', '.join(names)}; forward() takes {', '.join(known)}: "
            "give inputs the names of the arguments, or INPUT__0, INPUT__1 and so on"
        )

    # the error that shows what to write

    def _undeclared(self, arguments: Sequence[_Argument]) -> BackendError:
        subject = f"TorchScript does not say the datatypes and shapes of tensors; forward() is {self._signature()}"
        traced = self._traced()
        if traced is not None:
            return declared.missing(subject, *traced)
        inputs = [TensorSpec(each.name, "FP32", (VARIABLE, VARIABLE)) for each in arguments if each.required]
        kind = str(self._module.forward.schema.returns[0].type)
        count = kind.count("Tensor")
        several = kind.startswith("Tuple[") and count > 1
        names = [f"output_{index}" for index in range(count)] if several else ["output"]
        return declared.missing(subject, inputs, [TensorSpec(name, "FP32", (VARIABLE, VARIABLE)) for name in names])

    def _signature(self) -> str:
        schema = self._module.forward.schema
        taken = ", ".join(f"{argument.name}: {argument.type}" for argument in schema.arguments[1:])
        return f"({taken}) -> {', '.join(str(each.type) for each in schema.returns)}"

    def _traced(self) -> tuple[list[TensorSpec], list[TensorSpec]] | None:
        """The tensors of the example that the program was traced with, None if it was not; the first size as variable.

        Only an error's text depends on it, so whatever goes wrong here means no more than a poorer text.
        """
        if not was_traced(self._path):
            return None
        try:
            module = self._load("cpu", _restore_shapes=True)
            types = [value.type() for value in module.graph.inputs()][1:]
            examples = [self._torch.zeros(kind.sizes(), dtype=kind.dtype()) for kind in types]
            with self._torch.inference_mode():
                result = module(*examples)
            names = [argument.name for argument in module.forward.schema.arguments[1:]]
            return _specs(dict(zip(names, examples, strict=True))), _specs(_by_name(result))
        except Exception:  # noqa: BLE001 - see above
            return None


def _in_file(tensors: Sequence[DeclaredTensor]) -> tuple[TensorSpec, ...] | None:
    specs = tuple(TensorSpec(each.name, each.datatype, each.in_file, optional=each.optional) for each in tensors)
    return specs or None


def _places(names: Sequence[str]) -> list[int]:
    """Return the places in a tuple that names such as OUTPUT__1 mean; none where the order is that of the names."""
    found = [_PLACE.fullmatch(name) for name in names]
    places = [int(each[1]) for each in found if each]
    return places if len(places) == len(names) == len(set(places)) else []


def _by_name(result: Any) -> dict[str, Any]:
    if isinstance(result, dict):
        return {str(name): value for name, value in result.items()}
    if isinstance(result, (tuple, list)):
        return {f"output_{index}": value for index, value in enumerate(result)}
    return {"output": result}


def _specs(tensors: Mapping[str, Any]) -> list[TensorSpec]:
    return [
        TensorSpec(name, datatype_of(name, tensor.dtype), tuple(tensor.shape and (VARIABLE, *tensor.shape[1:])))
        for name, tensor in tensors.items()
    ]
