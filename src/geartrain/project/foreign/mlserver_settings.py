"""`model-settings.json` of MLServer, and what of its `settings.json` concerns models, as our settings.

What a model would be wrong without is an error; what only runs otherwise is a remark. Both name the key.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from geartrain.domain.signature.types import Declared
from geartrain.domain.tensors.tensor import DATATYPES, VARIABLE
from geartrain.domain.versions import is_version
from geartrain.project.config import kind_of, read_text
from geartrain.project.errors import ProjectError
from geartrain.project.formats import MLSERVER
from geartrain.project.settings import MLSERVER_NAME, Settings

SERVER_NAME: Final = "settings.json"

_RUNTIMES: Final = {  # by the module of an implementation: our backend, and the files that are looked for in a folder
    "mlserver_sklearn": ("sklearn", ("model.joblib", "model.pickle", "model.pkl")),
    "mlserver_xgboost": ("xgboost", ("model.bst", "model.json", "model.ubj")),
    "mlserver_lightgbm": ("lightgbm", ("model.bst", "model.txt")),
    "mlserver_catboost": ("catboost", ("model.bst", "model.cbm")),
    "mlserver_onnx": ("onnx", ("model.onnx",)),
}
_TABULAR: Final = frozenset({"sklearn", "xgboost", "lightgbm", "catboost"})
_METHODS: Final = {  # that MLServer asks a model of a backend
    "sklearn": ("predict", "predict_proba"),
    "xgboost": ("predict", "predict_proba"),
    "lightgbm": ("predict",),
    "catboost": ("predict",),
}
_FRAME: Final = "pd"  # the content type of tables whose columns are inputs
_REMARKS: Final = {
    "cache_enabled": "responses are not cached",
    "warm_workers": "all workers are started at once",
}
_PARAMETERS: Final = {
    "environment_path": "the model runs in the server's own environment",
    "environment_tarball": "the model runs in the server's own environment",
    "inference_pool_gid": "each model has workers of its own",
    "autogenerate_inference_pool_gid": "each model has workers of its own",
    "extra": "the runtime has no further settings",
    "format": "the file says it itself",
}
_OF_CLASSES: Final = ("extra", "format")
"""Keys of `parameters` that a class of one's own reads."""
_SERVER: Final = {
    "host": "use --host",
    "http_port": "use --port",
    "grpc_port": "use --grpc-port",
    "metrics_port": "/metrics is on the port of HTTP",
    "metrics_endpoint": "it is /metrics",
    "cors_settings": "use --cors-origin",
    "load_models_at_startup": "use --load none",
    "kafka_enabled": "Kafka is not read",
    "cache_enabled": "responses are not cached",
    "tracing_server": "use OTEL_EXPORTER_OTLP_ENDPOINT",
    "root_path": "paths have no prefix",
    "model_repository_root": "name the folder on the command line",
    "model_repository_implementation": "models are read from a folder",
}


class Identity(NamedTuple):
    """Name and version of a model in a settings file."""

    name: str
    version: str


def identify(folder: pathlib.Path) -> Identity:
    """Return the name and the version that `folder/model-settings.json` says; raise ProjectError.

    Without a name it is that of the folder, without a version 1.
    """
    document, parameters = _read(folder)
    version = _text(parameters, "version") or "1"
    if not is_version(version):
        raise ProjectError(
            f"{folder / MLSERVER_NAME}: `parameters.version` is {version!r}; write one that begins with a number, such "
            "as 1, or v0.1.0"
        )
    return Identity(_text(document, "name") or folder.name, version)


def read_mlserver(folder: pathlib.Path, root: pathlib.Path | None = None) -> Settings:
    """Return the settings that `folder/model-settings.json` means; raise ProjectError that names the file and the key.

    `root` is the folder with the server's `settings.json`, by default the same.
    """
    document, parameters = _read(folder)
    try:
        return _settings(folder, document, parameters, server=_server(root or folder))
    except ProjectError as error:
        raise ProjectError(f"{folder / MLSERVER_NAME}: {error.message}") from None


