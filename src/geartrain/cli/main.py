"""The `geartrain` command. A server starts without Typer, where its command line is plain."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from geartrain.cli.quick import UnclearError, run_server


def main() -> None:
    """Run the command line; the console script's entry point."""
    end = _End()
    atexit.register(end.at_exit)  # before anything else is: those that come later are called earlier
    try:
        _run()
    except SystemExit as error:
        end.note(error.code)
        raise


def _run() -> None:
    with contextlib.suppress(UnclearError):
        run_server(sys.argv[1:], os.environ)
        return
    from geartrain.cli.commands import app

    app(prog_name="geartrain")


class _End:
    """Leaves out the finalization of the interpreter where obstore has been used.

    Its threads may still have an answer to give to Python. They abort the process when they meet an interpreter that is
    being finalized.
    """

    def __init__(self) -> None:
        self._code = 1  # of an exception, whose traceback is printed

    def note(self, code: str | int | None) -> None:
        """Note what the process ends with; a text is printed, and means a failure."""
        self._code = (1 if code else 0) if code is None or isinstance(code, str) else code

    def at_exit(self) -> None:
        """End the process, when all threads have ended and all else that is to be done at the end is done."""
        if "obstore" not in sys.modules:
            return
        import logging

        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone
                stream.flush()
        os._exit(self._code)
