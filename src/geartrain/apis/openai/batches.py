"""Batches in the form of OpenAI's API: what a request for one says, the lines of its file, and their answers."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import OpenAIError, invalid
from geartrain.apis.openai.stored import LONGEST_LIFE, check_life
from geartrain.domain.errors import Code
from geartrain.domain.predictions.batch_jobs import Batch, BatchFault, BatchStatus, LineAnswer
from geartrain.domain.rendering import clip

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/rerank",
)
"""Endpoints whose requests a file may have: those that take JSON and answer with JSON."""

MAX_LINES: Final = 50_000
"""Requests in one file."""

MAX_LINE: Final = 16_777_216
"""Bytes of one line."""

MOST_FAULTS: Final = 20
"""Faults of a file that are told."""

_MOST_METADATA: Final = 16
_LONGEST_KEY: Final = 64  # characters of a name in the metadata
_LONGEST_VALUE: Final = 512  # characters of a value there, and of a custom_id
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_WINDOW: Final = 2_592_000  # seconds
_BOM: Final = b"\xef\xbb\xbf"
_DIGEST: Final = 16  # bytes that stand for a custom_id

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Asked(msgspec.Struct, frozen=True):
    """A request for a batch. `seconds` is the time of `window`; `output_seconds` that of the files of its answers."""

    input_file: str
    endpoint: str
    window: str
    seconds: float
    output_seconds: float
    metadata: dict[str, str] | None


def read_batch(body: bytes | bytearray) -> Asked:
    """Read a request for a batch. Raises `GeartrainError`."""
    try:
        members: Any = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OpenAIError(Code.UNPARSABLE, "The body is no JSON.") from None
    if not isinstance(members, dict):
        raise invalid("The body has to be an object of JSON.")
    endpoint = _text(members, "endpoint")
    if endpoint not in ENDPOINTS:
        msg = f"'endpoint' is '{clip(endpoint)}'; a batch is of one of {', '.join(ENDPOINTS)}"
        raise invalid(msg, "endpoint", "invalid_endpoint")
    window = _text(members, "completion_window")
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_WINDOW:
        msg = "'completion_window' has to be a time from 1s to 30d, such as '24h'"
        raise invalid(msg, "completion_window", "invalid_completion_window")
    life: Any = members.get("output_expires_after")
    output_seconds = float(LONGEST_LIFE)
    if life is not None:
        if not isinstance(life, dict):
            raise invalid("'output_expires_after' has to be an object", "output_expires_after")
        output_seconds = check_life(life.get("anchor"), life.get("seconds"), "output_expires_after")
    metadata = _metadata(members.get("metadata"))
    return Asked(_text(members, "input_file_id"), endpoint, window, float(seconds), output_seconds, metadata)


def _text(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"'{name}' is missing or no text", name)
    return value


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    fits = isinstance(value, dict) and len(value) <= _MOST_METADATA
    if not fits or not all(
        len(name) <= _LONGEST_KEY and isinstance(text, str) and len(text) <= _LONGEST_VALUE
        for name, text in value.items()
    ):
        msg = (
            f"'metadata' has to be an object with at most {_MOST_METADATA} members: names of at most {_LONGEST_KEY} "
            f"characters, texts of at most {_LONGEST_VALUE}"
        )
        raise invalid(msg, "metadata")
    found: dict[str, str] = value
    return found


# objects


def describe_batch(batch: Batch) -> dict[str, Any]:
    """Return the object of a batch."""
    new, progress, status = batch.new, batch.progress, batch.status
    ends: dict[BatchStatus, str] = {
        BatchStatus.COMPLETED: "completed_at",
        BatchStatus.FAILED: "failed_at",
        BatchStatus.EXPIRED: "expired_at",
        BatchStatus.CANCELLED: "cancelled_at",
    }
    ended_at = _seconds(progress.ended_at)
    faults = [
        {"code": each.code, "message": each.message, "param": each.param, "line": each.line or None}
        for each in progress.faults
    ]
    return {
        "id": new.id,
        "object": "batch",
        "endpoint": new.endpoint,
        "model": progress.model or None,
        "errors": {"object": "list", "data": faults} if faults else None,
        "input_file_id": new.input_file,
        "completion_window": new.window,
        "status": status.value,
        "output_file_id": progress.output_file or None,
        "error_file_id": progress.error_file or None,
        "created_at": int(new.created_at),
        "in_progress_at": _seconds(progress.in_progress_at),
        "expires_at": int(new.expires_at),
        "finalizing_at": ended_at if status is BatchStatus.COMPLETED else None,
        "cancelling_at": _seconds(batch.cancelling_at),
        **{name: ended_at if status is end else None for end, name in ends.items()},
        "request_counts": {"total": progress.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        "metadata": new.metadata,
    }


def encode_batch(batch: Batch) -> bytes:
    """Return a batch as JSON."""
    return _encode(describe_batch(batch))


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def unknown_batch(name: str) -> OpenAIError:
    """Return the error of a batch that is not there, or is another client's."""
    return OpenAIError(Code.NOT_FOUND, f"No batch found with id '{clip(name)}'.", param="id", kind="batch_not_found")


# lines


class Line(msgspec.Struct, frozen=True):
    """A request in a file. `number` is that of its line, from 1 on; `body` is JSON text."""

    number: int
    custom_id: str
    model: str
    body: bytes
    is_stream: bool = False


