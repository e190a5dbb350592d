"""pdb, and what is built on it, at a terminal that is borrowed for each prompt.

Between two prompts the terminal is the parent's, so that what the model prints meanwhile is shown before the next one.
"""

from __future__ import annotations

import inspect
import os
import pdb
import sys
from types import FrameType
from typing import Any, Final

from geartrain.worker.debugging.terminal import Terminal

_NOT_THE_AUTHORS: Final = frozenset({"geartrain.*", "asyncio.*"})  # modules that are not stepped into
_RESUMED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def install(terminal: Terminal) -> None:
    """Have `breakpoint()` and `pdb.set_trace()` ask at the terminal. Other debuggers by `PYTHONBREAKPOINT`."""

    class Debugger(pdb.Pdb):
        """In the place of `pdb.Pdb`, also for debuggers that inherit from it, such as ipdb."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.skip = {*(self.skip or ()), *_NOT_THE_AUTHORS}

        def set_trace(self, frame: FrameType | None = None, *arguments: Any, **options: Any) -> None:
            frame = frame or sys._getframe().f_back  # noqa: SLF001 - as pdb does
            while frame is not None and _module(frame).startswith(__package__):
                frame = frame.f_back  # from our `breakpoint()` to who has called it
            super().set_trace(frame, *arguments, **options)

        def interaction(self, *arguments: Any, **options: Any) -> None:
            with terminal:
                self.stdin, self.stdout = sys.stdin, sys.stdout
                super().interaction(*arguments, **options)

        def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
            trace = super().dispatch_return(frame, arg)
            if _ends_call(frame):
                self.set_continue()  # the steps end with the run; breakpoints stay
            return trace

    def breakpoint_(*arguments: Any, **options: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT") == "0":
            return None
        terminal.borrow()  # some debuggers look for it when they are made
        try:
            return sys.__breakpointhook__(*arguments, **options)
        finally:
            if sys.gettrace() is None:  # no debugger is at a prompt, or one has been
                terminal.give_back()

    setattr(pdb, "Pdb", Debugger)  # noqa: B010 - mypy takes an assignment for a redefinition
    sys.breakpointhook = breakpoint_


def _ends_call(frame: FrameType) -> bool:
    """True if the author's code goes back to ours with the return of a frame, for good."""
    caller = frame.f_back
    if caller is None or frame.f_code.co_flags & _RESUMED:
        return False
    return _module(caller).startswith("geartrain.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
