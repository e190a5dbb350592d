"""The sentences about wrong fields."""

from __future__ import annotations

import json

import pytest

from geartrain.apis.openai import errors
from geartrain.domain.errors import FIELD_REQUIRED, MISSING, Code, FieldError, GeartrainError

INPUT = ("body", "input")


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (FieldError((*INPUT, "n"), FIELD_REQUIRED, MISSING), 'missing required input "n"'),
        (FieldError((*INPUT, "box/top"), FIELD_REQUIRED, MISSING), 'missing required input "box/top"'),
        (
            FieldError((*INPUT, "n"), f'{FIELD_REQUIRED}: put it inside "input"', MISSING),
            'missing required input "n": put it inside "input"',
        ),
        (FieldError((*INPUT, "n"), '"a" is not of type "integer"', "value_error"), 'n: "a" is not of type "integer"'),
        (FieldError(INPUT, "2 faults were found", "value_error"), "input: 2 faults were found"),
    ],
)
def test_sentence_of_a_field(field: FieldError, sentence: str) -> None:
    assert field.sentence == sentence
    assert GeartrainError(Code.INVALID_INPUT, "wrong", fields=(field, field)).reason == f"{sentence}; {sentence}"


def test_openai_has_one_wording_too() -> None:
    error = GeartrainError(Code.INVALID_INPUT, "wrong", fields=(FieldError((*INPUT, "n"), FIELD_REQUIRED, MISSING),))
    assert json.loads(errors.encode_error(error))["error"]["message"] == "'n' is missing"
