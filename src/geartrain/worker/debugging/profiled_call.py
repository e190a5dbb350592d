"""Calls that are profiled, by pyinstrument: a file for each."""

from __future__ import annotations

import re
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final, Literal

from geartrain.worker.calls.call import Call

ProfileFormat = Literal["speedscope", "html"]

_ENDINGS: Final[dict[ProfileFormat, str]] = {"speedscope": ".speedscope.json", "html": ".html"}
_MOST: Final = 100  # files of one worker; further ones replace the first
_INTERVAL: Final = 0.001  # seconds between two samples
_UNSAFE: Final = re.compile(r"[^\w.-]|^\.", re.ASCII)
_LONGEST: Final = 100  # characters of an id in the name of a file


class Profiles:
    """The folder of the profiles. Each is named after its prediction, or after its call if that is a batch."""

    def __init__(self, folder: Path, form: ProfileFormat) -> None:
        self._folder = folder
        self._form = form
        self._written: deque[Path] = deque()

    def write(self, call_id: str, profiler: Any) -> Path:
        """Write what a profiler has seen; return the file."""
        from pyinstrument.renderers import HTMLRenderer, SpeedscopeRenderer

        renderer = SpeedscopeRenderer() if self._form == "speedscope" else HTMLRenderer()
        path = self._folder / f"{_UNSAFE.sub('_', call_id)[:_LONGEST]}{_ENDINGS[self._form]}"
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_text(profiler.output(renderer))
        if path not in self._written:
            self._written.append(path)
        while len(self._written) > _MOST:
            self._written.popleft().unlink(missing_ok=True)
        return path


def profiled(kind: type[Call], profiles: Profiles) -> type[Call]:
    """Return a kind of calls that are profiled, each invocation from its arguments to its end."""
    from pyinstrument import Profiler

    class ProfiledCall(kind):  # type: ignore[misc, valid-type]  # mypy knows no classes that are parameters
        """A call with a profile of its invocation."""

        __slots__ = ("_profiler",)

        def __enter__(self) -> None:
            super().__enter__()
            # Of several async runs at once each has its own profile, in which others do not stand.
            self._profiler = Profiler(interval=_INTERVAL, async_mode="enabled")
            self._profiler.start(target_description=self.id)

        def __exit__(self, *arguments: object) -> None:
            self._profiler.stop()
            try:
                print(f"Profile: {profiles.write(self.id, self._profiler)}", file=sys.stderr)
            except OSError as error:
                print(f"The profile could not be written: {error}", file=sys.stderr)
            super().__exit__(*arguments)

    return ProfiledCall
