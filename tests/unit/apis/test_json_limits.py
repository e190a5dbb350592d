"""What a JSON text may hold, counted without a step of Python for each element."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.apis import json_limits, json_scan
from geartrain.apis.json_limits import JsonLimitError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{},:é', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\[:', max_size=3), inner, max_size=4),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def count_of(value: Any) -> int:
    """The values that commas and opening brackets tell: an empty list counts as one more."""
    inner = list(value.values() if isinstance(value, dict) else value) if isinstance(value, (dict, list)) else []
    return 1 + (max(1, sum(map(count_of, inner))) if isinstance(value, (dict, list)) else 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 18])
@given(value=JSON, ensure_ascii=st.booleans())
def test_structure_is_what_stands_outside_of_strings(value: Any, size: int, ensure_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii).encode()
    small = json_limits.structure(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "PIECE", size)
        assert b"".join(json_scan.structure(text)) == small
    assert [small.count(mark) for mark in (b"[", b"{", b"]", b"}", b",", b":")] == structure_of(value)


def structure_of(value: Any) -> list[int]:
    """How many there are of `[`, `{`, `]`, `}`, comma and colon."""
    if not isinstance(value, (list, dict)):
        return [0] * 6
    inner = list(value.values() if isinstance(value, dict) else value)
    is_object = isinstance(value, dict)
    own = [not is_object, is_object, not is_object, is_object, max(0, len(inner) - 1), len(inner) * is_object]
    return [sum(counts) for counts in zip(own, *map(structure_of, inner), strict=True)]


@pytest.mark.parametrize(
    "pair", [(b"[", b"]"), (b'{"a":', b"}"), (b"[[],", b"]"), (b'["[",', b"]"), (b'[{"a":1},', b"]")]
)
@pytest.mark.parametrize("filler", [b"", b" " * 70_000])
def test_depth_is_at_most_64(pair: tuple[bytes, bytes], filler: bytes) -> None:
    def nested(times: int) -> bytes:
        return pair[0] * times + b"1" + filler + pair[1] * times

    times = next(times for times in range(65) if depth_of(json.loads(nested(times + 1))) > 64)
    json_limits.check_depth(nested(times))
    with pytest.raises(JsonLimitError, match="nested more than 64 deep"):
        json_limits.check_depth(nested(times + 1))


def test_brackets_in_texts_are_no_depth() -> None:
    text = json.dumps(["[" * 1000, "\\" + '"' + "{" * 1000, [[]] * 100]).encode()
    json_limits.check_depth(text)
    json_limits.check_depth(text + b" " * 70_000)


def test_run_of_openings_is_deep_and_texts_are_not() -> None:
    json_limits.check_run(json.dumps(["[" * 1000]).encode())
    json_limits.check_run(b"[" * 64 + b"]" * 64 + b" " * 100)
    with pytest.raises(JsonLimitError):
        json_limits.check_run(b"[" * 65 + b"]" * 65)


@given(value=st.dictionaries(st.sampled_from(["a", "b", "t"]), JSON), most=st.integers(0, 40))
def test_elements_are_counted_but_those_of_tensors(value: dict[str, Any], most: int) -> None:
    text = json.dumps(value).encode()
    counted = sum(count_of(one) for name, one in value.items() if name != "t")
    if counted > most:
        with pytest.raises(JsonLimitError, match=f"more than {most} elements, the limit max_json_elements"):
            json_limits.check_elements(text, most, tensors=("t",))
    else:
        json_limits.check_elements(text, most, tensors=("t",))


@given(value=st.dictionaries(st.text(max_size=3), JSON))
def test_members_are_found_as_they_are_written(value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=1)
    found = [(name, json.loads(text[begin:end])) for name, begin, end in json_limits.members(text)]
    assert found == list(value.items())


def test_members_that_stand_twice_are_all_told() -> None:
    text = ' { "a" : [1 ] ,"\\u0061":99999999999999999999,"b":"}" } '
    found = [(name, text[begin:end]) for name, begin, end in json_limits.members(text)]
    assert found == [("a", "[1 ]"), ("a", "99999999999999999999"), ("b", '"}"')]
    assert list(json_limits.members("{ }")) == []


def test_members_are_at_most_10_000() -> None:
    def text(count: int) -> str:
        return json.dumps({str(number): 0 for number in range(count)})

    assert len(list(json_limits.members(text(10_000)))) == 10_000
    with pytest.raises(JsonLimitError, match="more than 10000 members"):
        list(json_limits.members(text(10_001)))


def test_elements_of_an_array() -> None:
    text = ' [1, {"a":[2]} ,"]" ] '
    assert [text[begin:end] for begin, end in json_limits.elements(text, 1, 3)] == ["1", '{"a":[2]}', '"]"']
    assert list(json_limits.elements("[ ]", 0, 0)) == []
    with pytest.raises(JsonLimitError, match="more than 2 elements"):
        list(json_limits.elements(text, 1, 2))


@pytest.mark.parametrize("text", ["[1]", "5", '"{"'])
def test_only_objects_have_members(text: str) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        list(json_limits.members(text))
    if not text.startswith("["):
        with pytest.raises(ValueError, match="expected an array"):
            list(json_limits.elements(text, 0, 9))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a":1,"b":{"c":":"}}', None),
        ('{"a":1,"a":1}', "a"),
        ('{"a":1,"\\u0061":1}', "a"),
        ('{"a":{"b":1,"b":[{}]}}', "b"),
        ('{"a":{"b":{"c":"\\"","c":5}}}', "c"),
        ('{"a":[{"b":1,"b":2}]}', "of an object in a list"),
        ('{"a":1e999,"b":123456789012345678901234567890}', None),
    ],
)
def test_member_that_stands_twice_is_found_at_any_depth(text: str, name: str | None) -> None:
    assert json_limits.repeated_member(text) == name


@given(text=st.text(',[{"a', max_size=40), most=st.integers(0, 50))
def test_signs_are_counted_up_to_a_limit(text: str, most: int) -> None:
    data = text.encode()
    count = sum(map(text.count, ',[{"'))
    found = json_limits.count_some(bytearray(data), b',[{"', most)
    assert found == count if count <= most else found > most
    assert json_scan.count(data, b',[{"') == count


def test_signs_are_counted_across_pieces() -> None:
    text = (b"," * 3 + b"x") * json_scan.PIECE
    assert json_scan.count(text, b",") == 3 * json_scan.PIECE


@pytest.mark.parametrize("count", [19_999, 20_000, 20_001, 30_000])
def test_elements_are_counted_where_there_are_many(count: int) -> None:
    text = json.dumps([0] * count).encode()
    json_limits.check_elements(text, count + 1)
    with pytest.raises(JsonLimitError, match=f"more than {count - 1} elements"):
        json_limits.check_elements(text, count - 1)
