"""Cog's prediction API: bodies to domain values and back. Pure.

Source: Cog's HTTP API and prediction API documents; observed-Cog sections 4, 6, 8, 11 where they are silent.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from geartrain.apis import json_limits
from geartrain.domain.cog_version import COG_VERSION
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import Prediction, json_array
from geartrain.domain.predictions.webhook import WebhookEvent
from geartrain.domain.rendering import clip, json_fault
from geartrain.domain.tensors.tensor import Buffer
from geartrain.domain.timestamps import timestamp

_ESCAPE: Final = re.compile(rb"\\u00[567]")  # of what names are made of
_NO_DEPTH: Final = 2 * json_limits.MAX_DEPTH  # bytes that do not reach the limit
_EMPTY_INPUT: Final = msgspec.Raw(b"{}")
_SHORTEST_REPEAT: Final = len('{"id":"","id":""}') - len(_EMPTY_INPUT)
"""Bytes of a body outside of its input, where the name of a field can first stand twice."""


class PredictionRequest(msgspec.Struct, frozen=True):
    """The body of POST and PUT. Fields it does not know are ignored, as Cog does."""

    id: str | None = None
    input: msgspec.Raw = _EMPTY_INPUT
    context: dict[str, str] = {}
    created_at: datetime | None = None
    webhook: str | None = None
    webhook_events_filter: tuple[WebhookEvent, ...] = ("start", "output", "logs", "completed")
    output_file_prefix: str | None = None


class PredictionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction as its clients see it. Keys in alphabetical order, as observed; what is unset is left out."""

    completed_at: str | msgspec.UnsetType = msgspec.UNSET
    created_at: str
    error: str | msgspec.UnsetType = msgspec.UNSET
    id: str
    input: msgspec.Raw
    logs: str
    metrics: dict[str, Any]
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    started_at: str | msgspec.UnsetType = msgspec.UNSET
    status: Status


_request_decoder = msgspec.json.Decoder(PredictionRequest)
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode  # sorts dicts, but leaves records as they are

_LARGE: Final = 262_144  # bytes of input and output, from which on another copy of them matters
_INPUT_MARK: Final = b"\x00"  # JSON text has no control characters
_OUTPUT_MARK: Final = b"\x01"

NO_REQUEST: Final = PredictionRequest()


def read_request(body: bytes | bytearray) -> PredictionRequest:
    """Decode a request's body.

    Raises `GeartrainError`: `UNPARSABLE` when it is no JSON, `INVALID_INPUT` naming the field of a wrong type.
    """
    try:
        request = _request_decoder.decode(body)
        if len(body) > _NO_DEPTH:
            json_limits.check_depth(body)
    except msgspec.ValidationError as error:
        raise _wrong_shape(error) from error
    except UnicodeDecodeError as error:
        raise _unparsable(str(error)) from error
    except ValueError as error:
        raise _unparsable(json_fault(body, error)) from error
    except RecursionError as error:
        raise _unparsable("nested too deeply") from error
    size = len(request.input)
    if len(body) - size >= _SHORTEST_REPEAT:
        text = body if len(body) < _LARGE else _without_input(body, size)
        if _may_repeat(text.count, text):
            _refuse_duplicates(body)
    if request.context or request.id is not None:
        _check_fields(request)
    if request.created_at is not None:
        return msgspec.structs.replace(request, created_at=_sound_moment(request.created_at))
    return request


def _check_fields(request: PredictionRequest) -> None:
    if len(request.context) > json_limits.MAX_MEMBERS:
        raise _wrong_field("context", f"it has more than {json_limits.MAX_MEMBERS} members")
    if request.id == "":
        raise _wrong_field("id", "an id has at least one character")


def _unparsable(fault: str) -> GeartrainError:
    return GeartrainError(Code.UNPARSABLE, f"Failed to parse the request body as JSON: {fault}")


def _sound_moment(at: datetime) -> datetime:
    """Return the moment in UTC, which is what one without a zone is taken for."""
    try:
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        timestamp(at.timestamp())
    except (ValueError, OverflowError) as error:
        raise _wrong_field("created_at", f"{at.isoformat()} is out of range") from error
    return at


