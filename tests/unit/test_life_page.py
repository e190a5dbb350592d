"""The page on the life of a request names functions that are there."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "src/geartrain"
PAGE = (ROOT / "docs/life-of-a-request.md").read_text()
MOST_LINES = 80
_NAMED = re.compile(r"`(?:([\w/]+\.py)(?::([\w.]+))?|(_?[A-Z]\w+\.\w+))`")


@functools.cache
def definitions(path: pathlib.Path) -> frozenset[str]:
    """The classes and functions of a module, methods with their class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {
                f"{node.name}.{each.name}" for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


@functools.cache
def everywhere() -> frozenset[str]:
    return frozenset().union(*map(definitions, PACKAGE.rglob("*.py")))


def missing(page: str) -> list[str]:
    """Find the names that lead nowhere. A path may be relative to the folder of the path before it."""
    lost = []
    folder = PACKAGE
    for match in _NAMED.finditer(page):
        name, definition, method = match.groups()
        if method:
            lost += [] if method in everywhere() else [method]
            continue
        path = next((base / name for base in (PACKAGE, folder) if (base / name).is_file()), None)
        if path is None or (definition and definition not in definitions(path)):
            lost.append(match[0].strip("`"))
        if path is not None:
            folder = path.parent
    return lost


def test_names_are_there() -> None:
    assert len(_NAMED.findall(PAGE)) > 50
    assert missing(PAGE) == []


def test_name_that_is_not_there_is_found() -> None:
    page = "`transport/runs.py:RunExchange.gone`, `errors.py`, `gone.py:f`, `Scheduler.submit`, `Scheduler.gone`"
    assert missing(page) == ["transport/runs.py:RunExchange.gone", "gone.py:f", "Scheduler.gone"]


def test_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES
