"""The file that tells Kubernetes that the server is ready, as Cog writes it; a probe is `test -f` with its path."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger("geartrain.server")

READY_FILE: Final = pathlib.Path("/var/run/cog/ready")
_IN_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # which the kubelet sets in every container


def find_ready_file(environ: Mapping[str, str]) -> pathlib.Path | None:
    """Return the file to write when the server is ready; None outside of Kubernetes."""
    return READY_FILE if environ.get(_IN_KUBERNETES) else None


def write_ready_file(path: pathlib.Path) -> None:
    """Make an empty file, and its folder if there is none; a failure is logged at debug level.

    Most clusters have no probe that looks at the file, and most containers no right to write it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        logger.debug("the ready file %s cannot be written: %s", path, error.strerror or error)
