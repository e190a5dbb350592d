"""Faults of a model on disk."""

from __future__ import annotations


class ProjectError(Exception):
    """A model that cannot be found or whose files are wrong; the message names the file and what to change."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
