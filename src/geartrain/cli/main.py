"""The `geartrain` command. A server starts without Typer, where its command line is plain."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from geartrain.bridge.process import SPARE
from geartrain.cli.failure import INTERRUPTED, UnclearError

_COMPLETION: Final = "_GEARTRAIN_COMPLETE"  # set where a shell asks what a word may go on to
_SUPERVISED: Final = frozenset(("LISTEN_PID", "NOTIFY_SOCKET"))  # are the server's own, and not for a worker
_UNSERVED: Final = frozenset(("--help", "--help-all", "--version", "-v"))
_VERTEX_PORT: Final = "AIP_HTTP_PORT"  # the port that Vertex AI asks of a container


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
    if os.environ.get(_VERTEX_PORT):
        os.environ.setdefault("PORT", os.environ[_VERTEX_PORT])
    with contextlib.suppress(UnclearError):
        run_server(sys.argv[1:], os.environ)
        return
    gc.disable()  # until the command has been imported, which stays
    from geartrain.cli.commands import app

    app(prog_name="geartrain")


class _End:
    """The end of the process: without passes of the garbage collector, and with obstore without a finalization.

    Threads of obstore may still have an answer to give to Python. They abort the process when they meet an interpreter
    that is being finalized.
    """

    def __init__(self) -> None:
        self._code = 1  # of an exception, whose traceback is printed

    def note(self, code: str | int | None) -> None:
        """Note what the process ends with; a text is printed, and means a failure."""
        self._code = (1 if code else 0) if code is None or isinstance(code, str) else code

    def at_exit(self) -> None:
        """End the process, when all threads have ended and all else that is to be done at the end is done."""
        gc.freeze()  # the last passes over all modules take 30 ms, and free what the kernel frees anyway
        if "obstore" not in sys.modules:
            return
        import logging

        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone
                stream.flush()
        os._exit(self._code)


def run_server(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run `geartrain serve` as the words of the command line say. Raises `UnclearError` before anything is started."""
    if words[:1] != ["serve"] or _COMPLETION in environ:
        raise UnclearError
    if _UNSERVED.isdisjoint(words) and _SUPERVISED.isdisjoint(environ):
        SPARE.begin()
    gc.disable()  # until the server is up; most of what is made at a start stays
    try:
        _serve(words[1:], environ)
    except UnclearError:
        gc.enable()
        raise


def _serve(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Serve, and end as Typer has it end. Raises `UnclearError` also where options do not go together."""
    from geartrain.cli.serve_command import read, serve  # late: the spare process has begun

    try:
        serve(*read(words, environ))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if "typer" not in sys.modules:  # these errors are Typer's
            raise
        import typer

        if isinstance(error, typer.BadParameter):
            raise UnclearError from error
        if isinstance(error, typer.Exit):
            sys.exit(error.exit_code)
        raise
