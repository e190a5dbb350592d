"""Pictures and recordings in chats, for models that take them as files."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.files import FILE_URLS
from geartrain.apis.openai.parameters import Members
from geartrain.domain.signature.openai_view import OpenAIView, PartInput

MOST_FILES: Final = 32  # pictures, or recordings, of a chat
_NAMES: Final = {"image_url": ("image", "an image"), "input_audio": ("audio", "a recording")}
_encode = msgspec.json.Encoder().encode


def take_files(messages: list[dict[str, Any]], view: OpenAIView, by: str) -> tuple[list[dict[str, Any]], Members]:
    """Take the files out of a chat: return the messages without them, and the inputs that they fill.

    `{"type": "image"}` or `{"type": "audio"}` stays in the place of a file, as the chat templates of `transformers`
    have it. Parts that the model takes as they are stay so. `by` names what the messages came by. Raises `OpenAIError`.
    """
    inputs = {kind: taken for kind, taken in (("image_url", view.image), ("input_audio", view.sound)) if taken}
    if not inputs:
        return messages, {}
    urls: dict[str, list[str]] = {kind: [] for kind in inputs}
    left = [_without(message, urls, by) for message in messages]
    if view.prompt:
        _check_left(left, by, inputs)
    filled: Members = {}
    for kind, found in urls.items():
        taken = inputs[kind]
        most = MOST_FILES if taken.is_list else 1
        if len(found) > most:
            name = _NAMES[kind][0]
            raise invalid(f"'{by}' has {len(found)} parts with {name}, and at most {most} can be taken", by)
        if found:
            filled[taken.name] = msgspec.Raw(_encode(found if taken.is_list else found[0]))
    return left, filled


def _without(message: dict[str, Any], urls: dict[str, list[str]], by: str) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        kind = part.get("type")
        if isinstance(kind, str) and kind in urls:
            urls[kind].append(_url(kind, part.get(kind), by))
            parts.append({"type": _NAMES[kind][0]})
        else:
            parts.append(part)
    return {**message, "content": parts}


def _url(kind: str, given: Any, by: str) -> str:
    if kind == "input_audio":
        data, form = (given.get("data"), given.get("format", "wav")) if isinstance(given, dict) else (None, "")
        if not isinstance(data, str) or not (isinstance(form, str) and form.isalnum()):
            raise invalid(f"'{by}' has an 'input_audio' without its 'data' and 'format', such as wav", by)
        return f"data:audio/{form};base64,{data}"
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url[:8].lower().startswith(FILE_URLS):
        raise invalid(f"'{by}' has an 'image_url' that is no http:, https: or data: URL", by)
    return url


def _check_left(messages: list[dict[str, Any]], by: str, inputs: dict[str, PartInput]) -> None:
    """Refuse parts that are neither text nor a file which the model takes."""
    parts = (part for message in messages if isinstance(message["content"], list) for part in message["content"])
    known = ["text", *(_NAMES[kind][0] for kind in inputs)]
    other = next((str(part.get("type"))[:100] for part in parts if part.get("type") not in known), None)
    if other is not None:
        takes = " and ".join(_NAMES[kind][1] for kind in inputs)
        raise unsupported(by, f"the model takes text and {takes}, and this has a part of the type '{other}'")
