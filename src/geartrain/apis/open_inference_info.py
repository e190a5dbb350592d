"""What the Open Inference Protocol tells of a server and its models, as JSON. Pure.

Source: "Server Metadata" and "Model Metadata" of the protocol document; observed Triton, sections 3, 13, 14 and 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.infer_json import check_utf8, guard
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.statistics import Duration, ModelStatistics
from geartrain.domain.tensors import TensorSpec
from geartrain.domain.tensorview import TensorView

SERVER: Final = "geartrain"
PLATFORM: Final = "python"  # none of those that the document lists; what Triton says of its Python models
_SHARED_MEMORY: Final = "system_shared_memory"
_EXTENSIONS: Final = (
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "generate",
)
_UNLOAD_PARAMETERS: Final = frozenset({"unload_dependents"})

_encode = msgspec.json.Encoder().encode


def extensions(*, shared_memory: bool) -> tuple[str, ...]:
    """Return the extensions of the protocol that this server has."""
    return (*_EXTENSIONS, _SHARED_MEMORY) if shared_memory else _EXTENSIONS


def server_metadata(version: str, *, shared_memory: bool) -> bytes:
    """Return the body of `GET v2`."""
    names = extensions(shared_memory=shared_memory)
    return _encode({"name": SERVER, "version": version, "extensions": names})


def model_metadata(name: str, versions: Sequence[str], view: TensorView) -> bytes:
    """Return the body of `GET v2/models/{name}`."""
    return _encode(
        {
            "name": name,
            "versions": versions,
            "platform": PLATFORM,
            "inputs": [_tensor(spec) for spec in view.inputs],
            "outputs": [_tensor(spec) for spec in view.outputs],
        }
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def config_type(datatype: str) -> str:
    """Return the name that a model's configuration has for a datatype."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def model_config(name: str, view: TensorView, slots: int) -> bytes:
    """Return the body of `GET v2/models/{name}/config`: how it is served, in the words of Triton's configuration."""
    return _encode(
        {
            "name": name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "runtime": "",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 0,
            "input": [_config_input(spec) for spec in view.inputs],
            "output": [_config_output(spec) for spec in view.outputs],
            "batch_input": [],
            "batch_output": [],
            "optimization": {},
            "instance_group": [{"name": name, "kind": "KIND_CPU", "count": slots, "gpus": []}],
            "default_model_filename": "",
            "cc_model_filenames": {},
            "metric_tags": {},
            "parameters": {},
            "model_warmup": [],
            "model_transaction_policy": {"decoupled": view.streams},
        }
    )


def _config_input(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": config_type(spec.datatype),
        "format": "FORMAT_NONE",
        "dims": spec.shape,
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": spec.optional,
        "is_non_linear_format_io": False,
    }


def _config_output(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": config_type(spec.datatype),
        "dims": spec.shape,
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
            "cache_hit": _NEVER,
            "cache_miss": _NEVER,
        },
        "response_stats": {},
        "batch_stats": [{"batch_size": 1, **compute}] if model.execution_count else [],
        "memory_usage": [],
    }


def encode_list(entries: Sequence[msgspec.Struct]) -> bytes:
    """Return the body of a repository's index, or of the status of shared memory."""
    return _encode(entries)


# bodies of requests that are no inference


class IndexRequest(msgspec.Struct, frozen=True):
    """`POST v2/repository/index`."""

    ready: bool = False


class _ControlRequest(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] = {}


class RegisterRequest(msgspec.Struct, frozen=True):
    """`POST v2/systemsharedmemory/region/{name}/register`. Offset and size in bytes."""

    key: str
    byte_size: int
    offset: int = 0


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
    for name in request.parameters:
        if not unload or name not in _UNLOAD_PARAMETERS:
            verb = "unload" if unload else "load"
            msg = f"unrecognized {verb} parameter '{name}': a model is served as its folder in the repository has it"
            raise GeartrainError(Code.INVALID_INPUT, msg)


def _read(body: bytes | bytearray, kind: Any) -> Any:
    check_utf8(body)
    return guard(lambda text: msgspec.json.decode(text, type=kind), body)
