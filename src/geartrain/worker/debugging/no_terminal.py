"""`breakpoint()` and `pdb.set_trace()` in a worker that has no terminal: the run fails with a sentence that helps.

Without this they would read the end of a file, and end the run with an exception that says nothing.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from types import FrameType
from typing import Any, Final

from geartrain.worker.errors import Place, ReportedError

ADVICE: Final = (
    "a debugger needs a terminal: run the model with `geartrain dev` or `geartrain run` in one, "
    "or attach an editor with their option --debugpy"
)
_PROMPTS: Final = frozenset({"", "pdb.set_trace", "ipdb.set_trace"})  # values of PYTHONBREAKPOINT that ask a person


class NoTerminalError(ReportedError):
    """A debugger has no person to ask; the message gives the reason and the remedy."""

    @classmethod
    def at(cls, frame: FrameType, text: str) -> NoTerminalError:
        """Return one about the line where a frame stands."""
        error = cls(text)
        error.place = (Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name),)
        return error


def install() -> None:
    """Have `breakpoint()`, and a prompt of pdb, raise `NoTerminalError`. Debuggers that need no prompt work."""
    sys.breakpointhook = _break
    sys.stdin = _Input(open(0, "rb", closefd=False), encoding="utf-8", errors="replace")  # noqa: SIM115 - for good


def _break(*arguments: Any, **options: Any) -> Any:
    """Stand in for `sys.breakpointhook`."""
    if os.environ.get("PYTHONBREAKPOINT", "") in _PROMPTS:
        raise NoTerminalError.at(sys._getframe(1), f"breakpoint(): {ADVICE}")  # noqa: SLF001 - the author's line
    return sys.__breakpointhook__(*arguments, **options)


class _Input(TextIOWrapper):
    """The standard input: as it is for a model, and no place for a debugger to ask."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # its parameter has two types in the stubs
        """Read a line; raise `NoTerminalError` where a debugger asks for one."""
        if sys.gettrace() is not None and _asks_for_debugger():
            raise NoTerminalError(f"pdb: {ADVICE}")
        return super().readline(size)


def _asks_for_debugger() -> bool:
    frame = sys._getframe(2)  # noqa: SLF001 - who asks; the inspect module takes long to import
    return frame.f_globals.get("__name__") in {"cmd", "pdb"}
