"""Calls that several requests to a model of another server share: inputs are joined by rows, and outputs are cut again.

Such a model was written for one request. So the first request runs by itself: only if its outputs have the rows of its
inputs do others share calls. A call that fails, or cannot be cut, is made again for each of its requests.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Final

from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import batch_item
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.scripts.script import tell

_SEVERAL: Final = 2


class NotCutError(Exception):
    """An answer that does not have the rows of its request."""


class SharedCalls:
    """Answers lists of requests; those of one key share a call."""

    def __init__(
        self,
        key: Callable[[Any], Hashable | None],
        one: Callable[[Any], Awaitable[Any]],
        many: Callable[[Sequence[Any], Sequence[int]], Awaitable[Sequence[Any]]],
        *,
        fits: Callable[[Any, Any], bool],
    ) -> None:
        """`key` returns None for a request that shares no call.

        `one` answers a request, and `fits` tells whether its answer has its rows. `many` answers those of one key, with
        their places in the list; it raises `NotCutError` where the answer does not have their rows.
        """
        self._key = key
        self._one = one
        self._many = many
        self._fits = fits
        self._has_rows: bool | None = None  # None until a request has been answered

    async def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Return an answer, or an exception, for each request."""
        groups: dict[Hashable, list[int]] = {}
        for place, request in enumerate(requests):
            key = self._key(request)
            groups.setdefault((place,) if key is None else (key, "shared"), []).append(place)
        results: list[Any] = [None] * len(requests)
        for places in groups.values():
            await self._answer_group(requests, places, results)
        return results

    async def _answer_group(self, requests: Sequence[Any], places: list[int], results: list[Any]) -> None:
        rest = places
        if self._has_rows is None and len(places) > 1:
            await self._answer_one(requests[places[0]], places[0], results)
            rest = places[1:]
        if len(rest) >= _SEVERAL and self._has_rows:
            try:
                answers = await self._many([requests[place] for place in rest], rest)
            except NotCutError as error:
                self._refuse(str(error))
            except Exception as error:  # noqa: BLE001 - it may be that of one of them
                tell(f"a call of {len(rest)} requests failed, and is made for each of them: {describe_error(error)}")
            else:
                for place, answer in zip(rest, answers, strict=True):
                    results[place] = answer
                return
        for place in rest:
            await self._answer_one(requests[place], place, results)

    async def _answer_one(self, request: Any, place: int, results: list[Any]) -> None:
        with batch_item(place):
            try:
                results[place] = await self._one(request)
            except Exception as error:  # noqa: BLE001 - it is that of one request
                results[place] = error
                return
        if self._has_rows is False or self._key(request) is None:
            return
        if not self._fits(request, results[place]):
            self._refuse("an output does not have the rows of the inputs")
        elif self._has_rows is None:
            self._has_rows = True

    def _refuse(self, reason: str) -> None:
        if self._has_rows is not False:
            tell(f"requests do not share calls any more: {reason}")
        self._has_rows = False


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("a function that is called for its result has waited for something")


# tensors


def key_of(tensors: Tensors) -> Hashable | None:
    """Return the key of tensors that may be joined: all but their rows. None for inputs without equally many rows."""
    rows = {array.shape[0] if array.ndim else 0 for array in tensors.values()}
    if len(rows) != 1 or 0 in rows:
        return None
    inputs = tuple(
        (name, tensors.datatypes.get(name), array.shape[1:], tensors.content_types.get(name))
        for name, array in tensors.items()
    )
    return inputs, tensors.requested, json.dumps(tensors.parameters, sort_keys=True, default=repr)


def rows_of(tensors: Tensors) -> int:
    """Return the rows of tensors that have a key."""
    rows: int = next(iter(tensors.values())).shape[0]
    return rows


def join(requests: Sequence[Tensors]) -> Tensors:
    """Join the tensors of requests of one key."""
    import numpy as np

    first = requests[0]
    return Tensors(
        {name: np.concatenate([each[name] for each in requests]) for name in first},
        parameters=first.parameters,
        requested=first.requested,
        datatypes=first.datatypes,
        content_types=first.content_types,
    )


def has_rows(given: Tensors, found: Tensors) -> bool:
    """True if every output has the rows of the inputs."""
    rows = rows_of(given)
    return all(array.ndim and array.shape[0] == rows for array in found.values())


def cut(tensors: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Cut outputs into those of requests with so many rows each. Raises `NotCutError`."""
    whole = sum(rows)
    for name, array in tensors.items():
        if not array.ndim or array.shape[0] != whole:
            shape = list(array.shape)
            raise NotCutError(f"output '{name}' has the shape {shape} for {whole} rows of inputs")
    found, start = [], 0
    for count in rows:
        parts = {name: array[start : start + count] for name, array in tensors.items()}
        found.append(Tensors(parts, datatypes=tensors.datatypes))
        start += count
    return found
