"""Uses of Triton's Python backend in a file that have no effect here, or fail: found without running it."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator, Mapping
from typing import Final

from geartrain.project.foreign.script_settings import first_uses

_MODULE: Final = "triton_python_backend_utils"
_NAMES: Final[Mapping[str, str]] = {
    "load_model": "it fails; models are loaded by the operator, or with their first request",
    "unload_model": "it fails; models are unloaded by the operator",
    "is_model_ready": "it is always true; a request for a model that is not ready waits for it",
    "PreferredMemory": "it has no effect; outputs of other models are in the memory of the processor",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": "it has no effect; requests are not scheduled again",
}
_METHODS: Final[Mapping[str, str]] = {
    "set_release_flags": "it has no effect; requests are not scheduled again",
}


def remarks_of(path: pathlib.Path) -> tuple[str, ...]:
    """Return a sentence for each such name in a file, with its first line; none for a file that is no Python."""
    return first_uses(path, _uses)


def _uses(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Give line, name and sentence of each use."""
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == _MODULE
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == _MODULE:
            yield from ((node.lineno, each.name, _NAMES[each.name]) for each in node.names if each.name in _NAMES)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            if node.attr in _NAMES:
                yield node.lineno, node.attr, _NAMES[node.attr]
        elif isinstance(node, ast.Attribute) and node.attr in _METHODS:
            yield node.lineno, node.attr, _METHODS[node.attr]
