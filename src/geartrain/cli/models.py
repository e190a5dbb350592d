"""The options of `geartrain serve` about models: which, how many workers, and when they are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from geartrain.cli.options import MODELS, PREDICTIONS
from geartrain.project.device_settings import Devices, read_devices
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import find_served
from geartrain.project.source import Mode, ModelSource
from geartrain.project.variables import Variables, resolve

DEFAULT_INFERENCE_QUEUE: Final = 1024  # requests


def parse_devices(text: str | Devices) -> Devices:
    """Read `auto`, `cpu`, or names of devices with commas between them."""
    if isinstance(text, Devices):
        return text
    try:
        return read_devices(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no device; write auto, cpu, or names such as cuda:0,cuda:1") from None


Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx; or a folder of models. The current folder by default.",
    ),
]
DefaultModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Of several models, the one whose Cog API is at the root.", rich_help_panel=MODELS
    ),
]
Load = Annotated[
    str,
    typer.Option(
        metavar="all|none|NAME,…", help="Of several models, those to load at the start.", rich_help_panel=MODELS
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Equal workers of each model that does not say itself how many.",
        rich_help_panel=MODELS,
    ),
]
DeviceNames = Annotated[
    Devices | None,
    typer.Option(
        parser=parse_devices,
        metavar="auto|cpu|NAME,…",
        help="The devices of each model that does not say itself: auto divides the GPUs that the server sees among the "
        "replicas of a model, cpu hides them, and names such as cuda:0,cuda:1 choose some. auto by default.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
InferenceQueue = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="How many requests of the Open Inference Protocol may wait for a slot of a model.",
        rich_help_panel=PREDICTIONS,
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="Reload a model when its code, settings or model file change, and follow the models of a folder as they "
        "come and go; for development.",
        rich_help_panel=MODELS,
    ),
]


def find_source(
    target: str | None,
    mode: Mode,
    *,
    reload: bool,
    no_pickle: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return what is to be served, a model or a folder of models; raises ProjectError."""
    if mode == "train" and reload:
        raise ProjectError("--reload does not go with --x-mode train: a training must not change while it runs")
    return find_served(target, mode, no_pickle=no_pickle, environ=environ)


def read_load(text: str, source: ModelSource | Repository) -> frozenset[str] | None:
    """Return the models that `--load` names, None for all of them; raises ProjectError for one that is not there."""
    if text == "all":
        return None
    wanted = frozenset() if text == "none" else frozenset(filter(None, map(str.strip, text.split(","))))
    for name in sorted(wanted):
        check_name("--load", name, source)
    return wanted


def check_name(option: str, name: str | None, source: ModelSource | Repository) -> None:
    """Raise ProjectError when an option names a model that is not there."""
    there = source.names() if isinstance(source, Repository) else [source.name]
    if name is not None and name not in there:
        raise ProjectError(f"{option}: there is no model {name!r}; there are {', '.join(there)}")


def variables_of(source: ModelSource | Repository) -> tuple[Variables, tuple[str, ...]]:
    """Return what the variables say to the server as a whole, and the warnings about those that were passed over.

    With several models only the environment counts: the files of one model decide nothing for the others.
    """
    return resolve(os.environ) if isinstance(source, Repository) else (source.variables, source.warnings)
