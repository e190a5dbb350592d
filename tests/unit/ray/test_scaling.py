"""How many replicas the policy asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geartrain.ray.scaling import LOAD, by_queue


def context(loads: dict[str, float], *, current: int, target: int) -> Any:
    metrics = {LOAD: loads} if loads else {}
    return SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=current, target_num_replicas=target)


@pytest.mark.parametrize(
    ("loads", "current", "wanted"),
    [
        ({"a": 0.0}, 1, 1),  # never none: somebody has to count the queue
        ({"a": 1.0}, 1, 1),
        ({"a": 1.01}, 1, 2),
        ({"a": 3.0, "b": 3.0}, 2, 6),
        ({"a": 0.1, "b": 0.1, "c": 0.1}, 3, 1),
        ({"a": 0.1 + 0.2, "b": 0.7}, 2, 1),  # a sum that is 1 but for its last digit
        ({"a": 2.0}, 2, 4),  # one has not reported yet
    ],
)
def test_the_work_decides(loads: dict[str, float], current: int, wanted: int) -> None:
    assert by_queue(context(loads, current=current, target=current)) == (wanted, {})


def test_nothing_changes_before_a_replica_has_reported() -> None:
    assert by_queue(context({}, current=0, target=3)) == (3, {})
