"""True if a model was written for Cog: some promises to its author depend on it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from geartrain.worker.loading.callables import layers

_OURS = "geartrain"
_COGS = frozenset({"cog", "coglet"})


def is_for_cog(target: Any) -> bool:
    """Tell whether a runner, a class or a function, was written for Cog.

    That is so if the file that defines it, or one that defines a base class of it, imports `cog`, and none of them
    imports `geartrain`.
    """
    texts = [_text_of(name) for name in _modules_of(target)]
    if not any(b"cog" in text for text in texts):  # most models: nothing has to be parsed
        return False
    found = set().union(*map(_imports_of, texts))
    return bool(found & _COGS) and _OURS not in found


def _modules_of(target: Any) -> Iterable[str]:
    owners = target.__mro__ if isinstance(target, type) else layers(target)
    names = dict.fromkeys(str(getattr(owner, "__module__", "")) for owner in owners)
    return [name for name in names if name.partition(".")[0] not in {_OURS, "builtins"}]


def _text_of(name: str) -> bytes:
    """The text of a module; empty for one that has none in Python."""
    path = getattr(sys.modules.get(name), "__file__", None)
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""


def _imports_of(text: bytes) -> set[str]:
    """The top-level packages that a module imports, anywhere in its text."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # e.g. of a compiled module
        return set()
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {each.partition(".")[0] for each in found}
