"""The arguments of the engine."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class AsyncEngineArgs:
    """What the engine is told."""

    model: str
    max_model_len: int | None = None
    max_num_seqs: int = 256
    disable_log_stats: bool = False
    gpu_memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError("gpu_memory_utilization must be in (0, 1]")

    def written(self) -> dict[str, Any]:
        """Return them as they were given."""
        return dataclasses.asdict(self)
