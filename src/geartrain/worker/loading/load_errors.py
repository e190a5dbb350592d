"""What a person is told of a model that cannot be loaded: the file, the line, and what to do."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import TracebackType
from typing import Any

from geartrain.worker.loading.cog_alias import COG_NAMES, advice_for_oldest

_MISSING_NAME = re.compile(r"cannot import name '(\w+)'")


class LoadError(Exception):
    """The model cannot be loaded: one message with the file, the line, and what to do."""


def relative(path: str | Path, root: Path) -> str:
    """A path as the author knows it: from the model's folder."""
    path = Path(path)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def line_of(target: Any, fallback: str, root: Path) -> str:
    """`run.py:12` of a class or function; `fallback` where that is not known."""
    try:
        target = inspect.unwrap(target)  # of a decorated class or function
        _, line = inspect.getsourcelines(target)
        return f"{relative(inspect.getsourcefile(target) or fallback, root)}:{line}"
    except (OSError, TypeError):
        return fallback


def syntax_message(error: SyntaxError, root: Path) -> str:
    """Say what is no Python, and in which file and line."""
    where = f"{relative(error.filename or '', root)}:{error.lineno or 1}"
    text = f": {error.text.strip()}" if error.text else ""
    return f"{where}: {type(error).__name__}: {error.msg}{text}"


def blame(error: BaseException, root: Path, fallback: str) -> str:
    """Say what was raised, and the line of the author's own code that it came through last."""
    where, step = fallback, error.__traceback__
    while step is not None:
        where = _place(step, root) or where
        step = step.tb_next
    text = f": {error}" if str(error) else ""
    return f"{where}: {type(error).__name__}{text}{_advice(error)}"


def _place(step: TracebackType, root: Path) -> str | None:
    filename = step.tb_frame.f_code.co_filename
    path = Path(filename)
    if not path.is_relative_to(root) or "site-packages" in path.parts:
        return None
    return f"{relative(path, root)}:{step.tb_lineno}"


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "cog":
        named = _MISSING_NAME.match(str(error))
        advice = advice_for_oldest(named[1]) if named else None
        return f" ({advice or f'geartrain stands in for Cog here, with {COG_NAMES}'})"
    if isinstance(error, ModuleNotFoundError):
        return " (is it installed in the environment that geartrain runs in?)"
    return ""
