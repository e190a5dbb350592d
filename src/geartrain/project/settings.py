"""`geartrain.yaml`: how a model is to be served. All of its keys are optional, and so is the file."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from geartrain.authoring.quantities import read_any_duration
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.domain.predictions.ledger import Retry
from geartrain.domain.predictions.priorities import NO_PRIORITIES, Priorities
from geartrain.domain.signature.pipeline import Pipeline
from geartrain.domain.signature.types import NOTHING_DECLARED, USUAL_OPENAI, Declared, OpenAISettings
from geartrain.project.config import kind_of, parse, read_environment, read_text
from geartrain.project.errors import ProjectError
from geartrain.project.formats import backend_of_platform, known_backends
from geartrain.project.setting_values import (
    Devices,
    Weights,
    make_priorities,
    read_batching,
    read_cache,
    read_devices,
    read_levels,
    read_weights,
)

SETTINGS_NAME: Final = "geartrain.yaml"
TRITON_NAME: Final = "config.pbtxt"
MLSERVER_NAME: Final = "model-settings.json"
SETTINGS_NAMES: Final = (SETTINGS_NAME, TRITON_NAME, MLSERVER_NAME)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a `geartrain.yaml`; None and empty for missing keys.

    `versions` are the served ones: numbers, or how many of the latest; None for all of them. `default_version` is
    the one for a request without a version; None for the latest. `replicas` is the number of equal workers, `slots`
    the number of predictions that each of them runs at once, `queue` the number of requests of the Open Inference
    Protocol that may wait for a slot. `timeout` is the limit of a run in seconds; 0 for none. `priorities` are those
    of its queue. `retry`: true if an accepted prediction runs again after the loss of its server.

    Of a model that is a file: `file` names it where its folder has several, `backend` is its runtime, `platform` the
    same in the terms of the Open Inference Protocol, and `parameters` are options of the backend. `batching` has fields
    of `domain.predictions.batching.BatchPolicy`.

    `devices` are those that its replicas are put on; `gpus_per_replica` and `cpus_per_replica` are the numbers of GPUs
    and processors of its own, 0 if unset.

    `warmup` are inputs that each worker runs before it is ready: JSON objects, with paths of files relative to the
    model's folder. `examples` are inputs like these for people, who see them in the playground. `weights` are fetched
    before the model is loaded. `openai` are the settings of its endpoints of OpenAI's API.

    `cache`: its answers are kept for equal requests; None: as its `@cached` says.

    `calls` are the other models that its code may call, besides those that its class declares; None for all.

    `pipeline` are the models that a run of this one calls; such a model has no code and no file.

    `origin` is the name of the file with all this. Of another server's file, `declared` has the tensors of the
    model, `stated` the configuration as it is written there, and `remarks` has sentences for the operator about
    ignored parts.
    """

    versions: tuple[int, ...] | int | None = None
    default_version: int | None = None
    replicas: int | None = None
    slots: int | None = None
    queue: int | None = None
    timeout: float | None = None
    priorities: Priorities = NO_PRIORITIES
    retry: Retry = "always"
    environment: Mapping[str, str] = {}
    platform: str | None = None
    backend: str | None = None
    file: str | None = None
    parameters: Mapping[str, Any] = {}
    batching: Mapping[str, Any] | None = None
    warmup: tuple[bytes, ...] = ()
    examples: tuple[bytes, ...] = ()
    devices: Devices | None = None
    gpus_per_replica: int = 0
    cpus_per_replica: int = 0
    openai: OpenAISettings = USUAL_OPENAI
    weights: tuple[Weights, ...] = ()
    calls: tuple[str, ...] | None = None
    cache: CacheSettings | None = None
    pipeline: Pipeline | None = None
    origin: str = SETTINGS_NAME
    declared: Declared = NOTHING_DECLARED
    stated: Mapping[str, Any] = {}
    remarks: tuple[str, ...] = ()

    @property
    def names_file(self) -> bool:
        """True if it says that the model is a file, even if there is code beside it."""
        return self.chosen_backend is not None or self.file is not None

    @property
    def chosen_backend(self) -> str | None:
        """The backend that it names, itself or by the platform."""
        if self.backend is None and self.platform is not None:
            return backend_of_platform(self.platform)
        return self.backend

    def selected(self, numbers: Iterable[int]) -> list[int]:
        """Return those versions that are served, in the order of their numbers."""
        there = sorted(numbers)
        if self.versions is None:
            return there
        return there[-self.versions :] if isinstance(self.versions, int) else [*self.versions]


NO_SETTINGS: Final = Settings()


def read_settings(folder: pathlib.Path, base: Settings = NO_SETTINGS) -> Settings:
    """Read `folder/geartrain.yaml`; a missing file is an empty one.

    `base` holds for the keys that are not there, and for those below `parameters` and `batching`. Raises ProjectError
    naming the file, the key and the fix when a key is unknown or a value has a wrong type.
    """
    path = folder / SETTINGS_NAME
    text = read_text(path)
    if text is None:
        return base
    document = parse(path, text, example="replicas: 2")
    for key in document:
        if key not in _KEYS:
            raise ProjectError(f"{path}: there is no key `{key}`; {_offer(str(key))}")
    said: dict[str, Any] = {
        name: _value(path, document, name, read=key.read)
        for name, key in _KEYS.items()
        if key.read is not None and document.get(name) is not None
    }
    if document.get("environment") is not None:
        said["environment"] = read_environment(path, document)
    if {"priority_levels", "default_priority"} & document.keys():
        said["priorities"] = _priorities(path, document)
    if "file" in said:
        said["origin"] = SETTINGS_NAME
    for key in ("parameters", "batching"):
        if key in said:
            said[key] = {**(getattr(base, key) or {}), **said[key]}
    settings = msgspec.structs.replace(base, **said)
    try:
        _check_backend(settings)
        _check_pipeline(settings)
    except ProjectError as error:
        raise ProjectError(f"{path}: {error.message}") from None
    return settings


def _check_backend(settings: Settings) -> None:
    """Raise ProjectError for a platform or a backend that is not there, or that contradict each other."""
    name, platform = settings.backend, settings.platform
    if name is not None and name not in (known := known_backends()):
        import difflib  # late: it is for faults alone

        close = difflib.get_close_matches(name, known, n=1)
        offer = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(known)}"
        raise ProjectError(f"there is no backend `{name}` installed; {offer}")
    if platform is not None and name not in {None, backend_of_platform(platform)}:
        what = f"`platform` is {platform}, which the backend {backend_of_platform(platform)} runs"
        raise ProjectError(f"{what}, and `backend` is {name}; keep one of them")


def _check_pipeline(settings: Settings) -> None:
    """Raise ProjectError for a key that belongs to the models of a pipeline, and not to it."""
    if settings.pipeline is None:
        return
    for key in _OF_WORKERS:
        if getattr(settings, key) != getattr(NO_SETTINGS, key):
            raise ProjectError(f"`{key}` is of no use beside `{settings.pipeline.place}`; move it to the models of it")


def _offer(key: str) -> str:
    import difflib  # late: as above

    close = difflib.get_close_matches(key, _KEYS, n=1)
    return f"did you mean `{close[0]}`?" if close else f"there are {', '.join(_KEYS)}"


def _value(path: pathlib.Path, document: Mapping[object, object], key: str, *, read: Callable[[object], Any]) -> Any:
    """Return a value as `read` does, which raises ValueError for one that cannot be; None for a key without one."""
    found = document.get(key)
    if found is None:
        return None
    try:
        return read(found)
    except ProjectError as error:
        raise ProjectError(f"{path}: {error.message}") from None
    except ValueError:
        raise ProjectError(f"{path}: `{key}` is {kind_of(found)}; {_KEYS[key].fix}") from None


def _priorities(path: pathlib.Path, document: Mapping[object, object]) -> Priorities:
    levels = _value(path, document, "priority_levels", read=read_levels)
    default = _value(path, document, "default_priority", read=_positive)
    try:
        return make_priorities(levels, default)
    except ProjectError as error:
        raise ProjectError(f"{path}: {error.message}") from None


