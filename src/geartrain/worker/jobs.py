"""What an engine makes of a message: the first call of a prediction, or of a batch."""

from __future__ import annotations

from geartrain.bridge.messages import Predict, PredictBatch
from geartrain.worker.channel import Channel
from geartrain.worker.job import Job, JobTools, Runnable


def first_call(message: Predict | PredictBatch, channel: Channel, tools: JobTools) -> Runnable:
    """The call of `run()` that a message asks for; further ones may follow it."""
    if isinstance(message, Predict):
        return Job(message, channel, tools)
    from geartrain.worker.batch_call import first_of

    return first_of(message, channel, tools)
