"""The module `triton_python_backend_utils`, by the names that models of Triton's Python backend import of it."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np

from geartrain.authoring import metrics
from geartrain.domain.tensors.tensor import join_bytes, split_bytes
from geartrain.worker.loading.triton.config import ModelConfig, is_decoupled, numpy_type
from geartrain.worker.loading.triton.nested import NestedRequest
from geartrain.worker.loading.triton.values import (
    DATATYPES,
    REQUEST_END,
    REQUEST_START,
    RESPONSE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    ResponseSender,
    Tensor,
    TritonError,
    TritonModelException,
)

NAME: Final = "triton_python_backend_utils"
_CORE: Final = "c_python_backend_utils"
_NUMPY: Final = (
    None,
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
"""The types of numpy by the numbers of datatypes in Triton's C API."""

TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_CPU_PINNED: Final = 1
TRITONSERVER_MEMORY_GPU: Final = 2
_RELEASES: Final = (1, 2)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input of a request; None if it is missing."""
    return inference_request.input(name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output of a response; None if it is missing."""
    return next((each for each in inference_response.output_tensors() if each.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of an input in a configuration; None if it is missing."""
    return _tensor_config(model_config, "input", name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of an output in a configuration; None if it is missing."""
    return _tensor_config(model_config, "output", name)


def _tensor_config(model_config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    return next((each for each in model_config.get(kind, ()) if each["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return True if a configuration has decoupled responses."""
    return is_decoupled(model_config)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the type of numpy for a name such as TYPE_FP32."""
    return numpy_type(triton_type_string)


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the type of numpy for the number of a datatype."""
    return _NUMPY[data_type] if 0 <= data_type < len(_NUMPY) else None


def numpy_to_triton_type(data_type: Any) -> int:
    """Return the number of the datatype for a type of numpy. Raises `TritonModelException`."""
    kind = np.dtype(data_type)
    if kind.kind in "USO":
        return DATATYPES.index("BYTES")
    for number, each in enumerate(_NUMPY):
        if each is not None and kind == np.dtype(each):
            return number
    raise TritonModelException(f"the type {kind} of numpy is no datatype of Triton")


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """Return the elements of an array of bytes or texts, each behind its length, as an array of one element."""
    if input_tensor.size == 0:
        return None
    elements = [each if isinstance(each, bytes) else str(each).encode() for each in input_tensor.ravel().tolist()]
    return np.asarray(join_bytes(elements), dtype=np.object_)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Any:
    """Return the elements behind their lengths as an array of bytes."""
    found = split_bytes("", encoded_tensor)
    array = np.empty(len(found), object)
    array[:] = found
    return array


def get_model_dir() -> str:
    """Return the folder of the model's version."""
    return os.getcwd()  # noqa: PTH109 - a text


class Logger:
    """Writes into the logs of the predictions that run, or those of the server."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    @classmethod
    def log(cls, message: str, level: int = INFO) -> None:
        """Write a message; those of the level VERBOSE are left out."""
        if level != cls.VERBOSE:
            sys.stderr.write(f"{message}\n")

    @classmethod
    def log_info(cls, message: str) -> None:
        """Write a message."""
        cls.log(message)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Write a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Write an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Leave a message out."""


class LogLevel:
    """The levels of `Logger.log`."""

    INFO = Logger.INFO
    WARNING = Logger.WARNING
    ERROR = Logger.ERROR
    VERBOSE = Logger.VERBOSE


class MetricFamily:
    """A metric that `/metrics` shows by this name; its values have the labels of their `Metric` alone."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException(f"MetricFamily {name!r}: {kind!r} is no kind of a metric")
        self._name = name
        self._text = description
        self._kind = kind
        if kind != self.HISTOGRAM:
            self._define(())

    def Metric(  # noqa: N802 - the name is Triton's
        self, labels: Mapping[str, str] | None = None, buckets: Iterable[float] | None = None
    ) -> Metric:
        """Return the metric with these labels. `buckets` are the bounds of a histogram, rising."""
        bounds = tuple(buckets or ())
        if (self._kind == self.HISTOGRAM) != bool(bounds):
            raise TritonModelException(f"Metric of {self._name!r}: `buckets` are for a histogram, which needs them")
        return Metric(self._define(bounds), self._kind, dict(labels or {}))

    def _define(self, bounds: tuple[float, ...]) -> Any:
        kinds: tuple[metrics.Kind, ...] = ("counter", "gauge", "histogram")
        try:
            return metrics.raw_metric(self._name, kinds[self._kind], self._text, bounds=bounds)
        except ValueError as error:
            raise TritonModelException(f"MetricFamily: {error}") from None


class Metric:
    """A metric of a family, with its labels."""

    def __init__(self, metric: Any, kind: int, labels: dict[str, str]) -> None:
        try:
            metrics.check_raw_labels(metric.definition.name, labels)
        except (TypeError, ValueError) as error:
            raise TritonModelException(f"Metric: {error}") from None
        self._metric = metric
        self._kind = kind
        self._labels = labels
        self._value = 0.0
        if kind != MetricFamily.HISTOGRAM:
            self.increment(0)  # it is shown from the beginning

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge. Raises `TritonModelException` for a histogram, and a counter that would fall."""
        self._check(MetricFamily.COUNTER, MetricFamily.GAUGE)
        self._do(self._metric.inc, value)
        self._value += value

    def set(self, value: float) -> None:
        """Set a gauge. Raises `TritonModelException` for anything else."""
        self._check(MetricFamily.GAUGE)
        self._do(self._metric.set, value)
        self._value = value

    def observe(self, value: float) -> None:
        """Count a value of a histogram. Raises `TritonModelException` for anything else."""
        self._check(MetricFamily.HISTOGRAM)
        self._do(self._metric.observe, value)

    def value(self) -> float:
        """Return the value of a counter or a gauge, as this object has made it."""
        self._check(MetricFamily.COUNTER, MetricFamily.GAUGE)
        return self._value

    def _check(self, *kinds: int) -> None:
        if self._kind not in kinds:
            raise TritonModelException("Metric: its kind has no such operation")

    def _do(self, change: Any, value: float) -> None:
        try:
            change(value, **self._labels)
        except ValueError as error:
            raise TritonModelException(str(error)) from None


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return True: a request for a model that is not ready waits for it."""
    return bool(model_name) or bool(model_version)


_HERE: Final = {
    "load_model": "models are loaded by the operator, or with the first request (`--on-demand`)",
    "unload_model": "models are unloaded by the operator",
    "register_decoupled_handler": "it is Triton's own",
}
"""Names of the module that are refused, with what there is instead."""

_NAMES: Final[Mapping[str, Any]] = {
    "InferenceRequest": NestedRequest,
    "InferenceResponse": InferenceResponse,
    "InferenceResponseSender": ResponseSender,
    "InferenceTrace": InferenceTrace,
    "LogLevel": LogLevel,
    "Logger": Logger,
    "Metric": Metric,
    "MetricFamily": MetricFamily,
    "ModelConfig": ModelConfig,
    "PreferredMemory": PreferredMemory,
    "Tensor": Tensor,
    "TritonError": TritonError,
    "TritonModelException": TritonModelException,
    "TRITONSERVER_MEMORY_CPU": TRITONSERVER_MEMORY_CPU,
    "TRITONSERVER_MEMORY_CPU_PINNED": TRITONSERVER_MEMORY_CPU_PINNED,
    "TRITONSERVER_MEMORY_GPU": TRITONSERVER_MEMORY_GPU,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": REQUEST_END,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": REQUEST_START,
    "TRITONSERVER_REQUEST_RELEASE_ALL": _RELEASES[0],
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": _RELEASES[1],
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": RESPONSE_FINAL,
    "deserialize_bytes_tensor": deserialize_bytes_tensor,
    "get_input_config_by_name": get_input_config_by_name,
    "get_input_tensor_by_name": get_input_tensor_by_name,
    "get_model_dir": get_model_dir,
    "get_output_config_by_name": get_output_config_by_name,
    "get_output_tensor_by_name": get_output_tensor_by_name,
    "is_model_ready": is_model_ready,
    "numpy_to_triton_type": numpy_to_triton_type,
    "serialize_byte_tensor": serialize_byte_tensor,
    "triton_string_to_numpy": triton_string_to_numpy,
    "triton_to_numpy_type": triton_to_numpy_type,
    "using_decoupled_model_transaction_policy": using_decoupled_model_transaction_policy,
}
KNOWN: Final = frozenset(_NAMES)


def _missing(attribute: str) -> Any:
    why = _HERE.get(attribute, f"geartrain stands in for Triton here, with {', '.join(sorted(_NAMES))}")
    raise AttributeError(f"module {NAME!r} has no attribute {attribute!r}: {why}", name=attribute)


def install() -> None:
    """Make `import triton_python_backend_utils` give this module from now on, in this process."""
    for name in (NAME, _CORE):
        module = ModuleType(name, "Stands in for the module of Triton's Python backend.")
        module.__dict__.update(_NAMES, __all__=sorted(_NAMES), __getattr__=_missing, np=np, struct=struct)
        sys.modules[name] = module
