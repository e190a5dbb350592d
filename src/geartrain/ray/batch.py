"""`geartrain batch --ray`: a data set by parts, which Ray Data spreads over a cluster.

Tasks of Ray read the parts, actors run and write them. Ray starts the actors, moves parts between machines, and runs
again what a lost machine had.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import ray
import ray.data

from geartrain.dataset.compare import Agreement
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.job import settings_of
from geartrain.dataset.locks import locked
from geartrain.dataset.manifest import Manifest, Origin, check_same, decode_manifest
from geartrain.dataset.results import Tally
from geartrain.dataset.shares import Share
from geartrain.dataset.sinks import first_types
from geartrain.dataset.sources import Format, Objects, Source
from geartrain.ray.parts import (
    Folder,
    PartEnd,
    Shelf,
    is_of_share,
    open_files,
    parts_among,
    read_parts,
    table_of,
    values_of,
)
from geartrain.ray.rows import PartOptions, PartWorker, RowOptions

_OURS: Final = re.compile(r"^(?:.* )?geartrain\.[\w.]+Error: (.+)$", re.MULTILINE)
_ANY: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", re.MULTILINE)
_LINES: Final = frozenset({".jsonl", ".ndjson", ".json"})
_READING: Final = 0.5  # CPUs of a task that reads; another number than that of actors, or Ray would read in these


class View(NamedTuple):
    """Display of a run. `begin`: the rows begin; `step`: some are written; `warn`: a sentence for a person."""

    begin: Callable[[Tally], object]
    step: Callable[[Tally], object]
    warn: Callable[[str], object]


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `geartrain batch --ray`. `source` and `output` are places that every node reaches.

    `model`: the digest of the model, empty where it is elsewhere. `max_errors`: rows that may fail, None for any
    number.
    """

    source: str
    form: Format | None
    output: str
    rows: RowOptions
    model: str = ""
    share: Share | None = None
    resume: bool = False
    resume_changed: bool = False
    overwrite: bool = False
    part_rows: int = 1024
    max_errors: int | None = None
    replicas: int = 1

    @property
    def is_lines(self) -> bool:
        """True for parts of JSON lines."""
        return Path(self.output).suffix.lower() in _LINES


