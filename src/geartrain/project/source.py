"""Finding a model on disk: a folder with a `cog.yaml`, a bare `run.py`, a file and a class by name, or a model file."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.ledger import Retry
from geartrain.domain.predictions.priorities import NO_PRIORITIES, Priorities
from geartrain.domain.predictions.request_context import ForwardedFields
from geartrain.domain.signature.pipeline import Pipeline
from geartrain.domain.signature.types import NOTHING_DECLARED, USUAL_OPENAI, Declared, OpenAISettings
from geartrain.project import formats
from geartrain.project.config import CONFIG_NAME, USUAL_FILES, CogConfig, code_file, read_config
from geartrain.project.errors import ProjectError
from geartrain.project.modelfile import ModelFile, file_in, file_named, has_settings, settings_of
from geartrain.project.setting_values import Devices, Weights
from geartrain.project.settings import SETTINGS_NAME, TRITON_NAME, Settings
from geartrain.project.variables import (
    CONCURRENCY,
    PREDICT_STUB,
    TRAIN_STUB,
    FileLayer,
    Variables,
    effective_environment,
    resolve,
)

__all__ = ["ModelSource", "ProjectError", "find_model"]

Mode = Literal["predict", "train"]

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model's place and settings; its code has not been imported.

    `runner` and `train` are references for the worker's loader, relative to `root`: `run.py:Runner`, `run.py` or
    `package.module:name`. `variables` are the server's settings from the environment and the model's files;
    `environment` is the addition ofits files to the environment of its workers. `warnings` are sentences for the
    operator about ignored variables.

    In `mode` "train" the runner trains the model: its `train()` is called, once at a time.

    `replicas`, `queue`, `timeout`, `priorities`, `retry`, `batching`, `warmup`, `examples`, `openai`, `cache`,
    `devices`, `gpus_per_replica` and `cpus_per_replica` are those of its `geartrain.yaml`.

    A model that is a file has a `backend` that runs it, with `options`; `file` is its path, and `runner` the same
    relative to `root`. `declared`, `stated` and `remarks` are those of its settings, which the file `origin` has.
    `own_version` is the one that the files of another server state, such as 1.0, and `forwarded` the header fields that
    they make parameters. `own_examples` are inputs in these files, where the settings have no `examples`.

    A `pipeline` has neither code nor a file: its run calls other models of the server, at most `slots` runs at once.

    `weights` are fetched before it is loaded. Of one that `is_pending` only the name, the mode and the variables of the
    server count: its files, or some of them, are fetched first, and it is found again when they are there.
    """

    name: str
    root: pathlib.Path
    runner: str
    train: str | None = None
    variables: Variables = msgspec.field(default_factory=Variables)
    environment: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    mode: Mode = "predict"
    replicas: int | None = None
    queue: int | None = None
    timeout: float | None = None
    priorities: Priorities = NO_PRIORITIES
    backend: str | None = None
    file: pathlib.Path | None = None
    options: Mapping[str, Any] = {}
    retry: Retry = "always"
    batching: Mapping[str, Any] | None = None
    warmup: tuple[bytes, ...] = ()
    examples: tuple[bytes, ...] = ()
    openai: OpenAISettings = USUAL_OPENAI
    calls: tuple[str, ...] | None = None
    cache: CacheSettings | None = None
    devices: Devices | None = None
    gpus_per_replica: int = 0
    cpus_per_replica: int = 0
    origin: str = SETTINGS_NAME
    declared: Declared = NOTHING_DECLARED
    stated: Mapping[str, Any] = {}
    remarks: tuple[str, ...] = ()
    own_version: str = ""
    own_examples: tuple[bytes, ...] = ()
    forwarded: ForwardedFields | None = None
    weights: tuple[Weights, ...] = ()
    pipeline: Pipeline | None = None
    slots: int = 0
    is_pending: bool = False

    @property
    def max_concurrency(self) -> int | None:
        """Number of predictions that a worker runs at once; None leaves it to the runner's own `@concurrent`."""
        if self.mode == "train":
            return 1
        return self.variables.max_concurrency if self.backend is None else None

    @property
    def backend_options(self) -> dict[str, Any]:
        """The options for the worker's backend: those of the settings, and what a class of Triton or KServe needs."""
        if self.backend == formats.KSERVE:
            return {"model_name": self.name, **self.options}
        if self.backend == formats.MLSERVER:
            return {"name": self.name, **self.options}
        if self.backend != formats.TRITON_PYTHON:
            return dict(self.options)
        is_version = self.root.name.isdecimal()
        return {
            "config": dict(self.stated),
            "model_name": self.name,
            "model_version": self.root.name if is_version else "1",
            "model_repository": str(self.root.parent if is_version else self.root),
        }

    def training(self) -> ModelSource | None:
        """Return the same model with its training as the runner, or None if it cannot be trained."""
        if self.train is None:
            return None
        return msgspec.structs.replace(self, runner=self.train, train=None, mode="train")


