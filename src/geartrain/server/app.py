"""The wiring: everything that the options name, made and connected in one place."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from geartrain.bridge.child import SetupError
from geartrain.domain.predictions.calls import ModelCallPort, WorkerInfo, WorkerObserver
from geartrain.domain.predictions.events import LogSource
from geartrain.domain.predictions.own_metrics import OwnReport
from geartrain.domain.printed.text import Printed
from geartrain.domain.signature.types import Signature
from geartrain.project.repository import Repository
from geartrain.project.source import ModelSource
from geartrain.server.cluster import open_relay
from geartrain.server.notify import write_ready_file
from geartrain.server.options import Progress, ServeOptions
from geartrain.server.outbound import Outbound
from geartrain.server.repository import ServedModels, settings_of
from geartrain.server.workers import launch
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import STOP_GRACE, Deployment, OutboundPort, warm_up_of
from geartrain.service.models.entry import ModelEntry, ModelRef, is_downloading
from geartrain.service.models.repository import Step
from geartrain.service.models.trainings import Trainings
from geartrain.service.ports import WorkerPort
from geartrain.service.scheduling.context import OnPrint, no_models
from geartrain.service.shared_memory import SharedRegions
from geartrain.service.workers.ondemand import OnDemandWorker
from geartrain.service.workers.pool import ModelSetupError, SpawnReplica
from geartrain.service.workers.warmup import WarmUpError
from geartrain.transport.relay.relay import RelayCounts

if TYPE_CHECKING:
    from geartrain.server.stored import StorePart
    from geartrain.transport.openai.batch_runner import BatchRunner


class App:
    """The models of a server with everything that they need, without a listener.

    Made by `build`; nothing runs before `spawn`.
    """

    def __init__(self, options: ServeOptions) -> None:
        """Raise `ClusterOptionError` for options that do not fit together."""
        self.options = options
        self.outbound = Outbound(options)
        self.models = ServedModels(options, self.outbound)
        self._stored: StorePart | None = None  # of a server with a store
        self.batches: BatchRunner | None = None  # of a server with a store, once it has routes
        self.relay_counts = RelayCounts(options.buckets.seconds)
        self.relay = open_relay(options, self.relay_counts)
        self.regions = SharedRegions(enabled=options.shared_memory)
        self.catalogue = Catalogue(
            self.models,
            default_model=options.default_model,
            grace=options.shutdown_grace,
            keep=options.limits.keep,
            tell=self._tell,
            residency=msgspec.structs.replace(options.residency, waiting=options.inference_queue),
        )
        self.models.pipelines.connect(self.catalogue)
        self.outbound.caller.connect(self.catalogue)
        # Of the model that is served alone, if it has one.
        self.trainings, self._training = _make_trainings(
            options, self.catalogue, self.outbound, on_print=self.models.mirror.hear
        )

    @property
    def serves_models(self) -> bool:
        """True if clients see the catalogue: not where all it has is a model that trains."""
        source = self.options.source
        return isinstance(source, Repository) or source.mode != "train"

    # its beginning

    def spawn(self) -> None:
        """Spawn the workers of what is to be loaded at the start; they start while the caller imports the rest."""
        self.catalogue.spawn(self.options.load)

    async def start(self) -> None:
        """Go on with what has been spawned. The progress tells what becomes of it.

        Raises `StoreOptionError` for a store that cannot be opened.
        """
        if self.options.store.url:
            from geartrain.server.stored import RerunParts, open_part  # late: most servers have no store

            self._stored = await open_part(self.options, RerunParts(self.catalogue, self.trainings, self.outbound))
            self.outbound.durability = self._stored.durability
        self.catalogue.reconciler.begin()
        self.catalogue.residency.start()
        if self._stored is not None:
            await self._stored.start()
        self._tell_kubernetes()  # without loads at the start it is ready at once

    async def ready(
        self, check: Callable[[Deployment], None] = lambda _deployment: None, *, name: str = ""
    ) -> Deployment:
        """Wait until a model is ready, by default the one that is served alone; raise `ModelSetupError` otherwise.

        `check` is called before setup is over, as soon as the model's signature is known; what it raises goes on to
        the caller.
        """
        entry = self.catalogue.entry(name or self.options.model.name)
        if is_downloading(entry):
            await self.settled()
            await _check_fault(entry)
        deployment = entry.deployment()
        loads = set(entry.loading.tasks)
        loaded = asyncio.ensure_future(deployment.loaded.wait())
        try:
            await asyncio.wait({loaded, *loads}, return_when=asyncio.FIRST_COMPLETED)
            if deployment.loaded.is_set():
                check(deployment)
            if loads:
                await asyncio.wait(loads)
        finally:
            loaded.cancel()
        setup = deployment.workers.setup
        if setup.failed:
            raise ModelSetupError(setup.reason, str(setup.printed))
        return deployment

    async def settled(self) -> None:
        """Wait until each model that is loaded at the start is ready, or cannot be."""
        loads = {load for name in self.catalogue.names() for load in self.catalogue.entry(name).loading.tasks}
        if loads:
            await asyncio.wait(loads)

    async def inspect(self, source: ModelSource | None = None) -> Signature:
        """Load the model that is served alone, or another `source`, without setup, and return its signature.

        Raises `ModelSetupError` with the reason.
        """
        return (await self.inspect_worker(source)).signature

    async def inspect_worker(self, source: ModelSource | None = None) -> WorkerInfo:
        """Load a model as `inspect` does, and return all that its worker says of it."""
        output = _LoadOutput()
        worker = launch(source or self.options.model, output, inspect=True)
        try:
            return await worker.start()
        except SetupError as error:
            raise ModelSetupError(str(error), str(output.printed)) from error
        finally:
            await worker.stop(STOP_GRACE)

    def check_examples(self, signature: Signature) -> None:
        """Raise `ModelSetupError` if an example of the model that is served alone does not fit its signature."""
        try:
            warm_up_of(settings_of(self.options, self.options.model), self.outbound).check(signature)
        except WarmUpError as error:
            raise ModelSetupError(str(error), "") from error

    # its end

    def close(self) -> None:
        """Admit nothing more."""
        self.catalogue.reconciler.close()
        if self.trainings is not None:
            self.trainings.close()
        for deployment in self._training:
            deployment.executions.is_closed = True

    def cancel_all(self) -> None:
        """Admit nothing more, and ask for the end of all that is live; what a store has goes on in the next server."""
        self.close()
        if self._stored is not None:
            self._stored.leave()
        for deployment in self._deployments():
            deployment.executions.cancel_all()

    async def drain(self, time_limit: float | None) -> bool:
        """Wait until nothing is live, at most `time_limit` seconds; return whether that came to be."""
        return all(await asyncio.gather(*(each.executions.drain(time_limit) for each in self._deployments())))

    async def kill(self) -> None:
        """End every worker at once."""
        if self._stored is not None:
            self._stored.leave()
        await asyncio.gather(*(deployment.workers.stop(0) for deployment in self._deployments()))

    async def stop_batches(self) -> None:
        """Break off the batches of clients, and leave them to the next server."""
        if self.batches is not None:
            await self.batches.stop()

    async def stop(self, *, grace: float | None = 0.0, webhook_grace: Callable[[], float] = lambda: 0.0) -> None:
        """End everything: what runs within `grace` seconds (None: no limit), then the webhooks.

        `webhook_grace` is asked, when all predictions have ended, for the seconds that webhooks have to be delivered.
        """
        self.close()
        await self.stop_batches()
        await self.catalogue.residency.stop()
        if not await self.drain(grace):
            self.cancel_all()
            await self.drain(STOP_GRACE)
        if self.trainings is not None:
            await self.trainings.stop()
        await asyncio.gather(self.catalogue.reconciler.stop(), *(deployment.close(0) for deployment in self._training))
        clock = asyncio.get_running_loop().time
        end = clock() + webhook_grace()
        await self.outbound.drain_webhooks(end - clock())
        if self._stored is not None:
            await self._stored.stop(max(STOP_GRACE, end - clock()))
        if self.relay is not None:
            self.relay.close()
        await self.outbound.close()
        self.models.close()
        self.regions.close()

    def _deployments(self) -> Iterator[Deployment]:
        """Give every deployment that may have live predictions, also those that have been replaced."""
        yield from self.catalogue.reconciler.alive
        yield from self._training

    # descriptions

    def _tell(self, step: Step) -> None:
        """Report what has become of a model; one that is served alone has no version to speak of."""
        version = step.version if isinstance(self.options.source, Repository) else ""
        self.options.on_progress(
            Progress(stage=step.stage, model=step.name, version=version, slots=step.slots, text=step.reason)
        )
        if step.stage == "ready":
            self.models.pipelines.on_model_ready(step.name)
            self._tell_kubernetes()

    def _tell_kubernetes(self) -> None:
        if self.options.ready_file is not None and self.catalogue.readiness.is_ready:
            write_ready_file(self.options.ready_file)


async def _check_fault(entry: ModelEntry) -> None:
    """Raise `ModelSetupError` if a model could not be fetched or found."""
    setup = (await entry.report()).setup
    if setup.failed:
        raise ModelSetupError(setup.reason, str(setup.printed))


def _make_trainings(
    options: ServeOptions, catalogue: Catalogue, outbound: OutboundPort, *, on_print: OnPrint
) -> tuple[Trainings | None, tuple[Deployment, ...]]:
    """Return the trainings of the model that is served alone, and the deployment that is made for them alone."""
    if isinstance(options.source, Repository):
        return None, ()
    if options.source.mode == "train":
        return Trainings(catalogue.refer(options.source.name)), ()
    training = options.source.training()
    if training is None:
        return None, ()
    entry = ModelEntry(training.name, keep=options.limits.keep)
    version = entry.version("1")
    deployment = Deployment(
        version.record,
        _on_demand(options, training),
        settings=dataclasses.replace(settings_of(options, training), restarts=None),
        outbound=outbound,
        on_print=on_print,
    )
    version.begin(deployment)
    entry.settle()

    async def load() -> None:
        deployment.workers.spawn()
        await deployment.start()

    return Trainings(ModelRef(lambda: entry), load), (deployment,)


def _on_demand(options: ServeOptions, source: ModelSource) -> SpawnReplica:
    """Create the spawner of a training's worker, which has a process only while there is work."""
    # The port for editors belongs to the worker of the predictions.
    debugging = msgspec.structs.replace(options.debugging, port=0)

    def spawn(_index: int, observer: WorkerObserver) -> WorkerPort:
        return OnDemandWorker(
            functools.partial(launch, source, wakeup=options.wakeup, debugging=debugging),
            on_load_output=observer.on_setup_log,
            idle_limit=options.training_idle,
            setup_limit=options.variables_of(source).setup_timeout,
        )

    return spawn


class _LoadOutput:
    """Keeps what is printed while a model is loaded."""

    def __init__(self) -> None:
        self.printed = Printed()

    def on_setup_log(self, _source: LogSource, data: str) -> None:
        """Keep it."""
        self.printed.add(data)

    def on_loaded(self, info: WorkerInfo) -> None:
        """The worker's start returns the same."""

    def on_own_metrics(self, reports: Sequence[OwnReport]) -> None:
        """Ignore the reports of trainings."""

    def on_model_call(self, call: ModelCallPort) -> None:
        """Refuse it: there is no setup."""
        no_models(call)

    def on_lost(self, reason: str) -> None:
        """The worker's start raises."""


def build(options: ServeOptions) -> App:
    """Wire all that the options name. Nothing is started, and nothing slow is imported."""
    return App(options)
