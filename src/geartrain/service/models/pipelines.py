"""Pipelines in the place of workers: their runs call other models of the server, and need no process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from geartrain.domain.errors import GeartrainError
from geartrain.domain.predictions.calls import (
    CallInput,
    CallListener,
    FileRef,
    HealthVerdict,
    WorkerInfo,
    WorkerObserver,
)
from geartrain.domain.predictions.lifecycle import Health
from geartrain.domain.signature.pipeline import PLATFORM, Pipeline, PipelineError, make_plan
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.pipeline_run import CANCELED, PipelineRun
from geartrain.service.models.pipeline_values import Wiring
from geartrain.service.models.waking import ModelAsleepError

_BYTES: Final = "application/octet-stream"
SLOTS: Final = 256
"""Runs of one pipeline at once, where its settings name no other number."""


class PipelineWorker:
    """The runs of one version of a pipeline. See `WorkerPort`."""

    is_debugged = False
    may_prefetch = False
    pids: tuple[int, ...] = ()

    def __init__(self, pipeline: Pipeline, observer: WorkerObserver, *, catalogue: Catalogue, slots: int) -> None:
        """`catalogue` has the models of the server; `slots` is the number of runs at once, 0 for `SLOTS`."""
        self.pipeline = pipeline
        self._observer = observer
        self._catalogue = catalogue
        self._slots = slots or SLOTS
        self._wiring: Wiring | None = None
        self._runs: dict[int, PipelineRun] = {}
        self._files = KeptFiles()
        self._killed = ""  # the reason, of one that was killed while it was set up
        self.on_change: Callable[[WorkerInfo], None] = observer.on_loaded  # of its models, and so of what it takes

    # life

    async def start(self) -> WorkerInfo:
        """Wait until the models of the steps are loaded, and load those that are not."""
        for index in range(len(self.pipeline.steps)):
            await self._await_model(index)
        info = self._wire()
        self._observer.on_loaded(info)
        if self._killed:
            raise PipelineError(self._killed)
        return info

    async def _await_model(self, index: int) -> None:
        """Wait until the model of a step is loaded; raise `PipelineError` with the reason if it cannot be."""
        step, catalogue = self.pipeline.steps[index], self._catalogue
        try:
            if step.model not in catalogue.names() or not catalogue.entry(step.model).is_wanted:
                await catalogue.load(step.model)
            entry = catalogue.entry(step.model)
            await catalogue.reconciler.wake(entry)
            while entry.loading.tasks and self._is_loading(index):
                await asyncio.wait(entry.loading.tasks)
            catalogue.find(step.model, step.version).workers.check_ready()
        except GeartrainError as error:
            reason = self._reason(step.model, step.version) or error.message
            raise PipelineError(f"{self.pipeline.describe(index)}: {reason}") from error

    def _is_loading(self, index: int) -> bool:
        """True if the model of a step is not ready yet."""
        try:
            return self._deployment(index).workers.health is not Health.READY
        except GeartrainError:
            return True

    def _reason(self, model: str, version: str) -> str:
        """Return the reason for which a model could not be loaded, "" for none."""
        catalogue = self._catalogue
        if model not in catalogue.names():
            return f"there is no model {model!r}; put it into the same folder"
        lines = catalogue.entry(model).entries(ready=False)
        reasons = [line.reason for line in lines if line.reason and version in {"", line.version}]
        return f"the model could not be loaded: {reasons[0]}" if reasons else ""

    def _wire(self) -> WorkerInfo:
        """Plan the runs anew, with the models as they are now; raise `PipelineError`."""
        found = [self._deployment(index).interface for index in range(len(self.pipeline.steps))]
        plan = make_plan(self.pipeline, [each.signature for each in found])
        self._wiring = Wiring.of(self.pipeline, plan, found)
        return WorkerInfo(plan.signature, self._slots, is_async=True, has_healthcheck=True, platform=PLATFORM)

    def _deployment(self, index: int) -> Deployment:
        """Return the deployment of a step; raise `GeartrainError`."""
        step = self.pipeline.steps[index]
        return self._catalogue.find(step.model, step.version)

    async def stop(self, grace: float) -> None:
        """End the runs."""
        for run in tuple(self._runs.values()):
            run.stop(CANCELED)
        if self._runs and grace:
            await asyncio.sleep(0)
        for run in tuple(self._runs.values()):
            run.give_up()
        self._files.close()

    def kill(self, reason: str) -> None:
        """Fail the setup, or end the canceled runs that wait for their steps."""
        if self._wiring is None:
            self._killed = reason
        for run in tuple(self._runs.values()):
            run.give_up()

    # its models

    def find_fault(self) -> str:
        """Return the reason for which its runs fail now: a model that is not ready; "" if all are."""
        for index in range(len(self.pipeline.steps)):
            try:
                self._deployment(index).workers.check_ready()
            except ModelAsleepError:
                continue
            except GeartrainError as error:
                return f"{self.pipeline.describe(index)}: {error.message}"
        return ""

    def on_model_ready(self, model: str) -> None:
        """Take over the inputs and outputs of a model that has been loaded anew."""
        if self._wiring is None or model not in self.pipeline.models:
            return
        try:
            self.on_change(self._wire())
        except (GeartrainError, PipelineError):
            return  # its runs say so, and so does its health

    async def healthcheck(self) -> HealthVerdict:
        """Return the health of its models."""
        fault = self.find_fault()
        return HealthVerdict(not fault, f"Healthcheck failed: {fault}" if fault else None)

    # its runs

    def run(self, slot: int, call: CallInput, listener: CallListener) -> None:
        """Begin a run."""
        if self._wiring is None:
            msg = "a pipeline runs before it is set up"
            raise RuntimeError(msg)
        run = PipelineRun(
            self._wiring,
            call,
            listener,
            find=self._deployment,
            keep=self._files.keep,
            on_over=lambda: self._forget(slot),
        )
        self._runs[slot] = run
        run.begin()

    def _forget(self, slot: int) -> None:
        self._runs.pop(slot, None)

    def cancel(self, slot: int, call_id: str) -> None:
        """Cancel the steps of a run."""
        run = self._runs.get(slot)
        if run is not None and run.call_id == call_id:
            run.stop(CANCELED)

    def discard(self, files: Sequence[FileRef]) -> None:
        """Release the files of an output."""
        self._files.discard(files)


class KeptFiles:
    """The files in the outputs of a pipeline, each in a folder of its own until it has been read."""

    def __init__(self) -> None:
        self._root: Path | None = None

    def keep(self, output: Buffer, paths: Collection[str]) -> tuple[Buffer, tuple[FileRef, ...]]:
        """Take over the files that an output names by their paths, and return it with their tokens instead."""
        import mimetypes  # late: few pipelines give files

        text, found = bytes(output), list[FileRef]()
        for path in paths:
            written = msgspec.json.encode(path)
            if written not in text:
                continue
            # As long as the path: in a packed output nothing may move.
            token = uuid.uuid4().hex.ljust(len(written) - 2, "-")[: len(written) - 2]
            target = Path(tempfile.mkdtemp(dir=self._folder())) / Path(path).name
            Path(path).rename(target)
            found.append(FileRef(token, str(target), mimetypes.guess_type(path)[0] or _BYTES))
            text = text.replace(written, b'"%b"' % token.encode())
        return text, tuple(found)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Remove files: they have been read, or are not needed."""
        for file in files:
            shutil.rmtree(Path(file.filename).parent, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _folder(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="geartrain-"))
        return self._root


class Pipelines:
    """The pipelines of a server."""

    def __init__(self) -> None:
        self._workers: weakref.WeakSet[PipelineWorker] = weakref.WeakSet()
        self._catalogue: Catalogue | None = None

    def connect(self, catalogue: Catalogue) -> None:
        """Have the steps of pipelines find their models in a catalogue, which is made after this."""
        self._catalogue = catalogue

    def spawn(self, pipeline: Pipeline, observer: WorkerObserver, *, slots: int) -> PipelineWorker:
        """Make the worker of a pipeline, which follows the changes of its models from now on."""
        if self._catalogue is None:
            msg = "a pipeline is made before there is a catalogue"
            raise RuntimeError(msg)
        worker = PipelineWorker(pipeline, observer, catalogue=self._catalogue, slots=slots)
        self._workers.add(worker)
        return worker

    def on_model_ready(self, model: str) -> None:
        """Tell the pipelines that a model has been loaded, perhaps anew."""
        for worker in tuple(self._workers):
            worker.on_model_ready(model)