def find_model(
    target: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    mode: Mode = "predict",
    settings: Settings | None = None,
    no_pickle: bool = False,
) -> ModelSource:
    """Find the model that `target` names.

    That is a folder, `path/to/run.py`, `run.py:Runner`, `package.module:name`, or a model file such as `model.onnx`.

    Without a target it is the current folder's. For that folder, named or not, the variables that Cog's containers set
    (`COG_PREDICT_TYPE_STUB`, `COG_TRAIN_TYPE_STUB`) come before its `cog.yaml`. `environ` is the environment of the
    server.

    With `mode` "train" it is the model's training, which needs no runner beside it: the one that `target` names, or
    that of the variable or `cog.yaml`.

    `settings` are those of the `geartrain.yaml` that holds for it; None: its folder's own. With `no_pickle` a model
    file that can run code when it is loaded is refused.

    Raises ProjectError with one sentence for the person at the terminal.
    """
    root, named = model_folder(target)
    settings = settings_of(_configured_folder(root)) if settings is None else settings
    if named is None and settings.pipeline is not None:
        return _pipeline_source(root, settings, mode)
    stubs = environ if named is None and root == pathlib.Path.cwd().resolve() else {}
    config = read_config(root)
    found = _model_file(root, named, config, settings=settings, stubs=stubs)
    if found is not None:
        if mode == "train":
            raise ProjectError(f"{found.path}: a model file cannot be trained; a training is written in Python")
        facts = _facts_of(found.path, found.backend, environ)
        source = _file_source(root, found, settings, facts=facts, named=named is not None, no_pickle=no_pickle)
        return msgspec.structs.replace(source, **_from_variables(config, settings, environ))
    _check_code_settings(root, settings)
    train, train_origin = _trained_by(root, config, stubs)
    if named is not None:
        runner, origin = named, target or ""
    elif mode == "predict":
        runner, origin = _configured(root, config, stubs)
    elif train is not None:
        runner, origin = train, train_origin
    else:
        line = f"a line such as `train: train.py:train` in its {CONFIG_NAME}"
        raise ProjectError(f"{root}: no training here; write {line}")
    _check_file(root, runner, origin)
    if train is not None:
        _check_file(root, train, train_origin)
    return ModelSource(
        name=root.name or "model",
        root=root,
        runner=runner,
        train=train if mode == "predict" else None,
        mode=mode,
        replicas=settings.replicas,
        queue=settings.queue,
        timeout=settings.timeout,
        retry=settings.retry,
        priorities=settings.priorities,
        batching=settings.batching,
        warmup=settings.warmup,
        examples=settings.examples,
        openai=settings.openai,
        cache=settings.cache,
        devices=settings.devices,
        gpus_per_replica=settings.gpus_per_replica,
        cpus_per_replica=settings.cpus_per_replica,
        weights=settings.weights,
        calls=settings.calls,
        **_from_variables(config, settings, environ),
    )


def _model_file(
    root: pathlib.Path, named: str | None, config: CogConfig, *, settings: Settings, stubs: Mapping[str, str]
) -> ModelFile | None:
    """Return the model file that is meant; None where it is code. Code comes first, but for what settings name."""
    if named is not None:
        is_code = ":" in named or (named.endswith(".py") and formats.backend_of(root / named) is None)
        return None if is_code else file_named(root / named, settings)
    has_code = (
        any(stubs.get(name) or config.environment.get(name) for name in (PREDICT_STUB, TRAIN_STUB))
        or bool(config.run or config.train)
        or any((root / name).is_file() for name in USUAL_FILES)
    )
    return None if has_code and not settings.names_file else file_in(root, settings)