def _settings(
    folder: pathlib.Path, document: Mapping[str, Any], parameters: Mapping[str, Any], *, server: Mapping[str, Any]
) -> Settings:
    own = _own_runtime(folder, document)
    if own is not None:
        return _own_settings(document, parameters, own, server=server)
    backend, usual = _runtime(document)
    inputs, remarks = _inputs(document, backend)
    if _text(parameters, "content_type") == _FRAME and not inputs:
        raise ProjectError("`parameters.content_type` is pd, and `inputs` names no columns; write them")
    outputs, more = _outputs(document, backend)
    remarks += [*more, *_passed_over(document, parameters, server)]
    return Settings(
        origin=MLSERVER_NAME,
        backend=backend,
        file=_file(folder, parameters, usual),
        parameters={**({"inputs": inputs} if inputs else {}), **({"outputs": outputs} if outputs else {})},
        declared=Declared(
            origin=MLSERVER_NAME, columns=backend in _TABULAR, takes_any=backend in _TABULAR and not inputs
        ),
        batching=_batching(document),
        replicas=_replicas(document, server),
        remarks=tuple(f"{MLSERVER_NAME}: {sentence}" for sentence in remarks),
    )


class _Own(NamedTuple):
    """A class beside the settings: its file, relative to their folder, and its name."""

    file: str
    name: str


def _own_runtime(folder: pathlib.Path, document: Mapping[str, Any]) -> _Own | None:
    """Return the class that `implementation` names, if its module lies in the folder."""
    module, _, name = _text(document, "implementation").rpartition(".")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        return None
    path = pathlib.PurePath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if (folder / file).is_file():
            return _Own(str(file), name)
    return None


def _own_settings(
    document: Mapping[str, Any], parameters: Mapping[str, Any], own: _Own, *, server: Mapping[str, Any]
) -> Settings:
    """Return the settings of a class: it gets the whole document."""
    remarks = list(_passed_over(document, {**parameters, **dict.fromkeys(_OF_CLASSES)}, server, is_own=True))
    return Settings(
        origin=MLSERVER_NAME,
        backend=MLSERVER,
        file=own.file,
        parameters={"class": own.name, "settings": dict(document)},
        batching=_batching(document),
        replicas=_replicas(document, server),
        remarks=tuple(f"{MLSERVER_NAME}: {sentence}" for sentence in remarks),
    )


