"""Messages for models that cannot be loaded: the file, the line, and the remedy."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from geartrain.worker.errors import describe_error, format_error
from geartrain.worker.loading.cog_alias import COG_NAMES, advice_for_oldest

_MISSING_NAME = re.compile(r"cannot import name '(\w+)'")


class LoadError(Exception):
    """The model cannot be loaded: one message with the file, the line, and what to do.

    `traceback` is that of the author's code, where it says more than the message.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


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


def blame(error: BaseException, root: Path, fallback: str) -> LoadError:
    """Make the error of what was raised, with the line of the author's own code that it came through last."""
    where, step, is_authors = fallback, error.__traceback__, True
    while step is not None:
        place = _place(step, root)
        where, is_authors = place or where, place is not None
        step = step.tb_next
    cause = _first_cause(error)
    link = "caused by" if error.__cause__ is not None else "while handling"
    since = "" if cause is error else f" ({link} {describe_error(cause)})"
    text = f"{where}: {describe_error(error)}{since}{_advice(error) or _advice(cause)}"
    return LoadError(text, "" if is_authors and cause is error else format_error(error))


def _first_cause(error: BaseException) -> BaseException:
    """Return the exception that a chain of them began with."""
    seen = [error]
    while True:
        last = seen[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or before in seen:
            return last
        seen.append(before)


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
    if isinstance(error, ModuleNotFoundError) and error.name and _is_missing(error.name.partition(".")[0]):
        return f" (it is not installed in the environment of {sys.executable})"
    return ""


def _is_missing(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is None
    except (ImportError, ValueError):  # a module without a spec is there
        return False
