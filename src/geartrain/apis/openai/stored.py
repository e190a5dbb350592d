"""Files and batches in the form of OpenAI's API: their objects, lists of them, and what requests for them say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from geartrain.apis.openai.errors import OpenAIError, invalid
from geartrain.domain.errors import Code
from geartrain.domain.predictions.batch_jobs import Selection, StoredFile
from geartrain.domain.principal import Principal
from geartrain.domain.rendering import clip

PURPOSE: Final = "batch"
ANCHOR: Final = "created_at"
SHORTEST_LIFE: Final = 3600  # seconds that a file may ask to be kept
LONGEST_LIFE: Final = 2_592_000
_MAX_QUERY: Final = 4096  # bytes
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_FILE_FIELDS: Final = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_encode = msgspec.json.Encoder().encode


def no_store() -> OpenAIError:
    """Return the error of a server without a store."""
    msg = "Files and batches are kept in a store, and this server has none: start it with --store sqlite:///PATH."
    return invalid(msg, kind="no_store")


def unknown_file(name: str) -> OpenAIError:
    """Return the error of a file that is not there, has expired, or is another client's."""
    return OpenAIError(Code.NOT_FOUND, f"No such File object: {clip(name)}", param="id", kind="file_not_found")


def over_quota(message: str) -> OpenAIError:
    """Return the error of a client that keeps too much."""
    return OpenAIError(Code.AT_CAPACITY, message, kind="insufficient_quota")


def file_too_large(limit: int) -> OpenAIError:
    """Return the error of a file of more than `limit` bytes."""
    msg = f"The file has more than {limit:,} bytes: upload its lines as several files."
    return OpenAIError(Code.TOO_LARGE, msg, param="file", kind="file_too_large")


# files


def check_fields(fields: Mapping[str, str]) -> None:
    """Raise `OpenAIError` for a field of an upload that is unknown or wrong. Those that are missing may still come."""
    for name, value in fields.items():
        if name not in _FILE_FIELDS:
            raise invalid(f"'{clip(name)}' is no field of an upload: send 'file', 'purpose', 'expires_after'", name)
        if name == "purpose" and value != PURPOSE:
            msg = f"'purpose' is '{clip(value)}': this server keeps files for batches only, whose purpose is 'batch'"
            raise invalid(msg, "purpose", "invalid_purpose")


def read_life(fields: Mapping[str, str]) -> float:
    """Return the seconds that an upload is to be kept, once all of its fields are there. Raises `OpenAIError`."""
    if "purpose" not in fields:
        raise invalid("'purpose' is missing: this server takes 'batch'", "purpose")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return LONGEST_LIFE
    return check_life(anchor, int(seconds) if seconds is not None and _NUMBER.fullmatch(seconds) else seconds)


def check_life(anchor: Any, seconds: Any, name: str = "expires_after") -> float:
    """Return the time of an expiry in seconds, as the parameter `name` tells it. Raises `OpenAIError`."""
    if anchor != ANCHOR:
        raise invalid(f"'{name}.anchor' has to be '{ANCHOR}'", f"{name}.anchor")
    if type(seconds) is not int or not SHORTEST_LIFE <= seconds <= LONGEST_LIFE:
        msg = f"'{name}.seconds' has to be a whole number from {SHORTEST_LIFE} to {LONGEST_LIFE}"
        raise invalid(msg, f"{name}.seconds")
    return float(seconds)


def describe_file(file: StoredFile) -> dict[str, Any]:
    """Return the object of a file."""
    told: dict[str, Any] = {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }
    if file.expires_at is not None:
        told["expires_at"] = int(file.expires_at)
    return told


def encode_file(file: StoredFile) -> bytes:
    """Return a file as JSON."""
    return _encode(describe_file(file))


def encode_deleted(name: str) -> bytes:
    """Return the answer to the removal of a file."""
    return _encode({"id": name, "object": "file", "deleted": True})


# lists


def read_selection(query: bytes, principal: Principal, *, most: int, usual: int, of_files: bool) -> Selection:
    """Read the query of a list. Raises `OpenAIError`.

    `most` and `usual` are the largest limit and the one without a `limit`. `of_files`: `purpose` and `order` may be
    there.
    """
    values = {name: each[-1] for name, each in parse_qs(query[:_MAX_QUERY].decode("latin-1")).items()}
    limit = values.get("limit", str(usual))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= most:
        raise invalid(f"'limit' has to be a number from 1 to {most}", "limit")
    for name in ("after", "purpose"):
        if "\x00" in values.get(name, ""):  # Postgres takes no such text
            raise invalid(f"'{name}' holds the character 0", name)
    order = values.get("order", "desc") if of_files else "desc"
    if order not in {"asc", "desc"}:
        raise invalid("'order' has to be 'asc' or 'desc'", "order")
    return Selection(
        int(limit),
        values.get("after", ""),
        values.get("purpose", "") if of_files else "",
        is_ascending=order == "asc",
        principal=principal,
    )


def encode_list(members: Sequence[dict[str, Any]], *, has_more: bool) -> bytes:
    """Return a page of objects."""
    first, last = (members[0]["id"], members[-1]["id"]) if members else (None, None)
    return _encode({"object": "list", "data": members, "first_id": first, "last_id": last, "has_more": has_more})
