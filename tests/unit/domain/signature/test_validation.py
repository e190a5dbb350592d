"""Validation of inputs: the table of section 7 of the observed API, row by row, and two properties.

`RECORDED` are answers of coglet 0.23.1 to the same signature, taken from a running server.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.json_schema import input_schema
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec
from geartrain.domain.signature.validation import InputValidator
from tests.support.signature_strategies import (
    JSON_SCHEMA_PATTERNS,
    PATTERNS,
    inputs_for,
    signatures,
    types,
    types_with_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STRING, INTEGER, NUMBER, BOOLEAN = TypeSpec("string"), TypeSpec("integer"), TypeSpec("number"), TypeSpec("boolean")
RECORD = TypeSpec("record", title="Rec", fields=(RecordField("a", INTEGER), RecordField("b", STRING, required=False)))
MISSING = "value_error.missing"
EXTRA = "value_error.extra"


def signature(*inputs: InputField) -> Signature:
    return Signature(inputs, OutputSpec(STRING))


def optional(name: str, spec: TypeSpec, **limits: Any) -> InputField:
    return InputField(name, spec, required=False, **limits)


def found(raw: str | bytes, *inputs: InputField) -> list[tuple[str, str, str]]:
    """The faults of an input as (place, message, type)."""
    errors = InputValidator(signature(*inputs)).check(raw.encode() if isinstance(raw, str) else raw)
    assert all(error.loc[:2] == ("body", "input") and len(error.loc) == 3 for error in errors)
    return [(error.loc[2], error.msg, error.type) for error in errors]


# --- section 7, row by row ---


def test_a_good_input_has_no_faults() -> None:
    assert found('{"s":"hello"}', InputField("s", STRING)) == []


def test_missing() -> None:
    assert InputValidator(signature(InputField("req", STRING))).check(b"{}") == (
        FieldError(("body", "input", "req"), "Field required", MISSING),
    )


def test_missing_fields_come_in_the_order_of_the_signature() -> None:
    inputs = InputField("z", STRING), InputField("a", STRING), optional("m", STRING)
    assert [place for place, _, _ in found("{}", *inputs)] == ["z", "a"]


@pytest.mark.parametrize(
    ("spec", "raw", "message"),
    [
        (INTEGER, '"7"', '"7" is not of type "integer"'),
        (INTEGER, "true", 'true is not of type "integer"'),
        (INTEGER, "7.5", '7.5 is not of type "integer"'),
        (BOOLEAN, "1", '1 is not of type "boolean"'),
        (BOOLEAN, '"true"', '"true" is not of type "boolean"'),
        (NUMBER, '"1"', '"1" is not of type "number"'),
        (NUMBER, "false", 'false is not of type "number"'),
        (STRING, "5", '5 is not of type "string"'),
        (STRING, "1e300", '1e+300 is not of type "string"'),
        (STRING, '["é"]', '["é"] is not of type "string"'),
        (TypeSpec("path"), "{}", '{} is not of type "string"'),
        (TypeSpec("file"), "[]", '[] is not of type "string"'),
        (TypeSpec("object"), '[1,2.50,{"b":1,"a":"é\\n"}]', '[1,2.5,{"a":"é\\n","b":1}] is not of type "object"'),
        (TypeSpec("array", items=STRING), '"x"', '"x" is not of type "array"'),
        (RECORD, "[]", '[] is not of type "object"'),
    ],
)
def test_wrong_type(spec: TypeSpec, raw: str, message: str) -> None:
    assert found(f'{{"x":{raw}}}', InputField("x", spec)) == [("x", message, "value_error")]


@pytest.mark.parametrize(
    ("limits", "raw", "message"),
    [
        ({"ge": 1}, "0", "0 is less than the minimum of 1"),
        ({"le": 10}, "11", "11 is greater than the maximum of 10"),
        ({"ge": 1.0}, "0", "0 is less than the minimum of 1"),
        ({"ge": 0.5}, "0", "0 is less than the minimum of 0.5"),
        ({"le": 2**70}, str(2**70 + 1), f"{2**70 + 1} is greater than the maximum of {2**70}"),
    ],
)
@pytest.mark.parametrize("spec", [INTEGER, NUMBER])
def test_ge_and_le(spec: TypeSpec, limits: dict[str, Any], raw: str, message: str) -> None:
    assert found(f'{{"n":{raw}}}', InputField("n", spec, **limits)) == [("n", message, "value_error")]


def test_limits_on_any_value_hold_for_the_numbers_and_texts_among_them() -> None:
    inputs = InputField("x", TypeSpec("opaque"), ge=1, max_length=1)
    assert found('{"x":[]}', inputs) == found('{"x":1}', inputs) == []
    assert found('{"x":0}', inputs) == [("x", "0 is less than the minimum of 1", "value_error")]
    assert found('{"x":"ab"}', inputs) == [("x", '"ab" is longer than 1 character', "value_error")]


def test_limits_are_inclusive() -> None:
    inputs = InputField("i", INTEGER, ge=1, le=3), InputField("f", NUMBER, ge=0.5, le=2.5)
    assert found('{"i":1,"f":0.5}', *inputs) == found('{"i":3,"f":2.5}', *inputs) == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('"a"', '"a" is shorter than 2 characters'),
        ('"abcdef"', '"abcdef" is longer than 5 characters'),
        ('"😀"', '"😀" is shorter than 2 characters'),
    ],
)
def test_lengths_count_characters(raw: str, message: str) -> None:
    inputs = InputField("s", STRING, min_length=2, max_length=5)
    assert found(f'{{"s":{raw}}}', inputs) == [("s", message, "value_error")]


def test_a_length_of_one_is_singular() -> None:
    assert found('{"s":""}', InputField("s", STRING, min_length=1))[0][1] == '"" is shorter than 1 character'


def test_regex() -> None:
    inputs = InputField("s", STRING, regex="^[a-z]+$")
    assert found('{"s":"AB"}', inputs) == [("s", '"AB" does not match "^[a-z]+$"', "value_error")]
    assert found('{"s":"ab"}', inputs) == []


def test_regex_is_searched_unanchored_and_shown_unescaped() -> None:
    inputs = InputField("s", STRING, regex=r"\d")
    assert found('{"s":"a1b"}', inputs) == []
    assert found('{"s":"ab"}', inputs)[0][1] == r'"ab" does not match "\d"'


def test_regex_dollar_does_not_match_before_a_final_newline() -> None:
    assert found(r'{"s":"ab\n"}', InputField("s", STRING, regex="^ab$")) != []


def test_regex_in_python_s_own_dialect() -> None:
    inputs = InputField("s", STRING, regex=r"(?i)^(?P<word>yes)\Z")
    assert found('{"s":"YES"}', inputs) == []
    assert found('{"s":"no"}', inputs)[0][1] == r'"no" does not match "(?i)^(?P<word>yes)\Z"'


def test_regex_gives_up_on_exponential_search() -> None:
    text = "a" * 60 + "!"
    assert found(f'{{"s":"{text}"}}', InputField("s", STRING, regex=r"^(?=x*)(a|aa)+\1$")) != []


def test_choices() -> None:
    inputs = InputField("c", STRING, choices=("red", "blue"))
    assert found('{"c":"red"}', inputs) == []
    assert found('{"c":"green"}', inputs) == [("c", '"green" is not one of ["red","blue"]', "value_error")]


def test_choices_of_a_wrong_type_give_two_entries() -> None:
    assert found('{"c":5}', InputField("c", STRING, choices=("red", "blue"))) == [
        ("c", '5 is not one of ["red","blue"]', "value_error"),
        ("c", '5 is not of type "string"', "value_error"),
    ]


def test_choices_of_a_literal() -> None:
    inputs = InputField("c", TypeSpec("integer", choices=(1, 2)))
    assert found('{"c":1.0}', inputs) == []
    assert found('{"c":3}', inputs) == [("c", "3 is not one of [1,2]", "value_error")]
    assert [message for _, message, _ in found('{"c":true}', inputs)] == [
        "true is not one of [1,2]",
        'true is not of type "integer"',
    ]


def test_choices_of_a_list_hold_for_its_elements() -> None:
    inputs = InputField("c", TypeSpec("array", items=STRING), choices=("red", "blue"))
    assert found('{"c":["red","blue"]}', inputs) == []
    assert found('{"c":["red","x"]}', inputs) == [("c/1", '"x" is not one of ["red","blue"]', "value_error")]


def test_list_element() -> None:
    inputs = InputField("l", TypeSpec("array", items=INTEGER))
    assert found('{"l":[1,"a",7.0,true]}', inputs) == [
        ("l/1", '"a" is not of type "integer"', "value_error"),
        ("l/3", 'true is not of type "integer"', "value_error"),
    ]


def test_union() -> None:
    inputs = InputField("u", TypeSpec("union", members=(INTEGER, STRING)))
    assert found('{"u":1}', inputs) == found('{"u":"x"}', inputs) == []
    message = "[] is not valid under any of the schemas listed in the 'anyOf' keyword"
    assert found('{"u":[]}', inputs) == [("u", message, "value_error")]


def test_union_of_lists_that_no_decoder_tells_apart() -> None:
    lists = tuple(TypeSpec("array", items=items) for items in (INTEGER, STRING))
    inputs = InputField("u", TypeSpec("union", members=lists))
    assert found('{"u":[1]}', inputs) == found('{"u":["x"]}', inputs) == []
    assert [place for place, _, _ in found('{"u":[1,"x"]}', inputs)] == ["u"]


@pytest.mark.parametrize("required", [True, False])
def test_explicit_null(*, required: bool) -> None:
    inputs = InputField("s", STRING, required=required)
    assert found('{"s":null}', inputs) == [("s", 'null is not of type "string"', "value_error")]


@pytest.mark.parametrize(
    "inputs",
    [
        InputField("s", TypeSpec("string", nullable=True), required=False),
        InputField("s", TypeSpec("string", nullable=True), required=False, choices=("a",)),
        InputField("s", TypeSpec("string", nullable=True), required=False, min_length=2, regex="^a"),
        InputField("s", TypeSpec("tensor", nullable=True, datatype="FP32", shape=(2,)), required=False),
        InputField("s", TypeSpec("secret"), required=False, has_default=True, default=None),
    ],
)
def test_a5_null_of_an_optional_is_fine(inputs: InputField) -> None:
    assert found('{"s":null}', inputs) == []


def test_null_inside_a_value_is_what_its_type_says() -> None:
    numbers = TypeSpec("array", items=TypeSpec("number", nullable=True))
    record = TypeSpec("record", fields=(RecordField("a", TypeSpec("string", nullable=True)),))
    assert found('{"l":[1.5,null],"r":{"a":null}}', InputField("l", numbers), InputField("r", record)) == []


def test_an_optional_field_may_be_left_out() -> None:
    assert found("{}", optional("s", TypeSpec("string", nullable=True)), optional("r", STRING, regex="x")) == []


@pytest.mark.parametrize(("raw", "shown"), [("[]", "[]"), ("5", "5"), ('"x"', '"x"'), ("null", "null")])
def test_whole_input_not_an_object(raw: str, shown: str) -> None:
    assert found(raw, InputField("s", STRING)) == [("__root__", f'{shown} is not of type "object"', "value_error")]


def test_no_coercion_but_json_schema_s_numbers() -> None:
    assert (
        found('{"i":7.0,"f":1,"b":2e2}', InputField("i", INTEGER), InputField("f", NUMBER), InputField("b", INTEGER))
        == []
    )


def test_format_uri_is_not_checked() -> None:
    assert found('{"p":"no uri"}', InputField("p", TypeSpec("path"))) == []


def test_field_errors_come_in_alphabetical_order_then_missing_ones() -> None:
    inputs = InputField("z", STRING), InputField("m", STRING), InputField("a", STRING)
    places = [place for place, _, _ in found('{"z":1,"b":1,"a":1}', *inputs)]
    assert places == ["a", "b", "z", "m"]


# --- what the documents say more: unknown fields are rejected ---


def test_unknown_field() -> None:
    message = 'Unexpected field "zz"; the inputs of this model are: s, n'
    assert found('{"s":"x","zz":1}', InputField("s", STRING), optional("n", INTEGER)) == [("zz", message, EXTRA)]


def test_unknown_field_of_a_model_without_inputs() -> None:
    assert found('{"zz":1}') == [("zz", 'Unexpected field "zz"', EXTRA)]


# --- records ---


def test_record_faults_name_their_place() -> None:
    assert found('{"r":{"b":1,"more":1}}', InputField("r", RECORD)) == [
        ("r/b", '1 is not of type "string"', "value_error"),
        ("r/a", "Field required", MISSING),
    ]


def test_closed_record() -> None:
    closed = msgspec.structs.replace(RECORD, closed=True)
    message = 'Unexpected field "more"; the fields of this object are: a, b'
    assert found('{"r":{"a":1,"more":1}}', InputField("r", closed)) == [("r/more", message, EXTRA)]


def test_places_are_escaped_as_in_a_json_pointer() -> None:
    record = TypeSpec("record", fields=(RecordField("a/b~", INTEGER),))
    assert found('{"r":{"a/b~":"x"}}', InputField("r", record))[0][0] == "r/a~1b~0"


# --- limits of what is told ---


def test_secrets_are_not_repeated() -> None:
    secret = TypeSpec("secret")
    inputs = InputField("k", secret, min_length=9), InputField("l", TypeSpec("array", items=secret))
    messages = [message for _, message, _ in found('{"k":"hunter2","l":[4711]}', *inputs)]
    assert messages == ["********** is shorter than 9 characters", '********** is not of type "string"']


def test_long_values_are_shown_in_part() -> None:
    ((_, message, _),) = found(f'{{"n":"{"a" * 5000}z"}}', InputField("n", INTEGER))
    assert len(message) < 500
    assert message.startswith('"aaa')
    assert message.endswith('aaz" is not of type "integer"')
    ((_, message, _),) = found(f'{{"n":{[7] * 5000}}}', InputField("n", INTEGER))
    assert len(message) < 1000


def test_the_list_of_faults_is_bounded() -> None:
    faults = found(b'{"l":[' + b'"x",' * 1000 + b"1]}", InputField("l", TypeSpec("array", items=INTEGER)))
    assert len(faults) == 11
    assert faults[-1] == ("l", "more values are wrong; only the first 10 are listed", "value_error")
    assert len(found("{" + ",".join(f'"x{index}":1' for index in range(1000)) + "}")) == 11  # ten, and their number


# --- text that is no JSON ---


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{bad",
        b'{"s":"x"',
        b'{"s":"x"} ,',
        b"NaN",
        b'{"s":NaN}',
        b'{"s":"\xff"}',
        b'{"\xff":1}',
        b'{"s":"\\ud800"}',
        b'{"s":"\\udc00"}',
        b'{"o":{"deep":["\\ud800x"]}}',
        b'{"s":"\x01"}',
        b'{"s":1e400}',
        b'{"o":{"x":1e400}}',
        b'{"r":{"a":1,"more":1e400}}',
        b'{"r":{"a":1,"more":"\xff"}}',
        b'{"o":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"s":' + b"1" * 5000 + b"}",
    ],
)
def test_unparsable(raw: bytes) -> None:
    validator = InputValidator(
        signature(optional("s", STRING), optional("o", TypeSpec("opaque")), optional("r", RECORD))
    )
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(4300)  # Python's default: a library that other tests import may have lifted it
    try:
        with pytest.raises(GeartrainError) as caught:
            validator.check(raw)
    finally:
        sys.set_int_max_str_digits(digits)
    assert caught.value.code is Code.UNPARSABLE
    assert caught.value.message.startswith("The input is ")


def test_the_last_of_two_equal_keys_wins() -> None:
    assert found('{"s":1,"s":"x"}', InputField("s", STRING)) == []
    assert found('{"s":"x","s":1}', InputField("s", STRING)) != []


# --- which parameters need more than checking ---


def test_file_and_secret_fields_are_found_at_any_depth() -> None:
    paths = TypeSpec("array", items=TypeSpec("path"))
    union = TypeSpec("union", members=(STRING, TypeSpec("file")))
    record = TypeSpec("record", fields=(RecordField("key", TypeSpec("secret")),))
    inputs = [("a", STRING), ("b", paths), ("c", union), ("d", record), ("e", TypeSpec("secret"))]
    validator = InputValidator(signature(*(InputField(name, spec) for name, spec in inputs)))
    assert validator.file_fields == ("b", "c")
    assert validator.secret_fields == ("d", "e")


# --- the real server's words ---

RECORDED_INPUTS = (
    InputField("n", INTEGER, ge=1, le=10),
    InputField("c", STRING, choices=("red", "blue")),
    optional("f", NUMBER, ge=0),
    optional("r", STRING, regex="^[a-z]+$", min_length=2, max_length=5),
    optional("ff", NUMBER, ge=0.5, le=2.5),
    optional("rec", RECORD),
)
RECORDED: list[tuple[str, list[tuple[str, str]]]] = [
    ("{}", [("n", "Field required"), ("c", "Field required")]),
    (
        '{"n":0.5,"c":5}',
        [
            ("c", '5 is not one of ["red","blue"]'),
            ("c", '5 is not of type "string"'),
            ("n", "0.5 is less than the minimum of 1"),
            ("n", '0.5 is not of type "integer"'),
        ],
    ),
    (
        '{"n":true,"f":"1"}',
        [("f", '"1" is not of type "number"'), ("n", 'true is not of type "integer"'), ("c", "Field required")],
    ),
    (
        '{"n":7.0,"c":null}',
        [("c", 'null is not one of ["red","blue"]'), ("c", 'null is not of type "string"')],
    ),
    (
        '{"n":3,"c":"red","r":"A"}',
        [("r", '"A" is shorter than 2 characters'), ("r", '"A" does not match "^[a-z]+$"')],
    ),
    (
        '{"n":3,"c":"red","r":"abcdefG"}',
        [("r", '"abcdefG" is longer than 5 characters'), ("r", '"abcdefG" does not match "^[a-z]+$"')],
    ),
    ('{"n":3,"c":"red","r":"abc\\n"}', [("r", '"abc\\n" does not match "^[a-z]+$"')]),
    ('{"n":3,"c":"red","ff":1e300}', [("ff", "1e+300 is greater than the maximum of 2.5")]),
    ('{"n":3,"c":"red","f":-1e25}', [("f", "-1e+25 is less than the minimum of 0")]),
    ('{"n":3,"c":"red","rec":{"a":1.5,"zz":1}}', [("rec/a", '1.5 is not of type "integer"')]),
]


@pytest.mark.parametrize(("raw", "expected"), RECORDED)
def test_faults_are_worded_and_ordered_as_recorded(raw: str, expected: list[tuple[str, str]]) -> None:
    assert [(place, message) for place, message, _ in found(raw, *RECORDED_INPUTS)] == expected


# --- the hot path ---


@pytest.mark.parametrize(
    "field",
    [
        InputField("x", STRING, min_length=1, max_length=9),
        InputField("x", INTEGER, ge=1, le=9.5),
        InputField("x", NUMBER, ge=0.5, le=9),
        InputField("x", BOOLEAN),
        InputField("x", STRING, choices=("a", "b")),
        InputField("x", INTEGER, choices=(1, 2)),
        InputField("x", TypeSpec("opaque", choices=(1, "a"))),
        InputField("x", TypeSpec("path")),
        InputField("x", TypeSpec("secret", nullable=True), required=False),
        InputField("x", TypeSpec("object")),
        InputField("x", TypeSpec("opaque")),
        InputField("x", TypeSpec("array", items=TypeSpec("array", items=TypeSpec("number", nullable=True)))),
        InputField("x", TypeSpec("union", members=(STRING, NUMBER, TypeSpec("array", items=STRING)))),
        InputField("x", msgspec.structs.replace(RECORD, closed=True)),
    ],
)
def test_common_inputs_are_checked_in_one_pass(field: InputField) -> None:
    assert InputValidator(signature(field))._one_pass


# --- properties ---


def _cases(
    patterns: Sequence[str], kinds: st.SearchStrategy[TypeSpec] = types_with_tensors
) -> st.SearchStrategy[tuple[Signature, dict[str, Any]]]:
    return signatures(patterns, kinds).flatmap(lambda model: st.tuples(st.just(model), inputs_for(model)))


@settings(max_examples=200)
@given(_cases(PATTERNS))
def test_the_quick_check_never_accepts_what_the_complete_one_rejects(case: tuple[Signature, dict[str, Any]]) -> None:
    model, value = case
    validator, raw = InputValidator(model), msgspec.json.encode(value)
    accepted = validator.check(raw) == ()
    event("accepted" if accepted else "rejected")
    assert accepted == (validator._report(raw) == ())


@settings(max_examples=200)
@given(_cases(JSON_SCHEMA_PATTERNS, types))
def test_the_complete_check_agrees_with_a_json_schema_engine(case: tuple[Signature, dict[str, Any]]) -> None:
    model, value = case
    assert sorted(_own_faults(model, value)) == sorted(_engine_faults(model, value))


@settings(max_examples=100)
@given(_cases(JSON_SCHEMA_PATTERNS))
def test_a_json_schema_engine_accepts_what_the_complete_check_does(case: tuple[Signature, dict[str, Any]]) -> None:
    """Of tensors a schema cannot say everything: that rows are equally long, and how large a float may be."""
    model, value = case
    own = list(_own_faults(model, value))
    event("rejected" if own else "accepted")
    assert own or not list(_engine_faults(model, value))


def _own_faults(model: Signature, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for error in InputValidator(model)._report(msgspec.json.encode(value)):
        text = "required" if error.type == MISSING else "extra" if error.type == EXTRA else _kind(error.msg)
        yield error.loc[2], text


def _engine_faults(model: Signature, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The faults that `jsonschema_rs` finds with the published schema, in the shape of `_own_faults`."""
    described = input_schema(model.inputs, title="Input")
    schema = _for_engine(described.schema, described.components)
    engine = jsonschema_rs.Draft7Validator({**schema, "additionalProperties": False}, validate_formats=False)
    # A parameter that is nullable takes null, which the dialect of the engine has no word for.
    nulls = {name for name, part in described.schema["properties"].items() if part.get("nullable")}
    nulls = {name for name in nulls if name in value and value[name] is None}
    given = {name: part for name, part in value.items() if name not in nulls}
    # What we read is what JSON can carry: -0 is an integer to us.
    for error in engine.iter_errors(msgspec.json.decode(msgspec.json.encode(given))):
        path = [str(step).replace("~", "~0").replace("/", "~1") for step in error.instance_path]
        if path:
            path[0] = str(error.instance_path[0])  # the name of a parameter stands as it is
        details = error.kind.as_dict()
        if error.kind.name == "required" and not path and details["property"] in nulls:
            continue
        if error.kind.name == "required":
            yield _place(path, details["property"]), "required"
        elif error.kind.name == "additionalProperties":
            for name in details["unexpected"]:
                yield _place(path, name), "extra"
        else:
            yield "/".join(path), error.kind.name


