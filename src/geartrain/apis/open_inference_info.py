"""Metadata of a server and its models in the Open Inference Protocol, as JSON. Pure.

Source: "Server Metadata" and "Model Metadata" of the protocol document; observed Triton, sections 3, 13, 14 and 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.infer_json import check_utf8, guard
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.batching import Batching, BatchPolicy
from geartrain.domain.predictions.calls import PYTHON
from geartrain.domain.predictions.statistics import Duration, ModelStatistics
from geartrain.domain.rendering import clip
from geartrain.domain.signature.pipeline import PLATFORM
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.tensors.tensor import VARIABLE, TensorSpec

SERVER: Final = "geartrain"
_SHARED_MEMORY: Final = "system_shared_memory"
_EXTENSIONS: Final = (
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
    "statistics",
    "generate",
)
_UNLOAD_PARAMETERS: Final = frozenset({"unload_dependents"})

_AS_SERVED: Final = frozenset(
    {"name", "platform", "backend", "max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy"}
)
_TENSOR_AS_SERVED: Final = frozenset({"name", "data_type", "dims", "optional"})
_NO_BATCHING: Final = {
    "preferred_batch_size": (),
    "max_queue_delay_microseconds": 0,
    "preserve_ordering": False,
    "priority_levels": 0,
    "default_priority_level": 0,
    "priority_queue_policy": {},
}
_NO_GROUP: Final = {
    "kind": "KIND_AUTO",
    "count": 1,
    "gpus": (),
    "secondary_devices": (),
    "profile": (),
    "passive": False,
    "host_policy": "",
}
NOTHING_STATED: Final[Mapping[str, Any]] = {}

_encode = msgspec.json.Encoder().encode


def extensions(*, shared_memory: bool) -> tuple[str, ...]:
    """Return the extensions of the protocol that this server has."""
    return (*_EXTENSIONS, _SHARED_MEMORY) if shared_memory else _EXTENSIONS


def server_metadata(version: str, *, shared_memory: bool) -> bytes:
    """Return the body of `GET v2`."""
    names = extensions(shared_memory=shared_memory)
    return _encode({"name": SERVER, "version": version, "extensions": names})


def model_list(names: Iterable[str]) -> bytes:
    """Return the body of `GET v2/models`, in the form that KServe's server gives it."""
    return _encode({"models": list(names)})


def health(name: str = "", **state: bool) -> bytes:
    """Return the body of a health response, in the form that KServe's client reads. `name`: of a model."""
    return _encode({"name": name, **state} if name else state)


def properties(view: TensorView, batching: Batching | None, *, platform: str) -> dict[str, str]:
    """Return the properties of a model, which are strings in the protocol's repository ("metadata_model_response").

    `kind`: whether Python code is the model, or a file. `batch_max_size`, in rows, is there if it takes batches,
    and `batch_max_cost` if the cost of these has a limit.
    """
    found = {"kind": "code" if platform == PYTHON else "file", "streaming": "true" if view.streams else "false"}
    if batching is not None:
        found["batch_max_size"] = str(batching.policy.max_size)
        if batching.policy.max_cost:
            found["batch_max_cost"] = f"{batching.policy.max_cost:.15g}"
    return found


