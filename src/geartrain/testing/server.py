"""A real server for tests."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from geartrain.launch.server import Server, serve_command

__all__ = ["Server", "run_server", "target_of"]


@contextmanager
def run_server(
    model: Any, *, env: Mapping[str, str], ready_within: float, options: Mapping[str, Any]
) -> Iterator[Server]:
    """Serve a model for a `with` block; see `geartrain.testing.serve`."""
    if options.get("log_level") in {"warning", "error"}:
        raise ValueError("log_level is debug or info: the log tells where the server listens")
    server = Server(serve_command(target_of(model), options), env)
    try:
        server.wait_until_ready(ready_within)
        yield server
    finally:
        server.stop()


def target_of(model: str | os.PathLike[str] | Callable[..., Any]) -> str:
    """Return a model's name on the command line: of a class or a function its file and its name."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    from geartrain.testing.models import source_file  # late: it imports what a worker does

    name = getattr(model, "__qualname__", "")
    if not name.isidentifier():
        raise TypeError(f"{name or model!r} has no name in its file; write it at the top level of a file")
    return f"{source_file(inspect.unwrap(model))}:{name}"
