"""Tests that may fail on a busy machine: they are few, and each says why."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

TESTS = pathlib.Path(__file__).parents[1]
MARKED = 0
"""How many tests have the mark. Make a test robust if you can, before you count one more."""


def is_mark(node: ast.expr) -> bool:
    """Whether an expression is `pytest.mark.busy`, or `mark.busy`."""
    return isinstance(node, ast.Attribute) and node.attr == "busy" and ast.unparse(node.value).split(".")[-1] == "mark"


def marks(tree: ast.AST) -> Iterator[str]:
    """The reason of each mark in a module; "" where there is none."""
    reasons = {
        id(node.func): node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_mark(node.func) and node.args and isinstance(node.args[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and is_mark(node):
            yield str(reasons.get(id(node), ""))


def test_a_mark_is_found_with_its_reason() -> None:
    module = (
        "@pytest.mark.busy('why')\ndef test_a(): ...\n@pytest.mark.busy\ndef test_b(): ...\npytestmark = mark.busy()"
    )
    assert sorted(marks(ast.parse(module))) == ["", "", "why"]


def test_tests_that_depend_on_a_quiet_machine_are_counted_and_say_why() -> None:
    texts = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    found = {path: list(marks(ast.parse(text))) for path, text in texts.items() if "mark.busy" in text}
    found = {path: reasons for path, reasons in found.items() if reasons}
    assert all(len(reason) > len("busy") for reasons in found.values() for reason in reasons), found
    assert sum(map(len, found.values())) == MARKED, found
