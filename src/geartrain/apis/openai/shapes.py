"""Shape of a whole text that a client asks for: a JSON object, or what fits a schema.

A schema is the client's, and may be made so that it takes hours to hold a short text against it. One that could be is
heavy, and is read and used by another process alone, which has little time and memory.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import msgspec

from geartrain.apis.openai.errors import OpenAIError, invalid
from geartrain.apis.openai.parameters import Parameters, decoded
from geartrain.domain.errors import Code, GeartrainError

_encode = msgspec.json.Encoder().encode
# References multiply what a schema says, and a pattern of some letters may take megabytes.
_HEAVY: Final = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)"|"pattern(?:Properties)?"|"regex"|\\u')
_LIGHT: Final = 65_536  # bytes of a schema without them
_MOST_WORK: Final = 100_000_000  # bytes of a schema times characters of a text: some hundredths of a second


class Shape(msgspec.Struct, frozen=True):
    """The shape of a whole text.

    Attributes:
        name: the parameter that asks for it.
        schema: as JSON; empty for any JSON object.
        is_heavy: whether it may take long to use the schema, for whatever text.
    """

    name: str
    schema: bytes = b""
    is_heavy: bool = False

    def is_heavy_for(self, text: str) -> bool:
        """True if it may take long to hold this text against the shape."""
        return self.is_heavy or len(self.schema) * len(text) > _MOST_WORK

    def check_schema(self) -> None:
        """Raise `OpenAIError` for a schema that is none."""
        if self.schema:
            self._validator()

    def check(self, text: str) -> None:
        """Raise `OpenAIError` for a text without the shape."""
        value = self._value(text)
        if not self.schema:
            if not isinstance(value, dict):
                raise self._misses("it is no JSON object")
            return
        import jsonschema_rs  # late: 60 ms that few requests need

        try:
            self._validator().validate(value)
        except jsonschema_rs.ValidationError as error:
            raise self._misses(error.message) from None

    def too_heavy(self) -> GeartrainError:
        """Return the error of a schema that takes more time or memory than there is for it."""
        return invalid(f"'{self.name}' has a schema that takes too long, or too much memory, to check", self.name)

    def _validator(self) -> Any:
        """Return the validator of the schema. What it refers to elsewhere is never fetched."""
        import jsonschema_rs

        try:
            return jsonschema_rs.validator_for(msgspec.json.decode(self.schema), retriever=_refuse)
        except ValueError as error:  # a schema that is none, or refers to what is elsewhere
            raise invalid(f"'{self.name}' has no valid schema: {str(error)[:1000]}", self.name) from None

    def _value(self, text: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise self._misses(f"it is no JSON: {error}") from None

    def _misses(self, why: str) -> OpenAIError:
        message = f"The text of the model does not have the form of '{self.name}': {why[:1000]}"
        return OpenAIError(Code.RUN_FAILED, message, param=self.name, kind="invalid_structured_output")


def read_shape(parameters: Parameters) -> tuple[msgspec.Raw, Shape | None] | None:
    """Return the `response_format` as it came, and the shape; None where it is not there. Raises `OpenAIError`.

    A schema that is heavy has not been looked at.
    """
    name = parameters.name_of("response_format")
    raw = parameters.raw("response_format")
    if raw is None:
        return None
    value = decoded(name, raw, Any)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return raw, None
    if kind == "json_object":
        return raw, Shape(name)
    schema = value.get("json_schema") if isinstance(value, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        msg = f"'{name}' has to be of the type text, json_object, or json_schema with a 'json_schema.schema'"
        raise invalid(msg, name)
    written = _encode(schema["schema"])
    shape = Shape(name, written, is_heavy=len(written) > _LIGHT or _HEAVY.search(written) is not None)
    if not shape.is_heavy:
        shape.check_schema()
    return raw, shape


def _refuse(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is not fetched")
