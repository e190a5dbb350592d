"""The arguments of batches whose requests stay apart: a list with one value for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from geartrain.domain.tensors.tensor import Buffer, Tensor, unpack
from geartrain.ipc.messages import CallItem
from geartrain.worker.errors import ClientError, ReportedError
from geartrain.worker.loading.descriptions import Compose
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.values.arguments import ArgumentBinder, ArgumentError
from geartrain.worker.values.batches import Bound

_decode_all: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode
_NONE: Final[dict[str, Any]] = {}


class ApartBinder:
    """Binds the requests of one batch after the other to the one parameter of a `run()`, a list of them."""

    def __init__(self, parameters: Sequence[Parameter], compose: Compose) -> None:
        """`parameters` are the parts of one request."""
        self._binder = ArgumentBinder(parameters)
        self._compose = compose

    def bind(self, raw: Buffer, items: Sequence[CallItem], chosen: Sequence[int]) -> Bound:
        """Bind the `chosen` items of a call, by their indexes; `raw` as in `ipc.messages.Predict`."""
        json, tensors = unpack(raw) if len(items) > 1 or items[0].packed else (bytes(raw), [])
        values = _decode_all(json) if len(items) > 1 else [msgspec.json.decode(json)]
        for tensor in tensors:
            place, _, own = tensor.name.partition(":") if len(items) > 1 else ("0", "", tensor.name)
            values[int(place)][own] = Tensor(own, tensor.datatype, tensor.shape, tensor.data)
        requests: list[Any] = []
        refused: dict[int, ReportedError] = {}
        name = ""
        for index in chosen:
            try:
                arguments = self._compose(self._binder.bind_values(values[index]), items[index].parameters or _NONE)
            except (ArgumentError, ClientError) as error:
                refused[index] = error
                continue
            ((name, request),) = arguments.items()
            requests.append(request)
        sizes = [1] * len(chosen)
        return Bound({}, sizes, 0, refused) if refused else Bound({name: requests}, sizes, len(sizes), {})

    def release(self, arguments: dict[str, Any]) -> None:
        """See `BatchBinder`: requests hold no open files."""

    @staticmethod
    def padded(size: int) -> int:
        """Return the requests of a call with so many: it is not filled up."""
        return size
