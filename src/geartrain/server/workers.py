"""Workers of models: the GPUs and processors of each replica, and their processes."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from geartrain.authoring.devices import DEVICE, HIDING, REPLICA, Gpu, Visible, find_visible
from geartrain.bridge.child import ChildWorker, Launch
from geartrain.bridge.resources import quota
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.ipc.messages import BackendChoice, Debugging
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Devices
from geartrain.project.source import ModelSource
from geartrain.server.options import DebugOptions

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

ThingT = TypeVar("ThingT", bound=Hashable)


def usable_cpus() -> Sequence[int]:
    """Return the numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


class Placement(msgspec.Struct, frozen=True):
    """Place of a replica: variables of its worker, and the processors it is pinned to, all of them if none."""

    environment: Mapping[str, str] = {}
    cpus: tuple[int, ...] = ()


ANYWHERE: Final = Placement()


class Placements:
    """Places the models of one server. What a model has got before does not count when it is placed anew."""

    def __init__(
        self,
        devices: Devices,
        *,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[Mapping[str, str]], Visible] = find_visible,
        cpus: Callable[[], Sequence[int]] = usable_cpus,
        cpu_quota: Callable[[], float] = quota,
    ) -> None:
        """`devices`: of a model that does not say itself. The rest says what there is; `find` may block."""
        self._devices = devices
        self._environ = environ
        self._find = find
        self._cpus = cpus
        self._quota = cpu_quota
        self._lock = threading.Lock()
        self._gpus_in_use: dict[str, list[str]] = {}  # by model and version
        self._cpus_in_use: dict[str, list[int]] = {}

    def place(self, key: str, source: ModelSource, replicas: int) -> tuple[Placement, ...]:
        """Return the place of each replica of a model; raise ProjectError, with the arithmetic, if they do not fit.

        `key` names the model and its version. May block. Threads may share it.
        """
        environ = {**self._environ, **source.environment}
        with self._lock:
            gpus = self._place_gpus(key, source, replicas, environ=environ)
            cpus = self._place_cpus(key, source, replicas)
        threads = {}
        if source.cpus_per_replica:
            count = str(source.cpus_per_replica)
            threads = {name: count for name in _THREADS if name not in environ}
        return tuple(
            Placement({REPLICA: str(index), **threads, **gpus[index]}, cpus[index]) for index in range(replicas)
        )

    # GPUs

    def _place_gpus(
        self, key: str, source: ModelSource, replicas: int, *, environ: Mapping[str, str]
    ) -> list[dict[str, str]]:
        """Return the variables of each replica that say which GPUs are its own."""
        self._gpus_in_use.pop(key, None)
        devices, wanted = source.devices or self._devices, source.gpus_per_replica
        if devices.kind == "cpu":
            if wanted:
                raise ProjectError(f"`gpus_per_replica` is {wanted}, and `devices` is cpu; remove one of them")
            return [{**HIDING, DEVICE: "cpu"}] * replicas
        if devices.kind == "auto" and not wanted and replicas == 1:
            return [{}]  # it has the whole machine, and need not wait for its listing
        visible = self._find(environ)
        gpus = visible.gpus if devices.kind == "auto" else tuple(_named(name, visible) for name in devices.names)
        if wanted and replicas * wanted > len(gpus):
            raise ProjectError(_too_few_gpus(replicas, wanted, gpus, visible=visible))
        if not gpus:
            return [{DEVICE: "cpu"}] * replicas
        each = wanted or max(1, len(gpus) // replicas)
        used = [name for names in self._gpus_in_use.values() for name in names]
        parts = _share(gpus, replicas, each, used=(gpu for gpu in gpus for name in used if gpu.name == name))
        self._gpus_in_use[key] = [gpu.name for part in parts for gpu in part]
        return [{**visible.narrowed(part), DEVICE: "cuda:0"} for part in parts]

    # processors

    def _place_cpus(self, key: str, source: ModelSource, replicas: int) -> list[tuple[int, ...]]:
        self._cpus_in_use.pop(key, None)
        wanted = source.cpus_per_replica
        if not wanted:
            return [()] * replicas
        cpus = self._cpus()
        limit = min(len(cpus), math.ceil(min(self._quota(), len(cpus))))
        if replicas * wanted > limit:
            raise ProjectError(
                f"{_times(replicas, wanted, 'processor')}, and this process may use {limit}; "
                "write a smaller `cpus_per_replica`, or fewer `replicas`"
            )
        parts = _share(cpus, replicas, wanted, used=(cpu for used in self._cpus_in_use.values() for cpu in used))
        self._cpus_in_use[key] = [cpu for part in parts for cpu in part]
        return parts


def _share(things: Sequence[ThingT], parts: int, size: int, *, used: Iterable[ThingT]) -> list[tuple[ThingT, ...]]:
    """Divide things into parts: each thing once before any is twice, then those that others use least."""
    elsewhere, here = Counter(used), Counter[ThingT]()
    found: list[tuple[ThingT, ...]] = []
    for _ in range(parts):
        order = sorted(range(len(things)), key=lambda at: (here[things[at]], elsewhere[things[at]], at))
        part = tuple(things[at] for at in sorted(order[:size]))
        here.update(part)
        found.append(part)
    return found


def _named(name: str, visible: Visible) -> Gpu:
    """Return the GPU that a name of `devices` means; raise ProjectError if it cannot be seen."""
    for index, gpu in enumerate(visible.gpus):
        if name in {f"cuda:{index}", gpu.name, gpu.uuid} - {""}:
            return gpu
    raise ProjectError(f"`devices` names {name}, and this server sees {_shown(visible)}; write cuda:0 for the first")


def _too_few_gpus(replicas: int, wanted: int, gpus: Sequence[Gpu], *, visible: Visible) -> str:
    there = f"there are {_shown(visible)}" if len(gpus) == len(visible.gpus) else f"`devices` names {len(gpus)}"
    return f"{_times(replicas, wanted, 'GPU')}, and {there}; write fewer `replicas` or `gpus_per_replica`"


def _times(replicas: int, each: int, what: str) -> str:
    nouns = "replica" if replicas == 1 else "replicas"
    return f"{replicas} {nouns} × {each} {what}{'s'[: each != 1]} = {replicas * each}"


def _shown(visible: Visible) -> str:
    count = len(visible.gpus)
    names = ", ".join(gpu.name for gpu in visible.gpus)
    return f"{count or 'no'} GPU{'s'[: count != 1]}{f': {names}' if names else ''} ({visible.source})"


def choice_of(source: ModelSource) -> BackendChoice | None:
    """Return the backend of a model that is a file; None for code."""
    if source.backend is None:
        return None
    return BackendChoice(source.backend, str(source.file), source.backend_options, source.declared)


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
        backend=choice_of(source),
        batching=source.batching,
        prompt=source.openai.fields.get("prompt", ""),
        chat_template=source.openai.chat_template,
        wakeup=wakeup,
        debugging=Debugging(
            port=0 if inspect else debugging.port,
            waits=debugging.waits,
            profiles="" if debugging.profiles is None else str(debugging.profiles.absolute()),
            profile_format=debugging.profile_format,
        ),
    )
    return ChildWorker(what, observer, debugging.lender)
