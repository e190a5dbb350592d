"""The command on a terminal, as a person sees it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")


class Terminal:
    """A command whose stdout and stderr, or stderr alone, are a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._seen = b""

    @property
    def shown(self) -> str:
        """All that has been shown so far, in the order of writing, without colours and movements of the cursor."""
        return _CONTROL.sub("", self._seen.decode(errors="replace")).replace("\r\n", "\n")

    @property
    def raw(self) -> bytes:
        """All that has been shown so far, with colours."""
        return self._seen

    def read_until(self, words: str, *, after: int = 0) -> str:
        """Read until the words have been shown, after so many characters; return all that has been."""
        while words not in self.shown[after:]:
            more = self._read()
            assert more, f"it ended without {words!r}: {self.shown}"
        return self.shown

    def read_until_prompt(self, prompt: str) -> None:
        """Read until the last that has been shown is a prompt: keys that are typed before may be lost."""
        while not self.shown.endswith(prompt):
            assert self._read(), f"it ended without a prompt: {self.shown}"

    def read_to_end(self) -> str:
        """Read until the command has ended; return all that has been shown."""
        while self._read():
            pass
        return self.shown

    def type(self, keys: str) -> None:
        """Type something; the command has to be one with the terminal as its stdin."""
        os.write(self._fd, keys.encode())

    def _read(self) -> bool:
        try:
            more = os.read(self._fd, 65536)
        except OSError:  # what Linux says when nobody has the other end any more
            return False
        self._seen += more
        return bool(more)


@contextlib.contextmanager
def on_terminal(
    *arguments: str,
    cwd: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.DEVNULL,
    term: str = "xterm",
) -> Iterator[Terminal]:
    """Run the command with a terminal as its stderr; None makes it that of its stdin and stdout as well."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": term, "COLUMNS": "100"}
    environ.pop("LOG_FORMAT", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "geartrain", *arguments],
        stdin=theirs if stdin is None else stdin,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environ,
        cwd=cwd,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