def run(options: BatchOptions, view: View) -> tuple[Tally, Agreement | None]:
    """Run a data set on the cluster of RAY_ADDRESS, or one of this machine; return the account.

    Raises `DatasetError`, also for whatever ends it on another machine.
    """
    try:
        whole, files = open_files(options.source, options.form)
        output = _Output(options)
        with output.held():
            manifest = output.begin(_origin(options, whole))
            if not options.is_lines and options.rows.kept and whole.schema() is None and not manifest.types:
                manifest.types = first_types(whole, options.rows.kept)
            output.keep(manifest)
            with _cluster():
                account = _Run(options, output, manifest.types).run(whole, files, view)
            output.end(manifest)
            return account
    except (ray.exceptions.RayError, ConnectionError, pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(sentence_of(error)) from error


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    is_started = not ray.is_initialized()
    ray.init(ignore_reinit_error=True)
    try:
        yield
    finally:
        if is_started:
            ray.shutdown()


def _origin(options: BatchOptions, whole: Source) -> Origin:
    rows = options.rows
    compared = {} if rows.other is None else {"metric": rows.metric, "tolerance": rows.tolerance}
    shared = {} if options.share is None else {"part": str(options.share)}
    settings = settings_of(
        dict(rows.mapped),
        dict(rows.kept),
        errors=rows.errors,
        **{"part-rows": options.part_rows, "ray": True, "compare": rows.other is not None},
        **compared,
        **shared,
    )
    return Origin(whole.fingerprint(), options.model, settings)


class _Output:
    """The folder of a run, and its parts that are written."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._folder = Folder(options.output)
        self.place = options.output if self._folder.path is None else str(self._folder.path)  # for all nodes
        share = options.share
        self._manifest = "_progress.json" if share is None else f"_progress-{share.name}.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs from writing the same parts, in a folder of this machine."""
        path, share = self._folder.path, self._options.share
        with contextlib.ExitStack() as stack:
            if path is not None:
                stack.enter_context(locked(path / "_lock", output=path, is_shared=share is not None))
                if share is not None:
                    stack.enter_context(locked(path / f"_lock-{share.name}", output=path))
            yield

    def begin(self, origin: Origin) -> Manifest:
        """Return the manifest to go on with, or a new one. Raises `DatasetError`."""
        options, place, new = self._options, self._options.output, Manifest(origin)
        content = self._folder.read(self._manifest)
        found = None if content is None else decode_manifest(content, f"{place}/{self._manifest}")
        if options.resume or options.resume_changed:
            if found is None:
                if self._own():
                    raise DatasetError(
                        f"{place} is complete, or was not begun by geartrain batch: nothing to go on with"
                    )
                return new
            if not options.resume_changed:
                check_same(found, origin, path=place)
            return found
        if options.overwrite:
            self._folder.delete([*self._own(), self._manifest])
        elif found is not None and not found.is_whole:
            raise DatasetError(f"{place} was begun and not ended; go on with --resume, or begin anew with --overwrite")
        elif found is not None or self._own():
            raise DatasetError(f"{place} is there already; write it anew with --overwrite")
        return new

    def parts(self) -> dict[str, tuple[int, int]]:
        """Return its parts that are written, with the numbers of their files and their own; those of its share."""
        found = parts_among(self._folder.names())
        return {name: place for name, place in found.items() if is_of_share(self._options.share, *place)}

    def _own(self) -> list[str]:
        """Return the names of its files: of a whole output all but locks, of a share its parts."""
        if self._options.share is not None:
            return [*self.parts()]
        return [each for each in self._folder.names() if not each.startswith("_lock")]

    def keep(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self._folder.write(self._manifest, msgspec.json.encode(manifest))

    def end(self, manifest: Manifest) -> None:
        """Let go of the manifest of a whole output, and of what killed actors have left. That of a share stays."""
        if self._options.share is None:
            names = self._folder.names()
            self._folder.delete([self._manifest, *(each for each in names if each.startswith("_part-"))])
        else:
            manifest.is_whole = True
            self.keep(manifest)


class _Run:
    """One run of a data set on a cluster."""

    def __init__(self, options: BatchOptions, output: _Output, types: Mapping[str, str]) -> None:
        self._options = options
        self._output = output
        self._types = types

    def run(self, whole: Source, files: Sequence[Source], view: View) -> tuple[Tally, Agreement | None]:
        """Run all parts that are not written; return the account."""
        options = self._options
        processors = ray.cluster_resources().get("CPU", 0)
        if options.replicas >= processors:
            view.warn(
                f"the cluster has {processors:.0f} CPUs, and each of {options.replicas} actors takes one, so that none "
                "is left to read the rows; write fewer --replicas, unless more nodes join"
            )
        done: dict[int, set[int]] = {}
        for file, number in self._output.parts().values():
            done.setdefault(file, set()).add(number)
        shelves = []
        first = 0
        for file, (source, count) in enumerate(zip(files, _counted(files), strict=True)):
            shelves.append(Shelf(source, file, first, options.part_rows, frozenset(done.get(file, ())), options.share))
            first += count
        tally = Tally(total=None if done or options.share is not None else whole.count)
        agreement = None if options.rows.other is None else Agreement()
        view.begin(tally)
        for end in self._ends(shelves, whole):
            tally.merge(end.tally)
            if agreement is not None and end.agreement is not None:
                agreement.merge(end.agreement)
            view.step(tally)
            if options.max_errors is not None and tally.errors > options.max_errors:
                raise DatasetError(f"more than {options.max_errors} rows have failed: {next(iter(tally.faults))}")
        return tally, agreement

    def _ends(self, shelves: list[Shelf], whole: Source) -> Iterator[PartEnd]:
        options = self._options
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # byte: a block for each part, or few actors would have all of them
        parts = PartOptions(
            source=Described(whole), output=self._output.place, is_lines=options.is_lines, types=self._types
        )
        dataset = ray.data.from_arrow([table_of(each) for each in shelves])
        dataset = dataset.map_batches(read_parts, batch_size=1, batch_format="pyarrow", num_cpus=_READING)
        dataset = dataset.map_batches(
            PartWorker,
            fn_constructor_args=(options.rows, parts),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=options.replicas),
            num_cpus=1.0,
            **({"num_gpus": options.rows.gpus} if options.rows.gpus else {}),
        )
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from values_of(batch)


def _counted(files: Sequence[Source]) -> list[int]:
    """Return the rows of each file, which say the numbers of those of the next. Those of the last are not needed."""
    unknown = [each for each in files[:-1] if each.count is None]
    count = ray.remote(num_cpus=_READING)(lambda source: source.counted())
    for source, rows in zip(unknown, ray.get([count.remote(each) for each in unknown]), strict=True):
        source.count = rows
    return [each.count or 0 for each in files]


class Described(Objects):
    """The columns of a data set, without its rows."""

    def __init__(self, source: Source) -> None:
        super().__init__(())
        self.base, self.columns = source.base, source.columns
        self.is_text, self.is_files = source.is_text, source.is_files
        self._schema = source.schema()

    def schema(self) -> pa.Schema | None:
        """Return the types of the columns."""
        return self._schema


def sentence_of(error: BaseException) -> str:
    """Return the sentence of the error of ours that has ended a run, or else the end of what Ray says.

    Of an error in an actor, Ray keeps the text of the traceback.
    """
    ours = _OURS.findall(str(error))
    if ours:
        return str(ours[-1])
    others = _ANY.findall(str(error))
    if others:
        return f"Ray: {others[-1]}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"Ray: {lines[-1].strip() if lines else type(error).__name__}"
