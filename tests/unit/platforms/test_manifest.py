"""YAML with comments."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.platforms.manifest import Noted, noted, plain, write_yaml

KEYS = st.text(min_size=1, max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: (
        st.dictionaries(KEYS, inner, min_size=1, max_size=4)
        | st.lists(inner.filter(lambda each: not isinstance(each, list)), max_size=4)
        | inner.map(lambda each: each if isinstance(each, list | Noted) else noted(each, "said"))
    ),
    max_leaves=12,
)


def test_comments_stand_above_what_they_are_about() -> None:
    document = {
        "a": noted(1, "one", "two"),
        "b": [noted("x", "an item"), {"c": noted({"d": "5", "e": [1, 2]}, "deeper"), "f": {}}],
    }
    assert write_yaml([noted(document, "the first"), noted({"g": True})]) == (
        "# the first\n# one\n# two\na: 1\nb:\n  # an item\n  - x\n"
        "  -\n    # deeper\n    c:\n      d: '5'\n      e: [1, 2]\n    f: {}\n---\ng: true\n"
    )


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_it_is_read_as_it_was_meant(document: dict[str, Any]) -> None:
    assert yaml.safe_load(write_yaml([noted(document, "above")])) == plain(document)
