"""Spawns the workers of models."""

from __future__ import annotations

import functools

from geartrain.bridge.child import ChildWorker, Launch, SetupError
from geartrain.bridge.messages import BackendChoice
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.signature import Signature
from geartrain.domain.work import WorkerObserver
from geartrain.project.source import ModelSource
from geartrain.server.options import ServeOptions
from geartrain.service.model import Model, ModelSetupError, Noun

STOP_GRACE = 1.0  # seconds that a worker without work has to end by itself


def new_model(
    options: ServeOptions, source: ModelSource | None = None, *, version: str = "1", replicas: int = 1
) -> Model:
    """Make the model of the options, or another one with them; it has no worker yet."""
    source = source or options.model
    noun: Noun = "training" if source.mode == "train" else "prediction"
    model = Model(source.name, version=version, restarts=options.restarts, noun=noun, replicas=replicas)
    for replica in model.replicas:
        replica.respawn = functools.partial(launch, source, replica, wakeup=options.wakeup)
    return model


def launch(
    source: ModelSource, observer: WorkerObserver, *, inspect: bool = False, wakeup: WakeupMode = "adaptive"
) -> ChildWorker:
    """Spawn a worker of a model; `inspect` for one that only tells its signature."""
    backend = None
    if source.backend is not None:
        backend = BackendChoice(source.backend, str(source.file), dict(source.options))
    what = Launch(
        runner=source.runner,
        root=source.root,
        environment=source.environment,
        slots=source.max_concurrency,
        mode=source.mode,
        weights=source.variables.weights,
        inspect=inspect,
        backend=backend,
        batching=source.batching,
        wakeup=wakeup,
    )
    return ChildWorker(what, observer)


async def read_model(source: ModelSource) -> Signature:
    """Load a model in a worker, without setup, and return its signature; raise `ModelSetupError` with the reason."""
    model = Model(source.name)
    worker = launch(source, model, inspect=True)
    try:
        return (await worker.start()).signature
    except SetupError as error:
        raise ModelSetupError(str(error), model.setup.logs) from error
    finally:
        await worker.stop(STOP_GRACE)
