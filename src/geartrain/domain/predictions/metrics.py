"""How recorded metrics add up: replace, increment, append, delete, under dotted names.

The rules on names and types are checked where the author calls `record_metric`; here an impossible combination (a
parent name that holds a plain value) simply replaces what stood there.
"""

from __future__ import annotations

from typing import Any

from geartrain.domain.predictions.events import MetricMode


def apply_metric(metrics: dict[str, Any], name: str, value: Any, *, mode: MetricMode) -> None:
    """Fold one recorded value into `metrics`; the dots of `name` nest objects. Source: observed Cog, section 10."""
    if mode == "replace" and "." not in name:  # nearly always
        metrics[name] = value
        return
    *parents, leaf = name.split(".")
    for parent in parents:
        child = metrics.get(parent)
        if not isinstance(child, dict):
            child = metrics[parent] = {}
        metrics = child
    match mode:
        case "replace":
            metrics[leaf] = value
        case "increment":
            metrics[leaf] = metrics.get(leaf, 0) + value
        case "append":
            present = metrics.get(leaf, [])
            metrics[leaf] = [*present, value] if isinstance(present, list) else [present, value]
        case "delete":
            metrics.pop(leaf, None)
