"""A count of the objects that a process leaves to the collector of cycles.

Run as a file in front of `python -m geartrain serve …`, or loaded by a model, it listens on a Unix socket for commands,
one a line: `begin` switches the collector off, `count` returns what it would have found since.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final

SOCKET: Final = "GARBAGE_SOCKET"  # environment variable: the path that the server listens on


class Asker:
    """The other end of the socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw", encoding="utf-8")

    def begin(self) -> None:
        """Switch the collector off in the process, and forget what it has found so far."""
        self._ask("begin")

    def count(self) -> tuple[dict[str, int], list[str]]:
        """Return how many objects of each type only the collector would free, and examples of their cycles."""
        found: tuple[dict[str, int], list[str]] = self._ask("count")
        return found

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _ask(self, command: str) -> Any:
        self._lines.write(f"{command}\n")
        self._lines.flush()
        return json.loads(self._lines.readline())


def listen(path: str) -> None:
    """Serve one `Asker` in a thread."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_serve, args=(listener,), daemon=True).start()


def _serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            answer: object = None
            if line == "begin\n":
                _begin()
            else:
                answer = _count()
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


def _begin() -> None:
    gc.disable()
    gc.set_debug(0)
    gc.collect()
    gc.freeze()
    gc.set_debug(gc.DEBUG_SAVEALL)


def _count() -> tuple[dict[str, int], list[str]]:
    gc.collect()
    found = list(gc.garbage)
    gc.garbage.clear()
    answer = dict(Counter(map(_type, found))), _cycles(found)
    gc.set_debug(0)
    found.clear()
    gc.collect()
    return answer


def _type(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _cycles(found: list[object]) -> list[str]:
    """Return a shortest cycle of each kind, as the text of its members."""
    index = {id(each): each for each in found}
    seen: set[frozenset[str]] = set()
    cycles = []
    for each in found[:2000]:
        cycle = _cycle(each, index)
        kinds = frozenset(map(_type, cycle))
        if cycle and kinds not in seen:
            seen.add(kinds)
            cycles.append(" -> ".join(map(_text, cycle)))
    return cycles


def _cycle(start: object, index: dict[int, object]) -> list[object]:
    before: dict[int, object] = {}
    waiting = deque([start])
    while waiting:
        at = waiting.popleft()
        for each in gc.get_referents(at):
            if each is start:
                path = [at]
                while path[-1] is not start:
                    path.append(before[id(path[-1])])
                return path[::-1]
            if id(each) in index and id(each) not in before:
                before[id(each)] = at
                waiting.append(each)
    return []


def _text(thing: Any) -> str:
    for name in ("co_qualname", "__qualname__"):
        if hasattr(thing, name):
            return f"{type(thing).__name__} {getattr(thing, name)}"
    code = getattr(thing, "gi_code", getattr(thing, "cr_code", getattr(thing, "f_code", None)))
    if code is not None:
        return f"{type(thing).__name__} {code.co_qualname}"
    shown = (
        repr(thing)[:80] if isinstance(thing, (list, tuple, dict, BaseException)) or "cell" in repr(type(thing)) else ""
    )
    return f"{_type(thing)} {shown}".strip()


if __name__ == "__main__":
    listen(os.environ.pop(SOCKET))
    sys.argv = sys.argv[3:]
    runpy.run_module("geartrain", run_name="__main__", alter_sys=True)
