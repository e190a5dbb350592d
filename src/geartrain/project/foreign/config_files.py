"""Configuration files of other servers: their settings that have no effect here."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

TRUSS_CONFIG: Final = "config.yaml"
_TORCH_CONFIG: Final = "config.properties"
_TORCH_VARIABLE: Final = "TS_CONFIG_FILE"
_MOST: Final = 1024 * 1024  # bytes of such a file
_DEVICES: Final = "write `devices` into geartrain.yaml"
_INSTALL: Final = "install what it names where geartrain runs"
_IMAGE: Final = "geartrain build makes images"
_FETCH: Final = "nothing is fetched; put the files into the folder"
_PROBES: Final = "see the probes of geartrain"
_TRUSS: Final[Mapping[str, str]] = {
    "requirements": _INSTALL,
    "requirements_file": _INSTALL,
    "system_packages": _INSTALL,
    "python_version": "the class runs with the Python of geartrain",
    "base_image": _IMAGE,
    "build": _IMAGE,
    "build_commands": _IMAGE,
    "docker_server": "the class is served, no server of an image",
    "live_reload": "use --reload",
    "external_data": _FETCH,
    "hf_cache": _FETCH,
    "model_cache": _FETCH,
    "weights": _FETCH,
    "trt_llm": "engines are not served",
    "resources.accelerator": _DEVICES,
    "resources.use_gpu": _DEVICES,
    "resources.cpu": "a process has the processors of its machine",
    "resources.memory": "a process has the memory of its machine",
    "resources.node_count": "a model has one machine",
    "runtime.streaming_read_timeout": "use --send-timeout",
    "runtime.health_checks": _PROBES,
    "runtime.enable_tracing_data": "see the options of traces",
    "runtime.enable_debug_logs": "use --log-level debug",
    "runtime.transport": "geartrain has protocols of its own",
    "runtime.is_websocket_endpoint": "websockets are not served",
}
"""Sentences by the key of a Truss's configuration, or by `section.key`."""

_WORKERS: Final = "write `replicas` into geartrain.yaml"
_MANAGED: Final = "models are managed at /v2/repository"
_METRICS: Final = "metrics are at /metrics"
_MODELS: Final = "give the folder of models to geartrain serve"
_TLS: Final = "use --tls-cert and --tls-key"
_CORS: Final = "use --cors-origin"
_JAVA: Final = "there is no Java here"
_TORCH: Final[Mapping[str, str]] = {
    "inference_address": "use --host and --port",
    "management_address": _MANAGED,
    "metrics_address": _METRICS,
    "grpc_inference_address": "use --host and --grpc-port",
    "grpc_inference_port": "use --grpc-port",
    "grpc_management_address": _MANAGED,
    "grpc_management_port": _MANAGED,
    "keystore": _TLS,
    "private_key_file": _TLS,
    "certificate_file": _TLS,
    "cors_allowed_origin": _CORS,
    "cors_allowed_methods": _CORS,
    "cors_allowed_headers": _CORS,
    "model_store": _MODELS,
    "load_models": _MODELS,
    "models": "write them into model-config.yaml, or into geartrain.yaml",
    "workflow_store": "workflows are not served",
    "default_workers_per_model": _WORKERS,
    "number_of_gpu": _DEVICES,
    "job_queue_size": "write `queue` into geartrain.yaml",
    "default_response_timeout": "write `timeout` into geartrain.yaml",
    "default_startup_timeout": "set COG_SETUP_TIMEOUT",
    "max_request_size": "use --max-body-size",
    "max_response_size": "use --max-output-size",
    "install_py_dep_per_model": _INSTALL,
    "blacklist_env_vars": "the handler has the variables of the server",
    "metrics_mode": _METRICS,
    "metrics_config": _METRICS,
    "vmargs": _JAVA,
    "number_of_netty_threads": _JAVA,
    "netty_client_threads": _JAVA,
    "prefer_direct_buffer": _JAVA,
    "async_logging": _JAVA,
}
_NONE_SAID: Final = {"", "0", "false", "standalone"}  # values that say what holds anyway


def remarks_of_truss(folder: pathlib.Path) -> tuple[str, ...]:
    """Return a sentence for each setting of a Truss without effect; none for a file that cannot be read."""
    try:
        config = decode_yaml(read_small(folder / TRUSS_CONFIG))
    except (OSError, ValueError):
        return ()
    return tuple(_of_keys(config))


def _of_keys(config: Any) -> Iterator[str]:
    for name, why in _TRUSS.items():
        section, _, key = name.rpartition(".")
        inner = config.get(section) if section and isinstance(config, dict) else config
        if isinstance(inner, dict) and inner.get(key):
            yield f"{TRUSS_CONFIG}: `{name}` is passed over: {why}"


def remarks_of_torchserve(path: pathlib.Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each setting of TorchServe's own file: the one of its variable, or the one beside a model.

    `path` is an archive, a handler, or a folder. A file that cannot be read has none.
    """
    named = environ.get(_TORCH_VARIABLE)
    beside = [each / _TORCH_CONFIG for each in ((path, path.parent) if path.is_dir() else (path.parent,))]
    file = pathlib.Path(named) if named else next(filter(pathlib.Path.is_file, beside), None)
    if file is None:
        return ()
    try:
        given = _properties(read_small(file).decode("latin-1"))  # the encoding of such files in Java
    except (OSError, ValueError):
        return ()
    unset = {name for name, value in given.items() if value.lower() in _NONE_SAID}
    if given.get("default_workers_per_model") == "1":
        unset.add("default_workers_per_model")
    return tuple(
        f"{file.name}: `{name}` is passed over: {why}"
        for name, why in _TORCH.items()
        if name in given and name not in unset
    )


def _properties(text: str) -> dict[str, str]:
    """Read names and values: a line each, with `=` or `:` between them, which goes on behind a backslash."""
    found: dict[str, str] = {}
    for line in text.replace("\r\n", "\n").replace("\\\n", "").splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            end = min((at for at in map(stripped.find, "=:") if at >= 0), default=len(stripped))
            found[stripped[:end].strip()] = stripped[end + 1 :].strip()
    return found


def read_small(file: pathlib.Path) -> bytes:
    """Read a file of settings. Raises `OSError`, and `ValueError` for one that is too large."""
    with file.open("rb") as opened:
        content = opened.read(_MOST + 1)
    if len(content) > _MOST:
        raise ValueError(f"{file}: more than {_MOST} bytes")
    return content


def decode_yaml(content: bytes) -> Any:
    """Decode YAML. Raises `ValueError`."""
    import yaml  # late: few models need it

    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None
