"""Runs `geartrain` at a terminal of its own, and copies to stdout what it shows: `python at_terminal.py ARGUMENT…`.

SIGINT is passed on. Lines of the variable `TYPED` are typed, each when a debugger asks.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys

PROMPT = b"(Pdb) "


def main() -> int:
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [sys.executable, "-m", "geartrain", *sys.argv[1:]])  # noqa: S606
    signal.signal(signal.SIGINT, lambda *_: os.kill(process, signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(process, signal.SIGKILL))
    typed = os.environ.pop("TYPED", "").splitlines()
    seen = b""
    with contextlib.suppress(OSError):  # what Linux says when nobody has the other end any more
        while part := os.read(terminal, 65536):
            os.write(1, part)
            seen = (seen + part)[-len(PROMPT) :]
            if typed and seen == PROMPT:
                os.write(terminal, f"{typed.pop(0)}\n".encode())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
