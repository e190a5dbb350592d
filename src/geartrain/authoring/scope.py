"""The surroundings of the prediction that is running: its id, its context, and its metrics."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from math import isfinite
from typing import Any, Final, Literal, Protocol

Operation = Literal["replace", "increment", "append", "delete"]
Parameter = str | int | float | bool
Emit = Callable[[str, Any, Operation], None]
"""Takes a metric's name, its value as given, and what to do with it."""
OpenItem = Callable[[int], AbstractContextManager["Scope"]]
"""Gives what makes a request of a batch, by its index, the current one inside a `with` block."""

MAX_NAME_LENGTH: Final = 128
MAX_NAME_SEGMENTS: Final = 4
MAX_METRICS: Final = 1000  # names that one prediction may have
MAX_METRICS_SIZE: Final = 1024**2  # bytes of memory of their values, together

_MODES: Final[dict[str, Operation]] = {
    "replace": "replace",
    "incr": "increment",
    "increment": "increment",
    "append": "append",
}
_INT64: Final = range(-(2**63), 2**64)  # integers of the inner wire


class Metrics(MutableMapping[str, Any]):
    """The metrics recorded so far by dotted name. Setting a name to None, or deleting it, takes it out.

    A name keeps the type of its first value until it is deleted. Source of the rules: observed Cog, section 10.
    """

    __slots__ = ("_emit", "_has_warned", "_size", "_sizes", "_types", "_values")

    def __init__(self, emit: Emit | None = None) -> None:
        self._emit = emit
        self._values: dict[str, Any] = {}
        self._types: dict[str, str] = {}
        self._sizes: dict[str, int] = {}  # bytes of the values, by name
        self._size = 0  # their sum
        self._has_warned = False  # that a value was left out

    def record(self, key: str, value: Any, mode: str | None = "replace") -> None:
        """Record a value; raise `ValueError` for a bad name, `TypeError` for a bad value or mode.

        `mode` "replace" overwrites, "incr" adds to a number, "append" makes a list. A value beyond `MAX_METRICS` names
        or `MAX_METRICS_SIZE` is left out; the first one is told on stderr, which belongs to the prediction's logs.
        """
        if self._emit is None:
            return
        operation = _MODES.get(mode or "replace")
        if operation is None:
            raise TypeError(f"Invalid metric mode: {mode!r}. Expected 'replace', 'incr', or 'append'.")
        plain = _plain_metric(value)
        kind = type(plain).__name__
        if operation == "increment" and kind not in {"int", "float"}:
            raise TypeError(f"Increment mode requires int or float, got {kind}")
        known = self._types.get(key)
        if known is None:
            check_metric_name(key)
        elif known != kind:
            raise TypeError(f"Metric {key!r} has type {known}, cannot set to {kind} without deleting first")
        if not _is_finite(plain):
            warnings.warn(f"metric {key!r} holds NaN or Infinity and is left out", RuntimeWarning, stacklevel=3)
            return
        if not self._has_room(key, plain, operation):
            return
        self._types[key] = kind
        self._fold(key, plain, operation)
        self._emit(key, plain, operation)

    def delete(self, key: str) -> None:
        """Take a metric out, which also frees its name for another type; an unknown one is ignored."""
        if self._types.pop(key, None) is None:
            return
        del self._values[key]
        self._size -= self._sizes.pop(key)
        if self._emit is not None:
            self._emit(key, None, "delete")

    def _has_room(self, key: str, value: Any, operation: Operation) -> bool:
        """Count a value, or return False if it is one too many. The first such one is told on stderr."""
        before = self._sizes.get(key, 0)
        size = _memory_of(value) + (before if operation == "append" else 0)
        total = self._size - before + size
        if (key in self._sizes or len(self._sizes) < MAX_METRICS) and total <= MAX_METRICS_SIZE:
            self._sizes[key], self._size = size, total
            return True
        if not self._has_warned:
            self._has_warned = True
            # No `warnings.warn`, which is shown for the first prediction of a worker alone.
            sys.stderr.write(
                f"metric {key!r} is left out, and so are further ones: a prediction records at most {MAX_METRICS} "
                f"names and {MAX_METRICS_SIZE // 1024**2} MiB of values. Record fewer values, or give them as output.\n"
            )
        return False

    def _fold(self, key: str, value: Any, operation: Operation) -> None:
        if operation == "replace" or (operation == "increment" and key not in self._values):
            self._values[key] = [*value] if isinstance(value, list) else value  # the caller's copy does not grow
        elif operation == "increment":
            self._values[key] += value
        else:
            present = self._values.get(key, [])
            if isinstance(present, list):
                present.append(value)
            else:
                present = [present, value]
            self._values[key] = present

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Record a value; None deletes."""
        if value is None:
            self.delete(key)
        else:
            self.record(key, value)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({self._values!r})"


class RequestIds(Protocol):
    """The ids of a request."""

    @property
    def request_id(self) -> str:
        """Its id."""

    @property
    def traceparent(self) -> str:
        """The trace context of the run."""

    @property
    def tracestate(self) -> str:
        """Additions of other systems to that."""


class Scope:
    """One prediction as its `run()` sees it. Without `emit` it stands for no prediction and ignores every metric."""

    __slots__ = (
        "_emit",
        "_metrics",
        "_request",
        "context",
        "open_item",
        "parameters",
        "place",
        "prediction_id",
    )

    def __init__(
        self,
        prediction_id: str = "",
        context: Mapping[str, str] | None = None,
        emit: Emit | None = None,
        *,
        request: RequestIds | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        open_item: OpenItem | None = None,
        place: Any = None,
    ) -> None:
        """`place` is the worker's own: the call that the prediction runs in.

        `parameters` are those of a request of the Open Inference Protocol; any other has none.

        `request` is the one that the prediction comes from, if there is one. `open_item` is of a batch: what
        `batch_item` gives.
        """
        self.prediction_id = prediction_id
        self.context: dict[str, str] = dict(context) if context else {}
        self.parameters: dict[str, Parameter] = dict(parameters) if parameters else {}
        self.open_item = open_item
        self.place = place
        self._request = request
        self._emit = emit
        self._metrics: Metrics | None = None

    @property
    def request_id(self) -> str:
        """The id of the request that the prediction comes from.

        A log line, or a request to another service, that has this and the trace context belongs to the same request.
        All three are empty where there is no request, and in a batch, whose requests have their own: see `batch_item`.
        """
        return "" if self._request is None else self._request.request_id

    @property
    def takes_pieces(self) -> bool:
        """True if the client of a streamed response reads its pieces as they come; otherwise they are joined."""
        return bool(getattr(self._request, "pieces", False))

    @property
    def traceparent(self) -> str:
        """The trace context of the run (W3C Trace Context)."""
        return "" if self._request is None else self._request.traceparent

    @property
    def tracestate(self) -> str:
        """Additions of other systems to the trace context."""
        return "" if self._request is None else self._request.tracestate

    @property
    def metrics(self) -> Metrics:
        """The metrics of this prediction, to read, set and delete."""
        if self._metrics is None:
            self._metrics = Metrics(self._emit)
        return self._metrics

    @property
    def device(self) -> str:
        """The device of this worker, as PyTorch calls it: `cuda:0`, the first of its GPUs, or `cpu`.

        It follows from `devices` and `replicas` of the model's geartrain.yaml.
        """
        from geartrain.authoring.devices import own_device  # late: few models ask

        return own_device()

    def record_metric(self, key: str, value: Any, mode: str | None = "replace") -> None:
        """Record a metric: `Metrics.record`."""
        self.metrics.record(key, value, mode)

    def forget_metrics(self) -> None:
        """Take out all that was recorded: the run begins anew."""
        if self._metrics is not None:
            self._metrics.clear()

    def __repr__(self) -> str:
        return f"Scope(prediction_id={self.prediction_id!r}, context={self.context!r})"


_scope: ContextVar[Scope | None] = ContextVar("geartrain_scope", default=None)


def current_scope() -> Scope:
    """Return the scope of the running prediction; outside of one, a scope that ignores every metric."""
    return _scope.get() or Scope()


def batch_item(index: int) -> AbstractContextManager[Scope]:
    """Let what is printed in a `with` block of a batched `run()`, and its metrics, be those of one request.

    `index` is a place in the lists, or a row of the tensors, that `run()` was given; the scope is that of the request.
    Raises `IndexError` for one that is not there. Outside of a batch, as in a test that calls `run()` itself, the block
    has no effect.
    """
    scope = current_scope()
    return nullcontext(scope) if scope.open_item is None else scope.open_item(index)


def set_scope(scope: Scope) -> Token[Scope | None]:
    """Make `scope` the current one in this context; `reset_scope` takes it back."""
    return _scope.set(scope)


def reset_scope(token: Token[Scope | None]) -> None:
    """Undo the `set_scope` that gave this token."""
    _scope.reset(token)


class use_scope:  # noqa: N801 - used like a function, in a `with`
    """Make `scope` the current one inside a `with` block."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = set_scope(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        reset_scope(self._token)


