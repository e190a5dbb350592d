"""The budgets that keep a module readable (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import graphlib
import io
import pathlib
import tokenize
from collections.abc import Iterator

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


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_class_is_within_its_budget(path: pathlib.Path) -> None:
    over = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef) or node.name in OVER_BUDGET:
            continue
        methods = sum(isinstance(each, Function) for each in node.body)
        if methods > METHODS:
            over.append(f"{node.name} has {methods} methods")
        if len(attributes(node)) > ATTRIBUTES and not is_record(node):
            over.append(f"{node.name} has {len(attributes(node))} attributes")
    assert not over, "; ".join(over)


def test_exceptions_from_the_budget_of_classes_are_few_and_needed() -> None:
    large = {
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name in OVER_BUDGET
        if sum(isinstance(each, Function) for each in node.body) > METHODS or len(attributes(node)) > ATTRIBUTES
    }
    assert len(OVER_BUDGET) <= 15
    assert large == {*OVER_BUDGET}


def test_no_circle_of_modules() -> None:
    """Two classes of one package may know each other: imports for types alone may go both ways inside a package."""
    known = {dotted(path) for path in MODULES}
    imports: dict[str, set[str]] = {}
    for path in MODULES:
        found = imports[dotted(path)] = set()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, for_types in imports_of(tree):
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
                modules = [module if module in known else node.module or "" for module in modules]
            else:
                modules = [alias.name for alias in node.names]
            found.update(each for each in modules if not (for_types and package(each) == package(dotted(path))))
        found.discard(dotted(path))
        found &= known
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def imports_of(tree: ast.AST, *, for_types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Each import statement, and whether only type checkers carry it out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, for_types
        else:
            is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from imports_of(node, for_types=for_types or is_guard)


def package(module: str) -> str:
    return module.rpartition(".")[0]


def dotted(path: pathlib.Path) -> str:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_module_is_within_its_budget(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    over = [f"the module has {len(lines)} code lines"] if len(lines) > MODULE_LINES else []
    for name, function, is_method in functions(ast.parse(text)):
        own = [line for line in lines if function.body[0].lineno <= line <= (function.end_lineno or 0)]
        if len(own) > FUNCTION_LINES:
            over.append(f"{name} has {len(own)} code lines")
        if any(ast.unparse(each) == "overload" for each in function.decorator_list):
            continue  # the function itself is counted
        given = text.splitlines()[function.lineno - 1]  # a signature that somebody else decided says so to ruff too
        positional = len(function.args.posonlyargs) + len(function.args.args) - is_method
        if positional > POSITIONAL and "PLR0917" not in given:
            over.append(f"{name} takes {positional} parameters by position")
        total = positional + len(function.args.kwonlyargs)
        if total > PARAMETERS and "PLR0913" not in given and "cli" not in path.parts:  # there, one per option
            over.append(f"{name} takes {total} parameters")
    assert not over, "; ".join(over)
