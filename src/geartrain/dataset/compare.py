"""Two models over the same rows: what each gives, and how much they agree."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.dataset.columns import Row
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.results import Result
from geartrain.dataset.runs import OnResults, Runs
from geartrain.domain.signature.types import OutputSpec, RecordField, Signature, TypeSpec

Metric = Callable[[Any, Any], float]
"""Agreement of two outputs, as Python has their JSON; 1 means that they are the same."""

_NUMBER: Final = TypeSpec("number")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class PairRuns:
    """Runs each row by two models. Its output has both outputs, their agreement, and the seconds of each run.

    A row fails if it fails with either.
    """

    def __init__(self, first: Runs, second: Runs, metric: Metric) -> None:
        """The columns are the inputs of the first model, which the second has to take as well.

        Raises `DatasetError` if it does not.
        """
        _check_inputs(first.signature, second.signature)
        self.agreement = Agreement()
        self.signature = msgspec.structs.replace(first.signature, output=_output_of(first.signature, second.signature))
        self._runs = (first, second)
        self._metric = metric

    @property
    def window(self) -> int:
        """Rows that may be on their way at once, now."""
        return min(runs.window for runs in self._runs)

    @property
    def on_fault(self) -> Callable[[Exception], None]:
        """Receiver of whatever keeps rows from being run."""
        return self._runs[0].on_fault

    @on_fault.setter
    def on_fault(self, receive: Callable[[Exception], None]) -> None:
        for runs in self._runs:
            runs.on_fault = receive

    async def begin(self, rows: Sequence[Row], on_results: OnResults) -> None:
        """Begin rows with both; see `Runs`."""
        pairs = _Pairs(self, rows, on_results)
        for at, runs in enumerate(self._runs):
            await runs.begin(rows, partial(pairs.add, at))

    async def wait_all(self) -> None:
        """Wait until no row is on its way."""
        for runs in self._runs:
            await runs.wait_all()

    def cancel_waiting(self) -> None:
        """End the rows that have not begun to run."""
        for runs in self._runs:
            runs.cancel_waiting()

    def batch_sizes(self) -> dict[int, int]:
        """Return nothing: two models have batches of different sizes."""
        return {}

    def busy(self, run_time: float, seconds: float) -> float | None:  # noqa: ARG002 - each model has its own
        """Return the share of time in which the busier one of the models ran rows; see `Runs`."""
        pairs = zip(self._runs, self.agreement.seconds, strict=True)
        shares = [runs.busy(each, seconds) for runs, each in pairs]
        return max((share for share in shares if share is not None), default=None)

    def joined(self, row: Row, first: Result, second: Result) -> Result:
        """Return the result of a row that both have run."""
        for name, each in (("a", first), ("b", second)):
            if each.error:
                return Result(row.number, row.kept, error=f"{name}: {each.error}")
        outputs = [bytes(each.output or b"null") for each in (first, second)]
        try:
            score = float(self._metric(*map(_decode, outputs)))
        except Exception as error:  # noqa: BLE001 - a person's own function
            return Result(row.number, row.kept, error=f"the metric failed: {type(error).__name__}: {error}")
        self.agreement.add(score, first.run_time, second.run_time)
        members = {
            "a": msgspec.Raw(outputs[0]),
            "b": msgspec.Raw(outputs[1]),
            "score": score,
            "a_seconds": first.run_time,
            "b_seconds": second.run_time,
        }
        return Result(row.number, row.kept, _encode(members), "", first.run_time + second.run_time, first.metrics)


class _Pairs:
    """The two results of each row."""

    def __init__(self, owner: PairRuns, rows: Sequence[Row], on_results: OnResults) -> None:
        self._owner = owner
        self._rows = {row.number: row for row in rows}
        self._on_results = on_results
        self._first: tuple[dict[int, Result], ...] = ({}, {})  # results that wait for those of the other model

    def add(self, at: int, results: list[Result]) -> None:
        """Take results of one model; a row that the other one has run has its result."""
        own, others = self._first[at], self._first[1 - at]
        joined: list[Result] = []
        for result in results:
            other = others.pop(result.number, None)
            if other is None:
                own[result.number] = result
                continue
            first, second = (other, result) if at else (result, other)
            joined.append(self._owner.joined(self._rows.pop(result.number), first, second))
        if joined:
            self._on_results(joined)


class _Pair(msgspec.Struct):
    """The figures of an output that has two."""

    score: float
    a_seconds: float
    b_seconds: float


_read_pair = msgspec.json.Decoder(_Pair).decode


class Agreement:
    """Account of a comparison. Seconds of runs are sums."""

    def __init__(self) -> None:
        self.rows = 0
        self.same = 0
        self.score = 0.0
        self.seconds = [0.0, 0.0]

    def add(self, score: float, *seconds: float) -> None:
        """Count a row."""
        self.rows += 1
        self.same += score == 1.0
        self.score += score
        self.seconds = [total + each for total, each in zip(self.seconds, seconds, strict=True)]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Agreement:
        """Return the account of results of `PairRuns`."""
        found = cls()
        for result in results:
            if not result.error:
                pair = _read_pair(result.output or b"")
                found.add(pair.score, pair.a_seconds, pair.b_seconds)
        return found

    def merge(self, other: Agreement) -> None:
        """Count the rows of another account."""
        self.rows += other.rows
        self.same += other.same
        self.score += other.score
        self.seconds = [total + each for total, each in zip(self.seconds, other.seconds, strict=True)]

    def lines(self) -> list[str]:
        """Return the account as lines."""
        if not self.rows:
            return []
        first, second = (1000 * total / self.rows for total in self.seconds)
        return [
            f"{self.same:,} of {self.rows:,} rows are the same; mean score {self.score / self.rows:.4g}",
            f"run of a row: {first:.3g} ms with a, {second:.3g} ms with b",
        ]


# metrics


def find_metric(name: str, tolerance: float, *, folder: str | os.PathLike[str] = "") -> Metric:
    """Return a metric: `exact`, `close`, or a function of a person's own as `module:function`.

    `folder`: where such a module may be, besides among those that are installed; the current folder by default.
    Raises `DatasetError`.
    """
    if name == "exact":
        return lambda a, b: float(a == b)
    if name == "close":
        return lambda a, b: float(_is_close(a, b, tolerance))
    module, _, function = name.partition(":")
    if not module or not function:
        raise DatasetError(f"--metric {name}: write exact, close, or module:function")
    sys.path.insert(0, str(folder or Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise DatasetError(f"--metric {name}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise DatasetError(f"--metric {name} is no function")
    return found  # type: ignore[no-any-return]  # whatever it returns is made a float


def _is_close(a: Any, b: Any, tolerance: float) -> bool:
    """True if two outputs differ by no more than a share of their numbers."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_is_close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_close(each, b[name], tolerance) for name, each in a.items())
    return bool(a == b)


# signatures


def _check_inputs(first: Signature, second: Signature) -> None:
    known = {field.name for field in first.inputs}
    missing = [field.name for field in second.inputs if field.required and field.name not in known]
    if missing:
        raise DatasetError(f"the second model needs {', '.join(missing)}, which the first one does not take")
    unknown = known - {field.name for field in second.inputs}
    if unknown and any(field.required for field in first.inputs if field.name in unknown):
        raise DatasetError(f"the second model does not take {', '.join(sorted(unknown))}")


def _output_of(first: Signature, second: Signature) -> OutputSpec:
    fields = (
        RecordField("a", _whole(first.output)),
        RecordField("b", _whole(second.output)),
        RecordField("score", _NUMBER),
        RecordField("a_seconds", _NUMBER),
        RecordField("b_seconds", _NUMBER),
    )
    return OutputSpec(TypeSpec("record", fields=fields))


def _whole(output: OutputSpec) -> TypeSpec:
    """Return the type of a whole output: a list of what a model yields."""
    return output.type if output.mode == "value" else TypeSpec("array", items=output.type)
