"""Metrics of a model's author: counters, gauges and histograms that `GET /metrics` shows with those of the server.

They are defined once, at the top of a module or in `setup()`:

    from geartrain import metrics

    tokens = metrics.counter("tokens", "Tokens that the model has made", labels=["kind"])
    tokens.inc(12, kind="answer")

All of them may be used from any thread. The server adds the labels `model` and `version`, and puts the values of all
workers of a model together about once a second. In a forked process they are not counted.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, TypeVar

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max", "min"]
Labels = tuple[str, ...]

MAX_SERIES: Final = 1000  # combinations of labels, of all metrics of a worker together
MAX_LABELS: Final = 10
MAX_NAME: Final = 128  # characters
MAX_VALUE: Final = 128  # characters of the value of a label; the rest is cut off
MAX_BUCKETS: Final = 50
DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*", re.ASCII)
_TAKEN_NAMES: Final = ("geartrain_", "nv_", "process_", "python_")
_TAKEN_ENDS: Final = ("_total", "_bucket", "_sum", "_count", "_created", "_info")
_TAKEN_LABELS: Final = frozenset({"model", "version", "replica", "le", "quantile", "amount", "value"})


class Definition(NamedTuple):
    """Description of a metric; see `counter`, `gauge` and `histogram`."""

    name: str
    kind: Kind
    text: str
    labels: Labels
    merge: Merge = "sum"
    bounds: tuple[float, ...] = ()
    is_raw: bool = False  # shown by its name and its labels alone, whose names are part of each series


class Change(NamedTuple):
    """Changes of a metric for some labels since the last look.

    `value` is the increase of a counter or of the sum of a histogram, and a gauge as it stands; `counts` are the
    numbers of new values in each bucket of a histogram.
    """

    labels: Labels
    value: float
    counts: tuple[int, ...] = ()


class Registry:
    """The metrics of a process, and what has changed of them since it was last asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on_definition: Callable[[], None] = _do_nothing
        self.on_change: Callable[[], None] = _do_nothing  # called with the lock, once until the changes are taken
        self.warn: Callable[[str], None] = _warn
        self._metrics: dict[str, Metric] = {}
        self._count = 0  # series
        self._has_warned = False
        self._has_changes = False

    def define(self, metric: M) -> M:
        """Add a metric, or return the one that has been defined in the same way before.

        One that is defined when there are too many is not reported.
        Raises `ValueError` for one of the same name that is something else.
        """
        name = metric.definition.name
        with self.lock:
            known = self._metrics.get(name, metric)
            if len(self._metrics) < MAX_SERIES:
                self._metrics[name] = known
            elif name not in self._metrics:
                self._warn_of_limit()
        if type(known) is not type(metric) or known.definition != metric.definition:
            raise ValueError(f"the metric {name!r} has been defined before in another way: {known.definition}")
        self.on_definition()
        return known

    def known(self, name: str) -> Metric | None:
        """Return the metric of a name; None if it has not been defined."""
        return self._metrics.get(name)

    @property
    def has_metrics(self) -> bool:
        """True if there are any."""
        return bool(self._metrics)

    def take(self) -> list[tuple[Definition, list[Change]]]:
        """Return the metrics that have changed, each with its changes, which are no longer kept."""
        with self.lock:
            self._has_changes = False
            taken = [(metric.definition, metric.take()) for metric in self._metrics.values()]
        return [(definition, changes) for definition, changes in taken if changes]

    def has_place(self) -> bool:
        """True if there may be one more series; to be called with the lock. The first refusal is warned of."""
        if self._count < MAX_SERIES:
            self._count += 1
            return True
        self._warn_of_limit()
        return False

    def _warn_of_limit(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            self.warn(
                f"the metrics of this model have {MAX_SERIES} series; the values of further ones are left out. "
                "Use labels with few values."
            )

    def note_change(self) -> None:
        """Note that something has changed; to be called with the lock."""
        if not self._has_changes:
            self.on_change()
            self._has_changes = True  # last: a cancel may come in between

    def renew_lock(self) -> None:
        """Replace the lock: in a forked process its holder may be gone."""
        self.lock = threading.Lock()


class Metric:
    """Common part of counters, gauges and histograms."""

    def __init__(self, registry: Registry, definition: Definition) -> None:
        self.definition = definition
        self._registry = registry
        self._series: dict[Labels, Any] = {}
        self._changed: set[Labels] = set()

    def take(self) -> list[Change]:
        """Return the changes, and begin anew; to be called with the lock of the registry."""
        changes = [self._change(labels) for labels in self._changed]
        self._changed.clear()
        return changes

    def _change(self, labels: Labels) -> Change:
        raise NotImplementedError

    def _key(self, given: dict[str, object]) -> Labels:
        """Return the values of the labels in their order; raise `ValueError` unless exactly those are given.

        Those of a raw metric are any, each behind its name.
        """
        if self.definition.is_raw:
            return tuple([text for name in sorted(given) for text in (name, str(given[name])[:MAX_VALUE])])
        names = self.definition.labels
        if len(given) == len(names):
            try:
                return tuple([str(given[name])[:MAX_VALUE] for name in names])
            except KeyError:
                pass
        wanted = ", ".join(names) or "none"
        raise ValueError(
            f"the metric {self.definition.name!r} has the labels: {wanted}; given: {', '.join(given) or 'none'}"
        )

    def _has_series(self, labels: Labels, first: Callable[[], Any]) -> bool:
        """True if there is a series, which begins with `first` if it is new; to be called with the lock."""
        if labels not in self._series:
            if not self._registry.has_place():
                return False
            self._series[labels] = first()
        self._changed.add(labels)
        self._registry.note_change()
        return True


class Counter(Metric):
    """A number that only grows."""

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Add `amount`; raise `ValueError` for one that is negative or not finite, or for other labels."""
        if not (isfinite(amount) and amount >= 0):
            raise ValueError(f"the counter {self.definition.name!r} only grows, by a finite amount, not by {amount!r}")
        key = self._key(labels)
        with self._registry.lock:
            if self._has_series(key, float):
                self._series[key] += amount

    def _change(self, labels: Labels) -> Change:
        increase, self._series[labels] = self._series[labels], 0.0
        return Change(labels, float(increase))


class Gauge(Metric):
    """A number that goes up and down."""

    def set(self, value: float, **labels: object) -> None:
        """Set it; raise `ValueError` for a value that is not finite, or for other labels."""
        self._check(value)
        key = self._key(labels)
        with self._registry.lock:
            if self._has_series(key, float):
                self._series[key] = float(value)

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Add `amount`, from 0 at first; raise `ValueError` as `set`."""
        self._check(amount)
        key = self._key(labels)
        with self._registry.lock:
            if self._has_series(key, float):
                self._series[key] += amount

    def dec(self, amount: float = 1, **labels: object) -> None:
        """Take `amount` away; raise `ValueError` as `set`."""
        self.inc(-amount, **labels)

    def _check(self, value: float) -> None:
        if not isfinite(value):
            raise ValueError(f"the gauge {self.definition.name!r} takes finite numbers, not {value!r}")

    def _change(self, labels: Labels) -> Change:
        return Change(labels, float(self._series[labels]))


class Histogram(Metric):
    """Distribution of values over buckets."""

    def observe(self, value: float, **labels: object) -> None:
        """Count a value; raise `ValueError` for one that is not finite, or for other labels."""
        if not isfinite(value):
            raise ValueError(f"the histogram {self.definition.name!r} takes finite numbers, not {value!r}")
        key = self._key(labels)
        bounds = self.definition.bounds
        with self._registry.lock:
            if self._has_series(key, self._empty):
                series = self._series[key]
                series[bisect_left(bounds, value)] += 1
                series[-1] += value

    def _empty(self) -> list[float]:
        """Return a count for each bucket, and the sum."""
        return [0] * (len(self.definition.bounds) + 1) + [0.0]

    def _change(self, labels: Labels) -> Change:
        *counts, total = self._series[labels]
        self._series[labels] = self._empty()
        return Change(labels, float(total), tuple(counts))


M = TypeVar("M", bound=Metric)


def counter(name: str, text: str = "", *, labels: Iterable[str] = ()) -> Counter:
    """Define a number that only grows, and return it. `/metrics` shows it as `name_total`.

    `text` describes it. Each combination of values of its `labels` is counted by itself. Raises `ValueError` for a name
    or labels that cannot be, or for a metric of this name that is something else.
    """
    return registry.define(Counter(registry, _definition(name, "counter", text, labels=labels)))


def gauge(name: str, text: str = "", *, labels: Iterable[str] = (), merge: Merge = "sum") -> Gauge:
    """Define a number that goes up and down, and return it; see `counter`.

    `merge` says what is shown where a model has several workers: the sum of their numbers, the greatest ("max") or the
    least ("min"). Those of a worker that has ended no longer count.
    """
    if merge not in {"sum", "max", "min"}:
        raise ValueError(f"a gauge is merged by 'sum', 'max' or 'min', not {merge!r}")
    definition = _definition(name, "gauge", text, labels=labels)
    return registry.define(Gauge(registry, definition._replace(merge=merge)))


def histogram(
    name: str, text: str = "", *, labels: Iterable[str] = (), buckets: Iterable[float] = DEFAULT_BUCKETS
) -> Histogram:
    """Define a histogram, and return it; see `counter`.

    `buckets` are the upper bounds of its buckets, rising; one without a bound is added. By default they suit seconds.
    """
    bounds = tuple(float(bound) for bound in buckets)
    if not 0 < len(bounds) <= MAX_BUCKETS or not all(map(isfinite, bounds)):
        raise ValueError(f"a histogram has 1 to {MAX_BUCKETS} buckets with finite bounds")
    if any(after <= before for before, after in pairwise(bounds)):
        raise ValueError("the bounds of a histogram's buckets rise")
    definition = _definition(name, "histogram", text, labels=labels)
    return registry.define(Histogram(registry, definition._replace(bounds=bounds)))


_RAW: Final[dict[Kind, type[Counter | Gauge | Histogram]]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
}
_RAW_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


def raw_metric(name: str, kind: Kind, text: str = "", *, bounds: tuple[float, ...] = ()) -> Any:
    """Define a metric for the contract of another server: shown by this name, without the server's labels.

    Its labels are those that are given with each value; check them with `check_raw_labels`. Raises `ValueError`.
    """
    if not _RAW_NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(f"{name!r} is no name of a metric")
    taken = [each for each in _TAKEN_NAMES if name.startswith(each)]
    if taken:
        raise ValueError(f"the metric {name!r} needs another name: the prefix {taken[0]!r} is the server's")
    definition = Definition(name, kind, str(text), (), "sum", tuple(map(float, bounds)), is_raw=True)
    return registry.define(_RAW[kind](registry, definition))


def check_raw_labels(name: str, labels: Iterable[str]) -> None:
    """Raise `ValueError` unless these can be the names of the labels of a raw metric."""
    names = list(labels)
    if len(names) > MAX_LABELS:
        raise ValueError(f"the metric {name!r} has {len(names)} labels; at most {MAX_LABELS} are possible")
    for label in names:
        _check_name("label", label)
        if label in {"le", "quantile"}:
            raise ValueError(f"the metric {name!r} cannot have a label {label!r}; choose another name")


def _definition(name: str, kind: Kind, text: str, *, labels: Iterable[str]) -> Definition:
    """Check a name and labels; raise `ValueError`, `TypeError` for labels that are one string."""
    _check_name("metric", name)
    if kind == "counter":
        name = name.removesuffix("_total")
    taken = [each for each in _TAKEN_NAMES if name.startswith(each)]
    if taken:
        raise ValueError(f"the metric {name!r} needs another name: the prefix {taken[0]!r} is the server's")
    taken = [end for end in _TAKEN_ENDS if name.endswith(end)]
    if taken:
        raise ValueError(f"the metric {name!r} needs another name: the ending {taken[0]!r} has a meaning of its own")
    if isinstance(labels, str):
        raise TypeError(f"labels are a list of names; write labels=[{labels!r}]")
    names = tuple(labels)
    if len(names) > MAX_LABELS:
        raise ValueError(f"the metric {name!r} has {len(names)} labels; at most {MAX_LABELS} are possible")
    for label in names:
        _check_name("label", label)
        if label in _TAKEN_LABELS:
            raise ValueError(f"the metric {name!r} cannot have a label {label!r}; choose another name")
    if len(set(names)) < len(names):
        raise ValueError(f"the metric {name!r} has a label twice: {', '.join(names)}")
    return Definition(name, kind, str(text), names)


def _check_name(noun: str, name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {noun} is a string, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"{name!r} is no name of a {noun}: it begins with a letter, and has up to {MAX_NAME} letters, digits and _"
        )


def _do_nothing() -> None:
    """Serve a process that is no worker."""


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=5)


registry: Final = Registry()

os.register_at_fork(after_in_child=registry.renew_lock)
