"""Models and weights that lie elsewhere, for the commands that run a model themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from geartrain.cli import logs
from geartrain.cli.failure import INTERRUPTED, leave
from geartrain.project.errors import ProjectError
from geartrain.project.precheck import precheck
from geartrain.project.served import find_fetched, local_target
from geartrain.project.source import Mode, ModelSource

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, TypeVar

    from geartrain.domain.remote.progress import Download
    from geartrain.domain.remote.reference import RemoteReference
    from geartrain.project.setting_values import Weights
    from geartrain.server import Progress
    from geartrain.server.fetching import Fetcher

    T = TypeVar("T")


class LocalModels:
    """Finds models for a command, and fetches before what lies elsewhere. What it has fetched stays while it lives."""

    def __init__(self, cache_dir: Path | None = None, *, verify: bool = False) -> None:
        """`cache_dir` None: as the environment says."""
        self._cache = (cache_dir, verify)
        self._fetchers: list[Fetcher] = []

    def target(self, target: str | None) -> str | None:
        """Return a target's place on this machine: itself, or its fetched copy; raise ProjectError."""
        return local_target(target, self)

    def find(self, target: str | None, mode: Mode = "predict", *, no_pickle: bool = False) -> ModelSource:
        """Find a model as `find_model` does, with the weights that its settings name; raises ProjectError."""
        source = find_fetched(target, self, mode=mode, no_pickle=no_pickle)
        precheck(source)
        return source

    def model(self, reference: RemoteReference) -> Path:
        """Return the fetched folder of a model."""
        return self._fetch(lambda fetcher, download: fetcher.fetch(reference, download))

    def weights(self, weights: Sequence[Weights], folder: Path) -> Sequence[Path]:
        """Put weights into the folder of their model; return the one without a place there; raises ProjectError."""
        return self._fetch(lambda fetcher, download: fetcher.fetch_weights(weights, folder, download))

    def _fetch(self, work: Callable[[Fetcher, Download], Coroutine[Any, Any, T]]) -> T:
        from geartrain.outbound.remote.source import RemoteError  # late: most models are here
        from geartrain.server import CacheOptions
        from geartrain.server.fetching import Fetcher, fetch_now

        fetcher = Fetcher(CacheOptions(*self._cache))
        self._fetchers.append(fetcher)
        view = DownloadView()
        try:
            return fetch_now(work, fetcher, tell=view)
        except RemoteError as error:
            raise ProjectError(error.message) from None
        except KeyboardInterrupt:
            leave(INTERRUPTED)
        finally:
            view.end()


_STEP: Final = "Fetching"


class DownloadView:
    """Shows a person how far a download has come; where stderr is no terminal, only its end."""

    def __init__(self) -> None:
        from rich.console import Console

        from geartrain.cli.activity import Activity

        self._activities = []
        if logs.is_terminal(sys.stderr):
            self._activities.append(Activity(Console(stderr=True, highlight=False), _STEP))

    def __call__(self, progress: Progress) -> None:
        """Show a step."""
        for activity in self._activities:
            activity.add_bytes(progress.source, progress.bytes, progress.total_bytes or None)

    def end(self) -> None:
        """Leave nothing."""
        for activity in self._activities:
            activity.end()