def model_metadata(
    name: str, versions: Sequence[str], view: TensorView, *, platform: str, batching: Batching | None
) -> bytes:
    """Return the body of `GET v2/models/{name}`."""
    return _encode(
        {
            "name": name,
            "versions": versions,
            "platform": platform,
            "inputs": [_tensor(spec) for spec in view.inputs],
            "outputs": [_tensor(spec) for spec in view.outputs],
            "properties": properties(view, batching, platform=platform),
        }
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def config_type(datatype: str) -> str:
    """Return the name that a model's configuration has for a datatype."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def max_batch(view: TensorView, batching: Batching | None) -> int:
    """Return the largest batch of a model whose every tensor has the batch as its first dimension, 0 for any other.

    In the configuration of such a model that dimension is left out, as Triton's documentation of it says.
    """
    specs = (*view.inputs, *view.outputs)
    if batching is None or not batching.by_rows or not all(spec.shape[:1] == (VARIABLE,) for spec in specs):
        return 0
    return batching.policy.max_size


def backend_of(platform: str) -> str:
    """Return the backend's name in a model's configuration: the part before the format in a platform's name."""
    return platform.partition("_")[0]


def model_config(
    name: str,
    view: TensorView,
    slots: int,
    *,
    platform: str,
    batching: Batching | None,
    stated: Mapping[str, Any] = NOTHING_STATED,
) -> dict[str, Any]:
    """Return the answer to `GET v2/models/{name}/config`: the served state, in the terms of Triton's configuration.

    `stated` is its `config.pbtxt`; name, platform, datatypes and sizes are the served ones.
    """
    largest = max_batch(view, batching)
    if platform == PLATFORM:  # its batches are those of its models
        largest = stated.get("max_batch_size", 0)
    config = {
        "name": name,
        "platform": platform,
        "backend": backend_of(platform),
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": largest,
        "input": [_config_input(spec, is_batched=largest > 0) for spec in view.inputs],
        "output": [_config_output(spec, is_batched=largest > 0) for spec in view.outputs],
        "batch_input": [],
        "batch_output": [],
        "optimization": {},
        **({"dynamic_batching": _dynamic_batching(batching.policy)} if batching and batching.policy.gather else {}),
        "instance_group": [{"name": name, "kind": "KIND_CPU", "count": slots, "gpus": []}],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": view.streams},
    }
    return _with_stated(config, stated)


def encode_config(config: Mapping[str, Any]) -> bytes:
    """Return a configuration as a body."""
    return _encode(config)


def _with_stated(config: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Put into a configuration what a file states, but for what is told as it is served."""
    found = {**config, **{key: value for key, value in stated.items() if key not in _AS_SERVED}}
    found["instance_group"] = [
        {"name": f"{found['name']}_{index}", **_NO_GROUP, **group}
        for index, group in enumerate(stated.get("instance_group", ()))
    ] or config["instance_group"]
    for kind in ("input", "output"):
        known = {tensor["name"]: tensor for tensor in stated.get(kind, ())}
        found[kind] = [{**known.get(each["name"], {}), **_served(each, known)} for each in config[kind]]
    if "dynamic_batching" in stated:
        found["dynamic_batching"] = {**_NO_BATCHING, **stated["dynamic_batching"]}
    return found


def _served(tensor: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a served tensor: completely, if the file does not mention it."""
    stated = known.get(tensor["name"], {})
    return {key: value for key, value in tensor.items() if key not in stated or key in _TENSOR_AS_SERVED}


def _dynamic_batching(policy: BatchPolicy) -> dict[str, Any]:
    return {
        **_NO_BATCHING,
        "preferred_batch_size": policy.preferred_sizes,
        "max_queue_delay_microseconds": round(policy.max_delay * 1_000_000),
    }


def _config_input(spec: TensorSpec, *, is_batched: bool) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": config_type(spec.datatype),
        "format": "FORMAT_NONE",
        "dims": spec.shape[1:] if is_batched else spec.shape,
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": spec.optional,
        "is_non_linear_format_io": False,
    }


def _config_output(spec: TensorSpec, *, is_batched: bool) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": config_type(spec.datatype),
        "dims": spec.shape[1:] if is_batched else spec.shape,
        "label_filename": "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def statistics(models: Iterable[ModelStatistics]) -> bytes:
    """Return the body of `GET v2/models/stats`. Times in nanoseconds, but the last one in milliseconds."""
    return _encode({"model_stats": [_statistics(model) for model in models]})


_NEVER: Final = Duration()


def _statistics(model: ModelStatistics) -> dict[str, Any]:
    compute = {
        "compute_input": model.compute_input,
        "compute_infer": model.compute_infer,
        "compute_output": model.compute_output,
    }
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": model.success,
            "fail": model.fail,
            "queue": model.queue,
            **compute,
            "cache_hit": model.cache_hit,
            "cache_miss": model.cache_miss,
        },
        "response_stats": {},
        "batch_stats": _batches(model, compute),
        "memory_usage": [],
    }


def _batches(model: ModelStatistics, compute: dict[str, Duration]) -> list[dict[str, Any]]:
    if not model.batches:
        return [{"batch_size": 1, **compute}] if model.execution_count else []
    return [
        {
            "batch_size": batch.size,
            "compute_input": _NEVER,
            "compute_infer": batch.compute_infer,
            "compute_output": batch.compute_output,
        }
        for batch in model.batches
    ]


def encode_list(entries: Sequence[msgspec.Struct]) -> bytes:
    """Return the body of a repository's index, or of the status of shared memory."""
    return _encode(entries)


# bodies of requests that are no inference


class IndexRequest(msgspec.Struct, frozen=True):
    """`POST v2/repository/index`."""

    ready: bool | None = False


class _ControlRequest(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] | None = {}


class RegisterRequest(msgspec.Struct, frozen=True):
    """`POST v2/systemsharedmemory/region/{name}/register`. Offset and size in bytes."""

    key: str
    byte_size: int
    offset: int | None = 0


def read_index(body: bytes | bytearray) -> IndexRequest:
    """Read the body of a request for the index, which may be empty; raises `UNPARSABLE`, `INVALID_INPUT`."""
    request: IndexRequest = _read(body or b"{}", IndexRequest)
    return request


def read_register(body: bytes | bytearray) -> RegisterRequest:
    """Read the body of a registration; raises as `read_index`."""
    request: RegisterRequest = _read(body or b"{}", RegisterRequest)
    return request


def check_control(body: bytes | bytearray, *, unload: bool) -> None:
    """Check the body of a request to load or unload a model; raises as `read_index`."""
    request: _ControlRequest = _read(body or b"{}", _ControlRequest)
    for name in request.parameters or {}:
        if not unload or name not in _UNLOAD_PARAMETERS:
            verb = "unload" if unload else "load"
            msg = (
                f"unrecognized {verb} parameter '{clip(name)}': "
                "a model is served as its folder in the repository has it"
            )
            raise GeartrainError(Code.INVALID_INPUT, msg)


def _read(body: bytes | bytearray, kind: Any) -> Any:
    check_utf8(body)
    return guard(lambda text: msgspec.json.decode(text, type=kind), body)
