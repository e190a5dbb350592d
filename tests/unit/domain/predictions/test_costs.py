"""Costs of requests: the rules, what they say of inputs, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Tensor

KINDS: dict[str, Any] = {
    "text": TypeSpec("string"),
    "items": TypeSpec("array", items=TypeSpec("integer")),
    "count": TypeSpec("integer"),
    "image": TypeSpec("tensor", datatype="UINT8", shape=(-1, -1, -1, 3)),
    "input/a:0": TypeSpec("tensor", datatype="INT64", shape=(-1, -1)),
    "file": TypeSpec("path"),
}
SIGNATURE = Signature(
    inputs=tuple(
        InputField(name, spec, required=False, has_default=name == "count", default=7 if name == "count" else None)
        for name, spec in KINDS.items()
    ),
    output=OutputSpec(TypeSpec("string")),
)


def cost(rule: str, tensors: tuple[Tensor, ...] | None = None, **values: Any) -> float:
    return CostRule(rule, SIGNATURE)(msgspec.json.encode(values), tensors)


@pytest.mark.parametrize(
    ("rule", "values", "wanted"),
    [
        ("text", {"text": "äöü!"}, 4),
        ("text", {}, 0),
        ("text", {"text": None}, 0),
        ("items", {"items": [1, 2, 3]}, 3),
        ("items", {"items": [[1, 2], [3]]}, 3),
        ("items[0] * items[1]", {"items": [[1, 2], [3, 4], [5, 6]]}, 6),
        ("items[5]", {"items": [1]}, 0),
        ("count", {"count": 12}, 12),
        ("count", {}, 7),
        ("count", {"count": -3}, 0),
        ("text + 4 * count", {"text": "ab", "count": 2}, 10),
        ("text + items", {"text": "ab", "items": [0]}, 3),
        ("max(text, count) - min(text, 1)", {"text": "ab", "count": 9}, 8),
        ("text // 4", {"text": "abcdefghi"}, 2),
        ("text / 4", {"text": "abcdefghi"}, 2.25),
        ("count * count * count", {"count": 1e300}, 10**15),
        ("count" + " * count" * 60, {"count": 2**63}, 10**15),
        ("count" + " * count" * 60 + " // 3", {"count": 2**63}, 0),  # infinite, and then no number
        ("count / 4", {"count": 10**15 - 1}, 249_999_999_999_999.75),
        ("count - count", {"count": 10**400}, 0),
    ],
)
def test_rules(rule: str, values: dict[str, Any], wanted: float) -> None:
    assert cost(rule, **values) == wanted


def test_tensors() -> None:
    image = Tensor("image", "UINT8", (2, 4, 5, 3), b"")
    assert cost("image", (image,)) == 120
    assert cost("image[1] * image[-2]", (image,)) == 20
    assert cost("image[0] + text", (image,), text="abc") == 5
    ids = Tensor("input/a:0", "INT64", (2, 7), b"")
    assert cost("input/a:0", (ids,)) == 14
    assert cost("'input/a:0'[1] + 'input/a:0'", (ids,)) == 21


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("prompt", "there is no input 'prompt'; there are: text, items"),
        ("file", "is a file, whose contents the server does not read"),
        ("text[1]", "has no dimensions; its length is 'text'"),
        ("image[text]", "write image[1]"),
        ("image[1.5]", "write image[1]"),
        ("4 + 5", "names no input"),
        ("text ** 2", "+ - * and the division"),
        ("text / 0", "a number above 0"),
        ("text / count", "a number above 0"),
        ("text +", "is no expression"),
        ("", "is no expression"),
        ("__import__('os').system('true')", "cannot be a part of it"),
        ("text.upper()", "cannot be a part of it"),
        ("max()", "cannot be a part of it"),
        ("max(text, key=count)", "cannot be a part of it"),
        ("len(text)", "cannot be a part of it"),
        ("text + True", "cannot be a part of it"),
        ("text" + " + text" * 100, "characters"),
        ("-" * 400 + "text", "cannot be a part of it"),
    ],
)
def test_rules_that_cannot_be(rule: str, words: str) -> None:
    with pytest.raises(ValueError, match="cost") as raised:
        CostRule(rule, SIGNATURE)
    assert words in str(raised.value)
