"""The headers of the tensors in a packed output that has nothing but tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from geartrain.domain.tensors.tensor import Buffer, Tensor, pack

_MOST: Final = 64  # outputs of different shapes


class PackedHeaders:
    """Makes the headers of one runner's outputs, and caches them: models give the same shapes again and again."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, tuple[int, ...], int], ...], list[bytes]] = {}

    def of(self, tensors: Sequence[Tensor]) -> list[bytes]:
        """Return one header for each tensor. A name always has the same datatype."""
        key = tuple([(tensor.name, tensor.shape, len(tensor.data)) for tensor in tensors])
        headers = self._known.get(key)
        if headers is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            headers = self._known[key] = _headers(tensors)
        return headers

    def pack(self, tensors: Sequence[Tensor]) -> list[Buffer]:
        """As `domain.tensors.tensor.pack`, with an empty object beside the tensors, of which there is one at least."""
        parts: list[Buffer] = []
        for header, tensor in zip(self.of(tensors), tensors, strict=True):
            parts += (header, tensor.data)
        return parts


def _headers(tensors: Sequence[Tensor]) -> list[bytes]:
    views = [memoryview(tensor.data) for tensor in tensors]  # each of them is told from all other parts
    own = [Tensor(each.name, each.datatype, each.shape, view) for each, view in zip(tensors, views, strict=True)]
    headers, parts = [], iter(pack(b"{}", own))
    for view in views:
        header = b""
        while (part := next(parts)) is not view:
            header += part
        headers.append(header)
    return headers
