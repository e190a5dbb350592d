"""Marks that an author puts on `run()` or on a type. They change nothing by themselves; the worker reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, final, overload

STREAMING_MARK: Final = "__geartrain_streaming__"
CONCURRENT_MARK: Final = "__geartrain_concurrent_max__"

_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, and the next: importing inspect would cost more than all the rest
_CO_ASYNC_GENERATOR = 0x200

_Function = TypeVar("_Function", bound=Callable[..., Any])


@final
class OpaqueMark:
    """The type of `Opaque`."""

    def __repr__(self) -> str:
        return "geartrain.Opaque"


Opaque: Final = OpaqueMark()
"""`Annotated[T, Opaque]`: pass the JSON value on as it is, whatever `T`; the schema admits any value."""


@overload
def streaming(function: _Function) -> _Function: ...
@overload
def streaming(function: None = None) -> Callable[[_Function], _Function]: ...
def streaming(function: _Function | None = None) -> _Function | Callable[[_Function], _Function]:
    """Allow clients to read the outputs of this generator as server-sent events: `@streaming` or `@streaming()`."""

    def mark(function: _Function) -> _Function:
        setattr(function, STREAMING_MARK, True)
        return function

    return mark if function is None else mark(function)


@overload
def concurrent(function: _Function) -> _Function: ...
@overload
def concurrent(function: None = None, *, max: int = 1) -> Callable[[_Function], _Function]: ...
def concurrent(
    function: _Function | None = None,
    *,
    max: int = 1,  # noqa: A002 - the name is part of the authoring API
) -> _Function | Callable[[_Function], _Function]:
    """Let up to `max` predictions share one async `run()`: `@concurrent(max=8)`.

    Raises `TypeError` when `max` is no integer or is above 1 on a function that is not async, `ValueError` below 1.
    """
    if isinstance(max, bool) or not isinstance(max, int):
        raise TypeError(f"@concurrent(max=...) takes an integer, not {max!r}")
    if max < 1:
        raise ValueError(f"@concurrent(max={max}): max must be at least 1")

    def mark(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"write @concurrent or @concurrent(max={max}), not @concurrent({function!r})")
        if max > 1 and not _is_async(function):
            raise TypeError(
                f"@concurrent(max={max}) needs an async function: make it `async def {_name_of(function)}`,"
                " or leave max at 1"
            )
        setattr(function, CONCURRENT_MARK, max)
        return function

    return mark if function is None else mark(function)


def _is_async(function: Callable[..., Any]) -> bool:
    """Tell whether the function, or one that it wraps, was written with `async def`."""
    inner: Any = function
    while inner is not None:
        code = getattr(inner, "__code__", None)
        if code is not None and code.co_flags & (_CO_COROUTINE | _CO_ASYNC_GENERATOR):
            return True
        inner = getattr(inner, "__wrapped__", None)
    return False


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "run")
