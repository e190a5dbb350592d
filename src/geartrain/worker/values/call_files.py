"""The files of a call: copies on their way to the parent, and what is to be deleted when `run()` is over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import struct
import sys
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from geartrain.domain.signature.types import TypeSpec

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_STATX_SIZE = 256  # bytes
_MASK = struct.Struct("=I")  # at the start
_BIRTH = struct.Struct("=qI")  # seconds, nanoseconds
_BIRTH_OFFSET = 80
_CLOCK_REALTIME_COARSE = 5  # clock of file times in the kernel; a few milliseconds behind the exact clock
_FILE_KINDS = frozenset({"path", "file", "object", "opaque"})  # of outputs that can be, or contain, a file


class _FileClock:
    """Tells what was made before a moment from what is made after it, by the clock that the kernel dates files by.

    That clock ticks every few milliseconds, and a small run takes less than one. But since Linux 6.13 a file that is
    changed twice within a tick gets an exact date the second time, and all that is made later gets none before it.
    With an older kernel, what was made in the tick of the moment counts as made after it, unless a run ended in it.
    """

    def __init__(self) -> None:
        self._last_end = 0
        self._probe: int | None = None
        with contextlib.suppress(OSError):
            self._probe, name = tempfile.mkstemp()
            weakref.finalize(self, os.close, self._probe)
            os.unlink(name)  # noqa: PTH108 - a string of mkstemp's; what has no name still has dates

    def now(self) -> int:
        """Return a date, in nanoseconds since the epoch: files that are made from now on have it or a later one."""
        tick = _tick()
        if self._probe is not None:
            with contextlib.suppress(OSError):
                first, second = self._touch(self._probe), self._touch(self._probe)
                if second > first:
                    return second
                tick = first
        return tick if tick > self._last_end else tick + 1

    def end(self) -> None:
        """Note that a run has ended now."""
        self._last_end = _tick()

    @staticmethod
    def _touch(descriptor: int) -> int:
        os.utime(descriptor)
        return os.fstat(descriptor).st_ctime_ns


def _tick() -> int:
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else time.time_ns()


def may_hold_files(spec: TypeSpec) -> bool:
    """True if an output of this type can be a file or contain one."""
    return (
        spec.kind in _FILE_KINDS
        or (spec.items is not None and may_hold_files(spec.items))
        or any(may_hold_files(member) for member in spec.members)
        or any(may_hold_files(field.type) for field in spec.fields)
    )


class RunFiles:
    """The temporary files that one run has given, and the concurrent runs that may yet give the same."""

    __slots__ = ("beside", "paths", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.paths: list[str] = []
        self.beside: set[RunFiles] = set()


class TemporaryFiles:
    """The directories for temporary files, as one worker sees them; the model's own folder is none of them."""

    def __init__(self, model_root: str) -> None:
        roots = {os.path.realpath(tempfile.gettempdir()), os.path.realpath("/tmp")}  # noqa: S108 - where models write
        self._roots = tuple(root for root in roots if root != os.sep)
        model_root = os.path.realpath(model_root)
        # A model that lies in /tmp, as in a test, makes its folder no temporary one.
        self._model_root = model_root if self._inside(model_root) else None
        self._clock = _FileClock()
        self._running: set[RunFiles] = set()
        self._waiting: list[RunFiles] = []  # of runs that are over, for those beside them
        self._uses: Counter[str] = Counter()
        self._shared: set[str] = set()

    def begin(self) -> RunFiles:
        """Begin a run; pass the result to `add` and to `end`."""
        run = RunFiles(self._clock.now())
        self._running.add(run)
        return run

    def add(self, run: RunFiles, path: Path) -> tuple[str, ...]:
        """Add an output file of a run; return what is to be deleted for it, as `made_since`."""
        found = self.made_since(path, run.since)
        for name in found:
            if name not in run.paths:
                run.paths.append(name)
                self._uses[name] += 1
                if self._uses[name] > 1:
                    self._shared.add(name)
        return found

    def end(self, run: RunFiles) -> None:
        """End a run: delete the files that it has given, as soon as no concurrent run can give them any more."""
        if run not in self._running:
            return
        self._running.remove(run)
        self._clock.end()
        if run.paths:
            run.beside = set(self._running)
            self._waiting.append(run)
        if self._waiting:
            self._delete(run)

    def _delete(self, ended: RunFiles) -> None:
        for run in tuple(self._waiting):
            run.beside.discard(ended)
            if not run.beside:
                self._waiting.remove(run)
                delete([name for name in run.paths if name not in self._shared])
                for name in run.paths:
                    self._uses[name] -= 1
                    if not self._uses[name]:
                        del self._uses[name]
                        self._shared.discard(name)

    def made_since(self, path: Path, since: int) -> tuple[str, ...]:
        """Return the paths to delete for an output file: itself and the folders made for it, if it is temporary.

        `since`: time of the clock at the begin of the run.
        """
        folder = os.path.realpath(path.parent)
        if not self._inside(folder) or (self._model_root is not None and _is_in(folder, self._model_root)):
            return ()
        name = os.path.join(folder, path.name)  # noqa: PTH118 - a string among strings
        if not _born_since(name, since, stat.S_ISREG):
            return ()
        found = [name]
        while folder not in self._roots and _born_since(folder, since, stat.S_ISDIR):
            found.append(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120 - as above
        return tuple(found)

    def _inside(self, folder: str) -> bool:
        return any(_is_in(folder, root) for root in self._roots)


def delete(paths: Iterable[str]) -> None:
    """Delete files and then their folders, as `made_since` names them; what is gone or not empty is left."""
    for path in map(Path, paths):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


def _is_in(folder: str, root: str) -> bool:
    return folder == root or folder.startswith(root.rstrip(os.sep) + os.sep)


def _born_since(path: str, since: int, is_kind: object) -> bool:
    """True if `path` itself, not what it links to, is of the kind and came into being at `since` or later.

    What has a date to come is older than the clock, which was set back since.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if not callable(is_kind) or not is_kind(found.st_mode):
        return False
    born = _birth_time(path, found)
    return born is not None and since <= born <= time.time_ns()


def _birth_time(path: str, found: os.stat_result) -> int | None:
    """In nanoseconds since the epoch; None where the file system does not know."""
    seconds = getattr(found, "st_birthtime", None)
    if seconds is not None:
        return int(seconds * 1e9)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, answer):
        return None
    if not _MASK.unpack_from(answer)[0] & _STATX_BTIME:
        return None
    whole, fraction = _BIRTH.unpack_from(answer, _BIRTH_OFFSET)
    return int(whole) * 1_000_000_000 + int(fraction)


class CallFiles:
    """The files of the calls of one slot, one call after the other.

    A copy belongs to the parent once it has been reported. The copies that have not been, because a cancel or an error
    came in between, are removed by `close`.
    """

    has_runs: ClassVar[bool] = False
    """True if `begin` and `end_run` have to be called for each invocation of `run()`."""

    def __init__(self) -> None:
        self.folder: str | None = None  # of copies; by default that of temporary files
        self._copies: set[Path] = set()  # folders that the parent does not know of

    def begin(self) -> None:
        """Begin an invocation of `run()`. It has to be called before the author's code."""

    def new_folder(self) -> Path:
        """Make a new folder for one file and return it."""
        folder = Path(self.folder or tempfile.gettempdir(), os.urandom(16).hex())
        self._copies.add(folder)
        folder.mkdir()
        return folder

    def new_file(self) -> Path:
        """Return the path of a new file for an output, in a folder of its own."""
        return self.new_folder() / "output.json"

    def temporary_files_of(self, path: Path) -> tuple[str, ...]:  # noqa: ARG002 - these outputs are no files of the author's
        """Return the paths to delete after the run for an output's path: the file, and folders made for it."""
        return ()

    def hand_over(self, files: Iterable[str]) -> None:
        """Leave copies to the parent, which has been told of them."""
        self._copies.difference_update([Path(file).parent for file in files])

    def end_run(self) -> None:
        """Delete the author's own temporary files: the run is over, and its outputs are copied."""

    def close(self) -> None:
        """Remove what the run leaves behind, since nothing more will be reported. Repeating it is harmless."""
        self.end_run()
        while self._copies:
            shutil.rmtree(self._copies.pop(), ignore_errors=True)


class CleanedCallFiles(CallFiles):
    """Files of a call whose outputs can be files: the author's temporary ones among them are deleted."""

    has_runs: ClassVar[bool] = True

    def __init__(self, temporary: TemporaryFiles) -> None:
        super().__init__()
        self._temporary = temporary
        self._run = RunFiles(0)

    def begin(self) -> None:
        """Begin an invocation of `run()`: the files that are made from now on are its own."""
        self._run = self._temporary.begin()

    def temporary_files_of(self, path: Path) -> tuple[str, ...]:
        """Return the paths to delete after the run for an output's path: the file, and folders made for it."""
        return self._temporary.add(self._run, path)

    def end_run(self) -> None:
        """Delete the author's own temporary files: the run is over, and its outputs are copied."""
        self._temporary.end(self._run)
