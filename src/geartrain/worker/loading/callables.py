"""The parameters, the kind and the decorators of a callable, also below other decorators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


class SeveralFunctionsError(TypeError):
    """A decorator without `functools.wraps` refers to several functions, so the decorated one is not known."""


def signature_of(run: Any) -> inspect.Signature:
    """Return the parameters of a callable, without `self` where it is bound.

    A decorator without `functools.wraps` has nothing but `*args, **kwargs`. Then they are the parameters of the
    function that it calls, as in Cog. Raises `SeveralFunctionsError`, and `ValueError` or `TypeError` where a callable
    has no signature that can be read.
    """
    return _signature(run, bound=False)


def _signature(run: Any, *, bound: bool) -> inspect.Signature:
    signature = inspect.signature(run)
    if bound and inspect.isfunction(run):
        parameters = list(signature.parameters.values())
        takes_self = bool(parameters) and parameters[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = signature.replace(parameters=parameters[1:] if takes_self else parameters)
    if not _has_only_stars(signature):
        return signature
    inner = inspect.unwrap(run)
    bound = bound or inspect.ismethod(run)
    called = _called_functions(inner, bound=bound)
    if len(called) > 1:
        names = ", ".join(sorted(function.__qualname__ for function in called))
        raise SeveralFunctionsError(
            f"its decorator takes *args, **kwargs and refers to several functions ({names}):"
            " put @functools.wraps(function) on the decorator's inner function"
        )
    return _signature(called[0], bound=bound) if called else signature


def _has_only_stars(signature: inspect.Signature) -> bool:
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in parameters]
    return inspect.Parameter.VAR_KEYWORD in kinds and set(kinds) <= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }


def _called_functions(layer: Any, *, bound: bool) -> list[Any]:
    """The functions that a `def wrapper(*args, **kwargs)` refers to; none for any other function.

    What stands in a class is decorated before it is bound, so there a bound method cannot be what is decorated.
    """
    function = getattr(layer, "__func__", layer)
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or not code.co_flags & inspect.CO_VARKEYWORDS:
        return []
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if named and named != ("self",) and not (bound and code.co_argcount == 1 == len(named)):
        return []
    found: dict[int, Any] = {}
    for value in closure_of(function).values():
        if inspect.isfunction(value) or (not bound and inspect.ismethod(value)):
            found[id(value)] = value
    return list(found.values())


def closure_of(function: Any) -> dict[str, Any]:
    """The names that a function made inside another one can see, and their values."""
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def layers(run: Any, *, bound: bool = False) -> list[Any]:
    """The callable and what it wraps, from the outside in; for an object that is called, its `__call__` at the end.

    `bound`: `run` is a function of a class that will be bound to an instance.
    """
    found: list[Any] = []
    layer: Any = run
    while layer is not None and not any(layer is known for known in found):
        found.append(layer)
        bound = bound or inspect.ismethod(layer)
        layer = getattr(layer, "__wrapped__", None) or getattr(layer, "func", None) or _hidden(layer, bound=bound)
    if not inspect.isroutine(found[-1]):
        found.append(type(found[-1]).__call__)
    return found


def _hidden(layer: Any, *, bound: bool) -> Any:
    called = _called_functions(layer, bound=bound)
    return called[0] if len(called) == 1 else None


def is_generator(run: Any) -> bool:
    """Tell whether calling `run` gives a generator, also through decorators."""
    return any(inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer) for layer in layers(run))


def is_async(run: Any) -> bool:
    """Tell whether `run` was written with `async def`, also through decorators."""
    return any(inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer) for layer in layers(run))


def decorator_value(run: Any, attribute: str) -> Any:
    """Return the value that a decorator such as `@concurrent` left on `run`, also below other decorators; or None."""
    return next((getattr(layer, attribute) for layer in layers(run) if hasattr(layer, attribute)), None)


def lacks_self(function: Any, owner: type) -> bool:
    """Tell whether a function of the class `owner` is written without `self`, itself or below its decorators.

    A first parameter of another name counts as `self` unless it has a type or a default, which `self` never needs.
    """
    written = layers(function, bound=True)
    return any(_takes_nothing_first(layer) for layer in _functions(written)) or _is_input(written[-1], owner)


def _functions(written: list[Any]) -> Iterator[Any]:
    return (layer for layer in written if inspect.isfunction(layer))


def _takes_nothing_first(function: Any) -> bool:
    code = function.__code__
    return code.co_argcount == 0 and not code.co_flags & inspect.CO_VARARGS


def _is_input(function: Any, owner: type) -> bool:
    code = getattr(function, "__code__", None)
    if code is None or not code.co_argcount or code.co_varnames[0] == "self":
        return False
    annotation = getattr(function, "__annotations__", {}).get(code.co_varnames[0])
    has_default = len(getattr(function, "__defaults__", None) or ()) == code.co_argcount
    return has_default or (annotation is not None and annotation not in (owner, owner.__name__))
