"""Stand-ins for the other models that a model calls: functions of the test."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from geartrain.authoring.nested import ModelError, PendingCall, Record, Transport, provide
from geartrain.authoring.values import AsyncConcatenateIterator, ConcatenateIterator

Fake = Callable[..., Any]
_JOINED: Final = frozenset({ConcatenateIterator, AsyncConcatenateIterator})


@contextmanager
def other_models(fakes: Mapping[str, Fake] | None) -> Iterator[None]:
    """Have functions answer the calls of other models in a `with` block; None leaves calls without an answer."""
    if fakes is None:
        yield
        return
    before = provide(FakeModels(fakes))
    try:
        yield
    finally:
        provide(before)


class FakeModels(Transport):
    """The functions by the name of the model. See `Transport`."""

    def __init__(self, fakes: Mapping[str, Fake]) -> None:
        self._fakes = dict(fakes)

    def begin(self, model: str, version: str, inputs: dict[str, Any]) -> FakeCall:
        """Begin a call. Raises LookupError where the test has no function for the model."""
        fake = self._fakes.get(f"{model}@{version}" if version else model) or self._fakes.get(model)
        if fake is None:
            known = ", ".join(map(repr, self._fakes)) or "none"
            raise LookupError(f"the model '{model}' is called, and the test has functions for: {known}")
        return FakeCall(model, fake, inputs)

    def is_async(self) -> bool:
        """True if the caller runs on an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True


class FakeCall(PendingCall):
    """One call of a function in place of a model. See `PendingCall`."""

    def __init__(self, model: str, fake: Fake, inputs: dict[str, Any]) -> None:
        self._model = model
        self._is_joined = _is_joined(fake)
        self._error: ModelError | None = None
        self._value: Any = None
        self._is_canceled = False
        try:
            self._value = fake(**inputs)
        except Exception as error:  # noqa: BLE001 - a run may raise anything
            self._error = self._as_model_error(error)
            self._error.__cause__ = error

    def result(self) -> Any:
        """Return the value of the function, or a list of all that it has yielded. Raises `ModelError`."""
        if inspect.iscoroutine(self._value) or inspect.isasyncgen(self._value):
            return asyncio.run(self.wait())
        self._check()
        if isinstance(self._value, Iterator):
            return self._whole(list(self._pieces()))
        return _as_output(self._value)

    async def wait(self) -> Any:
        """Return as `result`, on a loop."""
        self._check()
        try:
            if inspect.iscoroutine(self._value):
                return _as_output(await self._value)
            if isinstance(self._value, AsyncIterator):
                return self._whole([_as_output(value) async for value in self._value])
        except Exception as error:
            raise self._as_model_error(error) from error
        return self.result()

    def next(self) -> Any:
        """Return the next value that the function yields. Raises StopIteration and `ModelError`."""
        self._check()
        if not isinstance(self._value, Iterator):
            self._value = iter([self._value])
        try:
            return _as_output(next(self._value))
        except StopIteration:
            raise
        except Exception as error:
            raise self._as_model_error(error) from error

    async def anext(self) -> Any:
        """Return the next value as `next`, on a loop. Raises StopAsyncIteration and `ModelError`."""
        self._check()
        if not isinstance(self._value, AsyncIterator):
            try:
                return self.next()
            except StopIteration:
                raise StopAsyncIteration from None
        try:
            return _as_output(await anext(self._value))
        except StopAsyncIteration:
            raise
        except Exception as error:
            raise self._as_model_error(error) from error

    def cancel(self) -> None:
        """End it: what is asked of it from now on raises `ModelError`."""
        self._is_canceled = True
        if inspect.iscoroutine(self._value):
            self._value.close()

    def _pieces(self) -> Iterator[Any]:
        while True:
            try:
                piece = self.next()
            except StopIteration:
                return
            yield piece

    def _whole(self, pieces: list[Any]) -> Any:
        return "".join(pieces) if self._is_joined else pieces

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_canceled:
            raise ModelError(self._model, "run_canceled", "The prediction was canceled.")

    def _as_model_error(self, error: Exception) -> ModelError:
        if isinstance(error, ModelError):
            return error
        return ModelError(self._model, "run_failed", f"{type(error).__name__}: {error}")


def _is_joined(fake: Fake) -> bool:
    try:
        returned = typing.get_type_hints(fake).get("return")
    except Exception:  # noqa: BLE001 - an annotation may be anything
        return False
    return typing.get_origin(returned) in _JOINED


def _as_output(value: Any) -> Any:
    """Return a value as a call gives it: a record with attributes for a dict or a named tuple."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if type(value) is dict:
        return Record({name: _as_output(each) for name, each in value.items()})
    return [_as_output(each) for each in value] if type(value) is list else value