def check_metric_name(name: str) -> None:
    """Raise `ValueError` unless `name` may be recorded: 1 to 4 dotted words of letters, digits and single `_`."""
    if not isinstance(name, str):
        raise TypeError(f"a metric's name is a string, not {type(name).__name__}")
    if name == "predict_time":
        raise ValueError("'predict_time' is reserved by the runtime")
    if name.startswith("cog."):
        raise ValueError("the 'cog.' prefix is reserved for system metrics")
    fault = _fault_of_name(name)
    if fault:
        raise ValueError(f"metric name {fault}")


def _fault_of_name(name: str) -> str:
    if not name:
        return "must not be empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"must be {MAX_NAME_LENGTH} characters or fewer (got {len(name)} characters)"
    if name[0] == ".":
        return "must not start with a dot"
    if name[-1] == ".":
        return "must not end with a dot"
    if ".." in name:
        return "must not contain empty segments (consecutive dots)"
    segments = name.split(".")
    if len(segments) > MAX_NAME_SEGMENTS:
        return f"must have at most {MAX_NAME_SEGMENTS} dot-separated segments (got {len(segments)})"
    return next(filter(None, map(_fault_of_segment, segments)), "")


def _fault_of_segment(segment: str) -> str:
    if not (segment[0].isascii() and segment[0].isalpha()):
        return f"segment {segment!r} must start with a letter"
    for character in segment:
        if not (character == "_" or (character.isascii() and character.isalnum())):
            return f"segment {segment!r} contains invalid character {character!r}"
    if segment[-1] == "_":
        return f"segment {segment!r} must end with a letter or digit"
    if "__" in segment:
        return f"segment {segment!r} must not contain consecutive underscores"
    return ""


def _plain_metric(value: Any) -> Any:
    """Return a private JSON copy of a metric's value; a numpy scalar counts as the Python number it is."""
    if not isinstance(value, (bool, int, float, str, list, dict)):
        item = getattr(value, "item", None)
        value = item() if callable(item) and not getattr(value, "shape", ()) else value
    if not isinstance(value, (bool, int, float, str, list, dict)):
        raise TypeError(
            f"Unsupported metric value type: {type(value).__name__}. Expected bool, int, float, str, list, or dict."
        )
    return _plain_json(value)


def _plain_json(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value in _INT64 else float(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (list, tuple)):
        return [_plain_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str.__str__(key): _plain_json(item) for key, item in value.items()}
    raise TypeError(f"Cannot convert {type(value).__name__} to JSON metric value")


def _memory_of(value: Any) -> int:
    """Return the bytes of memory of a plain value, with its place in a list."""
    size = 8 + sys.getsizeof(value)
    if isinstance(value, list):
        return size + sum(map(_memory_of, value))
    if isinstance(value, dict):
        return size + sum(map(_memory_of, value)) + sum(map(_memory_of, value.values()))
    return size


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list) or all(map(_is_finite, value))
