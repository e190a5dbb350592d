"""`parameters` and `optimization` of a `config.pbtxt` as options of our backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from geartrain.project.errors import ProjectError
from geartrain.project.foreign import model_config_pb2 as pb

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
    values, heeded = ({}, set[str]()) if read is None else read(given)
    remarks = [f"parameter {key!r} is passed over" for key in given if key not in heeded]
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
    heeded = {"intra_op_thread_count", "inter_op_thread_count", "execution_mode", *_ONNX_FLAGS}
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
            heeded.add(key)
    return {**values, **({"session_options": session} if session else {})}, heeded


def _torch(given: Texts) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    values |= _count(given, "INTRA_OP_THREAD_COUNT", "threads")
    heeded = {"INTRA_OP_THREAD_COUNT"}
    if given.get("INFERENCE_MODE", "").lower() == "true":  # always so here
        heeded.add("INFERENCE_MODE")
    return values, heeded


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