class LineError(Exception):
    """A line is not a request of its batch."""

    def __init__(self, code: str, message: str, *, param: str | None = None, line: int) -> None:
        super().__init__(message)
        self.fault = BatchFault(code, message, param, line)


class LineCutter:
    """Cuts a file into its lines. Holds one line at most."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._number = 0

    def cut(self, data: bytes, *, is_last: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are whole, but for empty ones, with their numbers.

        Raises `LineError` for one that is too long.
        """
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        if is_last:
            lines.append(rest)
            rest = bytearray()
        self._rest = rest
        for line in lines:
            self._number += 1
            _check_length(line, self._number)
            text = bytes(line).strip(b" \t\r")
            text = text.removeprefix(_BOM) if self._number == 1 else text
            if text:
                yield self._number, text
        _check_length(rest, self._number + 1)


def _check_length(line: bytearray, number: int) -> None:
    if len(line) > MAX_LINE:
        msg = f"The line has more than {MAX_LINE:,} bytes: send so large a request by itself."
        raise LineError("line_too_long", msg, param=None, line=number)


def read_line(number: int, text: bytes, endpoint: str) -> Line:
    """Read a line of a batch of requests to `endpoint`. Raises `LineError`."""
    _check_text(text, number)
    members = _members(text, number, None)
    for name in ("custom_id", "method", "url", "body"):
        if name not in members:
            msg = f"'{name}' is missing: a line has custom_id, method, url and body."
            raise LineError("missing_required_parameter", msg, param=name, line=number)
    custom_id = _line_text(members, "custom_id", number)
    method, url = _line_text(members, "method", number), _line_text(members, "url", number)
    if method != "POST":
        raise LineError(
            "invalid_method", f"'method' is '{clip(method)}'; it has to be 'POST'.", param="method", line=number
        )
    if url != endpoint:
        msg = f"'url' is '{clip(url)}', and the endpoint of the batch is '{endpoint}': they have to be the same."
        raise LineError("invalid_url", msg, param="url", line=number)
    body = bytes(members["body"])
    asked = _members(body, number, "body")
    model = _line_text(asked, "model", number, param="body.model")
    return Line(number, custom_id, model, body, is_stream=bytes(asked.get("stream", b"false")).strip() == b"true")


def _check_text(text: bytes, number: int) -> None:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise LineError("invalid_json_line", "The line is not valid UTF-8.", param=None, line=number) from None


def _members(text: bytes, number: int, param: str | None) -> dict[str, msgspec.Raw]:
    try:
        return _decode_members(text)
    except msgspec.ValidationError:
        where = "line" if param is None else f"'{param}' of the line"
        raise LineError(
            "invalid_request", f"The {where} has to be an object of JSON.", param=param, line=number
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LineError(
            "invalid_json_line", "The line is no JSON: each line is one object.", param=None, line=number
        ) from None


def _line_text(members: dict[str, msgspec.Raw], name: str, number: int, *, param: str = "") -> str:
    try:
        value = _decode(members[name]) if name in members else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_VALUE:
        msg = f"'{param or name}' has to be a text of at most {_LONGEST_VALUE} characters."
        raise LineError("invalid_value", msg, param=param or name, line=number)
    return value


class Ids:
    """The ids of the lines of a file, each of them once. Holds 16 bytes of each."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def add(self, line: Line) -> None:
        """Take the id of a line. Raises `LineError` if another line has it."""
        digest = hashlib.blake2b(line.custom_id.encode(errors="replace"), digest_size=_DIGEST).digest()
        if digest in self._seen:
            msg = f"The custom_id '{clip(line.custom_id)}' is that of an earlier line as well."
            raise LineError("duplicate_custom_id", msg, param="custom_id", line=line.number)
        self._seen.add(digest)


# answers


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Used(msgspec.Struct):
    usage: _Usage | None = None


_decode_used: Final = msgspec.json.Decoder(_Used).decode


def answer_of(line: Line, status: int, body: bytes, *, request_id: str) -> LineAnswer:
    """Return the answer to a line that was asked."""
    text = msgspec.json.format(body, indent=0).replace(b"\n", b"") if b"\n" in body else body
    told = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(text)}
    is_error = status != 200  # noqa: PLR2004 - of HTTP
    answer = _line_of(line, told, None)
    if is_error:
        return LineAnswer(line.number, is_error, answer)
    return LineAnswer(line.number, is_error, answer, *used_tokens(body))


def used_tokens(body: bytes) -> tuple[int, int]:
    """Return the tokens of the input and of the output that an answer tells; 0 without them."""
    try:
        usage = _decode_used(body).usage or _Usage()
    except msgspec.DecodeError:
        usage = _Usage()
    return usage.prompt_tokens or usage.input_tokens, usage.completion_tokens or usage.output_tokens


def unanswered(line: Line, code: str, message: str) -> LineAnswer:
    """Return the answer to a line that was not asked."""
    return LineAnswer(line.number, True, _line_of(line, None, {"code": code, "message": message}))


def expired(line: Line) -> LineAnswer:
    """Return the answer to a line whose batch has expired before."""
    msg = "This request could not be executed before the completion window expired."
    return unanswered(line, "batch_expired", msg)


def _line_of(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    new_id = f"batch_req_{secrets.token_hex(12)}"
    return _encode({"id": new_id, "custom_id": line.custom_id, "response": response, "error": error})
