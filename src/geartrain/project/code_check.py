"""A look at the text of a model's file for names that have newer ones. Nothing of it is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Final

from geartrain.project.findings import Finding, warning
from geartrain.project.source import ModelSource

_OLDER_NAMES: Final = {
    "BasePredictor": "BaseRunner",
    "CancellationException": "CancelationException",
    "emit_metric": "self.record_metric()",
}
_HOMES: Final = frozenset({"cog", "geartrain"})
_BASES: Final = frozenset({"BasePredictor", "BaseRunner"})


def check_code(source: ModelSource) -> list[Finding]:
    """Find outdated constructs in the file of a model; a file that cannot be parsed has none."""
    location, _, name = source.runner.partition(":")
    if not location.endswith(".py"):
        return []
    try:
        with warnings.catch_warnings():  # the worker's import shows them
            warnings.simplefilter("ignore")
            tree = ast.parse((source.root / location).read_bytes(), location)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [*_older_imports(tree), *_older_methods(tree, name)]
    return [
        warning(f"{location}:{line}: {old} is the older name of {new}, and works as before", f"write {new}")
        for line, old, new in sorted(found)
    ]


def _older_imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in _HOMES:
                for alias in names:
                    if alias.name in _OLDER_NAMES:
                        yield alias.lineno, alias.name, _OLDER_NAMES[alias.name]
            case ast.Attribute(value=ast.Name(id=home), attr=name) if home in _HOMES and name in _OLDER_NAMES:
                yield node.lineno, name, _OLDER_NAMES[name]


def _older_methods(tree: ast.Module, wanted: str) -> Iterator[tuple[int, str, str]]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not (node.name == wanted or _bases(node) & _BASES):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
        if "predict" in methods and "run" not in methods:  # both are an error, and the loader's to tell
            yield methods["predict"].lineno, "predict()", "run()"


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
