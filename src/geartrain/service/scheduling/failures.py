"""Log records of predictions: failures, whatever protocol asked for them, and the ends of accepted ones.

The run is its author's, so its failure is an error. What a client can bring about by itself is information: it must not
fill a log that somebody watches.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any, Final

from geartrain.domain.predictions.events import Log
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.predictions.request_context import NO_REQUEST

logger = logging.getLogger("geartrain.runs")

RUN_FAILED: Final = "a run failed"
NOT_RUN: Final = "a prediction failed before its run"
NOT_DELIVERED: Final = "the outputs of a run could not be delivered"
TIMED_OUT: Final = "a prediction took too long"
ENDED: Final = "an accepted prediction ended"
TRACEBACK: Final = "Traceback (most recent call last):"  # first line of a traceback
_LONGEST: Final = 16_384  # characters of a traceback, and of an error


def log_failure(prediction: Prediction, what: str, *, level: int = logging.INFO) -> None:
    """Log a prediction that has failed, with the ids of its request and the traceback of its run.

    One that no request asks for is the command line's, which tells of it itself.
    """
    record = prediction.record
    request = record.request
    if request is NO_REQUEST:
        return
    fields = {**_ids(prediction), "error": _clip(prediction.error or "")}
    traceback = traceback_of(prediction)
    if traceback:
        fields["exception"] = traceback
    logger.log(level, what, extra=fields)


def log_fault(prediction: Prediction, error: Exception) -> str:
    """Log the fault of this server for which a prediction does not begin; return a sentence for its client."""
    logger.error("a prediction could not be begun", extra=_ids(prediction), exc_info=error)
    return f"The prediction could not be begun: {error}"


def log_end(prediction: Prediction) -> None:
    """Log the end of a prediction that was accepted with 202, once it comes: its client does not wait for it."""
    if prediction.is_terminal:
        _log_end(prediction)
    else:
        prediction.log.listen_for_end(functools.partial(_log_end_soon, prediction))


def _log_end_soon(prediction: Prediction) -> None:
    """Log the end after the record of a failure, which has the traceback."""
    asyncio.get_running_loop().call_soon(_log_end, prediction)


def _log_end(prediction: Prediction) -> None:
    record = prediction.record
    began = record.began or record.completed
    fields = {
        **_ids(prediction),
        "outcome": prediction.status.value,
        "queue_ms": _milliseconds(record.admitted, began),
        "run_ms": _milliseconds(began, record.completed),
        "total_ms": _milliseconds(record.admitted, record.completed),
    }
    logger.info(ENDED, extra=fields)


def _milliseconds(begin: float, end: float) -> float:
    return round(max(0.0, end - begin) * 1000, 3)


def _ids(prediction: Prediction) -> dict[str, Any]:
    record = prediction.record
    return {
        "model": record.model,
        "version": record.version,
        "protocol": record.request.protocol,
        "prediction_id": prediction.id,
        "request_id": record.request.request_id,
        "trace_id": record.request.trace_id,
    }


def traceback_of(prediction: Prediction) -> str:
    """Return the traceback with which a run ended: the worker sends it last. Empty if there is none."""
    events = reversed(prediction.log.read(prediction.log.first_index))
    last = next((event.data for event in events if isinstance(event, Log)), "")
    at = last.find(TRACEBACK)
    return "" if at < 0 else _clip(last[last.rfind("\n", 0, at) + 1 :].rstrip("\n"))


def _clip(text: str) -> str:
    """Leave out the middle of a text that is too long for a line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} […] {text[-_LONGEST // 2 :]}"
