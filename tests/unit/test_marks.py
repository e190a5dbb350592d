"""Tests that may fail on a busy machine, or pass only with some servers: they are few, and say why."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

TESTS = pathlib.Path(__file__).parents[1]
MARKED = 0
"""How many tests have the mark. Make a test robust if you can, before you count one more."""
OWN_WIRE = 17
"""How many tests have this mark: the rest pass inside other servers too, and behind a proxy."""
WITHOUT_STORE = 15
"""And this one: the rest of the tests of Cog's API pass with a store too."""
ONE_SERVER = 54
"""And this one: the rest pass with three replicas too, as far as they look at a server from outside."""


def is_mark(node: ast.expr, name: str) -> bool:
    """Whether an expression is `pytest.mark.name`, or `mark.name`."""
    return isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value).split(".")[-1] == "mark"


def marks(tree: ast.AST, name: str) -> Iterator[str]:
    """The reason of each mark in a module; "" where there is none."""
    reasons = {
        id(node.func): value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_mark(node.func, name)
        for value in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and is_mark(node, name):
            yield str(reasons.get(id(node), ""))


def found(name: str) -> dict[str, list[str]]:
    """The reasons of a mark by the files that have it."""
    texts = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    reasons = {path: list(marks(ast.parse(text), name)) for path, text in texts.items() if f"mark.{name}" in text}
    return {path: each for path, each in reasons.items() if each}


def test_a_mark_is_found_with_its_reason() -> None:
    module = (
        "@pytest.mark.busy('why')\ndef test_a(): ...\n@pytest.mark.busy\ndef test_b(): ...\npytestmark = mark.busy()\n"
        "@pytest.mark.own_wire(reason='so')\ndef test_c(): ..."
    )
    assert sorted(marks(ast.parse(module), "busy")) == ["", "", "why"]
    assert list(marks(ast.parse(module), "own_wire")) == ["so"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("busy", MARKED), ("own_wire", OWN_WIRE), ("without_store", WITHOUT_STORE), ("one_server", ONE_SERVER)],
)
def test_marked_tests_are_counted_and_say_why(name: str, count: int) -> None:
    reasons = found(name)
    assert all(len(reason) > len("busy") for each in reasons.values() for reason in each), reasons
    assert sum(map(len, reasons.values())) == count, reasons
