"""A data set and a model, brought together: what the command and the Python API have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.dataset.errors import DatasetError
from geartrain.project.served import find_fetched
from geartrain.project.setting_values import AUTO, Devices
from geartrain.project.source import ModelSource
from geartrain.server import NO_LIMIT, Progress, ServeOptions, build
from geartrain.service.models.deployment import Deployment, Limits
from geartrain.service.workers.pool import ModelSetupError, RestartPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from geartrain.dataset.sources import Source

_RESTARTS = RestartPolicy(limit=sys.maxsize, first_delay=0.05, longest_delay=2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model of a run, and how it is run. Times in seconds; None for no limit."""

    source: ModelSource
    replicas: int | None = None  # None: as the model says
    devices: Devices | None = None
    setup_timeout: float | None = None
    run_timeout: float | None = None
    on_progress: Callable[[Progress], None] = lambda _progress: None


@contextlib.contextmanager
def found(model: str | os.PathLike[str], *, no_pickle: bool = False) -> Iterator[ModelSource]:
    """Find a model, and fetch before what lies elsewhere; it stays for the block. Blocks. Raises `ProjectError`."""
    from geartrain.server.fetching import Downloads  # late: most models are here

    with Downloads() as downloads:
        yield find_fetched(os.fspath(model), downloads, no_pickle=no_pickle)


@contextlib.asynccontextmanager
async def running(options: ModelOptions) -> AsyncIterator[Deployment]:
    """Start the workers of a model, and end them. Raises `DatasetError` where they cannot be made ready."""
    source = options.source
    if options.replicas is not None:
        source = msgspec.structs.replace(source, replicas=options.replicas)
    serving = ServeOptions(
        source=source,
        setup_timeout=options.setup_timeout,
        limits=Limits(run_timeout=options.run_timeout, keep=0.0, sorts_all=True),
        restarts=_RESTARTS,
        max_download_bytes=NO_LIMIT,  # the data set is a person's own
        allow_private_urls=True,
        devices=options.devices or AUTO,
        on_progress=options.on_progress,
    )
    app = build(serving)
    try:
        app.spawn()
        await app.start()
        yield await app.ready()
    except ModelSetupError as error:
        raise DatasetError(f"the model could not be set up: {error.reason}") from error
    finally:
        app.cancel_all()
        await app.stop()


def settings_of(mapped: dict[str, str], kept: dict[str, str], **others: Any) -> dict[str, Any]:
    """Return the settings that decide what an output holds, by the names of their options."""
    return {"map": mapped, "keep": kept, **others}


def kept_types(source: Source, kept: dict[str, str]) -> dict[str, pa.DataType | None]:
    """Return the types of the columns that pass through, None where the data set does not tell."""
    schema = source.schema()
    return {name: None if schema is None else schema.field(column).type for name, column in kept.items()}
