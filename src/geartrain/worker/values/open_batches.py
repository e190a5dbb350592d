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
from geartrain.worker.values.arguments import NO_PARTS, ArgumentBinder, ArgumentError, DirectCompose
from geartrain.worker.values.batches import Bound, deal_apart

_decode_all: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode
_NONE: Final[dict[str, Any]] = {}


class ApartBinder:
    """Binds the requests of one batch after the other to the one parameter of a `run()`, a list of them."""

    def __init__(self, parameters: Sequence[Parameter], compose: Compose) -> None:
        """`parameters` are the parts of one request."""
        self._binder = ArgumentBinder(parameters)
        self._compose = compose
        self._direct: DirectCompose | None = getattr(compose, "direct", None)

    def bind(self, raw: Buffer, items: Sequence[CallItem], chosen: Sequence[int]) -> Bound:
        """Bind the `chosen` items of a call, by their indexes; `raw` as in `ipc.messages.Predict`."""
        json, tensors = unpack(raw) if len(items) > 1 or items[0].packed else (bytes(raw), [])
        if len(items) == 1 and self._direct is not None and tensors and json == NO_PARTS:
            ((name, request),) = self._direct(tensors, items[0].parameters or _NONE).items()
            return Bound({name: [request]}, [1], 1, {})
        if self._direct is not None and len(json) == (len(NO_PARTS) + 1) * len(items) + 1:  # nothing but tensors
            return _bind_tensors(self._direct, tensors, items, chosen=chosen)
        values = _decode_all(json) if len(items) > 1 else [msgspec.json.decode(json)]
        deal_apart(tensors, values)
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


def _bind_tensors(
    direct: DirectCompose, tensors: Sequence[Tensor], items: Sequence[CallItem], *, chosen: Sequence[int]
) -> Bound:
    """Bind requests that have nothing but tensors."""
    found: list[list[Tensor]] = [[] for _ in items]
    for tensor in tensors:
        place, _, own = tensor.name.partition(":")
        found[int(place)].append(Tensor(own, tensor.datatype, tensor.shape, tensor.data))
    name, requests = "", []
    for index in chosen:
        ((name, request),) = direct(found[index], items[index].parameters or _NONE).items()
        requests.append(request)
    return Bound({name: requests}, [1] * len(chosen), len(chosen), {})