def _wrong_field(name: str, fault: str) -> GeartrainError:
    return GeartrainError(Code.INVALID_INPUT, fault, fields=(FieldError(("body", name), fault, "value_error"),))


def input_of(request: PredictionRequest) -> bytes:
    """Return the input as JSON text; null stands for an empty one, as in Cog."""
    raw = bytes(request.input)
    return b"{}" if raw == b"null" else raw


def _without_input(body: bytes | bytearray, size: int) -> bytes | bytearray:
    """Return the parts of a body that can lie outside of its input, which is `size` bytes of it in one piece."""
    rest = len(body) - size
    return body[:rest] + body[-rest:] if 2 * rest < len(body) else body


def _may_repeat(count: Callable[[bytes], int], text: bytes | bytearray) -> bool:
    """Whether the name of a field stands in a text twice, or is written with escapes. Every request waits for this."""
    return (
        count(b'"input"') > 1
        or count(b'"id"') > 1
        or count(b'"context"') > 1
        or (count(b'"webhook') > 1 and (count(b'"webhook"') > 1 or count(b'"webhook_events_filter"') > 1))
        or (count(b"\\u00") > 0 and _ESCAPE.search(text) is not None)
    )


def _refuse_duplicates(body: bytes | bytearray) -> None:
    """Refuse a top-level field that stands twice: which one counts would depend on who reads it."""
    seen: set[str] = set()
    try:
        for name, _, _ in json_limits.members(body.decode()):
            if name in seen and name in PredictionRequest.__struct_fields__:
                raise _wrong_field(name, f"duplicate field `{name}`")
            seen.add(name)
    except RecursionError as error:
        raise _unparsable("nested too deeply") from error
    except ValueError as error:
        raise _unparsable(clip(str(error))) from error


def _wrong_shape(error: msgspec.ValidationError) -> GeartrainError:
    text, _, path = str(error).rpartition(" - at `")
    text, path = clip(text or path), clip(path) if text else ""
    steps = [step for step in path.rstrip("`").removeprefix("$").replace("[", ".").replace("]", "").split(".") if step]
    field = FieldError(("body", *steps), text, "value_error")
    return GeartrainError(Code.INVALID_INPUT, text, fields=(field,))


_shared_moment = lru_cache(maxsize=64)(timestamp)  # of a batch: all of it begins and ends at one


def encode_prediction(prediction: Prediction) -> bytes:
    """Return the prediction as it stands now, as JSON."""
    output = _output_so_far(prediction)
    return _encode_snapshot(prediction, prediction.input, output)


def encode_in_parts(prediction: Prediction) -> tuple[Buffer, ...]:
    """Return the same in parts: a large input and a large output are what they are in the prediction, not copies."""
    output = _output_so_far(prediction)
    if len(prediction.input) + (0 if output is None else len(output)) < _LARGE:
        return (_encode_snapshot(prediction, prediction.input, output),)
    text = _encode_snapshot(prediction, _INPUT_MARK, None if output is None else _OUTPUT_MARK)
    head, _, rest = text.partition(_INPUT_MARK)
    middle, _, tail = rest.partition(_OUTPUT_MARK)
    return (head, prediction.input, middle) if output is None else (head, prediction.input, middle, output, tail)


def _encode_snapshot(prediction: Prediction, echo: bytes, output: Buffer | None) -> bytes:
    unset = msgspec.UNSET
    metrics = prediction.metrics
    if prediction.predict_time is not None:
        metrics = {**metrics, "predict_time": prediction.predict_time}
    created_at = timestamp(prediction.created_at)
    started_at: str | msgspec.UnsetType = unset
    moment = timestamp
    if prediction.started_at == prediction.created_at:  # mostly: a prediction that had nothing to wait for
        started_at = created_at
    elif prediction.started_at is not None:
        moment = _shared_moment
        started_at = moment(prediction.started_at)
    return _encode_sorted(
        PredictionBody(
            completed_at=unset if prediction.completed_at is None else moment(prediction.completed_at),
            created_at=created_at,
            error=unset if prediction.error is None else prediction.error,
            id=prediction.id,
            input=msgspec.Raw(echo),
            logs=prediction.logs if prediction.printed.size else "",
            metrics=metrics,
            output=unset if output is None else msgspec.Raw(output),
            started_at=started_at,
            status=prediction.status,
        )
    )


