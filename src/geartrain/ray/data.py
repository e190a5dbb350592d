"""Models over data sets on Ray Data: `map_batches`, and what `geartrain batch --ray` runs.

Ray reads and writes, moves rows between machines, and runs again what a machine has lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import ray
import ray.data
from ray.data import Dataset, SaveMode

from geartrain.dataset.columns import read_pairs
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.sinks import Errors
from geartrain.dataset.sources import SUFFIXES
from geartrain.ray.options import absolute, read_scale
from geartrain.ray.rows import FILE, RowOptions, RowWorker

_OURS: Final = re.compile(r"^(?:.* )?geartrain\.[\w.]+Error: (.+)$", re.MULTILINE)
_ROWS: Final = 1024  # of a batch of Ray's; an actor has four of them at once


class MapOptions(TypedDict, total=False):
    """Further options of `map_batches`; any other one is an option of `Dataset.map_batches`, such as `memory`.

    Attributes:
        num_cpus: that Ray reserves for each actor; 1 by default.
        num_gpus: likewise; none by default, and parts of one are possible.
        batch_size: rows that Ray gives to an actor at a time. They share the batches of the model.
        run_timeout: seconds that a run may take; no limit by default.
        setup_timeout: seconds that the setup may take; no limit by default.
        no_pickle: refuse model files that can run code when they are loaded.
    """

    num_cpus: float
    num_gpus: float
    batch_size: int
    run_timeout: float | None
    setup_timeout: float | None
    no_pickle: bool


def map_batches(
    dataset: Dataset,
    model: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    keep: Iterable[str] | Mapping[str, str] = (),
    errors: Errors = "column",
    replicas: int | str = 1,
    **options: Unpack[MapOptions],
) -> Dataset:
    """Run a model over the rows of a data set of Ray Data; return a data set with `output` and `error`.

    `model` is what `geartrain run` takes, as each node has it, or a reference to one elsewhere. `columns` has the
    columns of inputs with another name; `keep` are those that pass through, by new names if it is a mapping. `errors`:
    a row that fails has its `error` (`column`), is left out (`skip`), or ends the run (`fail`). `replicas`: the actors,
    each with one worker of the model, or `MIN:MAX`. For `options` see `MapOptions`.

    Nothing runs before the rows are taken. Raises `DatasetError` and `ProjectError` for options that are wrong.
    """
    if errors not in {"column", "skip", "fail"}:
        raise DatasetError(f"errors {errors!r}: write column, skip or fail")
    of_rows = RowOptions(
        model=absolute(model),
        mapped=dict(columns or {}),
        kept=dict(keep) if isinstance(keep, Mapping) else read_pairs(tuple(keep), "keep"),
        columns=_known_columns(dataset),
        errors=errors,
        gpus=options.get("num_gpus", 0.0),
        run_timeout=options.pop("run_timeout", None),
        setup_timeout=options.pop("setup_timeout", None),
        no_pickle=options.pop("no_pickle", False),
    )
    return _mapped(dataset, of_rows, replicas, **options)


def _mapped(dataset: Dataset, options: RowOptions, replicas: int | str, **ray_options: Any) -> Dataset:
    scale = read_scale(replicas)
    given = {"num_cpus": 1.0, "batch_size": _ROWS, **ray_options}
    return dataset.map_batches(
        RowWorker,
        fn_constructor_args=(options,),
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=scale.least, max_size=scale.most),
        **{name: value for name, value in given.items() if value or name != "num_gpus"},
    )


def _known_columns(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the names of the columns where they are known without reading rows, as of Parquet."""
    schema = dataset.schema(fetch_if_missing=False)
    return None if schema is None else tuple(schema.names)


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `geartrain batch --ray`. `source` and `output` are places that every node reaches."""

    source: str
    form: str | None
    output: str
    is_overwritten: bool
    rows: RowOptions
    replicas: int = 1


def run(options: BatchOptions, warn: Callable[[str], object]) -> None:
    """Run a data set on the cluster of RAY_ADDRESS, or one of this machine.

    Raises `DatasetError`, also for whatever ends it on another machine.
    """
    write = _writer(options)
    try:
        is_started = not ray.is_initialized()
        ray.init(ignore_reinit_error=True)
        try:
            processors = ray.cluster_resources().get("CPU", 0)
            if options.replicas >= processors:
                warn(
                    f"the cluster has {processors:.0f} CPUs, and each of {options.replicas} actors takes one, so that "
                    "none is left to read the rows; write fewer --replicas, unless more nodes join"
                )
            dataset, rows = _read(options)
            write(_mapped(dataset, rows, options.replicas, num_gpus=rows.gpus))
        finally:
            if is_started:
                ray.shutdown()
    except (ray.exceptions.RayError, ConnectionError, pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(_sentence(error)) from error


def _read(options: BatchOptions) -> tuple[Dataset, RowOptions]:
    form, place = options.form or _format_of(options.source), _place(options.source)
    if form == "files":
        dataset = ray.data.read_binary_files(place, include_paths=True).rename_columns({"bytes": FILE})
        return dataset, msgspec.structs.replace(options.rows, is_files=True)
    delimiter = {"parse_options": pa_csv.ParseOptions(delimiter="\t")} if form == "tsv" else {}
    read: dict[str, Callable[[str], Dataset]] = {
        "jsonl": lambda path: ray.data.read_json(path, lines=True, file_extensions=None),
        "csv": ray.data.read_csv,
        "tsv": lambda path: ray.data.read_csv(path, **delimiter),
        "parquet": ray.data.read_parquet,
    }
    if form not in read:
        raise DatasetError(f"Ray has no reader for {form}; give it one of {', '.join(read)} or files")
    dataset = read[form](place)
    return dataset, msgspec.structs.replace(options.rows, columns=_known_columns(dataset))


def _format_of(source: str) -> str:
    """Return the format of a file, or of the files in a folder of this machine, by their ending."""
    path = Path(source).expanduser()
    names = (
        {each.suffix.lower() for each in path.rglob("*") if each.is_file()} if path.is_dir() else {path.suffix.lower()}
    )
    forms = {SUFFIXES.get(name) for name in names}
    found = forms.pop() if len(forms) == 1 else None
    if found is not None:
        return found
    if path.is_dir():
        return "files"
    raise DatasetError(
        f"{source}: Ray has readers for {', '.join(sorted(SUFFIXES))}; write the format of others with --format"
    )


def _writer(options: BatchOptions) -> Callable[[Dataset], None]:
    """Return a function that writes a data set into a folder of Parquet, or of JSON lines."""
    place = _place(options.output)
    is_here = "://" not in place
    if is_here and not options.is_overwritten and Path(place).exists():
        raise DatasetError(f"{options.output} is there already; write it anew with --overwrite")
    mode = SaveMode.OVERWRITE if options.is_overwritten else SaveMode.ERROR if not is_here else SaveMode.APPEND
    if Path(place).suffix.lower() in {".jsonl", ".ndjson", ".json"}:
        return lambda dataset: dataset.write_json(place, mode=mode)
    return lambda dataset: dataset.write_parquet(place, mode=mode)


def _place(name: str) -> str:
    return name if "://" in name else str(Path(name).expanduser().absolute())


def _sentence(error: BaseException) -> str:
    """Return the sentence of the error of ours that has ended a run, or else the end of what Ray says.

    Of an error in an actor, Ray keeps the text of the traceback.
    """
    ours = _OURS.findall(str(error))
    if ours:
        return str(ours[-1])
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"Ray: {lines[-1].strip() if lines else type(error).__name__}"
