"""Validation of an input against a signature, at the edge, before anything is run.

A good input pays for one pass of a compiled decoder. Anything else is read again, completely, and every fault is told
at once, as the table of section 7 of the observed API has it; what the documents say more (unknown fields are
rejected) is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.domain.errors import FIELD_REQUIRED, MISSING, Code, FieldError, GeartrainError
from geartrain.domain.rendering import clip, json_fault, render
from geartrain.domain.signature.compiled import QuickCheck
from geartrain.domain.signature.constraints import (
    Fault,
    accepts,
    first_faults,
    holds,
    rule_for_input,
    unexpected,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from geartrain.domain.signature.types import Signature

ROOT = "__root__"
_MOST_UNKNOWN = 10  # fields that the model does not have, and that an error names
_decode_any = msgspec.json.Decoder().decode


class InputValidator:
    """Checks the JSON text of an input. Made once per signature; holds no state between calls."""

    def __init__(self, signature: Signature) -> None:
        self._rules = {field.name: rule_for_input(field) for field in signature.inputs}
        self._required = tuple(field.name for field in signature.inputs if field.required)
        self.file_fields = tuple(f.name for f in signature.inputs if holds(f.type, "path", "file"))
        self.secret_fields = tuple(f.name for f in signature.inputs if holds(f.type, "secret"))
        quick = QuickCheck([(field.name, self._rules[field.name], field.required) for field in signature.inputs])
        self._decode = quick.decode
        self._rest = quick.rest
        self._skips_text = quick.skips_text
        self._one_pass = not quick.rest and not quick.skips_text

    def check(self, raw: bytes) -> tuple[FieldError, ...]:
        """Every fault of the input whose JSON text is `raw`; empty when it is fine.

        Raises `GeartrainError` (`UNPARSABLE`) when the text is no JSON, no UTF-8, holds a lone surrogate, a number
        beyond the range of a float, or is nested too deeply to be read.
        """
        try:
            value = self._decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._report(raw)
        if self._one_pass or self._rest_is_fine(value, raw):
            return ()
        return self._report(raw)

    def _rest_is_fine(self, value: Any, raw: bytes) -> bool:
        if self._skips_text:
            _parse(raw)
        given = ((rule, getattr(value, name)) for name, rule in self._rest)
        return all(part is msgspec.UNSET or accepts(rule, part) for rule, part in given)

    def _report(self, raw: bytes) -> tuple[FieldError, ...]:
        value = _parse(raw)
        if not isinstance(value, dict):
            return (_error(ROOT, Fault((), f'{render(value)} is not of type "object"')),)
        return (*self._wrong_fields(value), *self._missing_fields(value))

    def _wrong_fields(self, value: dict[str, Any]) -> list[FieldError]:
        errors: list[FieldError] = []
        missing: list[FieldError] = []
        unknown = 0
        for name in sorted(value):
            rule = self._rules.get(name)
            if rule is None:
                unknown += 1
                if unknown <= _MOST_UNKNOWN:
                    errors.append(_error(name, Fault((), self._unexpected(name), "value_error.extra")))
                continue
            for fault in first_faults(rule, value[name]):
                (missing if fault.type == MISSING else errors).append(_error(name, fault))
        if unknown > _MOST_UNKNOWN:
            text = f"{unknown} fields are unexpected, of which the first {_MOST_UNKNOWN} are named"
            errors.insert(0, _error(ROOT, Fault((), text, "value_error.extra")))
        return errors + missing

    def _missing_fields(self, value: dict[str, Any]) -> Iterator[FieldError]:
        for name in self._required:
            if name not in value:
                yield _error(name, Fault((), FIELD_REQUIRED, MISSING))

    def _unexpected(self, name: str) -> str:
        return unexpected(name, self._rules, "inputs of this model")


def _parse(raw: bytes) -> Any:
    try:
        return _decode_any(raw)
    except UnicodeDecodeError as error:
        raise GeartrainError(Code.UNPARSABLE, "The input is not valid UTF-8") from error
    except RecursionError as error:
        raise GeartrainError(Code.UNPARSABLE, "The input is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise GeartrainError(Code.UNPARSABLE, f"The input is not valid JSON: {json_fault(raw, error)}") from error


def _error(name: str, fault: Fault) -> FieldError:
    """The place of a fault is one text, joined by slashes as in a JSON pointer: `scores/3`."""
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in fault.path]
    place = clip("/".join([name, *steps]))
    return FieldError(loc=("body", "input", place), msg=fault.msg, type=fault.type)
