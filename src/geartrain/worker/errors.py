"""How an exception of the author's code is told: as one line, and as a traceback."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_FRAMEWORK = f"{Path(__file__).parents[1]}{os.sep}"
_MAX_TEXT = 262_144  # characters of an error or a traceback


def describe_error(error: BaseException) -> str:
    """Return `Type: message`, whatever the exception's own `str` does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = "(its message could not be made)"
    text = clip(text)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def format_error(error: BaseException) -> str:
    """Return the traceback from the author's first line on, as Python prints it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FRAMEWORK):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    except Exception:  # noqa: BLE001 - the author's __str__ may raise anything
        text = f"{describe_error(error)}\n"
    return clip(text)


def clip(text: str) -> str:
    """Make a text fit to travel: no lone surrogates, and no longer than a frame may be."""
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} […] {text[-_MAX_TEXT // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
