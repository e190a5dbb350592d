"""`openai:` in a `geartrain.yaml`: which endpoints a model has, and what its parameters and itself are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from geartrain.domain.signature.openai_media import MediaEndpoint
from geartrain.domain.signature.openai_view import TextEndpoint
from geartrain.domain.signature.types import OpenAISettings
from geartrain.project.errors import ProjectError

_ENDPOINTS: Final[tuple[str, ...]] = (*get_args(TextEndpoint), *get_args(MediaEndpoint))
# The server itself takes these parameters.
_TAKEN: Final = frozenset({"model", "stream", "stream_options", "n", "best_of", "echo", "encoding_format"})
_LONGEST: Final = 256  # characters of an alias


def read_openai(value: object) -> OpenAISettings:
    """Return the settings; raise ProjectError that names the key below `openai` and the fix."""
    if not isinstance(value, dict):
        raise ProjectError("`openai` has to have keys such as `serve: [chat]` indented below it")
    for key in value:
        if key not in _READERS:
            raise ProjectError(f"there is no key `openai.{key}`; there are {', '.join(_READERS)}")
    return OpenAISettings(**dict(_read(key, found) for key, found in value.items() if found is not None))


def _read(key: str, found: object) -> tuple[str, Any]:
    name, read, fix = _READERS[key]
    try:
        return name, read(found)
    except (TypeError, ValueError):
        raise ProjectError(f"`openai.{key}` is {found!r}; write {fix}") from None


def _serve(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not set(value) <= set(_ENDPOINTS):
        raise ValueError
    return frozenset(value)


def _fields(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(each, str) and each for pair in value.items() for each in pair
    ):
        raise ValueError
    if len(set(value.values())) < len(value):
        raise ProjectError("`openai.fields` has an input twice; each is filled by one parameter")
    for parameter in value:
        if parameter in _TAKEN:
            raise ProjectError(f"`openai.fields.{parameter}` cannot be: the server itself takes this parameter")
    return value


def _aliases(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and 0 < len(each) <= _LONGEST for each in value):
        raise ValueError
    return tuple(dict.fromkeys(value))


def _refuses(value: object) -> bool:
    if value not in ("ignore", "refuse"):
        raise ValueError
    return value == "refuse"


def _file(value: object) -> str:
    if not isinstance(value, str) or not value or ".." in Path(value).parts or Path(value).is_absolute():
        raise ValueError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - told as any other wrong value
    return value


_READERS: Final[dict[str, tuple[str, Callable[[object], Any], str]]] = {
    "serve": ("serve", _serve, f"a list of endpoints, of {', '.join(_ENDPOINTS)}"),
    "fields": ("fields", _fields, "parameters and the inputs that they fill, such as `max_tokens: limit`"),
    "aliases": ("aliases", _aliases, "a list of names, such as [gpt-4o-mini]"),
    "unsupported": ("refuses", _refuses, "`ignore`, or `refuse`"),
    "chat_template": ("chat_template", _file, "the name of a file in the model's folder, such as chat.jinja"),
    "matryoshka": ("matryoshka", _flag, "`true`, or `false`"),
}
