"""Tensors in a config.pbtxt: inputs, outputs, and the samples of warm-up."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.types import Declared, DeclaredTensor
from geartrain.domain.tensors.tensor import ARRAY_NAMES, DATATYPES, MAX_RANK, SIZES, VARIABLE, split_bytes
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.settings import TRITON_NAME

if TYPE_CHECKING:
    import numpy as np


def read_declared(config: pb.ModelConfig, *, platform: str, is_apart: bool = False) -> Declared:
    """Return the declaration of a model's tensors; raise ProjectError that names the tensor and the field.

    `is_apart`: the model gets the requests of a batch apart, each of its own shape.
    """
    has_batch = config.max_batch_size > 0
    is_said = config.HasField("max_batch_size") or bool(config.input or config.output)
    return Declared(
        origin=TRITON_NAME,
        inputs=_tensors("input", config.input, has_batch=has_batch, is_apart=is_apart),
        outputs=_tensors("output", config.output, has_batch=has_batch, is_apart=is_apart),
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
    what: str, given: Iterable[pb.ModelInput | pb.ModelOutput], *, has_batch: bool, is_apart: bool
) -> tuple[DeclaredTensor, ...]:
    found = tuple(_tensor(each, has_batch=has_batch, is_apart=is_apart) for each in given)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ProjectError(f"`{what}` has '{name}' twice; give each its own name")
    return found


def _tensor(given: pb.ModelInput | pb.ModelOutput, *, has_batch: bool, is_apart: bool) -> DeclaredTensor:
    name = given.name
    if not name:
        raise ProjectError("an input or output has no `name`")
    if given.is_shape_tensor:
        raise ProjectError(f"`is_shape_tensor` of '{name}': only engines of TensorRT have such tensors")
    if isinstance(given, pb.ModelInput) and given.allow_ragged_batch and not is_apart:
        raise ProjectError(f"`allow_ragged_batch` of '{name}': a batch has rows of one shape; remove it")
    is_reshaped = given.HasField("reshape")
    if is_reshaped and is_apart:
        raise ProjectError(f"`reshape` of '{name}': a class gets tensors as they are sent; reshape in execute()")
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


_FOLDER: Final = "warmup"  # beside config.pbtxt
_MOST_ELEMENTS: Final = 4_000_000  # of all samples together: they are kept as JSON
_MOST_RUNS: Final = 1000
_SEED: Final = 17


class Samples(msgspec.Struct, frozen=True):
    """The inputs, each a JSON object; and what is passed over."""

    inputs: tuple[bytes, ...] = ()
    remarks: tuple[str, ...] = ()


def read_warmup(folder: pathlib.Path, config: pb.ModelConfig, *, is_open: bool = False) -> Samples:
    """Return the samples as they are to be run, one after the other; raise ProjectError that names the sample.

    `folder` is that of the configuration, with the folder of data files. `is_open`: the model takes any tensors.
    """
    if not config.model_warmup:
        return Samples()
    inputs: list[bytes] = []
    elements = 0
    for sample in config.model_warmup:
        where = f"`model_warmup` '{sample.name}'"
        elements += sum(math.prod(each.dims) for each in sample.inputs.values()) * max(1, sample.batch_size)
        if elements > _MOST_ELEMENTS:
            return Samples(tuple(inputs), (f"{where} and what follows is passed over: it is too large",))
        try:
            values: dict[str, Any] = dict(_values(folder, sample, has_batch=config.max_batch_size > 0))
            once = msgspec.json.encode(_opened(sample, values) if is_open else values)
        except (GeartrainError, OSError, ProjectError, ValueError) as error:
            raise ProjectError(f"{where}: {getattr(error, 'message', '') or error}") from None
        inputs += [once] * max(1, sample.count)
        if len(inputs) > _MOST_RUNS:
            raise ProjectError(f"{where}: `count` makes {len(inputs)} runs; write fewer, {_MOST_RUNS} at most")
    return Samples(tuple(inputs))


def _opened(sample: pb.ModelWarmup, values: dict[str, Any]) -> dict[str, Any]:
    """Return values as the input of a model that takes any tensors."""
    types = {name: datatype_of(name, given.data_type) for name, given in sample.inputs.items()}
    return {"tensors": {name: {"datatype": types[name], "data": value} for name, value in values.items()}}


def _values(folder: pathlib.Path, sample: pb.ModelWarmup, *, has_batch: bool) -> Iterator[tuple[str, Any]]:
    rows = max(1, sample.batch_size)
    for name, given in sample.inputs.items():
        datatype = datatype_of(name, given.data_type)
        if any(size < 1 for size in given.dims):
            raise ProjectError(f"`dims` of '{name}' is {list(given.dims)}; write sizes above 0")
        if datatype == "BF16":
            raise ProjectError(f"'{name}' is BF16, of which no sample can be made; remove it")
        row = _row(folder, name, given, datatype=datatype).reshape(tuple(given.dims))
        yield name, ([row.tolist()] * rows if has_batch else row.tolist())


def _row(folder: pathlib.Path, name: str, given: pb.ModelWarmup.Input, *, datatype: str) -> np.ndarray:
    """Return the elements of one row, flat."""
    import numpy as np

    count = math.prod(given.dims)
    if given.input_data_file:
        path = folder / _FOLDER / given.input_data_file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ProjectError(f"`input_data_file` of '{name}' leads out of the model's folder")
        data = path.read_bytes()
        if datatype == "BYTES":
            return np.array([each.decode() for each in split_bytes(name, data, count)], dtype=object)
        if len(data) != count * SIZES[datatype]:
            raise ProjectError(
                f"{path.name} has {len(data)} bytes, and '{name}' takes {count * SIZES[datatype]}; write one row"
            )
        return np.frombuffer(data, ARRAY_NAMES[datatype])
    if datatype == "BYTES":
        return np.full(count, "", dtype=object)
    if not given.random_data:
        return np.zeros(count, ARRAY_NAMES[datatype])
    random = np.random.default_rng(_SEED)
    kind = np.dtype(ARRAY_NAMES[datatype])
    if kind.kind == "f":
        return random.random(count).astype(kind)
    return random.integers(0, 2 if kind.kind == "b" else 127, count, endpoint=False).astype(kind)
