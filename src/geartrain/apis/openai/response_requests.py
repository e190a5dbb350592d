"""Requests for responses, as chats: items become messages, and parameters have the names that chats give them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.parameters import Members, Parameters, decoded
from geartrain.apis.openai.text_requests import Message, TextRequest, check_chats, check_message, read_chat_of
from geartrain.domain.rendering import clip
from geartrain.domain.signature.openai_view import OpenAIView
from geartrain.domain.signature.types import Signature

_KEEPS_NOTHING: Final = "this server keeps no responses: send the whole conversation as 'input'"
_STATE: Final = ("previous_response_id", "conversation", "prompt", "background")
_LOGPROBS: Final = "message.output_text.logprobs"

# Parameters by the names that chats give them.
_NAMES: Final = {
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "include",
}
# Parameters of chats alone: another API does not have them.
CHATS_ALONE: Final = ("messages", "n", "stop", "response_format", "max_tokens", "max_completion_tokens", "logprobs")

# Members of a request that its answer repeats: the types, and the values of absent ones.
_REPEATED: Final[dict[str, tuple[Any, Any]]] = {
    "instructions": (str | None, None),
    "max_output_tokens": (int | None, None),
    "max_tool_calls": (int | None, None),
    "metadata": (dict[str, str], {}),
    "parallel_tool_calls": (bool, True),
    "temperature": (float, 1.0),
    "top_p": (float, 1.0),
    "top_logprobs": (int, 0),
    "presence_penalty": (float, 0.0),
    "frequency_penalty": (float, 0.0),
    "truncation": (str, "disabled"),
    "reasoning": (dict[str, Any] | None, None),
    "text": (dict[str, Any], {"format": {"type": "text"}}),
    "tool_choice": (str | dict[str, Any], "auto"),
    "tools": (list[dict[str, Any]], []),
    "user": (str | None, None),
    "safety_identifier": (str | None, None),
    "prompt_cache_key": (str | None, None),
}
_IF_GIVEN: Final = ("user",)  # OpenAI's document allows no null
_FIXED: Final = {"store": False, "background": False, "previous_response_id": None, "service_tier": "default"}

_NULL: Final = msgspec.Raw(b"null")
_FALSE: Final = msgspec.Raw(b"false")
_encode = msgspec.json.Encoder().encode


def read_response(members: Members, signature: Signature, view: OpenAIView) -> TextRequest:
    """Read the body of a request for a response, but for its model. Raises `OpenAIError`."""
    check_chats(view, "responses")
    members = {name: value for name, value in members.items() if value != _NULL}
    _refuse_state(members)
    repeated = {name: _repeated(name, members) for name in _REPEATED if name in members or name not in _IF_GIVEN}
    messages = _read_input(members.pop("input", None), keeps_parts=view.keeps_parts)
    if repeated["instructions"]:
        messages.insert(0, {"role": "system", "content": repeated["instructions"]})
    inputs = frozenset(field.name for field in signature.inputs)
    unknown = tuple(name for name in CHATS_ALONE if members.pop(name, None) is not None)
    names = {name: own for name, own in _NAMES.items() if name not in members}  # others are the client's own
    passed_over = _to_chat(members, repeated, inputs)
    parameters = Parameters(members, names)
    request = read_chat_of(messages, parameters, signature=signature, view=view, by="input")
    repeated["tools"] = [{"parameters": None, "strict": None, **tool} for tool in repeated["tools"]]
    return msgspec.structs.replace(
        request, repeated={**_FIXED, **repeated}, ignored=(*request.ignored, *unknown, *passed_over)
    )


def _refuse_state(members: Members) -> None:
    """Refuse what needs responses that are kept. `background` and such may be given as nothing."""
    for name in _STATE:
        value = members.pop(name, None)
        if value is not None and value != _FALSE:
            raise unsupported(name, _KEEPS_NOTHING)


def _repeated(name: str, members: Members) -> Any:
    kind, nothing = _REPEATED[name]
    value = members.get(name)
    return nothing if value is None else decoded(name, value, kind)


def _to_chat(members: Members, repeated: dict[str, Any], inputs: frozenset[str]) -> tuple[str, ...]:
    """Give parameters the names and forms that chats give them; return the names of those that are passed over."""
    passed_over = []
    members.pop("instructions", None)
    if "max_output_tokens" in members:
        members["max_completion_tokens"] = members.pop("max_output_tokens")
    if "tools" in members:
        members["tools"] = _raw([_tool(tool, f"tools[{at}]") for at, tool in enumerate(repeated["tools"])])
    if "tool_choice" in members:
        members["tool_choice"] = _raw(_choice(repeated["tool_choice"]))
    if members.pop("text", None) is not None:
        passed_over += _read_text(members, repeated["text"], inputs)
    if "reasoning" in members and "reasoning" not in inputs and "reasoning_effort" in inputs:
        del members["reasoning"]
        effort = repeated["reasoning"].get("effort")
        if effort is not None:
            members["reasoning_effort"] = _raw(effort)
    include = decoded("include", members.pop("include", msgspec.Raw(b"[]")), list[str])
    if _LOGPROBS in include:
        members["logprobs"] = _raw(True)
    if include and include != [_LOGPROBS]:
        passed_over.append("include")
    return tuple(passed_over)


def _read_text(members: Members, text: dict[str, Any], inputs: frozenset[str]) -> list[str]:
    """Read `text`: the form of the answer, and how long-winded it is."""
    form, verbosity = text.get("format"), text.get("verbosity")
    text.setdefault("format", {"type": "text"})
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        members["response_format"] = _raw({"type": "json_schema", "json_schema": schema})
    elif form is not None:
        members["response_format"] = _raw(form)
    if verbosity is None:
        return []
    if "verbosity" not in inputs:
        return ["text.verbosity"]
    members["verbosity"] = _raw(verbosity)
    return []


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(place, "only tools of the type 'function' are, which the client runs")
    if not isinstance(tool.get("name"), str):
        raise invalid(f"'{place}.name' is missing", f"{place}.name")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    tools = choice.get("tools")
    if choice.get("type") == "allowed_tools" and isinstance(tools, list):
        named = [
            {"type": "function", "function": {"name": tool.get("name")}} for tool in tools if isinstance(tool, dict)
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": named}}
    raise unsupported("tool_choice", "only tools of the type 'function' are, which the client runs")


# items


def _read_input(raw: msgspec.Raw | None, *, keeps_parts: bool) -> list[Message]:
    """Read the input as messages. Raises `OpenAIError`."""
    if raw is None:
        raise invalid("'input' is missing", "input")
    given = decoded("input", raw, Any)
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise invalid("'input' has to be a text, or a list of at least one item", "input")
    return Items(keeps_parts=keeps_parts).read(given)


class Items:
    """Turns the items of a conversation into messages.

    Calls of tools stand in the message of the assistant before them, and reasoning in the one that comes behind it.
    """

    def __init__(self, *, keeps_parts: bool) -> None:
        self._keeps_parts = keeps_parts
        self._messages: list[Message] = []
        self._reasoning = ""

    def read(self, items: list[Any]) -> list[Message]:
        """Return the messages. Raises `OpenAIError`."""
        readers = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._think,
        }
        for number, item in enumerate(items):
            place = f"input[{number}]"
            if not isinstance(item, dict):
                raise invalid(f"'{place}' has to be an object", place)
            kind = item.get("type") or "message"
            reader = readers.get(kind) if isinstance(kind, str) else None
            if reader is None:
                why = _KEEPS_NOTHING if kind == "item_reference" else f"the items are {', '.join(readers)}"
                raise unsupported(place, why)
            reader(item, place)
        if not self._messages:
            raise invalid("'input' has no message", "input")
        return self._messages

    def _message(self, item: dict[str, Any], place: str) -> None:
        message: Message = {"role": item.get("role"), "content": _content(item.get("content"), f"{place}.content")}
        if message["content"] is None:
            raise invalid(f"'{place}.content' is missing", f"{place}.content")
        message = check_message(message, place, keeps_parts=self._keeps_parts)
        if message["role"] == "assistant":
            self._add_assistant(message)
        else:
            self._messages.append(message)

    def _call(self, item: dict[str, Any], place: str) -> None:
        call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
        if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
            raise invalid(f"'{place}' has to have a 'call_id', a 'name' and 'arguments', which are texts", place)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        last = self._messages[-1] if self._messages and not self._reasoning else {}
        if last.get("role") == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            self._add_assistant({"role": "assistant", "content": None, "tool_calls": [call]})

    def _output(self, item: dict[str, Any], place: str) -> None:
        call_id, output = item.get("call_id"), _content(item.get("output"), f"{place}.output")
        if not isinstance(call_id, str) or output is None:
            raise invalid(f"'{place}' has to have a 'call_id' and an 'output'", place)
        message = {"role": "tool", "tool_call_id": call_id, "content": output}
        self._messages.append(check_message(message, place, keeps_parts=self._keeps_parts))

    def _think(self, item: dict[str, Any], place: str) -> None:
        given = item.get("content") or item.get("summary") or []
        if not isinstance(given, list):
            raise invalid(f"'{place}.content' has to be a list", f"{place}.content")
        self._reasoning += "".join(str(part.get("text", "")) for part in given if isinstance(part, dict))

    def _add_assistant(self, message: Message) -> None:
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
            self._reasoning = ""
        self._messages.append(message)


def _content(content: Any, place: str) -> Any:
    """Return content with the parts that chats have."""
    if not isinstance(content, list):
        return content
    return [_part(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _part(part: Any, place: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(f"'{place}' has to be an object", place)
    kind = part.get("type")
    if part.get("file_id") is not None:
        raise unsupported(f"{place}.file_id", "this server keeps no files: send the content itself")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind == "input_image":
        image = {name: part[name] for name in ("detail",) if part.get(name) is not None}
        return {"type": "image_url", "image_url": {"url": part.get("image_url"), **image}}
    if kind == "input_file":
        names = ("filename", "file_data", "file_url")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name) is not None}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise unsupported(
        place, f"the type '{clip(str(kind))}' is none of input_text, input_image, input_file, output_text"
    )


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
