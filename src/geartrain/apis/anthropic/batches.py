"""Batches of messages in the form of Anthropic's API: a request for one, its object, and the results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from geartrain.apis.anthropic.answers import encode_fault
from geartrain.apis.openai.batches import MAX_LINE, Line, LineError, read_line, used_tokens
from geartrain.apis.openai.errors import OpenAIError, invalid
from geartrain.apis.timestamps import timestamp
from geartrain.domain.errors import Code
from geartrain.domain.predictions.batch_jobs import MESSAGES, OPEN_BATCH, Batch, BatchStatus, LineAnswer
from geartrain.domain.rendering import clip

MAX_REQUESTS: Final = 100_000
"""Requests of one batch."""

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Body(msgspec.Struct):
    requests: msgspec.Raw = _NULL


_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def no_store() -> OpenAIError:
    """Return the error of a server without a store."""
    msg = "Batches of messages are kept in a store, and this server has none: start it with --store sqlite:///PATH."
    return OpenAIError(Code.NOT_FOUND, msg)


def unknown_batch(name: str) -> OpenAIError:
    """Return the error of a batch that is not there, or is another client's."""
    return OpenAIError(Code.NOT_FOUND, f"No batch of messages found with id '{clip(name)}'.")


def read_requests(body: bytes | bytearray | memoryview) -> tuple[bytearray, int]:
    """Return the requests of a body as the lines of a file, and their number. Raises `OpenAIError`."""
    try:
        given = _decode_list(_decode_body(body).requests)
    except msgspec.ValidationError:
        raise invalid("'requests' has to be a list of objects with 'custom_id' and 'params'", "requests") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OpenAIError(Code.UNPARSABLE, "The body is no JSON.") from None
    if not 1 <= len(given) <= MAX_REQUESTS:
        msg = f"'requests' has {len(given):,} requests; a batch has from 1 to {MAX_REQUESTS:,}"
        raise invalid(msg, "requests")
    lines, seen = bytearray(), dict[str, int]()
    for at, raw in enumerate(given):
        line, custom_id = _read_request(raw, f"requests[{at}]")
        if custom_id in seen:
            msg = f"'requests[{at}].custom_id' is that of requests[{seen[custom_id]}] as well: each has its own"
            raise invalid(msg, f"requests[{at}].custom_id")
        seen[custom_id] = at
        lines += line
        lines += b"\n"
    return lines, len(given)


def _read_request(raw: msgspec.Raw, place: str) -> tuple[bytes, str]:
    """Return a request as a line of a file, and its id. Raises `OpenAIError`."""
    try:
        members = _decode_members(raw)
        custom_id: Any = _decode(members.get("custom_id", _NULL))
    except msgspec.ValidationError:
        raise invalid(f"'{place}' has to be an object with 'custom_id' and 'params'", place) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid(f"'{place}' is no JSON", place) from None
    if not isinstance(custom_id, str) or not _ID.fullmatch(custom_id):
        msg = f"'{place}.custom_id' has to be a text of 1 to 64 letters, digits, '_' and '-'"
        raise invalid(msg, f"{place}.custom_id")
    # A line ends with a line feed. In JSON it stands between values only, as a space does.
    params = msgspec.Raw(bytes(members.get("params", _NULL)).replace(b"\n", b" "))
    line = _encode({"custom_id": custom_id, "method": "POST", "url": MESSAGES, "body": params})
    if len(line) > MAX_LINE:
        msg = f"'{place}' has more than {MAX_LINE:,} bytes: send so large a request by itself"
        raise OpenAIError(Code.TOO_LARGE, msg, param=place)
    try:
        read_line(1, line, MESSAGES)
    except LineError as error:
        if error.fault.param == "body.model":
            raise invalid(f"'{place}.params.model' has to name a model", f"{place}.params.model") from None
        what = "has to be an object of JSON" if error.fault.param == "body" else "is no JSON"
        raise invalid(f"'{place}.params' {what}", f"{place}.params") from None
    return line, custom_id


# objects


def describe_batch(batch: Batch, *, has_results: bool) -> dict[str, Any]:
    """Return the object of a batch. `has_results`: false once they have been removed."""
    new, ended = batch.new, batch.status not in OPEN_BATCH
    rest = max(0, new.total - batch.completed - batch.failed)
    is_canceled, is_expired = batch.status is BatchStatus.CANCELLED, batch.status is BatchStatus.EXPIRED
    status = "ended" if ended else "canceling" if batch.status is BatchStatus.CANCELLING else "in_progress"
    return {
        "id": new.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if ended else rest,
            "succeeded": batch.completed,
            "errored": batch.failed + (rest if ended and not (is_canceled or is_expired) else 0),
            "canceled": rest if is_canceled else 0,
            "expired": rest if is_expired else 0,
        },
        "created_at": timestamp(new.created_at),
        "expires_at": timestamp(new.expires_at),
        "ended_at": _moment(batch.progress.ended_at),
        "cancel_initiated_at": _moment(batch.cancelling_at),
        "archived_at": None if has_results or not ended else _moment(archived_at(batch)),
        "results_url": f"{MESSAGES}/batches/{new.id}/results" if ended and has_results else None,
    }


def archived_at(batch: Batch) -> float | None:
    """Return the moment from which on an ended batch has no results; None before its end."""
    ended = batch.progress.ended_at
    return None if ended is None else ended + batch.new.output_seconds


def _moment(at: float | None) -> str | None:
    return None if at is None else timestamp(at)


def encode(described: dict[str, Any]) -> bytes:
    """Return an object as JSON."""
    return _encode(described)


def encode_list(members: Sequence[dict[str, Any]], *, has_more: bool) -> bytes:
    """Return a page of batches."""
    first, last = (members[0]["id"], members[-1]["id"]) if members else (None, None)
    return _encode({"data": members, "has_more": has_more, "first_id": first, "last_id": last})


def encode_deleted(name: str) -> bytes:
    """Return the answer to the removal of a batch."""
    return _encode({"id": name, "type": "message_batch_deleted"})


# results


def answer_of(line: Line, status: int, body: bytes, *, request_id: str) -> LineAnswer:
    """Return the answer to a request that was asked."""
    text = body.replace(b"\n", b" ")
    if status != HTTPStatus.OK:
        error = {**_decode(text), "request_id": request_id or None}
        return LineAnswer(line.number, True, _result(line, {"type": "errored", "error": error}))
    result = _result(line, {"type": "succeeded", "message": msgspec.Raw(text)})
    return LineAnswer(line.number, False, result, *used_tokens(body))


def unanswered(line: Line, code: str, message: str) -> LineAnswer:
    """Return the answer to a request that was not asked."""
    kind = "api_error" if code == "internal" else "invalid_request_error"
    return LineAnswer(line.number, True, _result(line, _errored(message, kind)))


def rest_of(line: Line, status: BatchStatus) -> bytes:
    """Return the result of a request without an answer, in a batch that ended with `status`."""
    if status is BatchStatus.CANCELLED:
        return _result(line, {"type": "canceled"})
    if status is BatchStatus.EXPIRED:
        return _result(line, {"type": "expired"})
    return _result(line, _errored("Internal server error", "api_error"))


def _errored(message: str, kind: str) -> dict[str, Any]:
    return {"type": "errored", "error": {**_decode(encode_fault(message, kind)), "request_id": None}}


def _result(line: Line, result: dict[str, Any]) -> bytes:
    return _encode({"custom_id": line.custom_id, "result": result})
