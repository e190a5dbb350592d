"""Requests for messages, as chats: blocks become messages and parts, parameters have the names that chats give them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.parameters import Members, Parameters, decoded
from geartrain.apis.openai.response_requests import CHATS_ALONE
from geartrain.apis.openai.text_requests import Message, TextRequest, check_chats, check_message, read_chat_of
from geartrain.domain.rendering import clip
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.types import Signature

# Parameters by the names that chats give them.
_NAMES: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
_CHATS_ALONE: Final = tuple(name for name in (*CHATS_ALONE, "stream_options") if name not in ("messages", "max_tokens"))
_REFUSED: Final = {
    "mcp_servers": "this server calls no tools",
    "container": "this server runs no tools",
}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_ROLES: Final = ("user", "assistant", "system")
_NO_TOOL: Final = "only tools with an 'input_schema' are, which the client runs"

_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode


def read_message(members: Members, signature: Signature, view: OpenAIView) -> TextRequest:
    """Read the body of a request for a message, but for its model. Raises `OpenAIError`."""
    check_chats(view, "messages")
    members = {name: value for name, value in members.items() if value != _NULL}
    for name, why in _REFUSED.items():
        if decoded(name, members.pop(name, msgspec.Raw(b"null")), Any):
            raise unsupported(name, why)
    conversation = Conversation(keeps_parts=view.keeps_parts)
    conversation.add_system(members.pop("system", None))
    messages = conversation.read(members.pop("messages", None))
    unknown = [name for name in _CHATS_ALONE if members.pop(name, None) is not None]
    unknown += _to_chat(members, frozenset(field.name for field in signature.inputs))
    request = read_chat_of(messages, Parameters(members, _NAMES), signature=signature, view=view, by="messages")
    return msgspec.structs.replace(request, ignored=(*request.ignored, *unknown))


def _to_chat(members: Members, inputs: frozenset[str]) -> list[str]:
    """Give parameters the names and forms that chats give them; return the names of those that are passed over."""
    passed_over = []
    if "stop_sequences" in members:
        members["stop"] = _raw(decoded("stop_sequences", members.pop("stop_sequences"), list[str]))
    tools = decoded("tools", members.pop("tools", msgspec.Raw(b"[]")), list[dict[str, Any]])
    if tools:
        members["tools"] = _raw([_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)])
    if "tool_choice" in members:
        choice = decoded("tool_choice", members.pop("tool_choice"), dict[str, Any])
        members["tool_choice"] = _raw(_choice(choice))
        if choice.get("disable_parallel_tool_use") is not None:
            members["parallel_tool_calls"] = _raw(not choice["disable_parallel_tool_use"])
    config = decoded("output_config", members.pop("output_config", msgspec.Raw(b"{}")), dict[str, Any])
    form = config.get("format") or decoded("output_format", members.pop("output_format", _NULL), Any)
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {"name": "output", "schema": form.get("schema")}}
    if form:
        members["response_format"] = _raw(form)
    if config.get("effort") is not None:
        if "reasoning_effort" in inputs:
            members["reasoning_effort"] = _raw(config["effort"])
        else:
            passed_over.append("output_config.effort")
    return passed_over


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom" or "input_schema" not in tool:
        raise unsupported(place, _NO_TOOL)
    if not isinstance(tool.get("name"), str):
        raise invalid(f"'{place}.name' is missing", f"{place}.name")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: dict[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise invalid(f"'tool_choice.type' has to be one of {', '.join((*_CHOICES, 'tool'))}", "tool_choice.type")
    return _CHOICES[kind]


class Conversation:
    """Turns messages whose content is in blocks into those of chats."""

    def __init__(self, *, keeps_parts: bool) -> None:
        self._keeps_parts = keeps_parts
        self._messages: list[Message] = []

    def add_system(self, raw: msgspec.Raw | None) -> None:
        """Begin with what the system says. Raises `OpenAIError`."""
        given = None if raw is None else decoded("system", raw, str | list[Any])
        if given:
            self._add_user({"role": "system", "content": given}, "system")

    def read(self, raw: msgspec.Raw | None) -> list[Message]:
        """Return all messages. Raises `OpenAIError`."""
        given = None if raw is None else decoded("messages", raw, Any)
        if not isinstance(given, list) or not given:
            raise invalid("'messages' has to be a list of at least one message", "messages")
        for number, message in enumerate(given):
            place = f"messages[{number}]"
            if not isinstance(message, dict):
                raise invalid(f"'{place}' has to be an object", place)
            if message.get("role") not in _ROLES:
                raise invalid(f"'{place}.role' has to be one of {', '.join(_ROLES)}", f"{place}.role")
            add = self._add_assistant if message["role"] == "assistant" else self._add_user
            add(message, f"{place}.content")
        return self._messages

    def _add_user(self, message: dict[str, Any], place: str) -> None:
        """Add what a user or the system says. Results of tools are messages of their own."""
        content = message.get("content")
        if not isinstance(content, list):
            self._add(message["role"], content, place)
            return
        parts: list[dict[str, Any]] = []
        for number, block in enumerate(content):
            where = f"{place}[{number}]"
            if isinstance(block, dict) and block.get("type") == "tool_result":
                if parts:
                    self._add(message["role"], parts, place)
                    parts = []
                self._add_result(block, where)
            else:
                parts.append(_part(block, where))
        if parts or not content:
            self._add(message["role"], parts, place)

    def _add_result(self, block: dict[str, Any], place: str) -> None:
        content = block.get("content") or ""
        if isinstance(content, list):
            content = [_part(part, f"{place}.content[{number}]") for number, part in enumerate(content)]
        call_id = block.get("tool_use_id")
        if not isinstance(call_id, str):
            raise invalid(f"'{place}.tool_use_id' is missing", f"{place}.tool_use_id")
        self._add("tool", content, f"{place}.content", tool_call_id=call_id)

    def _add_assistant(self, message: dict[str, Any], place: str) -> None:
        content = message.get("content")
        if not isinstance(content, list):
            self._add("assistant", content, place)
            return
        parts: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        for number, block in enumerate(content):
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "tool_use":
                calls.append(_call(block, f"{place}[{number}]"))
            elif kind == "thinking":
                thoughts.append(str(block.get("thinking", "")))
            elif kind != "redacted_thinking":
                parts.append(_part(block, f"{place}[{number}]"))
        more: dict[str, Any] = {"reasoning_content": "".join(thoughts)} if any(thoughts) else {}
        if calls:
            more["tool_calls"] = calls
        self._add("assistant", parts or (None if calls else ""), place, **more)

    def _add(self, role: str, content: Any, place: str, **more: Any) -> None:
        if content is None and "tool_calls" not in more:
            raise invalid(f"'{place}' is missing", place)
        message: Message = {"role": role, "content": content, **more}
        self._messages.append(check_message(message, place.removesuffix(".content"), keeps_parts=self._keeps_parts))


def _call(block: dict[str, Any], place: str) -> dict[str, Any]:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input", {})
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(given, dict)):
        raise invalid(f"'{place}' has to have an 'id', a 'name' and an 'input', which is an object", place)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _encode(given).decode()}}


def _part(block: Any, place: str) -> dict[str, Any]:
    """Return a block as a part of a chat's content."""
    if not isinstance(block, dict):
        raise invalid(f"'{place}' has to be an object", place)
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": block.get("text")}
    if kind in ("image", "document") and isinstance(source, dict):
        return _image(source, place) if kind == "image" else _document(source, block, place)
    raise unsupported(place, f"the type '{clip(str(kind))}' is none of text, image, document, tool_use, tool_result")


def _image(source: dict[str, Any], place: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _url(source, place)}}


def _document(source: dict[str, Any], block: dict[str, Any], place: str) -> dict[str, Any]:
    if source.get("type") == "text":
        return {"type": "text", "text": source.get("data")}
    title = {"filename": block["title"]} if block.get("title") else {}
    member = "file_url" if source.get("type") == "url" else "file_data"
    return {"type": "file", "file": {**title, member: _url(source, place)}}


def _url(source: dict[str, Any], place: str) -> str:
    """Return the URL of a source: its address, or a `data:` URL with its content."""
    kind, url, data = source.get("type"), source.get("url"), source.get("data")
    if kind == "url" and isinstance(url, str):
        return url
    if kind == "base64" and isinstance(data, str):
        return f"data:{source.get('media_type', 'application/octet-stream')};base64,{data}"
    raise unsupported(f"{place}.source", "it has to be base64 with 'data', or an 'url'; this server keeps no files")


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
