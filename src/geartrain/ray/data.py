"""Models over data sets of Ray Data: `map_batches`.

Ray reads and writes, moves rows between machines, and runs again what a machine has lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import ray.data

from geartrain.dataset.columns import read_pairs
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.sinks import Errors
from geartrain.ray.options import absolute, read_scale
from geartrain.ray.rows import RowOptions, RowWorker

if TYPE_CHECKING:
    from ray.data import Dataset

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
