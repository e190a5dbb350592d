"""JSON-RPC messages of MCP: requests and notifications to values, and answers to bytes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from geartrain.apis.generate import read_members
from geartrain.domain.errors import Code, GeartrainError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NO_RESOURCE: Final = -32002  # of the revisions with a handshake; later ones say INVALID_PARAMS
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022

STATELESS: Final = "2026-07-28"
"""The first revision without a handshake: each request carries its version in `_meta`."""

HANDSHAKE_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions that begin with `initialize`, the newest first."""

VERSIONS: Final = (STATELESS, *HANDSHAKE_VERSIONS)
UNSTATED: Final = "2025-03-26"
"""The revision of an HTTP request that states none, as the specification has it."""

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

MessageId = int | str
Members = dict[str, msgspec.Raw]
JsonObject = dict[str, Any]

_LONGEST_ID: Final = 1024  # characters of an id or of a progress token
_BLANK: Final = 64  # bytes at the beginning of a body in which a batch is looked for
_NULL: Final = msgspec.Raw(b"null")
_FAULTS: Final = {Code.UNPARSABLE: PARSE_ERROR, Code.TOO_LARGE: INVALID_REQUEST}
_decode_members = msgspec.json.Decoder(Members).decode
_decode_id = msgspec.json.Decoder(MessageId).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class Fault(Exception):  # noqa: N818 - an error object of JSON-RPC is sent, and is no failure of the server
    """An error object of JSON-RPC: a number, a sentence, and the id of the message where it could be read."""

    def __init__(self, number: int, message: str, *, data: JsonObject | None = None) -> None:
        super().__init__(message)
        self.number = number
        self.message = message
        self.data = data
        self.id: MessageId | None = None


class Envelope(NamedTuple):
    """The `_meta` of a request without a handshake: its revision, and the least log level that it wants, if any."""

    version: str
    level: str | None


