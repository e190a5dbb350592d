"""Cog's prediction API: bodies to domain values and back. Pure.

Source: Cog's HTTP API and prediction API documents; observed-Cog sections 4, 6, 8, 11 where they are silent.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from geartrain.apis import json_limits
from geartrain.apis.timestamps import timestamp
from geartrain.domain.errors import MISSING, Code, FieldError, GeartrainError
from geartrain.domain.predictions.ledger import Page, Row
from geartrain.domain.predictions.lifecycle import Status
from geartrain.domain.predictions.prediction import CallRecord, Prediction, WebhookEvent, json_array, json_array_parts
from geartrain.domain.rendering import LONGEST_ERROR, MAX_SHOWN_CHARACTERS, clip, json_fault
from geartrain.domain.tensors.tensor import Buffer
from geartrain.domain.versions import COG_VERSION

_ESCAPE: Final = re.compile(rb"\\u00[567]")  # of what names are made of
_NO_DEPTH: Final = 2 * json_limits.MAX_DEPTH  # bytes that do not reach the limit
NO_INPUT: Final = msgspec.Raw(b"{}")
_SHORTEST_REPEAT: Final = len('{"id":"","id":""}') - len(NO_INPUT)
"""Bytes of a body outside of its input, where the name of a field can first stand twice."""


class PredictionRequest(msgspec.Struct, frozen=True):
    """The body of POST and PUT. Fields it does not know are ignored, as Cog does."""

    id: str | None = None
    input: msgspec.Raw = NO_INPUT
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

_SHORTEST_TEXT: Final = 12  # characters that are left of a text of an error
_LONGEST_HEAD: Final = 1_048_576  # characters of the fields beside the input
_NAMED: Final = 5  # inputs in an advice
_LARGE: Final = 262_144  # bytes of input and output, from which on another copy of them matters
MANY: Final = 4_096  # pieces of an output that take long to join
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


def bounded(request: PredictionRequest) -> PredictionRequest:
    """Return the request of a large body with each event of webhooks named once.

    Raises `GeartrainError` if its fields beside the input are longer than any use of them.
    """
    texts = {"id": request.id, "webhook": request.webhook, "output_file_prefix": request.output_file_prefix}
    lengths = {name: len(text or "") for name, text in texts.items()}
    lengths["context"] = sum(len(name) + len(value) for name, value in request.context.items())
    if sum(lengths.values()) > _LONGEST_HEAD:
        fault = f"the fields beside the input have more than {_LONGEST_HEAD} characters"
        raise _wrong_field(max(lengths, key=lengths.__getitem__), fault)
    events = tuple(dict.fromkeys(request.webhook_events_filter))
    return msgspec.structs.replace(request, webhook_events_filter=events)


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


def stray_names(body: bytes | bytearray) -> tuple[str, ...]:
    """Return the names of the members of a body that are no fields of a request: they may be meant as inputs."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return ()
    return tuple(name for name in members if name not in PredictionRequest.__struct_fields__)


def with_advice(error: GeartrainError, strays: Sequence[str]) -> GeartrainError:
    """Return an error about missing inputs that says where inputs belong; `strays` were sent outside of `input`."""
    if not strays:
        return error
    missing = {each.loc[-1] for each in error.fields if each.type == MISSING}
    advised, where = missing.intersection(strays), 'put it inside "input"'
    if not advised:  # all that were sent are others, and belong there as well
        advised, where = missing, f"{where}, with {', '.join(strays[:_NAMED])}"
    fields = tuple(
        msgspec.structs.replace(each, msg=f"{each.msg}: {where}")
        if each.type == MISSING and each.loc[-1] in advised
        else each
        for each in error.fields
    )
    return GeartrainError(error.code, error.message, fields=fields, retry_after=error.retry_after)


def input_of(request: PredictionRequest) -> bytes:
    """Return the input as JSON text; null stands for an empty one, as in Cog."""
    raw = bytes(request.input)
    return b"{}" if raw == b"null" else raw


def _without_input(body: bytes | bytearray, size: int) -> bytes | bytearray:
    """Return the parts of a body that can lie outside of its input, which is `size` bytes of it in one piece."""
    rest = len(body) - size
    return body[:rest] + body[-rest:] if 2 * rest < len(body) else body


def _may_repeat(count: Callable[[bytes], int], text: bytes | bytearray) -> bool:
    """True if the name of a field stands in a text twice, or is written with escapes. Every request waits for this."""
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


class Snapshot(msgspec.Struct, frozen=True):
    """A prediction at one moment. Its text may be made later, and in a thread.

    `chunks` may grow meanwhile: the first `count` of them are the output, if `output` is None.
    """

    head: bytes
    input: bytes
    middle: bytes
    tail: bytes
    chunks: Sequence[Buffer] = ()
    count: int = 0
    output: Buffer | None = None

    @property
    def takes_long(self) -> bool:
        """True if the parts take long to make."""
        return self.count > MANY

    @property
    def is_large(self) -> bool:
        """True if the text takes long to make in one piece."""
        if self.takes_long:
            return True
        size = sum(map(len, self.chunks)) if self.output is None else len(self.output)
        return len(self.input) + len(self.middle) + size > _LARGE

    def parts(self) -> tuple[Buffer, ...]:
        """Return the JSON text, without copies of a large input and large outputs."""
        if self.output is not None:
            return (self.head, self.input, self.middle, self.output, self.tail)
        if self.count:
            return (self.head, self.input, self.middle, *json_array_parts(self.chunks, self.count), self.tail)
        return (self.head, self.input, self.middle)

    def whole(self) -> bytes:
        """Return the JSON text in one piece."""
        return b"".join(self.parts())


