"""`config.pbtxt` of Triton as our settings: one translation, of all that is in it.

What a model would be wrong without is an error; what only runs otherwise is a remark. Both name the field.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from geartrain.domain.predictions.priorities import MAX_LEVELS, NO_PRIORITIES, Level, Priorities
from geartrain.domain.signature.pipeline import PLATFORM
from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb
from geartrain.project.foreign.triton_ensemble import is_ensemble, read_ensemble
from geartrain.project.foreign.triton_tensors import read_declared, read_warmup
from geartrain.project.foreign.triton_text import plain, read_config
from geartrain.project.formats import REFUSED, TRITON_PYTHON, known_backends
from geartrain.project.setting_values import Devices
from geartrain.project.settings import TRITON_NAME, Settings

_Group = pb.ModelInstanceGroup
_CPU: Final = Devices("cpu")
_PASSED_OVER: Final = ("rate_limiter", "secondary_devices", "profile", "host_policy")


class Instances(msgspec.Struct, frozen=True):
    """The replicas, 0 where nothing is said; their devices, None for those of the server; and what is passed over."""

    replicas: int = 0
    devices: Devices | None = None
    remarks: tuple[str, ...] = ()


def read_instances(config: pb.ModelConfig) -> Instances:
    """Combine the groups of instances; raise ProjectError that names the field."""
    groups = list(config.instance_group)
    there = {field.name for group in groups for field, _ in group.ListFields()}
    remarks = [f"`instance_group.{name}` is passed over" for name in _PASSED_OVER if name in there]
    if any(group.passive for group in groups):
        remarks.append("`instance_group.passive` is passed over: all instances take requests")
    for group in groups:
        if group.count < 0 or any(gpu < 0 for gpu in group.gpus):
            raise ProjectError("`instance_group` has a number below 0")
        if group.gpus and group.kind == _Group.KIND_CPU:
            raise ProjectError("`instance_group` is of KIND_CPU, and has `gpus`; remove them, or write KIND_GPU")
    on_gpus = [group for group in groups if group.kind == _Group.KIND_GPU or group.gpus]
    on_cpus = [group for group in groups if group.kind == _Group.KIND_CPU]
    if on_gpus and len(on_gpus) < len(groups):
        remarks.append("`instance_group`: the replicas of a model are on devices of one kind; those on GPUs are made")
        groups = on_gpus
    return Instances(
        replicas=sum((group.count or 1) * max(1, len(group.gpus)) for group in groups),
        devices=_gpus(on_gpus, remarks) if on_gpus else _CPU if on_cpus else None,
        remarks=tuple(remarks),
    )


def _gpus(groups: list[pb.ModelInstanceGroup], remarks: list[str]) -> Devices:
    named = tuple(dict.fromkeys(f"cuda:{gpu}" for group in groups for gpu in group.gpus))
    if named and all(group.gpus for group in groups):
        if len({group.count or 1 for group in groups}) > 1:
            remarks.append("`instance_group`: the replicas are divided evenly among the GPUs")
        return Devices("named", named)
    remarks.append(
        "`instance_group`: `count` is that of all GPUs together, and not of each; write `gpus` to choose them"
    )
    return Devices()


_SECOND: Final = 1_000_000  # microseconds


def read_batching(config: pb.ModelConfig) -> Mapping[str, Any] | None:
    """Return the settings of batches; None where the configuration is silent and the model's file decides.

    Raises ProjectError that names the field.
    """
    largest = config.max_batch_size
    given = config.dynamic_batching
    if not largest:
        return None
    sizes = sorted(set(given.preferred_batch_size))
    if sizes and not 1 <= sizes[0] <= sizes[-1] <= largest:
        raise ProjectError(
            f"`dynamic_batching.preferred_batch_size` has {sizes}; write sizes from 1 to `max_batch_size`, {largest}"
        )
    return {
        "max_size": largest,
        "refuse_larger": True,
        "gather": config.HasField("dynamic_batching"),
        "preferred_sizes": tuple(sizes),
        "max_delay": given.max_queue_delay_microseconds / _SECOND,
    }


def read_queue(config: pb.ModelConfig) -> int | None:
    """Return the number of requests that may wait; None if it is not the same for all of them."""
    given = config.dynamic_batching
    return None if given.priority_levels else given.default_queue_policy.max_queue_size or None


def read_priorities(config: pb.ModelConfig) -> Priorities:
    """Return the priority levels; one without a name where only a limit of time is set. Raises ProjectError."""
    given = config.dynamic_batching
    count, default = given.priority_levels, given.default_priority_level
    if count > MAX_LEVELS:
        raise ProjectError(f"`dynamic_batching.priority_levels` is {count}; there may be {MAX_LEVELS}")
    if not count:
        level = _level(given.default_queue_policy)
        return Priorities((level,), 1) if level.timeout is not None else NO_PRIORITIES
    if not 1 <= default <= count:
        raise ProjectError(
            f"`dynamic_batching.default_priority_level` is {default}; write a level from 1, the highest, to {count}"
        )
    own = given.priority_queue_policy
    for number in own:
        if not 1 <= number <= count:
            raise ProjectError(f"`dynamic_batching.priority_queue_policy` has level {number}; there are 1 to {count}")
    levels = [_level(own.get(number, given.default_queue_policy)) for number in range(1, count + 1)]
    return Priorities(tuple(levels), default)


def _level(policy: pb.ModelQueuePolicy) -> Level:
    waits = policy.timeout_action == pb.ModelQueuePolicy.DELAY
    timeout = policy.default_timeout_microseconds
    return Level(
        max_queue=policy.max_queue_size or None,
        timeout=timeout / _SECOND if timeout else None,
        on_timeout="continue" if waits and timeout else "reject",
    )


Texts = Mapping[str, str]

_LEVELS: Final = {-1: "basic", 0: "all", 1: "extended", 2: "disable_all"}
_PARALLEL: Final = "1"
_ONNX_FLAGS: Final = {"enable_mem_arena": "enable_cpu_mem_arena", "enable_mem_pattern": "enable_mem_pattern"}
_ACCELERATORS: Final = ("gpu_execution_accelerator", "cpu_execution_accelerator")
_OPTIMIZATIONS: Final = ("graph", "execution_accelerators")  # those that are looked at


class BackendOptions(msgspec.Struct, frozen=True):
    """Options of a backend, and what is passed over."""

    values: Mapping[str, Any] = {}
    remarks: tuple[str, ...] = ()


def read_options(config: pb.ModelConfig, backend: str) -> BackendOptions:
    """Return the options of our backend; raise ProjectError that names the parameter and what belongs there."""
    given = {key: value.string_value for key, value in config.parameters.items()}
    read = _READERS.get(backend)
    values, used = ({}, set[str]()) if read is None else read(given)
    if backend == TRITON_PYTHON:  # the model reads its parameters itself
        unused = {key: why for key, why in _PYTHON_PARAMETERS.items() if key in given}
        remarks = [f"parameter {key!r} is passed over: {why}" for key, why in unused.items()]
    else:
        remarks = [f"parameter {key!r} is passed over" for key in given if key not in used]
    optimization = config.optimization
    for field, _ in optimization.ListFields():
        if field.name not in _OPTIMIZATIONS:
            remarks.append(f"`optimization.{field.name}` is passed over")
    for kind in _ACCELERATORS:
        remarks += [
            f"`optimization.execution_accelerators`: {each.name!r} is not used; `providers` below `parameters` in "
            "geartrain.yaml chooses what runs an ONNX model"
            for each in getattr(optimization.execution_accelerators, kind)
        ]
    level = optimization.graph.level
    if level and backend == "onnx":
        if level not in _LEVELS:
            raise ProjectError(f"`optimization.graph.level` is {level}; write -1, 1 or 2")
        session = {**values.get("session_options", {}), "graph_optimization_level": _LEVELS[level]}
        values = {**values, "session_options": session}
    elif level:
        remarks.append("`optimization.graph` is passed over")
    return BackendOptions(values, tuple(remarks))


def _onnx(given: Texts) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    session: dict[str, Any] = {}
    used = {"intra_op_thread_count", "inter_op_thread_count", "execution_mode", *_ONNX_FLAGS}
    is_parallel = given.get("execution_mode", "0") == _PARALLEL
    if given.get("execution_mode", "0") not in {"0", _PARALLEL}:
        raise ProjectError(f"parameter 'execution_mode' is {given['execution_mode']!r}; write 0 or 1")
    values |= _count(given, "intra_op_thread_count", "intra_op_threads")
    if is_parallel:
        session["execution_mode"] = "parallel"
        values |= _count(given, "inter_op_thread_count", "inter_op_threads")
    for key, option in _ONNX_FLAGS.items():
        if key in given:
            session[option] = given[key] not in {"0", "false"}
    for key, text in given.items():
        if key.startswith("session."):
            session[key] = text
            used.add(key)
    return {**values, **({"session_options": session} if session else {})}, used


def _torch(given: Texts) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    values |= _count(given, "INTRA_OP_THREAD_COUNT", "threads")
    used = {"INTRA_OP_THREAD_COUNT"}
    if given.get("INFERENCE_MODE", "").lower() == "true":  # always so here
        used.add("INFERENCE_MODE")
    return values, used


def _tensorflow(given: Texts) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    values |= _count(given, "TF_NUM_INTRA_THREADS", "intra_op_threads")
    values |= _count(given, "TF_NUM_INTER_THREADS", "inter_op_threads")
    if given.get("TF_SIGNATURE_DEF"):
        values["signature"] = given["TF_SIGNATURE_DEF"]
    return values, {"TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS", "TF_SIGNATURE_DEF"}


def _count(given: Texts, key: str, option: str) -> dict[str, Any]:
    """Return a number of threads as an option; none for 0, which leaves it to the backend."""
    text = given.get(key, "0").strip()
    if not (text.isascii() and text.isdecimal()):
        raise ProjectError(f"parameter {key!r} is {text!r}; write a number of threads, 0 for as many as there are")
    return {option: int(text)} if int(text) else {}


_READERS: Final[Mapping[str, Callable[[Texts], tuple[dict[str, Any], set[str]]]]] = {
    "onnx": _onnx,
    "torch": _torch,
    "tensorflow": _tensorflow,
}


_PYTHON_PARAMETERS: Final = {
    "EXECUTION_ENV_PATH": "the model runs in the environment of geartrain; install its packages there",
}
_BACKENDS: Final = {  # of Triton: ours, its platform, and the file that it looks for
    "onnxruntime": ("onnx", "onnxruntime_onnx", "model.onnx"),
    "pytorch": ("torch", "pytorch_libtorch", "model.pt"),
    "tensorflow": ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    TRITON_PYTHON: (TRITON_PYTHON, TRITON_PYTHON, "model.py"),
}
_PLATFORMS: Final = {platform: backend for backend, (_, platform, _) in _BACKENDS.items()}
_INSTEAD: Final = {
    "tensorrt": REFUSED["tensorrt_plan"][1],
}
_ERRORS: Final = {
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
        "ensemble_scheduling",
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
    if is_ensemble(config):
        return _ensemble(folder, config, unknown)
    backend, platform, file = _backend(config)
    remarks = [f"`{name}` is not known, and passed over" for name in unknown]
    remarks += _remarks(folder, config)
    instances = read_instances(config)
    options = read_options(config, backend)
    remarks += [*instances.remarks, *options.remarks]
    batching = read_batching(config)
    priorities = read_priorities(config)
    is_class = backend == TRITON_PYTHON
    declared = read_declared(config, platform=platform, is_apart=is_class)
    warmup = read_warmup(folder, config, is_open=is_class)
    if is_class and config.model_transaction_policy.decoupled and config.HasField("dynamic_batching"):
        remarks.append("`dynamic_batching` is passed over: each call of execute() of a decoupled model has one request")
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


def _ensemble(folder: pathlib.Path, config: pb.ModelConfig, unknown: tuple[str, ...]) -> Settings:
    """Return the settings of an ensemble: it has no file, and runs in no worker of its own."""
    remarks = [f"`{name}` is not known, and passed over" for name in unknown]
    remarks += [*_remarks(folder, config), *(f"parameter {key!r} is passed over" for key in config.parameters)]
    if config.ensemble_scheduling.max_inflight_requests:
        remarks.append(
            "`ensemble_scheduling.max_inflight_requests` is passed over: the queues of the models are bounds"
        )
    warmup = read_warmup(folder, config)
    return Settings(
        origin=TRITON_NAME,
        versions=_versions(config),
        pipeline=read_ensemble(config, read_declared(config, platform=PLATFORM)),
        warmup=warmup.inputs,
        stated={"version_policy": {"latest": {"num_versions": 1}}, **plain(config)},
        remarks=tuple(f"{TRITON_NAME}: {sentence}" for sentence in (*remarks, *warmup.remarks)),
    )


def _check(config: pb.ModelConfig) -> None:
    """Raise ProjectError for what the model would be wrong without."""
    for field, _ in config.ListFields():
        if field.name in _ERRORS:
            raise ProjectError(f"`{field.name}`: {_ERRORS[field.name]}")
    if config.model_transaction_policy.decoupled and TRITON_PYTHON not in {config.backend, config.platform}:
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
