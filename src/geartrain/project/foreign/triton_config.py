"""`config.pbtxt` of Triton as our settings: one translation, of all that is in it.

What a model would be wrong without is an error; what only runs otherwise is a remark. Both name the field.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.foreign.triton_instances import read_instances
from geartrain.project.foreign.triton_options import read_options
from geartrain.project.foreign.triton_scheduling import read_batching, read_priorities, read_queue
from geartrain.project.foreign.triton_tensors import read_declared
from geartrain.project.foreign.triton_text import plain, read_config
from geartrain.project.foreign.triton_warmup import read_warmup
from geartrain.project.formats import REFUSED, known_backends
from geartrain.project.settings import TRITON_NAME, Settings

_BACKENDS: Final = {  # of Triton: ours, its platform, and the file that it looks for
    "onnxruntime": ("onnx", "onnxruntime_onnx", "model.onnx"),
    "pytorch": ("torch", "pytorch_libtorch", "model.pt"),
    "tensorflow": ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
}
_PLATFORMS: Final = {platform: backend for backend, (_, platform, _) in _BACKENDS.items()}
_INSTEAD: Final = {
    "ensemble": "call its models one after the other, or write a run.py that does",
    "python": "write its model.py as a run.py",
    "tensorrt": REFUSED["tensorrt_plan"][1],
}
_ERRORS: Final = {
    "ensemble_scheduling": f"ensembles are not served; {_INSTEAD['ensemble']}",
    "sequence_batching": "the state of a sequence is not kept between requests; write a run.py that keeps it",
    "batch_input": "tensors that are made of the batch cannot be given to the model",
    "batch_output": "outputs that are cut by their inputs' shapes cannot be given",
    "model_operations": "operators of other libraries are not loaded",
    "model_repository_agents": "agents, which may change the model's files, are not run",
}
_REMARKS: Final = {
    "cc_model_filenames": "the file is the same on every GPU",
    "metric_tags": "metrics have no further labels",
    "response_cache": "responses are not cached",
    "model_metrics": "the buckets of histograms are those of --latency-buckets",
    "runtime": "the backend chooses it",
}
_HEEDED: Final = frozenset(
    {
        "name",
        "platform",
        "backend",
        "version_policy",
        "max_batch_size",
        "input",
        "output",
        "instance_group",
        "default_model_filename",
        "dynamic_batching",
        "optimization",
        "parameters",
        "model_warmup",
        "model_transaction_policy",
    }
)


def read_triton(folder: pathlib.Path) -> Settings:
    """Return the settings that `folder/config.pbtxt` means; raise ProjectError that names the file and the field."""
    config, unknown = read_config(folder)
    path = folder / TRITON_NAME
    try:
        return _settings(folder, config, unknown)
    except ProjectError as error:
        raise ProjectError(f"{path}: {error.message}") from None


def _settings(folder: pathlib.Path, config: pb.ModelConfig, unknown: tuple[str, ...]) -> Settings:
    _check(config)
    backend, platform, file = _backend(config)
    remarks = [f"`{name}` is not known, and passed over" for name in unknown]
    remarks += _remarks(folder, config)
    instances = read_instances(config)
    options = read_options(config, backend)
    remarks += [*instances.remarks, *options.remarks]
    batching = read_batching(config)
    priorities = read_priorities(config)
    declared = read_declared(config, platform=platform)
    warmup = read_warmup(folder, config)
    return Settings(
        origin=TRITON_NAME,
        versions=_versions(config),
        backend=backend or None,
        file=config.default_model_filename or file or None,
        parameters=options.values,
        declared=declared,
        batching=batching,
        queue=read_queue(config),
        priorities=priorities,
        replicas=instances.replicas or None,
        devices=instances.devices,
        warmup=warmup.inputs,
        stated=_stated(config, file),
        remarks=tuple(f"{TRITON_NAME}: {sentence}" for sentence in (*remarks, *warmup.remarks)),
    )


def _check(config: pb.ModelConfig) -> None:
    """Raise ProjectError for what the model would be wrong without."""
    for field, _ in config.ListFields():
        if field.name in _ERRORS:
            raise ProjectError(f"`{field.name}`: {_ERRORS[field.name]}")
    if config.model_transaction_policy.decoupled:
        raise ProjectError("`model_transaction_policy.decoupled` is true, and a model file gives one response")
    if config.max_batch_size < 0:
        raise ProjectError(
            f"`max_batch_size` is {config.max_batch_size}; write 0 for no batches, or their largest size"
        )
    if config.HasField("dynamic_batching") and config.HasField("max_batch_size") and not config.max_batch_size:
        raise ProjectError(
            "`dynamic_batching` is there, and `max_batch_size` is 0; write the size of the largest batch"
        )


def _backend(config: pb.ModelConfig) -> tuple[str, str, str]:
    """Return our backend, the platform that metadata tell, and the name of the file; "" for what the file decides."""
    backend, platform = config.backend, config.platform
    if platform and not backend:
        backend = _PLATFORMS.get(platform, platform)
    if not backend:
        return "", "", ""
    if backend in _BACKENDS:
        ours, usual, file = _BACKENDS[backend]
        if platform not in {"", usual}:
            _refuse(platform)
        return ours, usual, file
    if backend in known_backends():
        return backend, platform, ""
    return _refuse(platform if platform in REFUSED else backend)


def _refuse(name: str) -> tuple[str, str, str]:
    refused = REFUSED[name][1] if name in REFUSED else _INSTEAD.get(name, "")
    known = ", ".join((*_BACKENDS, *known_backends()))
    raise ProjectError(f"backend {name!r} is not served; {refused or f'there are {known}'}")


def _versions(config: pb.ModelConfig) -> tuple[int, ...] | int | None:
    policy = config.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return None
    if kind == "specific":
        versions = tuple(sorted(set(policy.specific.versions)))
        if not versions or versions[0] < 0:
            raise ProjectError(f"`version_policy.specific` has {list(versions)}; write numbers of versions")
        return versions
    return policy.latest.num_versions or 1


def _remarks(folder: pathlib.Path, config: pb.ModelConfig) -> Iterator[str]:
    if config.name and config.name != folder.name:
        yield f"`name` is {config.name!r}, and the model is called as its folder is, {folder.name!r}"
    for field, _ in config.ListFields():
        if field.name in _REMARKS:
            yield f"`{field.name}` is passed over: {_REMARKS[field.name]}"
        elif field.name not in _HEEDED:
            yield f"`{field.name}` is passed over"
    if config.dynamic_batching.preserve_ordering:
        yield "`dynamic_batching.preserve_ordering` is passed over: each response is sent when it is there"
    tensors: tuple[pb.ModelInput | pb.ModelOutput, ...] = (*config.input, *config.output)
    for each in tensors:
        if each.is_non_linear_format_io:
            yield f"`is_non_linear_format_io` of '{each.name}' is passed over"


def _stated(config: pb.ModelConfig, file: str) -> Mapping[str, Any]:
    """Return the configuration for `GET …/config` as it is written here. `file` is the name by default."""
    return {"version_policy": {"latest": {"num_versions": 1}}, "default_model_filename": file, **plain(config)}
