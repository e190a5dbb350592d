"""The exception that stops a run."""

from __future__ import annotations


class CancelationException(BaseException):
    """Raised inside a synchronous `run()` whose prediction was canceled. Clean up briefly, then re-raise it.

    Like `KeyboardInterrupt` it is no `Exception`, so that `except Exception` does not swallow it. An asynchronous
    `run()` gets `asyncio.CancelledError` instead.
    """


CancellationException = CancelationException
