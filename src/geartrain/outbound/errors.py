"""Failures of a prediction's files; each text is a sentence for the client."""

from __future__ import annotations

import os


class DownloadError(Exception):
    """A file of the input could not be fetched: the prediction fails."""


class OutputFileError(Exception):
    """A file that the model returned could not be read or delivered: the prediction fails."""


def innermost(error: BaseException) -> str:
    """The text of the operating system's error if one lies beneath, for it says more than what is wrapped around it."""
    beneath: BaseException | None = error
    while beneath is not None:
        if isinstance(beneath, ConnectionError) and beneath.errno:
            return os.strerror(beneath.errno)
        beneath = beneath.__cause__ or beneath.__context__
    return str(error) or type(error).__name__
