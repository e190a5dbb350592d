"""Number of replicas, by the work that the present ones report.

Ray's controller has this module as it was when the application was deployed, so it stands alone.
"""

from __future__ import annotations

import math
from typing import Any, Final

LOAD: Final = "geartrain_load"
"""Metric of a replica: number of replicas that its work would keep busy, waiting requests included."""


def by_queue(context: Any) -> tuple[int, dict[str, Any]]:
    """Return as many replicas as their work would keep busy, and no state. See `AutoscalingContext` of Ray Serve.

    Ray keeps the number within its limits, and lets it change only after the delays of its `AutoscalingConfig`.
    """
    reported = (context.aggregated_metrics or {}).get(LOAD) or {}
    if not reported:  # none has reported yet
        return context.target_num_replicas, {}
    # Replicas that have not reported yet have what the others have.
    missing = max(0, context.current_num_replicas - len(reported))
    total = sum(reported.values()) * (1 + missing / len(reported))
    return max(1, math.ceil(round(total, 6))), {}
