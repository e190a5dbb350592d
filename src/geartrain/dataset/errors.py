"""Faults of a data set that end a run."""

from __future__ import annotations


class DatasetError(Exception):
    """A data set that cannot be read or written, or does not fit the model. The message is a sentence for a person."""
