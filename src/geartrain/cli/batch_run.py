"""One run of `geartrain batch`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import uvloop

from geartrain.cli import logs
from geartrain.cli.batch_view import Account, BatchView, print_rows
from geartrain.cli.failure import FAILURE, INTERRUPTED, NO_READER, complain, silence_stdout, warn
from geartrain.cli.fetching import LocalModels
from geartrain.client.errors import ClientError
from geartrain.dataset.columns import Columns, read_pairs
from geartrain.dataset.compare import PairRuns, find_metric
from geartrain.dataset.engine import Engine, RowSource
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.job import ModelOptions, kept_types, running, settings_of
from geartrain.dataset.manifest import Origin
from geartrain.dataset.results import Tally
from geartrain.dataset.runs import LocalRuns, RemoteRuns, Runs
from geartrain.dataset.shares import Share, Shared, read_share
from geartrain.dataset.sinks import PART_ROWS, Held, Place, Sink, first_types, open_sink, writing
from geartrain.dataset.sources import Format, Source, open_source
from geartrain.domain.errors import GeartrainError
from geartrain.domain.remote.reference import is_remote, read_reference
from geartrain.project.digest import Digests
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Devices
from geartrain.server.memory import tune_collector

_TRIED: Final = 10  # rows of a dry run
_NOT_WRITTEN: Final = frozenset(  # endings of files, not of folders
    {".csv", ".tsv", ".txt", ".xlsx", ".arrow", ".feather", ".ipc", ".gz", ".zst", ".bz2", ".xz"}
)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of the command, by the names of its options."""

    model: str
    other: str | None  # to compare with
    metric: str
    tolerance: float
    source: str
    output: str
    mapped: Sequence[str]
    keep: Sequence[str]
    form: Format | None
    part: str | None
    errors: Literal["column", "skip", "fail"]
    max_errors: int | None
    resume: bool
    resume_changed: bool
    overwrite: bool
    part_rows: int | None
    dry_run: bool
    report: Path | None
    replicas: int | None
    devices: Devices | None
    window: int
    target: str | None
    run_timeout: float | None
    setup_timeout: float | None
    no_pickle: bool
    key: str | None
    verify: bool | str
    local: LocalModels
    log_level: str | None


def run(asked: Asked) -> int:
    """Run it; return the exit code. What is wrong is said on stderr."""
    logs.configure(asked.log_level or "", None, default="warning")
    view = BatchView()
    try:
        share = None if asked.part is None else read_share(asked.part, os.environ)
        source = open_source(_here(asked.source, asked.local), asked.form)
        return uvloop.run(_run(asked, DataSet(source, share), view))
    except (ClientError, DatasetError, GeartrainError, ProjectError) as error:
        view.close()
        complain(str(error))
    except BrokenPipeError:
        view.close()
        silence_stdout()
        return NO_READER
    finally:
        view.close()
    return FAILURE


