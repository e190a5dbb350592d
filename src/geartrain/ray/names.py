"""Names that applications have in common."""

from __future__ import annotations

from typing import Final

DEPLOYMENT: Final = "geartrain"
"""The name of the one deployment of each application."""
