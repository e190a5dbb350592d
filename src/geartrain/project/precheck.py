"""A look at a model's file without running it: what cannot possibly load is refused before a worker or a port exists.

Whatever is in doubt passes; the worker, which really imports the file, decides.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from geartrain.project.errors import ProjectError
from geartrain.project.formats import SCRIPTS
from geartrain.project.source import Mode, ModelSource

_USUAL_NAMES: dict[Mode, tuple[str, ...]] = {
    "predict": ("Runner", "Predictor", "run", "predict"),
    "train": ("Trainer", "Runner", "Predictor", "train"),
}
_METHODS: dict[Mode, frozenset[str]] = {"predict": frozenset({"run", "predict"}), "train": frozenset({"train"})}
_BACK_DOORS = frozenset({"__getattr__", "exec", "globals", "locals", "setattr", "vars"})  # names may come from anywhere


def precheck(source: ModelSource) -> None:
    """Raise ProjectError when the runner's file is no Python, or has nothing of the runner's name in it.

    The message starts with the file, as the model's folder knows it, and the line.
    """
    location, _, name = source.runner.partition(":")
    if not location.endswith(".py"):
        return
    try:
        text = (source.root / location).read_bytes()
    except OSError as error:
        raise ProjectError(f"{location}: {error.strerror}") from None
    tree = _parse(text, location)
    if source.backend in SCRIPTS:
        return  # it was recognised by the names in it
    wanted = (name,) if name else _USUAL_NAMES[source.mode]
    if _has_definition(text, wanted) or (not name and _has_runner_class(tree, _METHODS[source.mode])):
        return
    bound, defined = set(_bound_names(tree)), list(_definitions(tree))
    if bound.isdisjoint(wanted) and bound.isdisjoint(_BACK_DOORS):
        missing = repr(name) if name else f"class {wanted[0]}"
        offer = f"it defines {', '.join(defined)}" if defined else "it defines no class and no function"
        method = "train" if source.mode == "train" else "run"
        meant = f", or name what is meant, as {location}:{defined[-1]}" if defined else ""
        fix = "" if name else f". Write a class {wanted[0]} with {method}(), or a function {method}(){meant}"
        raise ProjectError(f"{location} has no {missing}; {offer}{fix}")


def _parse(text: bytes, location: str) -> ast.Module:
    try:
        with warnings.catch_warnings():  # the worker's import shows them
            warnings.simplefilter("ignore")
            return ast.parse(text, location)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise ProjectError(f"{location}:{error.lineno or 1}: {type(error).__name__}: {error.msg}{line}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # NUL bytes; nested beyond what the parser bears
        raise ProjectError(f"{location}:1: not Python: {error}") from None


def _has_definition(text: bytes, names: tuple[str, ...]) -> bool:
    """Find the usual case by its look, which is much faster than walking the tree."""
    pattern = rf"^(?:class|def|async def) (?:{'|'.join(map(re.escape, names))})\b"
    return re.search(pattern.encode(), text, re.MULTILINE) is not None


def _has_runner_class(tree: ast.Module, methods: frozenset[str]) -> bool:
    """Tell whether a class of any name may be the runner: it binds such a method, or may inherit one."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return any(each.bases or each.decorator_list or not methods.isdisjoint(_bound_names(each)) for each in classes)


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Give every name that anything in the file may bind, at any depth, and its dynamic bindings."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.alias(name="*"):
                yield from _BACK_DOORS
            case ast.alias():
                yield node.asname or node.name.partition(".")[0]
            case ast.Name() if isinstance(node.ctx, ast.Store) or node.id in _BACK_DOORS:
                yield node.id
            case ast.Attribute(attr="modules" | "__dict__"):
                yield from _BACK_DOORS


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name
