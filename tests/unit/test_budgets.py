"""The budgets that keep a module readable (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import pathlib
import tokenize
from collections.abc import Iterator

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))

MODULE_LINES = 300
FUNCTION_LINES = 50
PARAMETERS = 7
POSITIONAL = 3

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names(path: pathlib.Path) -> str:
    return str(path.relative_to(SOURCE))


def docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that are neither blank, nor a comment, nor a docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(text))


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, Function, bool]]:
    """Each function with its dotted name, and whether it is a method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{inside}{node.name}", node, isinstance(tree, ast.ClassDef)
            yield from functions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{inside}{node.name}.")
        else:
            yield from functions(node, inside)


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_module_is_within_its_budget(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    over = [f"the module has {len(lines)} code lines"] if len(lines) > MODULE_LINES else []
    for name, function, is_method in functions(ast.parse(text)):
        own = [line for line in lines if function.body[0].lineno <= line <= (function.end_lineno or 0)]
        if len(own) > FUNCTION_LINES:
            over.append(f"{name} has {len(own)} code lines")
        given = text.splitlines()[function.lineno - 1]  # a signature that somebody else decided says so to ruff too
        positional = len(function.args.posonlyargs) + len(function.args.args) - is_method
        if positional > POSITIONAL and "PLR0917" not in given:
            over.append(f"{name} takes {positional} parameters by position")
        total = positional + len(function.args.kwonlyargs)
        if total > PARAMETERS and "PLR0913" not in given and "cli" not in path.parts:  # there, one per option
            over.append(f"{name} takes {total} parameters")
    assert not over, "; ".join(over)
