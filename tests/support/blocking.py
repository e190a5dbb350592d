"""`AsyncClient` with the looks of `Client`, so that the same tests run with both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

from geartrain.client import AsyncClient, AsyncHandle, AsyncModel, AsyncStream

_WRAPPED = (AsyncClient, AsyncHandle, AsyncModel, AsyncStream)
_END = object()


class Blocking:
    """An object of the async client whose methods block."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._called(value) if callable(value) else value

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._inner))

    def __next__(self) -> Any:
        value = self._run(anext(self._inner, _END))
        if value is _END:
            raise StopIteration
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._inner.close())

    def _called(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            value = method(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self._run(value)
            elif inspect.isasyncgen(value):
                return self._iterate(value)
            return Blocking(value, self._runner) if isinstance(value, _WRAPPED) else value

        return call

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        while (value := self._run(anext(values, _END))) is not _END:
            yield value

    def _run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())
