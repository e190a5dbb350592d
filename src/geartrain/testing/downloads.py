"""Downloads of a test's model, into the cache that servers and commands use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from geartrain.project.errors import ProjectError

if TYPE_CHECKING:
    from geartrain.domain.remote.progress import Download
    from geartrain.domain.remote.reference import RemoteReference
    from geartrain.project.setting_values import Weights
    from geartrain.server.fetching import Fetcher

T = TypeVar("T")


class Downloads:
    """Fetches for the models of a block, in which what it has fetched stays. See `project.fetched.Fetch`."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def model(self, reference: RemoteReference) -> Path:
        """Return the fetched folder of a model."""
        return self._fetch(lambda fetcher, download: fetcher.fetch(reference, download))

    def weights(self, weights: Sequence[Weights], folder: Path) -> Sequence[Path]:
        """Put weights into the folder of their model; return the one without a place there; raises ProjectError."""
        return self._fetch(lambda fetcher, download: fetcher.fetch_weights(weights, folder, download))

    def _fetch(self, work: Callable[[Fetcher, Download], Coroutine[Any, Any, T]]) -> T:
        from geartrain.outbound.remote.errors import RemoteError  # late: most models are here
        from geartrain.server import CacheOptions
        from geartrain.server.fetching import Fetcher, fetch_now

        fetcher = Fetcher(CacheOptions())
        self._held.callback(fetcher.close)
        with ThreadPoolExecutor(1) as thread:  # a test may be a coroutine, with a loop of its own
            try:
                return thread.submit(fetch_now, work, fetcher).result()
            except RemoteError as error:
                raise ProjectError(error.message) from None
