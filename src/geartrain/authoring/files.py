"""The types of files: what a client sends by URL and a runner sees as a local file, and the way back."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable
from typing import Any


class Path(pathlib.PosixPath):
    """A file. As an input: the local path of what the client sent by URL. As an output: a file to send back."""

    __slots__ = ()

    @classmethod
    def validate(cls, value: Any) -> pathlib.Path:
        """Make a path of a text; a URL is fetched when `convert` of the result is called, as in Cog."""
        if isinstance(value, pathlib.Path):
            return value
        if value[:6].lower().startswith(("http:", "https:", "data:")):
            from geartrain.authoring.urls import url_path

            return url_path(value)
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Let pydantic models have fields of this type: checked like any path, and made one of these."""
        make = {"type": "no-info", "function": cls}
        return {"type": "function-after", "function": make, "schema": handler(pathlib.Path)}


class File(io.IOBase):
    """The older form of `Path`, for annotations only: the runner gets a binary file, open for reading."""

    @classmethod
    def validate(cls, value: Any) -> io.IOBase:
        """Make an open file of a URL, as Cog does; an open file is returned. Raises ValueError."""
        if isinstance(value, io.IOBase):
            return value
        from geartrain.authoring.urls import open_url

        return open_url(value)
