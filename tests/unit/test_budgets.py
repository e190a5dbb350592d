"""The budgets that keep a module readable (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import functools
import graphlib
import io
import pathlib
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))

MODULE_LINES = 600
FUNCTION_LINES = 60
PARAMETERS = 7
POSITIONAL = 3
METHODS = 25
ATTRIBUTES = 20
RECORDS = ("Struct", "NamedTuple", "TypedDict", "Enum", "StrEnum", "Protocol", "dataclass")

OVER_BUDGET = {
    "Execution": "the one place where the steps of a prediction are taken",
}
"""Classes with more methods or attributes, each with its reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """A module that an import statement names, and the name taken from it, if any."""

    module: str
    name: str | None
    for_types: bool


class Survey(NamedTuple):
    """The facts about a module that the tests compare with the budgets."""

    large_classes: dict[str, list[str]]
    excesses: list[str]
    imports: list[Import]


@functools.cache
def survey(path: pathlib.Path) -> Survey:
    """Parse a module once for all tests; its syntax tree is not kept."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    large = {node.name: found for node in classes if (found := class_excesses(node))}
    return Survey(large, module_excesses(path, text, tree), [*imports_of(tree)])


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


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """The numbers of the lines that are neither blank, nor a comment, nor a docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(tree)


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


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class sets on itself."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def is_record(node: ast.ClassDef) -> bool:
    return any(
        ast.unparse(each).partition("(")[0].rpartition(".")[2] in RECORDS
        for each in (*node.bases, *node.decorator_list)
    )


def class_excesses(node: ast.ClassDef) -> list[str]:
    over = []
    methods = sum(isinstance(each, Function) for each in node.body)
    if methods > METHODS:
        over.append(f"{node.name} has {methods} methods")
    if len(attributes(node)) > ATTRIBUTES and not is_record(node):
        over.append(f"{node.name} has {len(attributes(node))} attributes")
    return over


def lines_of(function: Function) -> range:
    """The lines of a function's body, comments and blank ones among them."""
    return range(function.body[0].lineno, (function.end_lineno or 0) + 1)


def module_excesses(path: pathlib.Path, text: str, tree: ast.Module) -> list[str]:
    given = text.splitlines()
    defined = [*functions(tree)]
    longest = max((lines_of(function).stop - lines_of(function).start for _, function, _ in defined), default=0)
    is_long = len(given) > MODULE_LINES or longest > FUNCTION_LINES  # with its comments; few are
    lines = code_lines(text, tree) if is_long else set()
    over = [f"the module has {len(lines)} code lines"] if len(lines) > MODULE_LINES else []
    for name, function, is_method in defined:
        own = len(lines.intersection(lines_of(function)))
        if own > FUNCTION_LINES:
            over.append(f"{name} has {own} code lines")
        if any(ast.unparse(each) == "overload" for each in function.decorator_list):
            continue  # the function itself is counted
        signature = given[function.lineno - 1]  # one that somebody else decided says so to ruff too
        positional = len(function.args.posonlyargs) + len(function.args.args) - is_method
        if positional > POSITIONAL and "PLR0917" not in signature:
            over.append(f"{name} takes {positional} parameters by position")
        total = positional + len(function.args.kwonlyargs)
        if total > PARAMETERS and "PLR0913" not in signature and "cli" not in path.parts:  # there, one per option
            over.append(f"{name} takes {total} parameters")
    return over


def imports_of(tree: ast.AST, *, for_types: bool = False) -> Iterator[Import]:
    """Each name that is imported, and whether only type checkers carry that out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (Import(node.module or "", alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(alias.name, None, for_types) for alias in node.names)
        else:
            is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from imports_of(node, for_types=for_types or is_guard)


def package(module: str) -> str:
    return module.rpartition(".")[0]


def dotted(path: pathlib.Path) -> str:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_class_is_within_its_budget(path: pathlib.Path) -> None:
    large = survey(path).large_classes
    over = [each for name, excesses in large.items() if name not in OVER_BUDGET for each in excesses]
    assert not over, "; ".join(over)


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_module_is_within_its_budget(path: pathlib.Path) -> None:
    over = survey(path).excesses
    assert not over, "; ".join(over)


def test_exceptions_from_the_budget_of_classes_are_few_and_needed() -> None:
    large = {name for path in MODULES for name in survey(path).large_classes if name in OVER_BUDGET}
    assert len(OVER_BUDGET) <= 15
    assert large == {*OVER_BUDGET}


def test_no_circle_of_modules() -> None:
    """Two classes of one package may know each other: imports for types alone may go both ways inside a package."""
    known = {dotted(path) for path in MODULES}
    imports: dict[str, set[str]] = {}
    for path in MODULES:
        found = imports[dotted(path)] = set()
        for module, name, for_types in survey(path).imports:
            inner = f"{module}.{name}"
            imported = inner if inner in known else module
            if not (for_types and package(imported) == package(dotted(path))):
                found.add(imported)
        found.discard(dotted(path))
        found &= known
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError with the circle