def takes_long(prediction: Prediction) -> bool:
    """Return True if the output has so many pieces that they are to be joined in a thread."""
    return len(prediction.chunks) > MANY and prediction.gives_list


def encode_in_parts(prediction: Prediction) -> tuple[Buffer, ...]:
    """Return the same in parts: a large input and a large output are what they are in the prediction, not copies."""
    chunks = prediction.chunks
    if len(chunks) <= MANY and len(prediction.input) + sum(map(len, chunks)) < _LARGE:
        output = prediction.single_output
        if output is None and prediction.gives_list:
            output = json_array(chunks)
        return (_encode_snapshot(prediction, prediction.input, output),)
    return snapshot(prediction).parts()


def snapshot(prediction: Prediction) -> Snapshot:
    """Return the prediction as it stands now."""
    return _snapshot(prediction, _encode_snapshot)


def _snapshot(prediction: Prediction, encode: Callable[[Prediction, bytes, Buffer | None], bytes]) -> Snapshot:
    chunks = prediction.chunks if prediction.gives_list else []
    output = (None if chunks else b"[]") if prediction.gives_list else prediction.output
    text = encode(prediction, _INPUT_MARK, _OUTPUT_MARK if chunks or output is not None else None)
    head, _, rest = text.partition(_INPUT_MARK)
    middle, _, tail = rest.partition(_OUTPUT_MARK)
    return Snapshot(head, prediction.input, middle, tail, chunks, len(chunks), output)


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


class CallBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the calls of other models that were made for a prediction; empty fields are left out."""

    id: str = ""
    parent: str
    model: str
    version: str = ""
    depth: int
    status: Status
    created_at: str
    started_at: str = ""
    completed_at: str = ""
    error: str = ""
    shared: int = 1


def encode_calls(prediction: Prediction) -> bytes:
    """Return the calls that were made for a prediction, each before its own ones, with the prediction's moments."""
    calls = prediction.calls
    found: dict[str, Any] = {
        "id": prediction.id,
        "model": prediction.record.model,
        "status": prediction.status,
        "created_at": timestamp(prediction.record.admitted),
        "started_at": _moment(prediction.started_at),
        "completed_at": _moment(prediction.completed_at),
        "calls": [] if calls is None else [_call_body(record, prediction.id) for record in calls.in_tree_order()],
        "left_out": 0 if calls is None else calls.left_out,
    }
    return _encode({name: value for name, value in found.items() if value != ""})


def _call_body(record: CallRecord, outermost: str) -> CallBody:
    status, started = record.now()
    return CallBody(
        id=record.id,
        parent=record.parent or outermost,
        model=record.model,
        version=record.version,
        depth=record.depth,
        status=status,
        created_at=timestamp(record.created),
        started_at=_moment(started),
        completed_at=_moment(record.completed),
        error=record.error,
        shared=record.shared,
    )


def _moment(seconds: float | None) -> str:
    return timestamp(seconds) if seconds else ""


def encode_error(error: GeartrainError) -> bytes:
    """Return the body of a refused request: every wrong field, or one sentence."""
    if error.fields:
        return _encode_fields(error.fields)
    if error.code is Code.NOT_ACCEPTABLE:  # not even a prediction that failed
        return _encode({"error": error.message})
    return _encode({"error": error.message, "status": "failed"})


def _encode_fields(fields: tuple[FieldError, ...]) -> bytes:
    """Return the body of an error of fields; if it is too long, with the middle of each text left out."""
    text = _encode({"detail": fields})
    most = MAX_SHOWN_CHARACTERS
    while len(text) > LONGEST_ERROR and most > _SHORTEST_TEXT:
        most //= 2
        text = _encode({"detail": [_clipped(field, most) for field in fields]})
    return text


def _clipped(field: FieldError, most: int) -> FieldError:
    return FieldError(tuple(clip(step, most) for step in field.loc), clip(field.msg, most), field.type)


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


def webhook_snapshot(prediction: Prediction, event: WebhookEvent) -> Snapshot:
    """Return the body of a webhook: the prediction in the status of the event, however far it has come since.

    The output is a list while it grows, and as in `completed` once it is known.
    """
    if event == "start":
        return Snapshot(encode_accepted(prediction), b"", b"", b"")
    return _snapshot(prediction, _encode_snapshot if event == "completed" else _encode_progress)


def encode_webhook(prediction: Prediction, event: WebhookEvent) -> bytes:
    """Return the same as JSON."""
    return webhook_snapshot(prediction, event).whole()


def _encode_progress(prediction: Prediction, echo: bytes, output: Buffer | None) -> bytes:
    return _encode_sorted(
        PredictionBody(
            created_at=timestamp(prediction.created_at),
            id=prediction.id,
            input=msgspec.Raw(echo),
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


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prediction of a list, without its output and logs, and without a long input; what is unset is left out."""

    id: str
    status: Status
    version: str
    created_at: str
    started_at: str = ""
    completed_at: str = ""
    error: str = ""
    attempts: int = 1
    cancel_requested: bool = False
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, frozen=True):
    """`next` is the cursor that asks for the following page, null on the last one."""

    results: list[_Entry]
    next: str | None


def encode_page(page: Page) -> bytes:
    """Return a page of a list as JSON."""
    return _encode(_Body([_entry(row) for row in page.rows], page.cursor or None))


def _entry(row: Row) -> _Entry:
    return _Entry(
        id=row.ownership.key.id,
        status=row.status,
        version=row.version,
        created_at=timestamp(row.created_at),
        started_at="" if row.started_at is None else timestamp(row.started_at),
        completed_at="" if row.completed_at is None else timestamp(row.completed_at),
        error=row.error,
        attempts=row.attempts,
        cancel_requested=row.is_cancel_requested,
        input=msgspec.Raw(row.echo) if row.echo else msgspec.UNSET,
    )
