"""The error for files and options of access that cannot be used; an operator reads it."""

from __future__ import annotations


class AccessError(Exception):
    """A file or an option of access is wrong; the text says where, and what to do."""
