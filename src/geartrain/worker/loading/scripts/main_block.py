"""The part of a script that makes its server: what stands below `if __name__ == "__main__"`."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MODELS: Final = "models"
"""The option with the names of the models of a script that are served."""


def run_main_block(module: ModuleType, arguments: Sequence[str] = ()) -> None:
    """Run such blocks of a module that is imported, as its own server's start would, in its names.

    What starts a server has been replaced before; `sys.argv` has the file and `arguments`. `SystemExit` ends a block.
    """
    path = str(module.__file__)
    tree = ast.parse(Path(path).read_bytes(), path)
    blocks = [node for node in tree.body if isinstance(node, ast.If) and _asks_for_main(node.test)]
    before = sys.argv
    sys.argv = [path, *arguments]
    try:
        with contextlib.suppress(SystemExit):
            for block in blocks:
                code = compile(ast.Module(block.body, []), path, "exec")
                exec(code, vars(module))  # noqa: S102 - the author's own code
    finally:
        sys.argv = before


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as arguments of the command line; a list has its name once, and values that are true none."""
    found: list[str] = []
    for name, value in options.items():
        if value is False or value is None or name == MODELS:
            continue
        values = value if isinstance(value, list) else [] if value is True else [value]
        found += [f"--{name}", *map(str, values)]
    return found


def chosen(models: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return the one model that is served, of those of a script by name. Raises `ValueError` unless that is clear."""
    wanted = options.get(MODELS, list(models))
    there = ", ".join(models)
    if len(wanted) > 1:
        raise ValueError(
            f"it has {len(models)} models ({there}): name them with `parameters: {{{MODELS}: [{there}]}}` in "
            "geartrain.yaml, and `geartrain serve` has each by its name"
        )
    if wanted[0] not in models:
        raise ValueError(f"there is no model {wanted[0]!r}; there are {there}")
    return models[wanted[0]]


def _asks_for_main(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    names = [each.id for each in sides if isinstance(each, ast.Name)]
    texts = [each.value for each in sides if isinstance(each, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]
