"""The record of a prediction: what statistics, logs and traces say of it, without its inputs and outputs."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext


class PredictionRecord(msgspec.Struct, gc=False, eq=False):
    """What is kept of one prediction. It stays small, because logs hold it for a while after the end.

    Moments are in seconds since the epoch, 0 for what has not been.

    Attributes:
        prediction_id: empty for no prediction at all.
        admitted: when it was admitted.
        ready: when the files of its input were there.
        request: that asks for it.
        model: that runs it.
        version: of the model.
        rows: its size in a batch.
        input_size: bytes of its input, with its tensors.
        began: when its run began.
        first_output: when the first of several outputs came.
        run_ended: when its run was over, if something of it was still to be delivered then.
        completed: when it reached its terminal state.
        outcome: its terminal state, `STARTING` until then.
    """

    prediction_id: str
    admitted: float
    ready: float
    request: RequestContext = NO_REQUEST
    model: str = ""
    version: str = ""
    rows: int = 1
    input_size: int = 0
    began: float = 0.0
    first_output: float = 0.0
    run_ended: float = 0.0
    completed: float = 0.0
    outcome: Status = Status.STARTING


NO_PREDICTION: Final = PredictionRecord("", 0.0, 0.0)
"""Of a request that has started none."""