class Message(msgspec.Struct, frozen=True):
    """A request, or a notification, whose `id` is None."""

    method: str
    id: MessageId | None
    params: Members
    meta: Members

    def text(self, name: str) -> str:
        """Return a parameter that is a string. Raises `Fault`."""
        return _text(self.params.get(name), f"params.{name}")

    def object(self, name: str) -> msgspec.Raw:
        """Return the JSON text of a parameter that is an object; an empty one if it is absent. Raises `Fault`."""
        value = self.params.get(name, _NULL)
        if value == _NULL:
            return msgspec.Raw(b"{}")
        _object(value, f"params.{name}")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a parameter that is a string, None if it is absent. Raises `Fault`."""
        value = self.params.get(name, _NULL)
        return None if value == _NULL else _text(value, f"params.{name}")

    @property
    def progress_token(self) -> MessageId | None:
        """The token of progress notifications, None if the client wants none. Raises `Fault`."""
        value = self.meta.get("progressToken", _NULL)
        return None if value == _NULL else _id(value, "params._meta.progressToken", INVALID_PARAMS)

    @property
    def is_stateless(self) -> bool:
        """True if the message carries a revision of its own."""
        return VERSION_KEY in self.meta

    def stated_version(self) -> str:
        """Return the revision in the `_meta`. Raises `Fault`."""
        return _text(self.meta.get(VERSION_KEY), f"params._meta.{VERSION_KEY}")

    def envelope(self) -> Envelope:
        """Return the `_meta` of a request without a handshake. Raises `Fault`."""
        version = self.stated_version()
        if CAPABILITIES_KEY not in self.meta:
            raise Fault(INVALID_PARAMS, f"'params._meta.{CAPABILITIES_KEY}' is missing")
        _object(self.meta[CAPABILITIES_KEY], f"params._meta.{CAPABILITIES_KEY}")
        if version != STATELESS:
            raise unsupported(version)
        level = self.meta.get(LEVEL_KEY, _NULL)
        return Envelope(version, None if level == _NULL else check_level(_text(level, f"params._meta.{LEVEL_KEY}")))

    def canceled_id(self) -> MessageId | None:
        """Return the id that a `notifications/cancelled` names; None if it names none: such ones are ignored."""
        try:
            return _id(self.params.get("requestId", _NULL), "params.requestId", INVALID_PARAMS)
        except Fault:
            return None


def read_message(body: bytes | bytearray) -> Message:
    """Read one message. Raises `Fault`, with the id of the message where it has one."""
    if bytes(body[:_BLANK]).lstrip()[:1] == b"[":
        raise Fault(INVALID_REQUEST, "A body is one message: batches of JSON-RPC are not supported.")
    try:
        members = read_members(body)
    except GeartrainError as error:
        raise Fault(_FAULTS.get(error.code, INVALID_REQUEST), error.message) from None
    own_id = _id(members["id"], "id", INVALID_REQUEST) if "id" in members else None
    try:
        return _message(members, own_id)
    except Fault as fault:
        fault.id = own_id
        raise


def _message(members: Members, own_id: MessageId | None) -> Message:
    if members.get("jsonrpc") != msgspec.Raw(b'"2.0"'):
        raise Fault(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"")
    if "method" not in members and ("result" in members or "error" in members):
        raise Fault(INVALID_REQUEST, "This server sends no requests, so it takes no responses.")
    method = _text(members.get("method"), "method", INVALID_REQUEST)
    params = _object(members.get("params", msgspec.Raw(b"{}")), "params")
    return Message(method, own_id, params, _object(params.get("_meta", msgspec.Raw(b"{}")), "params._meta"))


def _id(value: msgspec.Raw, name: str, number: int) -> MessageId:
    try:
        found: MessageId = _decode_id(value)
    except ValueError:
        raise Fault(number, f"'{name}' must be a string or an integer") from None
    if isinstance(found, str) and len(found) > _LONGEST_ID:
        raise Fault(number, f"'{name}' has more than {_LONGEST_ID} characters")
    return found


def _text(value: msgspec.Raw | None, name: str, number: int = INVALID_PARAMS) -> str:
    if value is None:
        raise Fault(number, f"'{name}' is missing")
    try:
        return _decode_text(value)
    except ValueError:
        raise Fault(number, f"'{name}' must be a string") from None


def _object(value: msgspec.Raw, name: str) -> Members:
    if value == _NULL:
        return {}
    try:
        return _decode_members(value)
    except ValueError:
        raise Fault(INVALID_PARAMS, f"'{name}' must be an object") from None


def check_level(level: str) -> str:
    """Return a log level. Raises `Fault` for an unknown one."""
    if level not in LEVELS:
        raise Fault(INVALID_PARAMS, f"The log level must be one of {', '.join(LEVELS)}.")
    return level


def unsupported(version: str) -> Fault:
    """Return the fault of a revision that this server does not know."""
    data = {"supported": list(VERSIONS), "requested": version[:_LONGEST_ID]}
    return Fault(UNSUPPORTED_VERSION, f"Unsupported protocol version; use one of {', '.join(VERSIONS)}.", data=data)


def unknown_method(method: str) -> Fault:
    """Return the fault of a method that this server does not have."""
    return Fault(METHOD_NOT_FOUND, f"Method not found: '{method[:_LONGEST_ID]}'")


def encode_result(own_id: MessageId, result: JsonObject) -> bytes:
    """Return the answer to a request."""
    return _encode({"jsonrpc": "2.0", "id": own_id, "result": result})


def encode_fault(fault: Fault) -> bytes:
    """Return the answer to a request that was refused."""
    error = {"code": fault.number, "message": fault.message, **({} if fault.data is None else {"data": fault.data})}
    return _encode({"jsonrpc": "2.0", "id": fault.id, "error": error})


def encode_notification(method: str, params: JsonObject) -> bytes:
    """Return a notification."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})
