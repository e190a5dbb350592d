"""The part of a script that makes its server: what stands below `if __name__ == "__main__"`."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


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


def _asks_for_main(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    names = [each.id for each in sides if isinstance(each, ast.Name)]
    texts = [each.value for each in sides if isinstance(each, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]
