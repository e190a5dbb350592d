"""Importing the libraries that run models; each is an extra of geartrain."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from geartrain.backends.interface import BackendError


def require(module: str, *, extra: str) -> Any:
    """Import a library; raise `BackendError` with the line that installs it where there is none.

    An error inside the library is told as it is: to install it again would not help.
    """
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        name = module.partition(".")[0]
        raise BackendError(f"{name} is not installed; install it with: pip install 'geartrain[{extra}]'")
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise BackendError(f"{module} is installed, and cannot be imported: {error}") from error


def note(sentence: str) -> None:
    """Write one line to the log."""
    sys.stderr.write(f"{sentence}\n")
