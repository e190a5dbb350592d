"""Tensors that lie in shared memory: what a request says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from geartrain.apis.open_inference import Place, put
from geartrain.domain.tensors.tensor import Tensor, tensor_error
from geartrain.service.shared_memory import SharedRegions
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.parameters import read

REGION: Final = "shared_memory_region"
OFFSET: Final = "shared_memory_offset"
SIZE: Final = "shared_memory_byte_size"


def read_place(what: str, parameters: Mapping[str, pb.InferParameter]) -> Place | None:
    """Return the place that the parameters of an input or output name, if any; raise `INVALID_TENSOR`.

    `what` is the input or output, for an error's text.
    """
    values = {name: read(name, parameters[name]) for name in (REGION, OFFSET, SIZE) if name in parameters}
    if not values:
        return None
    region, offset, size = values.get(REGION), values.get(OFFSET, 0), values.get(SIZE)
    if not isinstance(region, str) or not region:
        raise tensor_error(f"{what}: parameter '{REGION}' must be the name of a region")
    if not _is_size(offset):
        raise tensor_error(f"{what}: parameter '{OFFSET}' must be an integer of bytes, 0 or more")
    if size is None or not _is_size(size):
        raise tensor_error(f"{what}: parameter '{SIZE}' must be given, as an integer of bytes, 0 or more")
    return Place(region, int(offset), int(size))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def write_outputs(regions: SharedRegions, places: Mapping[str, Place], outputs: Sequence[Tensor]) -> None:
    """Put outputs where their client wants them; raise `INVALID_TENSOR` when there is too little room for one."""
    for tensor in outputs if places else ():
        place = places.get(tensor.name)
        if place is not None:
            put(tensor, place, regions.write)
