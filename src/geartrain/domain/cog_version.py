"""The version of Cog that geartrain stands in for."""

from __future__ import annotations

from typing import Final

COG_VERSION: Final = "0.23.1"
"""Whose authoring and HTTP API this is: what `cog.__version__` says in a model, and the health check to clients."""