def _file_source(
    root: pathlib.Path,
    found: ModelFile,
    settings: Settings,
    *,
    facts: _Facts,
    named: bool,
    no_pickle: bool,
) -> ModelSource:
    path, backend = found
    if no_pickle and formats.can_run_code(path, backend):
        raise ProjectError(
            f"{path}: to load it can run code that is in it, and --no-pickle refuses that; "
            "save the model in a format of data alone, such as skops or ONNX"
        )
    if settings.slots is not None and settings.slots > 1:
        what = f"{root / SETTINGS_NAME}: `slots` is {settings.slots}, and a model file is run one call at a time"
        raise ProjectError(f"{what}; write `replicas: {settings.slots}`")
    is_class = backend == formats.TRITON_PYTHON
    runner = path.name if path == root or not path.is_relative_to(root) else str(path.relative_to(root))
    name = path.stem if (named and not is_class) or path.suffix == ".savedmodel" else root.name
    if is_class and name.isdecimal():
        name = root.parent.name
    return ModelSource(
        name=name or "model",
        root=root,
        runner=f"{runner}:{formats.TRITON_CLASS}" if is_class else runner,
        replicas=settings.replicas,
        queue=settings.queue,
        timeout=settings.timeout,
        retry=settings.retry,
        priorities=settings.priorities,
        backend=backend,
        file=path,
        options=settings.parameters,
        batching=settings.batching,
        warmup=settings.warmup,
        examples=settings.examples,
        openai=settings.openai,
        cache=settings.cache,
        devices=settings.devices,
        gpus_per_replica=settings.gpus_per_replica,
        cpus_per_replica=settings.cpus_per_replica,
        origin=settings.origin,
        declared=settings.declared,
        stated=settings.stated,
        remarks=(*settings.remarks, *facts.remarks),
        own_version=facts.own_version,
        own_examples=() if settings.examples else facts.own_examples,
        forwarded=facts.forwarded,
        weights=settings.weights,
    )


class _Facts(NamedTuple):
    """Facts from the files of another server: its version, remarks on settings, fields to forward, examples."""

    own_version: str = ""
    remarks: tuple[str, ...] = ()
    forwarded: ForwardedFields | None = None
    own_examples: tuple[bytes, ...] = ()


def _facts_of(path: pathlib.Path, backend: str, environ: Mapping[str, str]) -> _Facts:
    facts = _settings_facts(path, backend, environ)
    if backend not in formats.WITH_EXAMPLES:
        return facts
    from geartrain.project.foreign.own_examples import examples_of  # late: few models need it

    found = examples_of(path, backend)
    return facts._replace(own_examples=found.inputs, remarks=(*facts.remarks, *found.remarks))


def _settings_facts(path: pathlib.Path, backend: str, environ: Mapping[str, str]) -> _Facts:
    if backend == formats.TRITON_PYTHON:
        from geartrain.project.foreign.triton_python import remarks_of  # late: few models need it

        return _Facts(remarks=remarks_of(path))
    if backend == "torchserve":
        from geartrain.project.foreign.config_files import remarks_of_torchserve
        from geartrain.project.foreign.torch_archive import facts_of

        version, remarks = facts_of(path)
        return _Facts(version, (*remarks, *remarks_of_torchserve(path, environ)))
    if backend == "truss":
        from geartrain.project.foreign.config_files import remarks_of_truss

        return _Facts(remarks=remarks_of_truss(path))
    if backend in formats.SCRIPTS:
        from geartrain.project.foreign import script_settings

        remarks = script_settings.remarks_of(path, backend, environ)
        return _Facts("", remarks, script_settings.forwarded_of(path) if backend == "pytriton" else None)
    return _Facts()


def _configured_folder(root: pathlib.Path) -> pathlib.Path:
    """Return the folder with the settings of a model: that of its versions, for a version of a repository of Triton."""
    above = root.parent
    is_version = root.name.isdecimal() and (above / TRITON_NAME).is_file() and not has_settings(root)
    return above if is_version else root


def _pipeline_source(root: pathlib.Path, settings: Settings, mode: Mode) -> ModelSource:
    if mode == "train":
        raise ProjectError(f"{root}: a pipeline cannot be trained; train the models of its steps")
    code = code_file(root)
    if code is not None:
        raise ProjectError(f"{root / settings.origin}: `pipeline` stands beside {code}; keep one of them")
    return ModelSource(
        name=root.name or "model",
        root=root,
        runner="",
        queue=settings.queue,
        timeout=settings.timeout,
        retry=settings.retry,
        priorities=settings.priorities,
        warmup=settings.warmup,
        examples=settings.examples,
        openai=settings.openai,
        cache=settings.cache,
        origin=settings.origin,
        stated=settings.stated,
        remarks=settings.remarks,
        pipeline=settings.pipeline,
        slots=settings.slots or 0,
    )


def _check_code_settings(root: pathlib.Path, settings: Settings) -> None:
    if settings.parameters:
        raise ProjectError(
            f"{root / SETTINGS_NAME}: `parameters` are for a model that is a file, and there is none in {root}"
        )


def model_folder(target: str | None) -> tuple[pathlib.Path, str | None]:
    """Return the folder that `target` means, and the runner if it names one; raises ProjectError if it is not there."""
    return (pathlib.Path.cwd(), None) if target is None else _locate(target)


