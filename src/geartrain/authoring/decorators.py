"""Decorators of `run()`, and `Opaque` for types. They change nothing by themselves; the worker reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, final, overload

from geartrain.authoring.batches import DEFAULT_MAX_SIZE, check_settings, cost_rule, sort_window

STREAMING_ATTRIBUTE: Final = "__geartrain_streaming__"
CONCURRENT_ATTRIBUTE: Final = "__geartrain_concurrent_max__"
BATCHED_ATTRIBUTE: Final = "__geartrain_batched__"
CACHED_ATTRIBUTE: Final = "__geartrain_cached__"
JOINT_ATTRIBUTE: Final = "__geartrain_joint__"
OPENAI_ATTRIBUTE: Final = "__geartrain_openai__"

_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, and the next: importing inspect would cost more than all the rest
_CO_ASYNC_GENERATOR = 0x200

_Function = TypeVar("_Function", bound=Callable[..., Any])


@final
class OpaqueType:
    """The type of `Opaque`."""

    def __repr__(self) -> str:
        return "geartrain.Opaque"


Opaque: Final = OpaqueType()
"""`Annotated[T, Opaque]`: pass the JSON value on as it is, whatever `T`; the schema admits any value."""


@overload
def streaming(function: _Function) -> _Function: ...
@overload
def streaming(function: None = None) -> Callable[[_Function], _Function]: ...
def streaming(function: _Function | None = None) -> _Function | Callable[[_Function], _Function]:
    """Allow clients to read the outputs of this generator as server-sent events: `@streaming` or `@streaming()`."""

    def decorate(function: _Function) -> _Function:
        setattr(function, STREAMING_ATTRIBUTE, True)
        return function

    return decorate if function is None else decorate(function)


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

    def decorate(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"write @concurrent or @concurrent(max={max}), not @concurrent({function!r})")
        if max > 1 and not _is_async(function):
            raise TypeError(
                f"@concurrent(max={max}) needs an async function: make it `async def {_name_of(function)}`,"
                " or leave max at 1"
            )
        setattr(function, CONCURRENT_ATTRIBUTE, max)
        return function

    return decorate if function is None else decorate(function)


@overload
def batched(function: _Function) -> _Function: ...
@overload
def batched(
    function: None = None,
    *,
    max_size: int = DEFAULT_MAX_SIZE,
    max_delay: float = 0.0,
    learn_delay: bool = True,
    preferred_sizes: Sequence[int] = (),
    pad_to: Sequence[int] = (),
    retry_singly: bool = False,
    cost: str | Sequence[str] = "",
    max_cost: float | Literal["auto"] = 0,
    padded: bool = False,
    sort: bool | int = False,
    pad: Mapping[str, float] | None = None,
) -> Callable[[_Function], _Function]: ...
def batched(  # noqa: PLR0913 - settings, each by its name
    function: _Function | None = None,
    *,
    max_size: int = DEFAULT_MAX_SIZE,
    max_delay: float = 0.0,
    learn_delay: bool = True,
    preferred_sizes: Sequence[int] = (),
    pad_to: Sequence[int] = (),
    retry_singly: bool = False,
    cost: str | Sequence[str] = "",
    max_cost: float | Literal["auto"] = 0,
    padded: bool = False,
    sort: bool | int = False,
    pad: Mapping[str, float] | None = None,
) -> _Function | Callable[[_Function], _Function]:
    """Let one call of `run()` answer up to `max_size` requests: `@batched` or `@batched(max_size=64)`.

    Tensors come stacked along their first dimension, other inputs that are annotated `list[...]` with an element for
    each request; what `run()` gives has as many. A free worker waits up to `max_delay` seconds for more requests;
    without one it waits where that has been seen to pay, unless `learn_delay` is False. A longer queue is cut at the
    `preferred_sizes`. With `pad_to` the model is called with these sizes only: copies of the last row fill a batch up.
    `retry_singly`: a batch that raised is run again one by one, so `run()` must bear that.

    `cost` is the name of the input whose length is the cost of a request, a list of names, or an expression such as
    `"text + 4 * max_tokens"`. The requests of a call cost at most `max_cost` together; "auto" finds that
    number when a worker starts. With `padded` each counts as much as the most costly one. `sort` puts requests of
    similar costs together.

    `pad` names tensor inputs that may be of any length in more than the first dimension, with what fills the shorter
    ones up, such as `{"ids": 0}`. A parameter `lengths`, or `ids_lengths`, gets their own lengths, and outputs whose
    dimensions have the same names are cut again.

    Raises `TypeError` or `ValueError` for a setting that cannot be meant.
    """
    settings = {
        "max_size": max_size,
        "max_delay": max_delay,
        "learn_delay": learn_delay,
        "preferred_sizes": tuple(preferred_sizes) if isinstance(preferred_sizes, list) else preferred_sizes,
        "pad_to": tuple(pad_to) if isinstance(pad_to, list) else pad_to,
        "retry_singly": retry_singly,
        "cost": cost_rule(cost),
        "max_cost": max_cost,
        "padded": padded,
        "sort": sort_window(sort),
        "pad": {} if pad is None else pad,
    }
    try:
        check_settings(settings)
    except (TypeError, ValueError) as error:
        raise type(error)(f"@batched: {error}") from None

    def decorate(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"write @batched or @batched(max_size={max_size}), not @batched({function!r})")
        setattr(function, BATCHED_ATTRIBUTE, settings)
        return function

    return decorate if function is None else decorate(function)


@overload
def cached(function: _Function) -> _Function: ...
@overload
def cached(
    function: None = None, *, ttl: float | str = "1h", max_bytes: int | str = "256MiB", share: bool = False
) -> Callable[[_Function], _Function]: ...
def cached(
    function: _Function | None = None,
    *,
    ttl: float | str = "1h",
    max_bytes: int | str = "256MiB",
    share: bool = False,
) -> _Function | Callable[[_Function], _Function]:
    """Keep the answers of `run()` for equal requests: `@cached` or `@cached(ttl="10m")`.

    `ttl` is a number of seconds or a time such as "10m"; `max_bytes` bounds the memory of all answers of the model.
    With `share` clients with different keys get each other's answers. `cache` in geartrain.yaml overrules all of it.

    Raises `TypeError` or `ValueError` for a setting that cannot be meant.
    """
    settings = {"ttl": _cache_life(ttl), "max_bytes": _cache_size(max_bytes), "share": share}
    if not isinstance(share, bool):
        raise TypeError(f"@cached: share={share!r}: it is True or False")

    def decorate(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"write @cached or @cached(ttl={ttl!r}), not @cached({function!r})")
        setattr(function, CACHED_ATTRIBUTE, settings)
        return function

    return decorate if function is None else decorate(function)


def _cache_life(ttl: float | str) -> float:
    from geartrain.authoring.quantities import read_any_duration  # late: few models need it, and it imports re

    fix = "it is seconds above 0, or a time such as '90s', '5m' or '1h'"
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float, str)):
        raise TypeError(f"@cached: ttl={ttl!r}: {fix}")
    try:
        seconds = read_any_duration(ttl)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"@cached: ttl={ttl!r}: {fix}")
    return seconds


def _cache_size(max_bytes: int | str) -> int:
    from geartrain.authoring.quantities import read_size

    fix = "it is a number of bytes, or a size such as '256MiB'"
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, (int, str)):
        raise TypeError(f"@cached: max_bytes={max_bytes!r}: {fix}")
    try:
        return read_size(str(max_bytes))
    except ValueError:
        raise ValueError(f"@cached: max_bytes={max_bytes!r}: {fix}") from None


@overload
def joint(function: _Function) -> _Function: ...
@overload
def joint(function: None = None, *, max_size: int = DEFAULT_MAX_SIZE) -> Callable[[_Function], _Function]: ...
def joint(
    function: _Function | None = None, *, max_size: int = DEFAULT_MAX_SIZE
) -> _Function | Callable[[_Function], _Function]:
    """Let requests join a `run()` that is under way, and end one by one: `@joint` or `@joint(max_size=64)`.

    `run(batch: Batch[Inputs, Output])` is a loop: each turn of `for live in batch` has the requests that are there, at
    most `max_size`. `Inputs` is a class with an annotation for each input of a request, `Output` the type of one
    request's output, such as `str` or `Iterator[str]`.

    Raises `TypeError` or `ValueError` for a size that cannot be meant.
    """
    try:
        check_settings({"max_size": max_size})
    except (TypeError, ValueError) as error:
        raise type(error)(f"@joint: {error}") from None

    def decorate(function: _Function) -> _Function:
        if not callable(function):
            raise TypeError(f"write @joint or @joint(max_size={max_size}), not @joint({function!r})")
        setattr(function, JOINT_ATTRIBUTE, max_size)
        return function

    return decorate if function is None else decorate(function)


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
