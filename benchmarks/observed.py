"""A geartrain server that keeps books on itself, for stress.py: `python observed.py MODEL PORT SOCKET`.

Whoever connects to the Unix socket SOCKET is told, as JSON, how many predictions have been accepted, how each ended,
which of them ended twice, and how many tasks and idle slots there are.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from geartrain.domain.predictions.events import Completed, Event
from geartrain.domain.predictions.prediction import Prediction
from geartrain.outbound.retries import Retries
from geartrain.project.source import find_model
from geartrain.server import Progress, ServeOptions, WebhookOptions, run_server
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment, Limits

QUEUE = 64
RETRIES = Retries(tries=8, first_pause=0.05, longest_pause=1.0, seconds=3.0)  # soon enough to see who gives up


class Books:
    """What is known of the predictions of a server."""

    def __init__(self, address: pathlib.Path) -> None:
        self._address = address
        self._deployment: Deployment | None = None
        self._server: asyncio.Task[Any] | None = None
        self._accepted = 0
        self._ended: Counter[str] = Counter()
        self._twice: list[str] = []

    def watch(self) -> None:
        """Write down every prediction that is accepted from now on, and each of its ends."""
        real = Deployment.create

        def create(deployment: Deployment, new: NewPrediction) -> Prediction:
            prediction = real(deployment, new)
            self._deployment = deployment
            self._accepted += 1
            if prediction.is_terminal:
                self._ended[prediction.status] += 1
            else:
                prediction.log.listen(_Ends(self, prediction))
            return prediction

        Deployment.create = create  # type: ignore[method-assign, assignment]

    def on_end(self, prediction: Prediction, count: int) -> None:
        """A prediction says that it has ended, for the `count`-th time."""
        self._ended[prediction.status] += 1
        if count > 1:
            self._twice.append(prediction.id)

    def on_progress(self, progress: Progress) -> None:
        """Answer on the socket once there is a loop, and give that its threads."""
        if progress.stage == "listening":
            asyncio.get_running_loop().set_default_executor(_whole_pool())
            self._server = asyncio.ensure_future(asyncio.start_unix_server(self._tell, self._address))

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pool = None if self._deployment is None else self._deployment.workers.permits
        told = {
            "accepted": self._accepted,
            "ended": self._ended,
            "twice": self._twice,
            "tasks": len(asyncio.all_tasks()),
            "slots": 0 if pool is None else pool.size,
            "idle": 0 if pool is None else pool.idle,
        }
        writer.write(json.dumps(told).encode())
        writer.close()


def _whole_pool() -> ThreadPoolExecutor:
    """Make what a loop runs blocking calls in, with all of its threads.

    It would make them one by one as they are needed, up to the same number: whoever counts threads would see a leak.
    """
    size = min(32, (os.cpu_count() or 1) + 4)  # as asyncio's own
    pool = ThreadPoolExecutor(size)
    all_here = threading.Barrier(size)
    for _ in range(size):
        pool.submit(all_here.wait)
    return pool


class _Ends:
    """Listens for the ends of one prediction."""

    def __init__(self, books: Books, prediction: Prediction) -> None:
        self._books = books
        self._prediction = prediction
        self._count = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Completed):
            self._count += 1
            self._books.on_end(self._prediction, self._count)


def main() -> None:
    """Serve until told to stop."""
    model, port, address = sys.argv[1:]
    books = Books(pathlib.Path(address))
    books.watch()
    options = ServeOptions(
        source=find_model(model),
        host="127.0.0.1",
        port=int(port),
        limits=Limits(queue=QUEUE),
        allow_private_urls=True,  # the receivers are on this machine
        webhooks=WebhookOptions(interval=0.01, retries=RETRIES),
        on_progress=books.on_progress,
    )
    sys.exit(run_server(options))


if __name__ == "__main__":
    main()