def _place(path: list[str], name: str) -> str:
    return "/".join([*path, name.replace("~", "~0").replace("/", "~1")]) if path else name


def _kind(message: str) -> str:
    """The JSON Schema keyword that a message speaks of."""
    words = {
        "is not one of": "enum",
        "is not of type": "type",
        "less than the minimum": "minimum",
        "greater than the maximum": "maximum",
        "is shorter than": "minLength",
        "is longer than": "maxLength",
        "does not match": "pattern",
        "'anyOf'": "anyOf",
    }
    return max((message.rfind(text), keyword) for text, keyword in words.items())[1]


def _for_engine(
    schema: dict[str, Any], components: dict[str, dict[str, Any]], *, inner: bool = False
) -> dict[str, Any]:
    """A schema of OpenAPI in the words of JSON Schema: references written out, `nullable` inside values obeyed."""
    schema = dict(schema)
    if "$ref" in schema:
        schema = dict(components[schema["$ref"].removeprefix("#/components/schemas/")])
    for keyword in ("anyOf", "allOf"):
        if keyword in schema:
            schema[keyword] = [_for_engine(part, components, inner=keyword == "anyOf") for part in schema[keyword]]
    if "items" in schema:
        schema["items"] = _for_engine(schema["items"], components, inner=True)
    if "properties" in schema:
        schema["properties"] = {
            name: _for_engine(part, components, inner="x-order" not in part)
            for name, part in schema["properties"].items()
        }
    if "enum" in schema and not inner and schema.get("nullable"):
        schema["enum"] = [choice for choice in schema["enum"] if choice is not None]
    if inner and schema.get("nullable"):
        if "type" in schema:
            schema["type"] = [schema["type"], "null"]
        if "anyOf" in schema:
            schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema
