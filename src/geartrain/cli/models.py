"""The options of `geartrain serve` about models: which, how many workers, and when they are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Annotated, Final

from geartrain.cli.declared import Argument, Option, unusable
from geartrain.cli.options import MODELS, PREDICTIONS, parse_duration, parse_size
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import check_watchable, find_served
from geartrain.project.setting_values import Devices, read_devices
from geartrain.project.source import Mode, ModelSource
from geartrain.project.variables import Variables, resolve

if TYPE_CHECKING:
    from geartrain.service.models.residency import ResidencyPolicy

DEFAULT_INFERENCE_QUEUE: Final = 1024  # requests
NONE: Final = "none"
ON_DEMAND: Final = "on-demand"


def parse_devices(text: str | Devices) -> Devices:
    """Read `auto`, `cpu`, or names of devices with commas between them."""
    if isinstance(text, Devices):
        return text
    try:
        return read_devices(text)
    except ValueError:
        raise unusable(f"{text!r} is no device; write auto, cpu, or names such as cuda:0,cuda:1") from None


Target = Annotated[
    str | None,
    Argument(
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx; or a folder of models. The current folder by default.",
    ),
]
ServedTarget = Annotated[
    str | None,
    Argument(
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx; a folder of models; or a model elsewhere, such as s3://bucket/model, hf://org/name or an https:// "
        "URL. The current folder by default.",
    ),
]
ModelName = Annotated[
    str,
    Option(
        metavar="NAME",
        show_default=False,
        help="The name of a model that is served alone; by default that of its folder or file.",
        rich_help_panel=MODELS,
    ),
]
DefaultModel = Annotated[
    str | None,
    Option(metavar="NAME", help="Of several models, the one whose Cog API is at the root.", rich_help_panel=MODELS),
]
Load = Annotated[
    str,
    Option(
        metavar="all|none|on-demand|NAME,…",
        help="Of several models, those to load at the start; on-demand: each when a request needs it.",
        rich_help_panel=MODELS,
    ),
]
Replicas = Annotated[
    int,
    Option(
        min=1,
        metavar="N",
        help="Equal workers of each model that does not set its own number.",
        rich_help_panel=MODELS,
    ),
]
DeviceNames = Annotated[
    Devices | None,
    Option(
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
    Option(
        min=0,
        metavar="N",
        help="How many requests of the Open Inference Protocol may wait for a slot of a model.",
        rich_help_panel=PREDICTIONS,
    ),
]
IdleUnload = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="Unload a model that has had no work for so long; the next request loads it again. Off by default.",
        rich_help_panel=MODELS,
    ),
]
MaxMemory = Annotated[
    int,
    Option(
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="The memory of all workers together, beyond which models without work are unloaded, the least recently "
        "used first; the next request loads them again. Off by default.",
        rich_help_panel=MODELS,
    ),
]
Reload = Annotated[
    bool,
    Option(
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
    name: str = "",
    load: str = "all",
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return the model or the folder of models to serve; raise ProjectError.

    `name` is that of a single model. The folder may be empty if `load` says that models are loaded later.
    """
    if mode == "train" and reload:
        raise ProjectError("--reload does not go with --x-mode train: a training must not change while it runs")
    if reload:
        check_watchable(target)
    may_be_empty = load in {NONE, ON_DEMAND}
    return find_served(target, mode, no_pickle=no_pickle, name=name, may_be_empty=may_be_empty, environ=environ)


def read_load(text: str, source: ModelSource | Repository) -> frozenset[str] | None:
    """Return the models that `--load` names, None for all of them; raises ProjectError for one that is not there."""
    if text == "all":
        return None
    if text == ON_DEMAND:
        if not isinstance(source, Repository):
            raise ProjectError(f"--load {ON_DEMAND} is for a folder of models; --idle-unload is for one model, too")
        return frozenset()
    wanted = frozenset() if text == NONE else frozenset(filter(None, map(str.strip, text.split(","))))
    for name in sorted(wanted):
        check_name("--load", name, source)
    return wanted


def check_name(option: str, name: str | None, source: ModelSource | Repository) -> None:
    """Raise ProjectError when an option names a model that is not there."""
    there = source.names() if isinstance(source, Repository) else [source.name]
    if name is not None and name not in there:
        raise ProjectError(f"{option}: there is no model {name!r}; there are {', '.join(there) or 'none yet'}")


def variables_of(source: ModelSource | Repository) -> tuple[Variables, tuple[str, ...]]:
    """Return the variables of the server as a whole, and the warnings about ignored ones.

    With several models only the environment counts: the files of one model decide nothing for the others.
    """
    return resolve(os.environ) if isinstance(source, Repository) else (source.variables, source.warnings)


def residency(load: str, idle_unload: float, max_memory: int) -> ResidencyPolicy:
    """Return which models stay loaded; 0 is no limit. Raises ProjectError where memory cannot be measured."""
    from geartrain.bridge.memory_use import is_measurable
    from geartrain.service.models.residency import ResidencyPolicy

    if max_memory and not is_measurable():
        raise ProjectError("--max-memory needs /proc, which this system does not have; leave it out")
    return ResidencyPolicy(idle=idle_unload or inf, max_memory=max_memory or inf, on_demand=load == ON_DEMAND)
