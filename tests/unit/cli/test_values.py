"""`-i name=value`: what each text becomes, by the signature."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from geartrain.cli.values import (
    InputError,
    WrongInputsError,
    build_input,
    check_files,
    describe,
    encode_input,
    parse_json_input,
    read_argument,
    split_pairs,
)
from geartrain.domain.errors import FieldError
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec

INTEGER, NUMBER, STRING, BOOLEAN = (TypeSpec(kind) for kind in ("integer", "number", "string", "boolean"))
PATH, OBJECT, OPAQUE, SECRET = (TypeSpec(kind) for kind in ("path", "object", "opaque", "secret"))
RECORD = TypeSpec("record", fields=(RecordField("a", INTEGER),), title="R")


def array(items: TypeSpec) -> TypeSpec:
    return TypeSpec("array", items=items)


def union(*members: TypeSpec) -> TypeSpec:
    return TypeSpec("union", members=members)


def signature(*inputs: InputField) -> Signature:
    return Signature(inputs=inputs, output=OutputSpec(STRING))


def convert(spec: TypeSpec, *texts: str, choices: tuple[Any, ...] | None = None) -> Any:
    field = InputField("x", spec, choices=choices)
    return build_input(signature(field), {"x": list(texts)})["x"]


def complaint(spec: TypeSpec, *texts: str, choices: tuple[Any, ...] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        convert(spec, *texts, choices=choices)
    return str(caught.value)


# pairs


def test_pairs_are_gathered_by_name() -> None:
    assert split_pairs(["a=1", "b=x=y", "a=2", " c =", "d= e"]) == {
        "a": ["1", "2"],
        "b": ["x=y"],
        "c": [""],
        "d": [" e"],
    }


@pytest.mark.parametrize("text", ["", "x", "=1", " =1"])
def test_text_that_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no input; write name=value"):
        split_pairs([text])


# one text, one type


@pytest.mark.parametrize(
    ("spec", "text", "value"),
    [
        (STRING, "hello", "hello"),
        (STRING, "", ""),
        (STRING, "5", "5"),
        (STRING, "null", "null"),
        (STRING, "[1]", "[1]"),
        (SECRET, "s3", "s3"),
        (INTEGER, "5", 5),
        (INTEGER, "-5", -5),
        (INTEGER, " 5 ", 5),
        (INTEGER, str(2**70), 2**70),
        (NUMBER, "5", 5),
        (NUMBER, "0.5", 0.5),
        (NUMBER, "1e3", 1000.0),
        (BOOLEAN, "true", True),
        (BOOLEAN, "True", True),
        (BOOLEAN, "1", True),
        (BOOLEAN, "yes", True),
        (BOOLEAN, "false", False),
        (BOOLEAN, "0", False),
        (BOOLEAN, "no", False),
        (OBJECT, '{"a": [1, null]}', {"a": [1, None]}),
        (RECORD, '{"a": 1}', {"a": 1}),
        (OPAQUE, "5", 5),
        (OPAQUE, "[1]", [1]),
        (OPAQUE, "text", "text"),
        (OPAQUE, "null", "null"),
        (OPAQUE, '"quoted"', '"quoted"'),
        (PATH, "https://example.com/a.png", "https://example.com/a.png"),
        (PATH, "data:,x", "data:,x"),
        (union(STRING, INTEGER), "5", 5),
        (union(STRING, INTEGER), "five", "five"),
        (union(STRING, BOOLEAN), "1", "1"),
        (union(STRING, BOOLEAN), "true", True),
        (union(INTEGER, NUMBER), "0.5", 0.5),
        (union(array(INTEGER), STRING), "[1, 2]", [1, 2]),
        (union(OBJECT, STRING), '{"a": 1}', {"a": 1}),
        (union(TypeSpec("integer", choices=(1, 2)), STRING), "3", "3"),
    ],
)
def test_text_becomes_a_value_of_its_type(spec: TypeSpec, text: str, value: Any) -> None:
    result = convert(spec, text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("spec", "text", "said"),
    [
        (INTEGER, "ten", '"ten" is not of type "integer"'),
        (INTEGER, "", '"" is not of type "integer"'),
        (INTEGER, "1.5", '1.5 is not of type "integer"'),
        (INTEGER, "true", 'true is not of type "integer"'),
        (INTEGER, "null", "must not be null; leave it out instead"),
        (NUMBER, "NaN", '"NaN" is not of type "number"'),
        (NUMBER, "[]", '[] is not of type "number"'),
        (BOOLEAN, "maybe", '"maybe" is not of type "boolean"'),
        (BOOLEAN, "2", '2 is not of type "boolean"'),
        (OBJECT, "5", 'expected object written as JSON, such as {"a": 1}, got integer'),
        (RECORD, "{bad", 'expected object written as JSON, such as {"a": 1}, got string'),
        (PATH, "cat.png", "expected a URL or @file, got 'cat.png'; for a file of your own write @cat.png"),
        (PATH, "file:///etc/passwd", "expected a URL or @file, got 'file:///etc/passwd'"),
        (union(INTEGER, BOOLEAN), "x", "expected integer or boolean, got string"),
        (STRING, "\udcff", "the text is not valid UTF-8"),
    ],
)
def test_mistyped_text_is_refused(spec: TypeSpec, text: str, said: str) -> None:
    assert complaint(spec, text).startswith(f'invalid input "x": {said}')


def test_choices_are_named() -> None:
    assert convert(STRING, "red", choices=("red", "blue")) == "red"
    assert convert(INTEGER, "2", choices=(1, 2)) == 2
    assert convert(TypeSpec("string", choices=("red",)), "red") == "red"
    assert complaint(STRING, "green", choices=("red", "blue")) == 'invalid input "x": must be one of: red, blue'
    assert complaint(INTEGER, "3", choices=(1, 2)) == 'invalid input "x": must be one of: 1, 2'
    assert complaint(TypeSpec("string", choices=("red",)), "5") == 'invalid input "x": must be one of: red'


def test_true_is_no_choice_of_one() -> None:
    assert complaint(OPAQUE, "true", choices=(1,)) == 'invalid input "x": must be one of: 1'


# lists


@pytest.mark.parametrize(
    ("items", "texts", "value"),
    [
        (INTEGER, ["1"], [1]),
        (INTEGER, ["1", "2"], [1, 2]),
        (INTEGER, ["[1, 2]"], [1, 2]),
        (INTEGER, ["[]"], []),
        (STRING, ["a"], ["a"]),
        (STRING, [""], [""]),
        (STRING, ['["a", "b"]'], ["a", "b"]),
        (STRING, ["[a"], ["[a"]),
        (STRING, ["[a]", "[b]"], ["[a]", "[b]"]),
        (OBJECT, ['{"a": 1}', '{"b": 2}'], [{"a": 1}, {"b": 2}]),
        (OBJECT, ['[{"a": 1}]'], [{"a": 1}]),
        (array(INTEGER), ["[1]"], [[1]]),
        (array(INTEGER), ["[[1], [2]]"], [[1], [2]]),
        (array(INTEGER), ["[1]", "[2, 3]"], [[1], [2, 3]]),
        (PATH, ["https://a/1", "https://a/2"], ["https://a/1", "https://a/2"]),
        (PATH, ['["https://a/1"]'], ["https://a/1"]),
    ],
)
def test_list_comes_from_several_texts_or_one_of_json(items: TypeSpec, texts: list[str], value: list[Any]) -> None:
    assert convert(array(items), *texts) == value


def test_every_element_is_checked() -> None:
    assert complaint(array(INTEGER), "1", "b") == 'invalid input "x": "b" is not of type "integer"'
    assert complaint(array(STRING), "red", "green", choices=("red",)) == 'invalid input "x": must be one of: red'


def test_only_a_list_may_be_repeated() -> None:
    assert complaint(STRING, "a", "b") == 'invalid input "x": given 2 times, but it is no list'


# files


def test_file_becomes_a_data_url_for_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b").write_bytes(b"x")
    assert convert(PATH, f"@{tmp_path / 'a.png'}") == "data:image/png;base64,iVBORw=="
    assert convert(TypeSpec("file"), f"@{tmp_path / 'b'}") == "data:application/octet-stream;base64,eA=="
    assert convert(array(PATH), f"@{tmp_path / 'b'}", "data:,y") == [
        "data:application/octet-stream;base64,eA==",
        "data:,y",
    ]
    assert convert(array(PATH), f"@{tmp_path / 'b'}") == ["data:application/octet-stream;base64,eA=="]


def test_file_gives_its_text_to_other_types(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("[1, 2]")
    given = f"@{tmp_path / 'v'}"
    assert convert(STRING, given) == "[1, 2]"
    assert convert(array(INTEGER), given) == [1, 2]
    assert convert(OPAQUE, given) == [1, 2]
    assert complaint(OBJECT, given).endswith("got array")


def test_stdin_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    give(b"\x89PNG")
    assert convert(PATH, "@-") == "data:application/octet-stream;base64,iVBORw=="
    give(b"hello")
    assert convert(STRING, "@-") == "hello"
    give(b"\xff")
    with pytest.raises(InputError, match=r"^stdin is not UTF-8 text$"):
        convert(STRING, "@-")


def test_stdin_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    check_files({"a": ["@-"]})
    assert sys.stdin.buffer.read() == b""  # it has been read
    assert convert(union(INTEGER, STRING), "@-") == "hello"


def test_missing_file_is_told_without_a_signature(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    check_files({"a": ["text", f"@{tmp_path / 'there'}", f"@{tmp_path / 'pipe'}"], "b": []})
    for name, reason in (("missing.png", "No such file or directory"), ("", "Is a directory")):
        with pytest.raises(InputError, match=f"^cannot read .*: {reason} "):
            check_files({"a": ["text"], "b": [f"@{tmp_path / name}"]})


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    hint = "(to give text that begins with @, use --json)"
    assert complaint(PATH, "@/nowhere.png") == f"cannot read /nowhere.png: No such file or directory {hint}"
    assert complaint(STRING, "@") == f"cannot read a file without a name: Is a directory {hint}"
    assert complaint(STRING, f"@{tmp_path}") == f"cannot read {tmp_path}: Is a directory {hint}"
    (tmp_path / "v").write_bytes(b"\xff")
    assert complaint(STRING, f"@{tmp_path / 'v'}") == f"{tmp_path / 'v'} is not UTF-8 text"


# the whole input


def test_unknown_input_lists_what_there_is() -> None:
    takes = signature(InputField("a", STRING), InputField("b", STRING))
    with pytest.raises(InputError, match=r'^unknown input "c"; this model takes a, b$'):
        build_input(takes, {"a": ["x"], "b": ["y"], "c": ["1"]})
    with pytest.raises(InputError, match=r'^unknown input "c"; this model takes no inputs$'):
        build_input(signature(), {"c": ["1"]})


def test_all_mistakes_are_told_at_once() -> None:
    takes = signature(InputField("a", STRING), InputField("n", INTEGER), InputField("m", INTEGER))
    with pytest.raises(WrongInputsError) as caught:
        build_input(takes, {"n": ["x"], "c": ["1"], "m": ["2"]})
    assert caught.value.sentences == (
        'invalid input "n": "x" is not of type "integer"',
        'unknown input "c"; this model takes a, n, m',
        'missing required input "a"',
    )
    assert caught.value.names == frozenset({"n", "c", "a"})
    assert caught.value.values == {"m": 2}


def test_missing_input_is_named() -> None:
    takes = signature(InputField("a", STRING), InputField("b", STRING, required=False, has_default=True, default="x"))
    assert build_input(takes, {"a": ["1"]}) == {"a": "1"}
    with pytest.raises(InputError, match=r'^missing required input "a"$'):
        build_input(takes, {"b": ["1"]})


def test_json_input_is_an_object() -> None:
    assert parse_json_input('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{bad", "the input is not JSON: "),
        ('{"a": NaN}', "the input is not JSON: NaN is no JSON value"),
        ("", "the input is not JSON: "),
        ("[" * 100_000, "the input is not JSON: "),
        ("[1]", 'the input must be a JSON object such as {"name": 1}, got array'),
        ("5", 'the input must be a JSON object such as {"name": 1}, got integer'),
    ],
)
def test_json_that_is_no_input_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json_input(text)
    assert str(caught.value).startswith(said)


def test_input_is_encoded_as_json() -> None:
    values = {"a": "ä", "n": 2**70, "f": 7.0}
    assert json.loads(encode_input(values)) == values
    with pytest.raises(InputError, match="a number that JSON cannot carry"):
        encode_input({"n": float("inf")})


def test_argument_may_name_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": 1}')
    assert read_argument(f"@{tmp_path / 'in.json'}") == '{"a": 1}'
    assert read_argument('{"a": 1}') == '{"a": 1}'


def test_validators_findings_are_told_in_the_same_words() -> None:
    assert describe(
        (
            FieldError(("body", "input", "n"), "11 is greater than the maximum of 10", "value_error"),
            FieldError(("body", "input", "l/1"), '"a" is not of type "integer"', "value_error"),
            FieldError(("body", "input", "z"), 'null is not of type "string"', "value_error"),
            FieldError(("body", "input", "y"), "unexpected; there are a, b", "value_error.extra"),
            FieldError(("body", "input", "m"), "Field required", "value_error.missing"),
        )
    ) == [
        'invalid input "n": 11 is greater than the maximum of 10',
        'invalid input "l/1": "a" is not of type "integer"',
        'invalid input "z": must not be null; leave it out instead',
        'unknown input "y"; there are a, b',
        'missing required input "m"',
    ]
