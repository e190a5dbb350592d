"""Spawns the workers of models."""

from __future__ import annotations

from geartrain.bridge.child import ChildWorker, Launch
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.ipc.messages import BackendChoice, Debugging
from geartrain.project.source import ModelSource
from geartrain.server.options import DebugOptions
from geartrain.server.placement import ANYWHERE, Placement

_NO_DEBUGGING = DebugOptions()


def launch(
    source: ModelSource,
    observer: WorkerObserver,
    *,
    inspect: bool = False,
    wakeup: WakeupMode = "adaptive",
    placement: Placement = ANYWHERE,
    debugging: DebugOptions = _NO_DEBUGGING,
) -> ChildWorker:
    """Spawn a worker of a model; `inspect` for one that only tells its signature.

    With `debugging`, debugpy listens on its port itself.
    """
    backend = None
    if source.backend is not None:
        backend = BackendChoice(source.backend, str(source.file), dict(source.options), source.declared)
    what = Launch(
        runner=source.runner,
        root=source.root,
        environment=source.environment,
        placement=placement.environment,
        cpus=placement.cpus,
        slots=source.max_concurrency,
        mode=source.mode,
        weights=source.variables.weights,
        inspect=inspect,
        backend=backend,
        batching=source.batching,
        prompt=source.openai.fields.get("prompt", ""),
        wakeup=wakeup,
        debugging=Debugging(
            port=0 if inspect else debugging.port,
            waits=debugging.waits,
            profiles="" if debugging.profiles is None else str(debugging.profiles.absolute()),
            profile_format=debugging.profile_format,
        ),
    )
    return ChildWorker(what, observer, debugging.lender)
