"""Values of scripts as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return arrays, tensors, data frames and what holds them as lists, numbers and dicts."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "detach"):
        return value.detach().cpu().tolist()
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict(orient="records")
    return value.tolist() if hasattr(value, "tolist") else value
