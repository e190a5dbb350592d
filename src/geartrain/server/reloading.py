"""Reload of models: at SIGHUP, and as they change on disk, for an author who is writing them.

A change that the system reports is only a hint where to look. What is loaded or unloaded follows from a look at the
disk. All of it is looked at every second, because some changes are never reported, such as those behind a link.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import pathlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.lifecycle import DORMANT
from geartrain.project.changes import Attempt, Attempts, Sight, Survey, differences
from geartrain.project.digest import may_count
from geartrain.server.app import App
from geartrain.server.options import Progress
from geartrain.server.repository import ServedModels
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.entry import ModelEntry

logger = logging.getLogger("geartrain.server")

PULSE: Final = 0.1  # seconds between two hints at the most, with or without a change
SETTLED: Final = 0.15  # seconds for which a model has to stay the same before it is loaded
PERIOD: Final = 1.0  # seconds from one look at all models to the next
_SHARE: Final = 20  # of the time, one part in so many is spent on looking at all models
_RETRY: Final = 30.0  # seconds until the kernel is asked again to report changes
_END: Final = 1.0  # seconds for the thread to end

Look = Mapping[str, Sight]


@contextlib.asynccontextmanager
async def watching(app: App) -> AsyncIterator[None]:
    """Load and unload models as their files change, if the operator wants that, until the end of the block."""
    options, models = app.options, app.models
    if not options.reload or not app.serves_models:
        yield
        return
    loop = asyncio.get_running_loop()
    reloads = _Reloads(models.attempts, app.catalogue)
    looks = itertools.count(1)

    def on_look(seen: Look) -> None:
        if next(looks) == 2:  # noqa: PLR2004 - the second look is the first that can find a model settled
            options.on_progress(Progress(stage="watching", text=str(models.on_disk.root)))
        reloads.compare(seen)

    watcher = Watcher(models, lambda seen: loop.call_soon_threadsafe(on_look, seen))
    thread = concurrent.futures.ThreadPoolExecutor(1, "geartrain-reload")
    watch = loop.run_in_executor(thread, watcher.run)
    watch.add_done_callback(_report)
    try:
        yield
    finally:
        reloads.close()
        watcher.stop()
        thread.shutdown(wait=False)
        await asyncio.wait((watch,), timeout=_END)


def _report(watch: asyncio.Future[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()) is not None:
        logger.error("files are no longer watched; models are not reloaded by themselves", exc_info=error)


class Watcher:
    """Looks at the models on disk, in a thread of its own: when there is a hint, and every `PERIOD` without one.

    A look that takes long is taken less often, so that a large folder does not keep a processor busy.
    """

    def __init__(self, models: ServedModels, tell: Callable[[Look], object]) -> None:
        """`tell` is called in the thread of `run`, after each look."""
        self._on_disk = models.on_disk
        self._survey = Survey(models.on_disk, models.attempts)
        self._tell = tell
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let `run` return soon."""
        self._stop.set()

    def run(self) -> None:
        """Look at the disk until `stop`."""
        root = self._on_disk.root
        names: set[str] = set()
        next_look = next_full_look = 0.0
        for changed in hints(root, self._stop):
            is_full = root in changed
            for path in changed:
                if not is_full and may_count(path, root):
                    name = self._on_disk.name_of(path)
                    is_full = name is None or name.startswith(".")  # such as `..data`, which others are links to
                    names.update(() if name is None else (name,))
            began = time.monotonic()
            if is_full:
                next_full_look = 0.0
            if began < next_look or not (names or began >= next_full_look):
                continue
            is_full = began >= next_full_look
            self._tell(self._survey.look(None if is_full else names))
            ended = time.monotonic()
            names = self._survey.unsettled()
            next_look = ended + max(SETTLED, ended - began)
            if is_full:
                next_full_look = ended + max(PERIOD, _SHARE * (ended - began))


