"""The inputs and outputs of a `config.pbtxt`: dimensions without that of the batch, datatypes, reshapes."""

from __future__ import annotations

from collections.abc import Iterable

from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.domain.tensors.tensor import DATATYPES, MAX_RANK, VARIABLE
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.settings import TRITON_NAME


def read_declared(config: pb.ModelConfig, *, platform: str) -> Declared:
    """Return the declaration of a model's tensors; raise ProjectError that names the tensor and the field."""
    has_batch = config.max_batch_size > 0
    is_said = config.HasField("max_batch_size") or bool(config.input or config.output)
    return Declared(
        origin=TRITON_NAME,
        inputs=_tensors("input", config.input, has_batch=has_batch),
        outputs=_tensors("output", config.output, has_batch=has_batch),
        first="batch" if has_batch else "plain" if is_said else "undecided",
        platform=platform,
    )


def datatype_of(name: str, number: int) -> str:
    """Return the protocol's name for a datatype; raise ProjectError for none. `name` is that of the tensor."""
    found = pb.DataType.Name(number).removeprefix("TYPE_")
    datatype = "BYTES" if found == "STRING" else found
    if datatype not in DATATYPES:
        raise ProjectError(f"`data_type` of '{name}' is missing; write one such as TYPE_FP32")
    return datatype


def _tensors(
    what: str, given: Iterable[pb.ModelInput | pb.ModelOutput], *, has_batch: bool
) -> tuple[DeclaredTensor, ...]:
    found = tuple(_tensor(each, has_batch=has_batch) for each in given)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ProjectError(f"`{what}` has '{name}' twice; give each its own name")
    return found


def _tensor(given: pb.ModelInput | pb.ModelOutput, *, has_batch: bool) -> DeclaredTensor:
    name = given.name
    if not name:
        raise ProjectError("an input or output has no `name`")
    if given.is_shape_tensor:
        raise ProjectError(f"`is_shape_tensor` of '{name}': only engines of TensorRT have such tensors")
    if isinstance(given, pb.ModelInput) and given.allow_ragged_batch:
        raise ProjectError(f"`allow_ragged_batch` of '{name}': a batch has rows of one shape; remove it")
    is_reshaped = given.HasField("reshape")
    if not given.dims:
        raise ProjectError(f"`dims` of '{name}' is missing; write the sizes, -1 for one that is open")
    shape, inner = tuple(given.dims), tuple(given.reshape.shape)
    _check_sizes(f"`dims` of '{name}'", shape, least=1)
    if is_reshaped:
        _check_sizes(f"`reshape` of '{name}'", inner, least=0)
        _check_reshape(name, shape, inner)
    first = (VARIABLE,) if has_batch else ()
    return DeclaredTensor(
        name,
        datatype_of(name, given.data_type),
        (*first, *shape),
        optional=isinstance(given, pb.ModelInput) and given.optional,
        is_reshaped=is_reshaped,
        inner=(*first, *inner) if is_reshaped else (),
    )


def _check_sizes(where: str, shape: tuple[int, ...], *, least: int) -> None:
    if not least <= len(shape) < MAX_RANK or any(size != VARIABLE and size < 1 for size in shape):
        raise ProjectError(f"{where} is {list(shape)}; write sizes above 0, or -1 for one that is open")


def _check_reshape(name: str, shape: tuple[int, ...], inner: tuple[int, ...]) -> None:
    """Raise ProjectError unless both shapes have as many elements before, between and behind their open sizes."""
    if _counts(shape) != _counts(inner):
        raise ProjectError(
            f"`reshape` of '{name}' is {list(inner)}, and `dims` is {list(shape)}: both need as many elements, before "
            "and behind each open size"
        )


def _counts(shape: tuple[int, ...]) -> list[int]:
    counts = [1]
    for size in shape:
        if size == VARIABLE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts
