"""The texts of a form as the members of a JSON body: the signature says what each text means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis import json_limits
from geartrain.apis.infer_json import guard
from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.parameters import Members
from geartrain.domain.rendering import clip
from geartrain.domain.signature.text_values import MismatchError, TextReader, parse_boolean, parse_json
from geartrain.domain.signature.types import InputField

_BOOLEANS: Final = frozenset({"stream"})
_NUMBERS: Final = frozenset({"n", "partial_images", "output_compression", "temperature"})
_LISTS: Final = frozenset({"timestamp_granularities"})

_encode = msgspec.json.Encoder().encode


def members_of(
    texts: Mapping[str, Sequence[str]], inputs: Mapping[str, InputField], names: Mapping[str, str]
) -> Members:
    """Return the parameters of a form as JSON, by the names of the parameters.

    `names`: the inputs of parameters that are declared with another name. Raises `OpenAIError` for a text that is no
    value of its parameter.
    """
    members: Members = {}
    for name, given in texts.items():
        try:
            text = _encode(_value(name, given, inputs.get(names.get(name, name))))
        except (MismatchError, ValueError, RecursionError) as error:
            raise invalid(f"'{clip(name)}' is not valid: {error}", name) from None
        guard(json_limits.check_depth, text)
        guard(json_limits.check_elements, text)
        members[name] = msgspec.Raw(text)
    return members


def _value(name: str, texts: Sequence[str], field: InputField | None) -> Any:
    if name in _LISTS:
        return list(texts)
    if name in _BOOLEANS:
        return parse_boolean(_only(texts))
    if field is not None and field.type.kind not in {"path", "file"} and name != "n":
        return _READER.value(field, texts)
    if name in _NUMBERS:
        return parse_json(_only(texts))
    return texts[0] if len(texts) == 1 else list(texts)


def _only(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise MismatchError(f"it is given {len(texts)} times")
    return texts[0]


def _refuse_file(_: str) -> str:
    raise MismatchError("a file is expected")


_READER: Final = TextReader(read=lambda text: text, read_file=_refuse_file)
