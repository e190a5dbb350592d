"""The record of a prediction: what statistics, logs and traces say of it, without its inputs and outputs."""

from __future__ import annotations

from typing import Final

import msgspec

from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.request_context import NO_REQUEST, RequestContext


class PredictionRecord(msgspec.Struct, gc=False, eq=False):
    """Record of one prediction. It stays small, because logs hold it for a while after the end.

    Moments are in seconds since the epoch, 0 until they come.

    Attributes:
        prediction_id: empty for no prediction at all.
        admitted: its admission.
        ready: arrival of the files of its input.
        request: its request.
        model: its model.
        version: of the model.
        rows: its size in a batch.
        input_size: bytes of its input, with its tensors.
        began: begin of its run.
        first_output: the first of several outputs.
        run_ended: end of its run, if an output was still to be delivered then.
        completed: its terminal state.
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
