"""What an engine makes of a message: the first call of a prediction, or of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from geartrain.bridge.messages import Predict, PredictBatch
from geartrain.worker.channel import Channel
from geartrain.worker.job import Job, JobTools, Runnable


def first_call(message: Predict | PredictBatch, channel: Channel, tools: JobTools) -> Runnable:
    """The call of `run()` that a message asks for; further ones may follow it."""
    if isinstance(message, Predict):
        return Job(message, channel, tools)
    return _first_of_batch()(message, channel, tools)


@cache
def _first_of_batch() -> Callable[[PredictBatch, Channel, JobTools], Runnable]:
    """Imported when there is a batch, and looked up once: an import costs something each time that it is met."""
    from geartrain.worker.batch_call import first_of

    return first_of