def _here(name: str, local: LocalModels) -> str:
    """Return the place of a data set on this machine, fetched if it lies elsewhere."""
    if not is_remote(name):
        return name
    try:
        reference = read_reference(name)
    except ValueError as error:
        raise DatasetError(str(error)) from None
    place = local.model(reference)
    files = [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
    return str(files[0] if len(files) == 1 else place)


class DataSet:
    """The data set of a run, and the rows of it that are this run's own."""

    def __init__(self, whole: Source, share: Share | None) -> None:
        """`share` None: all rows. Blocks. Raises `DatasetError`."""
        self.whole = whole
        self.share = share
        self.own = whole if share is None else Shared(whole, share)
        self.settings = {} if share is None else {"part": str(share)}


async def _run(asked: Asked, data: DataSet, view: BatchView) -> int:
    source = data.own
    mapped, kept = read_pairs(asked.mapped, "--map"), read_pairs(asked.keep, "--keep")
    async with _output(asked, data, kept) as place, _runs(asked, view) as (runs, digest):
        columns = Columns(runs.signature, source, mapped=mapped, kept=kept)
        origin = Origin(
            await asyncio.to_thread(source.fingerprint),
            digest,
            settings_of(mapped, kept, errors=asked.errors, **{"part-rows": _part_rows(asked)}, **data.settings),
        )
        sink = await asyncio.to_thread(_sink, place, runs, data, origin=origin, kept=kept)
        tally = Tally(
            total=min(source.count, _TRIED) if asked.dry_run and source.count is not None else source.count,
            skipped=max(0, sink.done - source.first),
        )
        engine = Engine(
            RowSource(source, columns),
            runs,
            sink,
            tally=tally,
            max_errors=asked.max_errors,
            most_rows=_TRIED if asked.dry_run else None,
            on_step=functools.partial(view.show, tally),
        )
        tune_collector()
        view.begin(tally, runs.batch_sizes)
        with _interrupts(engine, view):
            is_whole = await engine.run()
        view.close()
        if isinstance(sink, Held):
            print_rows(sink.results)
        more = runs.agreement.lines() if isinstance(runs, PairRuns) else []
        account = Account(
            tally, runs.batch_sizes(), more, busy=runs.busy(tally.run_time, tally.seconds), is_whole=is_whole
        )
        view.summarize(account, to=asked.output, report=asked.report)
    if is_whole:
        return 0
    if asked.output != "-":
        warn("the run was ended before its end; go on with --resume")
    return INTERRUPTED


@contextlib.asynccontextmanager
async def _runs(asked: Asked, view: BatchView) -> AsyncIterator[tuple[Runs, str]]:
    """Give the runs of rows, and the digest of the model; of two, where they are compared."""
    async with contextlib.AsyncExitStack() as stack:
        runs, digest = await stack.enter_async_context(_runs_of(asked, asked.model, view))
        if asked.other is not None:
            metric = find_metric(asked.metric, asked.tolerance)
            second, other_digest = await stack.enter_async_context(_runs_of(asked, asked.other, view))
            runs, digest = PairRuns(runs, second, metric), f"{digest}{other_digest}"
        yield runs, digest


@contextlib.asynccontextmanager
async def _runs_of(asked: Asked, model: str, view: BatchView) -> AsyncIterator[tuple[Runs, str]]:
    """Give the runs of rows by one model, here or at a server, and its digest."""
    if asked.target is not None:
        from geartrain.client.async_client import AsyncClient  # late: it imports httpx

        async with AsyncClient(asked.target, key=asked.key, verify=asked.verify) as client:
            served = client.model(None if model in {"", "."} else model)
            yield RemoteRuns(served, await served.signature(), window=asked.window or 64), ""
        return
    source = asked.local.find(model, no_pickle=asked.no_pickle)
    for sentence in (*source.warnings, *source.remarks):
        warn(sentence)
    digest = await asyncio.to_thread(Digests().of_folder, source.root)
    options = ModelOptions(
        source=msgspec.structs.replace(source, examples=()),
        replicas=asked.replicas,
        devices=asked.devices,
        setup_timeout=asked.setup_timeout,
        run_timeout=asked.run_timeout,
        on_progress=view.on_progress,
    )
    view.setting_up(source.name)
    async with running(options) as deployment:
        yield LocalRuns(deployment, window=asked.window), digest


@contextlib.asynccontextmanager
async def _output(asked: Asked, data: DataSet, kept: dict[str, str]) -> AsyncIterator[Place | None]:
    """Give the destination, which no other process writes meanwhile; None for a dry run."""
    if asked.dry_run:
        yield None
        return
    if "://" in asked.output:
        raise DatasetError(
            f"-o {asked.output}: without --ray the output is a file or a folder of this machine; write it here and "
            "copy it there, or give --ray"
        )
    check_ending(asked.output)
    place = Place(
        asked.output,
        resume=asked.resume,
        resume_changed=asked.resume_changed,
        overwrite=asked.overwrite,
        errors=asked.errors,
        part_rows=_part_rows(asked),
        share=data.share,
    )
    if place.path == "-":
        yield place
        return
    with writing(place):
        if data.share is not None and kept and not place.is_lines and data.whole.schema() is None:
            types = await asyncio.to_thread(first_types, data.whole, kept)
            place = msgspec.structs.replace(place, types=types)
        yield place


def _part_rows(asked: Asked) -> int:
    """Return the rows of a part of Parquet."""
    return asked.part_rows or PART_ROWS


def check_ending(output: str) -> None:
    """Raise `DatasetError` for an output whose name says a format that is not written."""
    ending = Path(output).suffix.lower()
    if ending in _NOT_WRITTEN:
        raise DatasetError(
            f"-o {output}: {ending} is not written; write FILE.jsonl for JSON lines, or a folder for Parquet"
        )


def _sink(place: Place | None, runs: Runs, data: DataSet, *, origin: Origin, kept: dict[str, str]) -> Sink:
    if place is None:
        return Held()
    return open_sink(place, runs.signature, origin, kept=kept_types(data.whole, kept))


@contextlib.contextmanager
def _interrupts(engine: Engine, view: BatchView) -> Iterator[None]:
    """Have the first signal end the run after the rows that run, and the next one at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    seen: list[Any] = []

    def on_signal() -> None:
        if seen and task is not None:
            task.cancel()
        seen.append(None)
        view.stopping()
        engine.stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        sys.stdout.flush()