def hints(root: pathlib.Path, stop: threading.Event) -> Iterator[set[pathlib.Path]]:
    """Give the paths below a folder that have changed, at least every `PULSE`, until `stop`.

    Among them is `root` when anything may have changed. The folder may go and come back. Where the kernel cannot report
    changes, because it has reached its limit of watches, the sets are empty.
    """
    from watchfiles import watch

    is_warned = False
    milliseconds = int(PULSE * 1000)
    while not stop.is_set():
        identity, began = _identity(root), time.monotonic()
        anything = {root}
        try:
            for changes in watch(
                root,
                watch_filter=None,  # with one, nothing is given as long as files change that it leaves out
                debounce=milliseconds,
                step=milliseconds // 4,
                rust_timeout=milliseconds,
                yield_on_timeout=True,
                stop_event=stop,
                ignore_permission_denied=True,
            ):
                yield anything.union(pathlib.Path(path) for _, path in changes)
                anything = set()
                if _identity(root) != identity:
                    break  # another folder is there now, which the kernel does not watch for us
        except (OSError, RuntimeError) as error:  # RuntimeError: how watchfiles reports what it does not know
            if identity is not None and not is_warned:
                is_warned = True
                logger.warning("the system does not report changes of files (%s); they are looked for", error)
            yield {root}
            while _identity(root) == identity and time.monotonic() < began + _RETRY and not stop.wait(PULSE):
                yield set()


def _identity(root: pathlib.Path) -> tuple[int, int] | None:
    try:
        found = root.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Reloads:
    """Loads and unloads models by what has been seen on disk, for each model one thing at a time."""

    def __init__(self, attempts: Attempts, catalogue: Catalogue) -> None:
        self._attempts = attempts
        self._catalogue = catalogue
        self._seen: Look = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def close(self) -> None:
        """Begin nothing more."""
        self._is_closed = True

    def compare(self, seen: Look) -> None:
        """Begin what has to be done, but for models that are busy: they are compared again when they are not."""
        self._seen = seen
        if self._is_closed:
            return
        found = differences({name: seen[name] for name in seen if name not in self._busy}, self._attempts.all())
        for name in found.remove:
            self._attempts.forget(name)
            self._begin(name, self._catalogue.remove(name))
        for name in found.load:
            sight = seen[name]
            self._attempts.note(name, Attempt(sight.digest or "", sight.at))
            self._begin(name, self._catalogue.load(name, anew=True))

    def _begin(self, name: str, change: Coroutine[Any, Any, None]) -> None:
        self._busy[name] = asyncio.ensure_future(self._finish(name, change))

    async def _finish(self, name: str, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except GeartrainError:
            pass  # the catalogue has told it
        except Exception:
            logger.exception("the model %r could not be reloaded", name)
        finally:
            del self._busy[name]
            self.compare(self._seen)


_STANDARD: Final = (0, 1, 2)  # descriptors


class Reload:
    """Loads the models anew, one after the other, so that never more than one of them is in memory twice.

    A model that cannot be loaded anew goes on as it is.
    """

    def __init__(self, app: App, refresh: Callable[[], None]) -> None:
        """`refresh` takes up changed keys and certificates."""
        self._app = app
        self._refresh = refresh
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_wanted = False

    @property
    def is_running(self) -> bool:
        """True if models are being loaded anew."""
        return bool(self._tasks)

    def request(self) -> None:
        """Begin, or begin once more when the reload at hand is over."""
        self._is_wanted = True
        if not self._tasks:
            task = asyncio.ensure_future(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Begin with no further model."""
        self._is_wanted = False
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            self._refresh()
            names = await self._names()
            logger.info("SIGHUP: reloading, one after the other: %s", ", ".join(names) or "no model")
            for name in names:
                await self._load(name)
            logger.info("the reload is over")

    async def _names(self) -> list[str]:
        """Return the models that are loaded or should be, and new ones where all of a folder are served.

        One that rests is read from disk when a request needs it.
        """
        catalogue, found = self._app.catalogue, []
        if self._app.options.load is None:
            found = await asyncio.to_thread(self._app.models.names)
        known = {name: catalogue.entry(name) for name in catalogue.names()}
        return sorted({*found, *known} - {name for name, entry in known.items() if _is_left_alone(entry)})

    async def _load(self, name: str) -> None:
        try:
            await self._app.catalogue.load(name, anew=True)
        except GeartrainError:
            pass  # the catalogue has told it
        except Exception:
            logger.exception("the model %r could not be reloaded", name)


def _is_left_alone(entry: ModelEntry) -> bool:
    return not entry.is_wanted or any(version.state in DORMANT for version in entry.versions.values())


class Terminal:
    """The terminal that the server was started on, if it was: SIGHUP then tells of its end, unless somebody sent it."""

    def __init__(self) -> None:
        self._was_there = _is_there()
        self._shown = [number for number in _STANDARD if os.isatty(number)]

    def leave(self) -> bool:
        """Return True if the terminal has gone; nothing is written to it any more if it has."""
        if not self._was_there or _is_there():
            return False
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in self._shown:
            os.dup2(nowhere, number)
        os.close(nowhere)
        return True


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
