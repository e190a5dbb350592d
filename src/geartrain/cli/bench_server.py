"""The server of `geartrain bench MODEL`: a process of its own, as it would be served."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from geartrain.cli.activity import Activity
from geartrain.cli.failure import fail
from geartrain.launch.server import Server, ServerError, serve_command
from geartrain.project.served import find_served
from geartrain.project.source import ProjectError

_KEPT: Final = 1000  # lines of its log
_OPTIONS: Final = {
    "access_log": "off",
    "queue": 4096,  # requests wait, as they do not by default in Cog's API
    "shutdown_grace": 0,  # requests that still run have been given up
}


@contextmanager
def served(target: str, extra: Sequence[str], *, is_url: bool) -> Iterator[str]:
    """Have a server for a block: that at the URL, or one of its own with `extra` options. Ends the command if not."""
    if is_url:
        yield target
        return
    try:
        name = getattr(find_served(target), "name", target)
    except ProjectError as error:
        fail(error.message)
    # A group of its own: Ctrl-C ends the measurement first, and then the server.
    server = Server([*serve_command(target, _OPTIONS), *extra], {}, kept_lines=_KEPT, process_group=0)
    try:
        activity = Activity(Console(stderr=True, highlight=False), f"Setting up {name}")
        try:
            server.wait_until_ready(math.inf)
        except ServerError:
            activity.end()
            sys.stderr.write(_readable(server.log))
            fail(f"{name} cannot be served")
        finally:
            activity.end()
        yield server.url
    finally:
        server.stop()


def _readable(log: str) -> str:
    """Return the messages of a log in JSON, and all else as it is."""
    lines = []
    for line in log.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        if isinstance(record, dict):
            texts = (record.get(name) for name in ("message", "text", "exception", "error"))
            lines.append(": ".join(str(text).rstrip() for text in texts if text))
    return "".join(f"{line}\n" for line in lines)