def _locate(target: str) -> tuple[pathlib.Path, str | None]:
    """Split a target into the model's folder and, when it names one, the runner in it."""
    if not target or "\0" in target:
        raise ProjectError("the model's name is empty; give a folder or a file such as run.py:Runner")
    path = pathlib.Path(target)
    if path.is_dir():
        return path.resolve(), None
    if path.is_file():
        return _file(target, path, "")
    location, colon, name = target.rpartition(":")
    if not colon:
        raise ProjectError(_nothing_there(target, path))
    if not name.isidentifier():
        raise ProjectError(f"{target}: `{name}` is no name of a class or function; write for example {location}:Runner")
    path = pathlib.Path(location)
    if path.is_file():
        return _file(target, path, f":{name}")
    if _MODULE.fullmatch(location) and path.suffix != ".py":
        return pathlib.Path.cwd(), target
    if path.is_dir():
        raise ProjectError(f"{target}: {location} is a folder; name the file too, such as {location}/run.py:{name}")
    raise ProjectError(_nothing_there(location, path))


def _file(target: str, path: pathlib.Path, suffix: str) -> tuple[pathlib.Path, str]:
    if path.suffix != ".py" and suffix:
        raise ProjectError(f"{target}: {path.name} is no Python file, and has no {suffix[1:]}; give {path} alone")
    path = path.absolute()  # not resolve(): the runner's file may be a link into another folder
    return path.parent.resolve(), path.name + suffix


def _nothing_there(target: str, path: pathlib.Path) -> str:
    kind = "file" if path.suffix == ".py" else "file or folder"
    where = "" if path.is_absolute() else f" in {pathlib.Path.cwd()}"
    import difflib  # late: it is for faults alone

    try:
        close = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1)
    except OSError:
        close = []
    offer = f"; did you mean {path.with_name(close[0])}?" if close and path.name else ""
    return f"{target}: no such {kind}{where}{offer}"


def _configured(root: pathlib.Path, config: CogConfig, stubs: Mapping[str, str]) -> tuple[str, str]:
    """Return the runner that a variable, `cog.yaml` or a usual file name gives, and where it is written."""
    if stubs.get(PREDICT_STUB):
        return stubs[PREDICT_STUB], PREDICT_STUB
    runner, origin = _written(root, config, "run")
    if runner is not None:
        return runner, origin
    for name in USUAL_FILES:
        if (root / name).is_file():
            return name, str(root)
    raise ProjectError(
        f"{root}: no model here; a model is a run.py with a class Runner, "
        f"a {CONFIG_NAME} with a line such as `run: file.py:Class`, or a model file such as model.onnx"
    )


def _trained_by(root: pathlib.Path, config: CogConfig, stubs: Mapping[str, str]) -> tuple[str | None, str]:
    if stubs.get(TRAIN_STUB):
        return stubs[TRAIN_STUB], TRAIN_STUB
    return _written(root, config, "train")


def _written(root: pathlib.Path, config: CogConfig, key: Literal["run", "train"]) -> tuple[str | None, str]:
    """Return the reference that `cog.yaml` gives by a key, else by its `environment`, and where it is written."""
    value, stub = (config.run, PREDICT_STUB) if key == "run" else (config.train, TRAIN_STUB)
    if value is None and config.environment.get(stub):
        return config.environment[stub], f"{root / CONFIG_NAME}: `environment`: {stub}"
    return value, f"{root / CONFIG_NAME}: `{key}`"


def _check_file(root: pathlib.Path, reference: str, origin: str) -> None:
    """Refuse a reference to a file that is not there; a dotted module is left to the worker's import."""
    location, colon, name = reference.rpartition(":")
    if not colon:
        location, name = reference, "Runner"
    if not name.isidentifier():
        raise ProjectError(f"{origin} is `{reference}`; write a file and a class, such as run.py:Runner")
    if location.endswith(".py"):
        if not (root / location).is_file():
            raise ProjectError(f"{origin} names {location}, and there is no such file in {root}")
    elif not colon or not _MODULE.fullmatch(location):
        raise ProjectError(f"{origin} is `{reference}`; write a file and a class, such as run.py:Runner")


def _from_variables(config: CogConfig, settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a `ModelSource` that variables decide."""
    files = [
        FileLayer(
            file=SETTINGS_NAME,
            environment=settings.environment,
            keys={} if settings.slots is None else {CONCURRENCY: ("slots", settings.slots)},
        ),
        FileLayer(
            file=CONFIG_NAME,
            environment=config.environment,
            keys={} if config.max_concurrency is None else {CONCURRENCY: ("concurrency.max", config.max_concurrency)},
        ),
    ]
    variables, warnings = resolve(environ, files)
    return {"variables": variables, "environment": effective_environment(environ, files), "warnings": warnings}