def _read(folder: pathlib.Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the keys of a settings file, and those of its `parameters`."""
    path = folder / MLSERVER_NAME
    document = _json(path)
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise ProjectError(f"{path}: `parameters` is {kind_of(parameters)}; write keys such as `uri`")
    return document, parameters


def _server(root: pathlib.Path) -> Mapping[str, Any]:
    return _json(root / SERVER_NAME) if (root / SERVER_NAME).is_file() else {}


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(read_text(path) or "{}")
    except msgspec.DecodeError as error:
        raise ProjectError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ProjectError(f"{path}: it holds {kind_of(document)}; write keys and values")
    return document


def _runtime(document: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return our backend for an implementation, and the files that are looked for in a folder."""
    implementation = _text(document, "implementation")
    if not implementation:
        raise ProjectError("`implementation` is missing; write one such as mlserver_sklearn.SKLearnModel")
    module = implementation.partition(".")[0]
    if module not in _RUNTIMES:
        known = ", ".join(_RUNTIMES)
        raise ProjectError(
            f"`implementation` is {implementation}, which is not served: there are {known}; a class of your own "
            "lies beside the settings, such as runtime.py for runtime.Mine"
        )
    return _RUNTIMES[module]


def _file(folder: pathlib.Path, parameters: Mapping[str, Any], usual: tuple[str, ...]) -> str | None:
    """Return the model's file, relative to its folder if it lies there; None where there is but one to find."""
    uri = urlsplit(_text(parameters, "uri") or ".")
    if uri.scheme not in {"", "file"}:
        raise ProjectError(f"`parameters.uri` is {uri.geturl()}; only files can be served: copy it into {folder}")
    path = folder / uri.path
    if path.is_dir():
        found = next((name for name in usual if (path / name).is_file()), None)
        if found is None and path.resolve() != folder.resolve():
            raise ProjectError(f"`parameters.uri` is {uri.path}, and there is none of {', '.join(usual)} in it")
        return None if found is None else str(pathlib.PurePath(uri.path) / found)
    if not path.exists():
        raise ProjectError(f"`parameters.uri` is {uri.path}, and there is no such file")
    return str(pathlib.PurePath(uri.path))


def _inputs(document: Mapping[str, Any], backend: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the inputs of a table as options of the backend, and what is passed over."""
    found: list[dict[str, Any]] = []
    given = _tensors(document, "inputs")
    if backend not in _TABULAR:
        return [], ["`inputs` is passed over: the file says what it takes"] if given else []
    for each in given:
        name, datatype, shape = each.get("name"), each.get("datatype"), each.get("shape")
        if not isinstance(name, str) or datatype not in DATATYPES or not isinstance(shape, list):
            raise ProjectError("`inputs` needs `name`, `datatype` and `shape` of each")
        found.append({"name": name, "datatype": datatype, "shape": [VARIABLE, *shape[1:]]})
    if len(found) > 1:  # columns of a table; MLServer also takes [rows, 1] for each
        for each in found:
            each["shape"] = [VARIABLE]
    return found, []


def _outputs(document: Mapping[str, Any], backend: str) -> tuple[list[str], list[str]]:
    """Return the names of the outputs that the backend is to give, and what is passed over."""
    names = [str(each.get("name")) for each in _tensors(document, "outputs")]
    known = _METHODS.get(backend, ())
    passed = [name for name in names if name not in known]
    remarks = [f"`outputs` is passed over for {', '.join(passed)}: the model says what it gives"] if passed else []
    return [name for name in names if name in known], remarks


def _tensors(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    given = document.get(key) or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ProjectError(f"`{key}` is {kind_of(given)}; write a list with `name`, `datatype` and `shape` of each")
    return given


def _batching(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings of MLServer's adaptive batching, None where it is off and geartrain's own holds."""
    size, time = document.get("max_batch_size") or 0, document.get("max_batch_time") or 0
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ProjectError(f"`max_batch_size` is {kind_of(size)}; write a whole number")
    if not isinstance(time, int | float) or isinstance(time, bool) or time < 0:
        raise ProjectError(f"`max_batch_time` is {kind_of(time)}; write seconds, such as 0.1")
    return {"max_size": size, "max_delay": float(time)} if size > 1 and time > 0 else None


def _replicas(document: Mapping[str, Any], server: Mapping[str, Any]) -> int | None:
    """Return the number of workers; 0 means the server's own process in MLServer, and one worker here."""
    for where in (document, server):
        count = where.get("parallel_workers")
        if count is None:
            continue
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ProjectError(f"`parallel_workers` is {kind_of(count)}; write a whole number")
        return max(1, count)
    return None


def _passed_over(
    document: Mapping[str, Any], parameters: Mapping[str, Any], server: Mapping[str, Any], *, is_own: bool = False
) -> Iterator[str]:
    """Tell of the keys without an effect; a class reads others itself."""
    for key, why in _REMARKS.items():
        if document.get(key):
            yield f"`{key}` is passed over: {why}"
    for key, why in _PARAMETERS.items():
        if parameters.get(key):
            yield f"`parameters.{key}` is passed over: {why}"
    known = {"uri", "version", "content_type", *_PARAMETERS}
    for key in () if is_own else parameters.keys() - known:
        yield f"`parameters.{key}` is passed over"
    for key in document.keys() - _DOCUMENT:
        yield f"`{key}` is not known, and passed over"
    for key, why in _SERVER.items():
        if key in server and not (key == "load_models_at_startup" and server[key] is not False):
            yield f"`{key}` of {SERVER_NAME} is passed over: {why}"


_DOCUMENT: Final = frozenset(
    {
        "name",
        "implementation",
        "parameters",
        "platform",
        "versions",
        "inputs",
        "outputs",
        "max_batch_size",
        "max_batch_time",
        "parallel_workers",
        *_REMARKS,
    }
)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ProjectError(f"`{key}` is {kind_of(value)}; write a text")
    return value.strip()
