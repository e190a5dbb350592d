"""`model_warmup` of a `config.pbtxt` as inputs of our warm-up."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.tensors.tensor import ARRAY_NAMES, SIZES, split_bytes
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.foreign.triton_tensors import datatype_of

if TYPE_CHECKING:
    import numpy as np

_FOLDER: Final = "warmup"  # beside config.pbtxt
_MOST_ELEMENTS: Final = 4_000_000  # of all samples together: they are kept as JSON
_MOST_RUNS: Final = 1000
_SEED: Final = 17


class Samples(msgspec.Struct, frozen=True):
    """The inputs, each a JSON object; and what is passed over."""

    inputs: tuple[bytes, ...] = ()
    remarks: tuple[str, ...] = ()


def read_warmup(folder: pathlib.Path, config: pb.ModelConfig) -> Samples:
    """Return the samples as they are to be run, one after the other; raise ProjectError that names the sample.

    `folder` is that of the configuration, with the folder of data files.
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
            once = msgspec.json.encode(dict(_values(folder, sample, has_batch=config.max_batch_size > 0)))
        except (GeartrainError, OSError, ProjectError, ValueError) as error:
            raise ProjectError(f"{where}: {getattr(error, 'message', '') or error}") from None
        inputs += [once] * max(1, sample.count)
        if len(inputs) > _MOST_RUNS:
            raise ProjectError(f"{where}: `count` makes {len(inputs)} runs; write fewer, {_MOST_RUNS} at most")
    return Samples(tuple(inputs))


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