def _retry(value: object) -> Retry:
    if value == "always":
        return "always"
    if value == "never":
        return "never"
    raise ValueError


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _positive(value: object) -> int:
    if _natural(value) == 0:
        raise ValueError
    return _natural(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _file(value: object) -> str:
    name = pathlib.PurePath(_text(value))
    if name.is_absolute() or ".." in name.parts:
        raise ValueError
    return str(name)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError
    return value


def _openai(value: object) -> OpenAISettings:
    from geartrain.project.openai_settings import read_openai  # late: few models have it

    return read_openai(value)


def _pipeline(value: object) -> Pipeline:
    from geartrain.project.pipeline import read_pipeline  # late: few models have it

    return read_pipeline(value)


def _calls(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError
    return tuple(dict.fromkeys(value))


def _inputs(value: object) -> tuple[bytes, ...]:
    """Return a list of inputs as JSON."""
    if not isinstance(value, list) or not value:
        raise ValueError
    try:
        return tuple(msgspec.json.encode(_mapping(item)) for item in value)
    except TypeError:  # YAML without a form in JSON, such as a key that is a date
        raise ValueError from None


def _default(value: object) -> int | None:
    return None if value == "latest" else _natural(value)


def _versions(value: object) -> tuple[int, ...] | int | None:
    if value == "all":
        return None
    if value == "latest":
        return 1
    if isinstance(value, dict) and list(value) == ["latest"]:
        return _positive(value["latest"])
    if isinstance(value, list) and value:
        return tuple(sorted({_natural(number) for number in value}))
    raise ValueError


class _Key(NamedTuple):
    """A key of `geartrain.yaml`: the fix of a wrong value, and the reading of a right one.

    `read` raises ValueError; None for a key that is read together with others.
    """

    fix: str
    read: Callable[[Any], Any] | None = None


_KEYS: Final[Mapping[str, _Key]] = {
    "versions": _Key(
        "write `all`, `latest`, `latest: 2` indented below it, or a list of numbers such as `[1, 3]`", _versions
    ),
    "default_version": _Key("write `latest`, or the number of a version", _default),
    "replicas": _Key("write a whole number of at least 1", _positive),
    "slots": _Key("write a whole number of at least 1", _positive),
    "queue": _Key("write a whole number, 0 for no queue", _natural),
    "environment": _Key("write a list of `KEY=VALUE` lines"),
    "platform": _Key("write the name of a platform, such as `onnx_onnxv1`", _text),
    "backend": _Key("write the name of a backend, such as `onnx`", _text),
    "file": _Key("write the name of a file in the model's folder, such as `model.onnx`", _file),
    "parameters": _Key("write keys and values indented below it", _mapping),
    "timeout": _Key("write seconds, or a time such as 90s, 5m or 1h; 0 for no limit", read_any_duration),
    "retry": _Key("write `always`, or `never`", _retry),
    "priority_levels": _Key("write a number of levels, or a list with keys such as `timeout: 2s` for each"),
    "default_priority": _Key("write the number of a level, 1 for the highest"),
    "cache": _Key("write `true`, `false`, or keys such as `ttl: 1h` indented below it", read_cache),
    "batching": _Key("write `off`, or keys such as `max_size: 64` indented below it", read_batching),
    "devices": _Key("write `auto`, `cpu`, or a list such as [cuda:0, cuda:1]", read_devices),
    "gpus_per_replica": _Key("write a whole number of at least 1", _positive),
    "cpus_per_replica": _Key("write a whole number of at least 1", _positive),
    "calls": _Key("write a list of models, such as `[detector, reader]`; `[]` for none", _calls),
    "pipeline": _Key("write a list of steps, such as `- model: detector`", _pipeline),
    "warmup": _Key("write a list of inputs, such as `- text: hello`", _inputs),
    "examples": _Key("write a list of inputs, such as `- text: hello`", _inputs),
    "openai": _Key("write keys such as `serve: [chat]` indented below it", _openai),
    "weights": _Key(
        "write a list of entries with `source` and `dest`, such as `- source: s3://bucket/model.bin`", read_weights
    ),
}
SETTINGS_KEYS: Final = frozenset(_KEYS)
_OF_WORKERS: Final = (
    "replicas",
    "environment",
    "platform",
    "backend",
    "file",
    "parameters",
    "batching",
    "devices",
    "gpus_per_replica",
    "cpus_per_replica",
    "weights",
    "calls",
)