def encode_error(error: GeartrainError) -> bytes:
    """Return the body of a refused request: every wrong field, or one sentence."""
    if error.fields:
        return _encode({"detail": error.fields})
    if error.code is Code.NOT_ACCEPTABLE:  # not even a prediction that failed
        return _encode({"error": error.message})
    return _encode({"error": error.message, "status": "failed"})


def id_mismatch(noun: str) -> GeartrainError:
    """The body of a PUT names another id than its URL; `noun` says of what."""
    msg = f"{noun} ID must match the ID supplied in the URL"
    return GeartrainError(Code.INVALID_INPUT, msg, fields=(FieldError(("body", "id"), msg, "value_error"),))


def discovery(nouns: Iterable[str], *, prefix: str = "", shutdown: bool = True) -> bytes:
    """Return the body of `GET /`: the URLs of what there is, `nouns` being `prediction`, `training` or both."""
    urls = {
        "cog_version": COG_VERSION,
        "docs_url": f"{prefix}/docs",
        "healthcheck_url": f"{prefix}/health-check",
        "openapi_url": f"{prefix}/openapi.json",
    }
    if shutdown:
        urls["shutdown_url"] = f"{prefix}/shutdown"
    for noun in nouns:
        urls[f"{noun}s_url"] = f"{prefix}/{noun}s"
        urls[f"{noun}s_idempotent_url"] = f"{prefix}/{noun}s/{{{noun}_id}}"
        urls[f"{noun}s_cancel_url"] = f"{prefix}/{noun}s/{{{noun}_id}}/cancel"
    return _encode_sorted(urls)


def versions(version: str) -> dict[str, Any]:
    """Return the part of a health check that says what runs here; `version` is that of geartrain.

    The versions of Cog are those of the Cog whose interface this is, as its clients read them: `coglet` of the server,
    `cog` (HTTP API, "GET /health-check") and `python_sdk` (observed Cog, section 4) of the package that models import.
    """
    return {
        "version": {
            "coglet": COG_VERSION,
            "cog": COG_VERSION,
            "python_sdk": COG_VERSION,
            "python": platform.python_version(),
            "geartrain": version,
        }
    }


def encode_health(body: dict[str, Any]) -> bytes:
    """Return the body of `GET /health-check`."""
    return _encode(body)


def encode_accepted(prediction: Prediction) -> bytes:
    """Return the answer to `Prefer: respond-async`: the prediction in status `starting`, as the documents have it."""
    return _encode(
        PredictionBody(
            created_at=timestamp(prediction.created_at),
            id=prediction.id,
            input=msgspec.Raw(prediction.input),
            logs="",
            metrics={},
            status=Status.STARTING,
        )
    )


def encode_webhook(prediction: Prediction, event: WebhookEvent) -> bytes:
    """Return the body of a webhook: the prediction in the status of the event, however far it has come since.

    The output is a list while it grows, and as in `completed` once it is known.
    """
    if event == "start":
        return encode_accepted(prediction)
    if event == "completed":
        return encode_prediction(prediction)
    output = _output_so_far(prediction)
    return _encode_sorted(
        PredictionBody(
            created_at=timestamp(prediction.created_at),
            id=prediction.id,
            input=msgspec.Raw(prediction.input),
            logs=prediction.logs,
            metrics=prediction.metrics,
            output=msgspec.UNSET if output is None else msgspec.Raw(output),
            started_at=msgspec.UNSET if prediction.started_at is None else timestamp(prediction.started_at),
            status=Status.PROCESSING,
        )
    )


def _output_so_far(prediction: Prediction) -> Buffer | None:
    output = prediction.output
    return json_array(prediction.chunks) if output is None and prediction.chunks else output
