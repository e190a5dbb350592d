"""`python -m tests.support.dying_server 700 serve …` is `geartrain serve …`, which kills itself at a line of its code.

Lines are counted of the store and of the service's part of it alone, on the loop and in the store's thread.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from geartrain.cli.main import main

_WATCHED = (
    "/geartrain/store/",
    "/geartrain/service/durable/",
    "/geartrain/service/models/durable.py",
    "/geartrain/service/models/takeover.py",
    "/geartrain/service/durable/runs.py",
)


def die_at(number: int) -> None:
    """Have this process killed at a line."""
    lines = itertools.count(1)

    def on_line(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return on_line if any(part in frame.f_code.co_filename for part in _WATCHED) else None

    threading.settrace(on_call)
    sys.settrace(on_call)


if __name__ == "__main__":
    die_at(int(sys.argv.pop(1)))
    main()
