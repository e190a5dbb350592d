"""Paths of the models of a file for LitServe, as they are written in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

USUAL_PATH: Final = "/predict"
_NAME: Final = "api_path"


def api_paths(text: str) -> list[str]:
    """Return every `api_path` that a file says as a text, once: in calls, defaults of parameters and assignments."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    values = [value for node in nodes for value in _values(node)]
    paths = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [path for path in dict.fromkeys(paths) if path.startswith("/") and "{" not in path]


def _values(node: ast.AST) -> Iterator[ast.expr | None]:
    if isinstance(node, ast.Call):
        yield from (each.value for each in node.keywords if each.arg == _NAME)
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        defaults = zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)
        pairs = [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        yield from (value for argument, value in pairs if argument.arg == _NAME)
    elif isinstance(node, ast.Assign):
        names = [getattr(each, "attr", None) or getattr(each, "id", None) for each in node.targets]
        if _NAME in names:
            yield node.value
    elif isinstance(node, ast.AnnAssign) and _NAME in {
        getattr(node.target, "attr", ""),
        getattr(node.target, "id", ""),
    }:
        yield node.value
