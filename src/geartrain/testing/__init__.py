"""Tests of models: a model in the test's own process, and a real server of it.

`call` and `runner` run the author's code where the test runs, so a debugger, a patched module and the traceback of an
error are what a test expects. Inputs and outputs are checked by the code that a worker and its server use. `serve`
starts `geartrain serve` as a process of its own. See docs/testing.md.

A model that imports `cog` gets this package in its place from here on, as in a worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from geartrain.testing.errors import CanceledError, InvalidInputError, OutputError, RequestFailedError, ServerError
from geartrain.worker.loading import cog_alias

if TYPE_CHECKING:
    from collections.abc import Callable

    from geartrain.testing.runs import Run
    from geartrain.testing.server import Server

__all__ = [
    "CanceledError",
    "InvalidInputError",
    "OutputError",
    "RequestFailedError",
    "ServerError",
    "call",
    "runner",
    "serve",
]

cog_alias.install()


def call(
    model: str | os.PathLike[str] | Callable[..., Any],
    /,
    *,
    models: Mapping[str, Callable[..., Any]] | None = None,
    **inputs: Any,
) -> Any:
    """Set up a model, run it once with these inputs, and return what `run()` has returned.

    `model` is a class or a function, or what `geartrain run` takes: a folder, `path/to/run.py:Runner`, a model file.
    Inputs are checked and converted as a server does it, and defaults filled in; a file may be given as a
    `pathlib.Path`, as bytes or as a URL. A model that yields gives a list. The output is checked as a server does it.

    `models` are functions in place of the other models that it calls, by their names: they get the inputs and return
    the output. An exception of such a function is the `ModelError` of the call.

    Raises `InvalidInputError` for inputs that a server would refuse, `OutputError` for an output that is not as
    annotated, and whatever `setup()` and `run()` raise. `LoadError` and `ProjectError` say what is wrong with a model.
    """
    with runner(model, models=models) as run:
        return run(**inputs)


def runner(
    model: str | os.PathLike[str] | Callable[..., Any],
    /,
    *,
    mode: Literal["predict", "train"] = "predict",
    weights: str | None = None,
    context: Mapping[str, str] | None = None,
    parameters: Mapping[str, str | int | float | bool] | None = None,
    models: Mapping[str, Callable[..., Any]] | None = None,
) -> AbstractContextManager[Run]:
    """Set up a model for several runs.

    The `with` block has a `Run`: `with runner(Shout) as run`, and then `run(text="a")`, as often as you like. `setup()`
    runs once, with `weights` where it takes them. `mode` "train" is for a training. `context` and `parameters` are what
    `current_scope()` has of them. `model`, `models` and the errors as of `call`.
    """
    from geartrain.testing.runs import open_run  # late: it imports what a worker does

    return open_run(model, mode=mode, weights=weights, context=context, parameters=parameters, models=models)


def serve(
    model: str | os.PathLike[str] | Callable[..., Any],
    /,
    *,
    env: Mapping[str, str] | None = None,
    ready_within: float = 60.0,
    **options: Any,
) -> AbstractContextManager[Server]:
    """Serve a model, or a folder of models, in a process of its own.

    The `with` block has a `Server`, whose `url` is on a free port of 127.0.0.1; it begins when all models are ready.
    `options` are those of `geartrain serve`: `queue=4` is `--queue 4`, `reload=True` is `--reload`, a list repeats its
    option. `env` is added to the environment. Raises `ServerError`, with the log, if the server ends or is not ready
    within `ready_within` seconds.
    """
    from geartrain.testing.server import run_server  # late: `call` needs none of it

    return run_server(model, env=env or {}, ready_within=ready_within, options=options)
