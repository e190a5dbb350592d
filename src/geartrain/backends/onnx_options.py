"""The options of the ONNX backend, as onnxruntime wants them."""

from __future__ import annotations

from typing import Any, Final

from geartrain.authoring.devices import own_device
from geartrain.backends.cpus import usable_cpus
from geartrain.backends.interface import BackendError
from geartrain.backends.options import Options, flag, mapping, text, whole_number, wrong

OPTIONS: Final = frozenset({"providers", "intra_op_threads", "inter_op_threads", "session_options"})

_CPU: Final = "CPUExecutionProvider"
_BY_DEFAULT: Final = ("CUDAExecutionProvider", "ROCMExecutionProvider", _CPU)
_OPTIMIZATIONS: Final = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_MODES: Final = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}
_FLAGS: Final = ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "use_deterministic_compute")
_LEVEL: Final = "log_severity_level"
_SETTINGS: Final = ("graph_optimization_level", "execution_mode", *_FLAGS, _LEVEL)
_SPINNING: Final = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")

Provider = tuple[str, dict[str, str]]


def providers(runtime: Any, options: Options) -> list[Provider]:
    """Return the execution providers with their options, the preferred one first; raise `BackendError`.

    Without the option: a GPU's where this build of onnxruntime has one and the worker has a GPU, and the processor.
    What the GPU's cannot do, the processor does, so its provider is added to any list.
    """
    available = runtime.get_available_providers()
    given = options.get("providers")
    if given is None:
        by_default = [name for name in _BY_DEFAULT if name in available]
        if len(by_default) > 1 and own_device() == "cpu":
            by_default = [_CPU]
        return [(name, {}) for name in by_default]
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise wrong("providers", given, f"write a list of names; this onnxruntime has {', '.join(available)}")
    chosen = [_provider(item) for item in items]
    for name, _ in chosen:
        if name not in available:
            fix = f"this onnxruntime has {', '.join(available)}; for others, another package of it has to be installed"
            raise wrong("providers", name, fix)
    return chosen if any(name == _CPU for name, _ in chosen) else [*chosen, (_CPU, {})]


def _provider(item: object) -> Provider:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, dict) and len(item) == 1:
        name, settings = next(iter(item.items()))
        if isinstance(name, str) and isinstance(settings, dict):
            return name, {str(key): _entry(value) for key, value in settings.items()}
    raise wrong("providers", item, "write a name, or a name and below it the provider's options")


def session_options(runtime: Any, options: Options) -> Any:
    """Return the `SessionOptions`; raise `BackendError`.

    onnxruntime would take a thread for each core of the machine, pin it there, and let it spin while there is nothing
    to do: two models, or replicas of one, would fight for the same cores. So the threads are as many as this process
    has processors, pinned nowhere, and wait. Measured on two cores: a layer of 512 x 1024 for one row takes 76 µs and
    not 58, for 32 rows 543 and not 498, and the threads take 1.5 processors, and not 2, while they do.
    """
    chosen = runtime.SessionOptions()
    chosen.intra_op_num_threads = whole_number(options, "intra_op_threads") or usable_cpus()
    between = whole_number(options, "inter_op_threads")
    if between is not None:  # which onnxruntime would ignore in its sequential mode
        chosen.inter_op_num_threads = between
        chosen.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
    for key in _SPINNING:
        chosen.add_session_config_entry(key, "0")
    for key, value in (mapping(options, "session_options") or {}).items():
        _set(runtime, chosen, key, value=value)
    return chosen


def _set(runtime: Any, chosen: Any, key: str, *, value: Any) -> None:
    where, single = f"session_options.{key}", {f"session_options.{key}": value}
    if key == "graph_optimization_level":
        level = text(single, where, choices=tuple(_OPTIMIZATIONS)) or "all"
        chosen.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, _OPTIMIZATIONS[level])
    elif key == "execution_mode":
        mode = text(single, where, choices=tuple(_MODES)) or "sequential"
        chosen.execution_mode = getattr(runtime.ExecutionMode, _MODES[mode])
    elif key in _FLAGS:
        setattr(chosen, key, bool(flag(single, where)))
    elif key == _LEVEL:
        chosen.log_severity_level = whole_number(single, where, least=0) or 0
    elif "." in key:  # of the open set of entries, which onnxruntime itself does not check
        chosen.add_session_config_entry(key, _entry(value))
    else:
        names = ", ".join(_SETTINGS)
        raise BackendError(f"`parameters.{where}` is not known; there are {names}, and entries such as {_SPINNING[0]}")


def _entry(value: object) -> str:
    """A value as onnxruntime reads it: true and false are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
