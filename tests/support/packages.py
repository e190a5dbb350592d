"""Packages of other servers: those that are installed for a run of the tests, beside the environment of geartrain."""

from __future__ import annotations

import os
from typing import Final

_VARIABLE: Final = "GEARTRAIN_TEST_PACKAGES"

HAS_PACKAGES: Final = _VARIABLE in os.environ
"""True if the models of this run import the real packages; without them geartrain stands in for these."""


def packages() -> dict[str, str]:
    """Return the variables of a server whose models import them."""
    return {"PYTHONPATH": os.environ[_VARIABLE]} if HAS_PACKAGES else {}
