"""`config.pbtxt` as a message, and back as plain values. Nothing is judged here but its form."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from geartrain.project.config import read_text
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.settings import TRITON_NAME

if TYPE_CHECKING:
    from google.protobuf.message import Message

_ENDS: Final = {"{": "}", "<": ">"}  # of messages
_KIND: Final[Any] = pb.ModelConfig.DESCRIPTOR  # which the stubs of protobuf take for one of several classes
_QUOTES: Final = frozenset({'"', "'"})


def read_config(folder: pathlib.Path) -> tuple[pb.ModelConfig, tuple[str, ...]]:
    """Return the configuration in a folder, and the names of the fields in it that are not known.

    Raises ProjectError, with the line, when it is no text format of protobuf, or a value is none of its field's.
    """
    path = folder / TRITON_NAME
    text = read_text(path) or ""
    config = pb.ModelConfig()
    try:
        text_format.Parse(text, config, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ProjectError(f"{path}:{error.GetLine() or 1}: {_sentence(error)}") from None
    return config, tuple(dict.fromkeys(_Fields(text).unknown()))


class _Fields:
    """Walks through a text that has been parsed, to find the fields that the parser has passed over.

    A `kind` below is the descriptor of a message, None inside of what is not known.
    """

    def __init__(self, text: str) -> None:
        self._tokens = text_format.Tokenizer(text.splitlines())

    def unknown(self) -> Iterator[str]:
        """Tell the names of fields that are not known; not those inside of them."""
        yield from self._message(_KIND, end="")

    def _message(self, kind: Any, *, end: str) -> Iterator[str]:
        tokens = self._tokens
        while not (tokens.AtEnd() or tokens.TryConsume(end)):
            name = tokens.token
            tokens.NextToken()
            field = None if kind is None else kind.fields_by_name.get(name)
            if kind is not None and field is None:
                yield name
            tokens.TryConsume(":")
            yield from self._value(None if field is None else field.message_type)
            if not tokens.TryConsume(","):
                tokens.TryConsume(";")

    def _value(self, kind: Any) -> Iterator[str]:
        tokens = self._tokens
        if tokens.TryConsume("["):
            while not tokens.TryConsume("]"):
                yield from self._value(kind)
                tokens.TryConsume(",")
        elif tokens.token in _ENDS:
            end = _ENDS[tokens.token]
            tokens.NextToken()
            yield from self._message(kind, end=end)
        else:
            tokens.TryConsume("-")
            is_text = tokens.token[:1] in _QUOTES
            tokens.NextToken()
            while is_text and tokens.token[:1] in _QUOTES:  # texts side by side are one
                tokens.NextToken()


def _sentence(error: text_format.ParseError) -> str:
    """Return the parser's complaint without its place."""
    place, colon, rest = str(error).partition(" : ")
    return rest if colon and place.replace(":", "").isdecimal() else str(error)


def plain(message: Message) -> dict[str, Any]:
    """Return the fields that are set as what JSON has: numbers as numbers, names for enumerations."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if hasattr(value, "items"):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _one(of, each) for key, each in value.items()}
    if field.is_repeated:
        return [_one(field, each) for each in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return plain(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    return value
