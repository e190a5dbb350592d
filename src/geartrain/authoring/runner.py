"""The class that an author derives a model from."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from geartrain.authoring.scope import Scope, current_scope


class CancelationException(BaseException):
    """Raised inside a synchronous `run()` whose prediction was canceled. Clean up briefly, then re-raise it.

    Like `KeyboardInterrupt` it is no `Exception`, so that `except Exception` does not swallow it. An asynchronous
    `run()` gets `asyncio.CancelledError` instead.
    """


CancellationException = CancelationException


class BaseRunner:
    """A model: `setup()` once, then `run()` for every prediction.

    Write `run()` with annotated parameters: they are the inputs, and its return type is the output. It may be `async`
    and may `yield`. The older name `predict()` does as well, but a class has one of the two. Deriving from this class
    is optional; it adds the metrics.
    """

    def setup(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare, once per worker, before the first prediction.

        May be async, and may take `weights`: the value of `COG_WEIGHTS`, or None.
        """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Make one prediction. Raises `NotImplementedError` in a class that has neither `run()` nor `predict()`."""
        if type(self).predict is not BaseRunner.predict:
            return self.predict(*args, **kwargs)
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Make one prediction: the older name of `run()`."""
        if type(self).run is not BaseRunner.run:
            return self.run(*args, **kwargs)
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def healthcheck(self) -> bool | Awaitable[bool | None] | None:
        """Tell whether the model can still work: False, an exception, or more than 5 s mean that it cannot."""
        return True

    @property
    def scope(self) -> Scope:
        """The running prediction: its metrics, context and id. See `current_scope`."""
        return current_scope()

    def record_metric(self, key: str, value: Any, mode: str | None = "replace") -> None:
        """Record a metric of the running prediction; outside of one it is ignored.

        The dots of `key` nest objects. `mode`: "replace", "incr" (add to a number) or "append" (make a list). A value
        of None deletes the metric.
        Raises `ValueError` for a bad name and `TypeError` for a bad value, or one of another type than before.
        """
        self.scope.metrics.record(key, value, mode)


class BasePredictor(BaseRunner):
    """The older name of `BaseRunner`."""
