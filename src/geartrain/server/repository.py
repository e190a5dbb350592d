"""The models that the options name, as the catalogue asks for them."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
import weakref
from collections.abc import Iterable

import msgspec

from geartrain.bridge.child import ChildWorker
from geartrain.bridge.resources import memory_of
from geartrain.domain.predictions.caching import NO_CACHE
from geartrain.domain.predictions.calls import WorkerObserver
from geartrain.domain.remote.progress import Download
from geartrain.domain.signature.pipeline import Pipeline, find_cycle
from geartrain.outbound.remote.source import RemoteError
from geartrain.project.changes import Attempt, Attempts
from geartrain.project.digest import ModelAlone
from geartrain.project.errors import ProjectError
from geartrain.project.repository import ModelFolder, Repository
from geartrain.project.source import ModelSource
from geartrain.server.fetching import Elsewhere
from geartrain.server.options import DebugOptions, Progress, ServeOptions
from geartrain.server.workers import Placement, Placements, launch
from geartrain.service.mirror import PrintMirror
from geartrain.service.models.deployment import Deployment, DeploymentSettings, OutboundPort, VersionRecord
from geartrain.service.models.pipelines import Pipelines
from geartrain.service.models.repository import LoadError, ServedVersions
from geartrain.service.ports import WorkerPort
from geartrain.service.workers.warmup import NO_EXAMPLES, Examples

logger = logging.getLogger("geartrain.server")


class ServedModels:
    """Reads the models of the options from disk, and makes deployments of them; see `RepositoryPort`."""

    def __init__(self, options: ServeOptions, outbound: OutboundPort) -> None:
        self._options = options
        self._outbound = outbound
        self._found: dict[str, ModelFolder] = {}
        self._contents: dict[str, str] = {}  # the digests of all files of each model
        self._children: dict[str, weakref.WeakSet[ChildWorker]] = {}
        self._placements = Placements(options.devices)
        self._placed: dict[tuple[str, str], tuple[Placement, ...]] = {}
        self._editor_ports: dict[tuple[str, str, int], int] = {}  # by model, version and replica
        source = options.source
        self.on_disk = source if isinstance(source, Repository) else ModelAlone(source, options.target)
        self.attempts = Attempts()
        self.mirror = PrintMirror(options.mirror_prints)
        self.pipelines = Pipelines()
        self._elsewhere = Elsewhere(options)

    def names(self) -> list[str]:
        """The models that are there."""
        source = self._options.source
        return source.names() if isinstance(source, Repository) else [source.name]

    def has_remote_files(self, name: str) -> bool:
        """True if a model, or something that it needs, lies elsewhere. May block."""
        return name in self.names() and self._elsewhere.has_part_of(name)

    async def fetch(self, name: str, download: Download) -> None:
        """Bring what lies elsewhere of a model; raises `LoadError`. See `RepositoryPort`."""
        try:
            await self._elsewhere.fetch(name, download)
        except (RemoteError, ProjectError) as error:
            raise LoadError(error.message) from error

    def close(self) -> None:
        """Let go of what has been fetched."""
        self._elsewhere.close()

    def read(self, name: str) -> ServedVersions | None:
        """The versions of a model that shall be served, None if it is not there; raises `LoadError`. May block."""
        if name not in self.names():
            return None
        # Before it is read: what changes in between is loaded by the next load.
        digest = self._contents[name] = self._elsewhere.content(name, self.on_disk)
        try:
            folder = self._read(name)
            self._check_cycle(name)
        except ProjectError as error:
            raise LoadError(error.message) from error
        return ServedVersions(tuple(folder.versions), folder.default_version, digest)

    def note(self, name: str) -> None:
        """Remember that how a model lies there now is no reason to load it. It matters where files are watched."""
        if not self._options.reload:
            return
        at = time.monotonic()
        digest = self.on_disk.digest(name)
        if digest:
            self.attempts.note(name, Attempt(digest, at))

    def open(self, record: VersionRecord) -> Deployment:
        """Return a deployment whose workers have been spawned; raises `LoadError`. Needs no running loop."""
        source = self._found[record.name].versions[record.number]
        if isinstance(source, ProjectError):
            raise LoadError(source.message)
        options, placed = self._options, self._placed[record.name, record.number]
        shown = record.number if isinstance(options.source, Repository) else ""

        def on_setup_output(text: str) -> None:
            options.on_progress(Progress(stage="setup-output", model=record.name, version=shown, text=text))

        def spawn(index: int, observer: WorkerObserver) -> WorkerPort:
            if source.pipeline is not None:
                worker = self.pipelines.spawn(source.pipeline, observer, slots=source.slots)
                deployment.find_fault, worker.on_change = worker.find_fault, deployment.on_loaded
                return worker
            child = launch(
                source,
                observer,
                wakeup=options.wakeup,
                placement=placed[index],
                debugging=self._debugging_of(record, index),
            )
            self._children.setdefault(record.name, weakref.WeakSet()).add(child)
            return child

        deployment = Deployment(
            record,
            spawn,
            settings=self._with_folder(record, settings_of(options, source)),
            outbound=self._outbound,
            on_setup_output=on_setup_output,
            on_print=self.mirror.hear,
        )
        if source.pipeline is not None and not isinstance(options.source, Repository):
            raise LoadError(_alone(source.pipeline))
        try:
            deployment.workers.spawn()
        except OSError as error:  # its folder has just gone, or no process can be had
            raise LoadError(f"no worker can be started: {error.strerror or error}") from error
        return deployment

    def _with_folder(self, record: VersionRecord, settings: DeploymentSettings) -> DeploymentSettings:
        """Return the settings with the folder of answers that outlive the server, if there is one."""
        cache = settings.cache
        if cache is None or not cache.folder:
            return settings
        digest = self._contents.get(record.name, "")
        if not digest:
            logger.warning("model %r: its folder has too many files; its answers are kept in memory alone", record.name)
            return settings
        from geartrain.outbound.answer_folder import AnswerFolder  # late: most models have none

        answers = AnswerFolder(
            pathlib.Path(cache.folder),
            model=record.name,
            version=record.number,
            digest=digest,
            ttl=cache.ttl,
            max_bytes=cache.max_bytes,
        )
        return dataclasses.replace(settings, answers=answers)

    def _debugging_of(self, record: VersionRecord, index: int) -> DebugOptions:
        """Return the debugging options of a replica: each has a port of its own for editors, and keeps it."""
        debugging = self._options.debugging
        if not debugging.port:
            return debugging
        ports = self._editor_ports
        port = ports.setdefault((record.name, record.number, index), debugging.port + len(ports))
        return msgspec.structs.replace(debugging, port=port)

    def memory(self, name: str) -> int:
        """The bytes of memory that the workers of a model use now. May block."""
        return memory_of({pid for child in tuple(self._children.get(name, ())) for pid in child.pids})

    def _read(self, name: str) -> ModelFolder:
        self.note(name)  # before it is read: a change in between is seen as one
        source = self._options.source
        found = source.read(name) if isinstance(source, Repository) else self._read_alone(source)
        for sentence in _remarks(found):
            logger.warning("model %r: %s", name, sentence)
        found = msgspec.structs.replace(
            found,
            versions={
                number: self._place(name, number, self._elsewhere.named(name, each))
                for number, each in found.versions.items()
            },
        )
        self._found[name] = found
        return found

    def _check_cycle(self, name: str) -> None:
        """Raise ProjectError for a pipeline that is, by way of others, a step of itself."""
        source = self._options.source
        if not isinstance(source, Repository):
            return
        cycle = find_cycle([name], source.steps_of)
        if cycle:
            raise ProjectError(f"a model cannot be a step of itself: {' → '.join(cycle)}")

    def _read_alone(self, source: ModelSource) -> ModelFolder:
        """Return the model that is served alone: as it was found at the start, and later as it is found again."""
        name, find = source.name, self._options.find_again
        again: ModelSource | Repository = source
        if find is not None and (source.is_pending or name in self._found):
            again = find(self._elsewhere.target(name))
        if isinstance(again, ModelSource):
            return ModelFolder(name=name, versions={"1": again})
        names = again.names()
        if len(names) != 1:
            raise ProjectError(f"{self._elsewhere.shown(name)}: several models are there; name one of them")
        return again.read(names[0])

    def _place(self, name: str, number: str, source: ModelSource | ProjectError) -> ModelSource | ProjectError:
        """Decide where the replicas of a version run; return it, or why there is no place for them."""
        if isinstance(source, ProjectError):
            return source
        replicas = settings_of(self._options, source).replicas
        try:
            self._placed[name, number] = self._placements.place(f"{name}/{number}", source, replicas)
        except ProjectError as error:
            return error
        return source


def _alone(pipeline: Pipeline) -> str:
    """Return the reason for which a pipeline cannot be served by itself."""
    return f"a pipeline needs its models: {', '.join(pipeline.models)}; serve the folder that holds them"


def _remarks(found: ModelFolder) -> Iterable[str]:
    """Return the ignored parts of the settings of a model's versions, each sentence once."""
    sources = [source for source in found.versions.values() if isinstance(source, ModelSource)]
    return dict.fromkeys(sentence for source in sources for sentence in source.remarks)


def settings_of(options: ServeOptions, source: ModelSource) -> DeploymentSettings:
    """Return the settings of a model, by the options and by its own files."""
    variables = options.variables_of(source)
    is_training = source.mode == "train"
    folder = options.source.folder(source.name) if isinstance(options.source, Repository) else source.root
    examples = Examples(
        source.warmup, source.root, source.origin, shown=source.examples, own=source.own_examples, folder=folder
    )
    return DeploymentSettings(
        noun="training" if is_training else "prediction",
        replicas=1 if is_training else source.replicas or options.replicas,
        restarts=options.restarts,
        setup_timeout=variables.setup_timeout if source.pipeline is None else None,  # its models have theirs
        limits=options.limits_of(source),
        inference_queue=options.inference_queue if source.queue is None else source.queue,
        retry=source.retry,
        history=variables.stream_history,
        webhook_interval=variables.webhook_interval,
        webhook_token=variables.webhook_token,
        user_agent=variables.user_agent,
        buckets=options.buckets,
        examples=NO_EXAMPLES if is_training else examples,
        stated=source.stated,
        own_version=source.own_version,
        forwarded=source.forwarded,
        openai=source.openai,
        cache=NO_CACHE if is_training else source.cache,
        calls=source.calls,
    )
