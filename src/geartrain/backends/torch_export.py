"""A program of torch.export. It knows its tensors, with their datatypes and which of their sizes are variable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.backends.arrays import Dimension, are_rows
from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.libraries import note
from geartrain.backends.options import Options
from geartrain.backends.torch_device import datatype_of
from geartrain.domain.tensors.tensor import VARIABLE

_SUFFIX: Final = ".pt2"  # PyTorch opens no file of another name, and reads any that is open


class _Leaf(NamedTuple):
    """A tensor among the arguments or the results, at that place once these are laid flat."""

    place: int
    spec: TensorSpec
    dimensions: list[Dimension]


class ExportProgram:
    """A program, with the tensors that it says itself.

    Inputs are called as the arguments are; one in a dict or a list has its key or number behind that. Outputs are
    `output`, or have the keys of the dict, or the numbers in the tuple, that comes back.
    """

    platform = "pytorch_export"

    def __init__(self, torch: Any, path: Path, device: str, *, options: Options) -> None:
        """Raises `BackendError`."""
        for name in ("inputs", "outputs"):
            if name in options:
                raise BackendError(f"remove `parameters.{name}`: a program of torch.export says itself what it takes")
        self._torch = torch
        program = _load(torch, path)
        if device != "cpu":
            program = torch.export.passes.move_to_device_pass(program, device)
        self._module = program.module()
        self._in_spec = program.call_spec.in_spec
        self._leaves = _examples(torch, program)
        self._inputs = _inputs(program)
        self._outputs = _outputs(torch, program)
        self.inputs = tuple(leaf.spec for leaf in self._inputs)
        self.outputs = tuple(leaf.spec for leaf in self._outputs)
        self.rows = are_rows([leaf.dimensions for leaf in self._inputs], [leaf.dimensions for leaf in self._outputs])
        self.most_rows = _limit(program, self._inputs[0].dimensions[0]) if self.rows else None
        if not any(VARIABLE in spec.shape for spec in self.inputs):
            note(f"{path.name}: all sizes are fixed; export it with `dynamic_shapes` to have batches")

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Run on tensors by name."""
        leaves = list(self._leaves)
        for leaf in self._inputs:
            leaves[leaf.place] = tensors[leaf.spec.name]
        tree = self._torch.utils._pytree  # noqa: SLF001 - what call_spec is made of has no public name
        positional, named = tree.tree_unflatten(leaves, self._in_spec)
        results = tree.tree_leaves(self._module(*positional, **named))
        return {leaf.spec.name: results[leaf.place] for leaf in self._outputs}


def _load(torch: Any, path: Path) -> Any:
    try:
        if path.suffix == _SUFFIX:
            return torch.export.load(path)
        with path.open("rb") as file:
            return torch.export.load(file)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BackendError(f"torch.export of PyTorch {torch.__version__} cannot load it: {first}") from error


def _examples(torch: Any, program: Any) -> list[Any]:
    """The arguments laid flat: what is no tensor has been made a part of the program, and has to be given again."""
    count = len(program.graph_signature.user_inputs)
    if program.example_inputs is None:
        return [None if isinstance(value, str) else value for value in program.graph_signature.user_inputs]
    leaves: list[Any] = torch.utils._pytree.tree_leaves(program.example_inputs)  # noqa: SLF001 - as above
    return leaves if len(leaves) == count else [None] * count


def _inputs(program: Any) -> list[_Leaf]:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    kind = type(program.graph_signature.input_specs[0].kind) if program.graph_signature.input_specs else None
    given = [each for each in program.graph_signature.input_specs if kind is not None and each.kind == kind.USER_INPUT]
    found = []
    for place, each in enumerate(given):
        name = each.arg.name
        if hasattr(each.arg, "value"):  # a constant
            continue
        value = nodes[name].meta["val"]
        if not hasattr(value, "shape"):
            fix = "wrap the model in a module whose forward() takes tensors alone"
            raise BackendError(f"argument '{name}' of the program is a number that may vary, and no tensor; {fix}")
        found.append(_leaf(place, name, value))
    return found


def _outputs(torch: Any, program: Any) -> list[_Leaf]:
    results = next(node for node in program.graph.nodes if node.op == "output").args[0]
    given = [
        result
        for each, result in zip(program.graph_signature.output_specs, results, strict=True)
        if each.kind == type(each.kind).USER_OUTPUT
    ]
    tree = torch.utils._pytree  # noqa: SLF001 - as above
    numbered = tree.tree_unflatten(range(len(given)), program.call_spec.out_spec)
    names = [_name(path) for path, _ in tree.tree_flatten_with_path(numbered)[0]]
    found = []
    for place, (name, result) in enumerate(zip(names, given, strict=True)):
        value = result.meta["val"] if hasattr(result, "meta") else result
        if hasattr(value, "shape"):
            found.append(_leaf(place, name, value))
        else:
            note(f"output '{name}' is no tensor. It is left out.")
    if not found:
        raise BackendError("the program gives no tensor")
    return found


def _name(path: tuple[Any, ...]) -> str:
    """The name of a result: keys, fields and numbers on the way to it; numbers alone would be no name."""
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return "_".join(parts if parts and not parts[0].isdecimal() else ["output", *parts])


def _leaf(place: int, name: str, value: Any) -> _Leaf:
    dimensions: list[Dimension] = [size if isinstance(size, int) else str(size) for size in value.shape]
    shape = tuple(size if isinstance(size, int) else VARIABLE for size in dimensions)
    return _Leaf(place, TensorSpec(name, datatype_of(f"tensor '{name}'", value.dtype), shape), dimensions)


def _limit(program: Any, rows: Dimension) -> int | None:
    """The most rows that the program was exported for; None for no limit."""
    for symbol, values in program.range_constraints.items():
        upper = str(values.upper)
        if str(symbol) == rows and upper.isdecimal():  # and not `int_oo`
            return int(upper)
    return None
