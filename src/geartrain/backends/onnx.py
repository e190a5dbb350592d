"""ONNX models, run by onnxruntime."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from geartrain.authoring.devices import own_device
from geartrain.backends.arrays import Dimension, are_rows, decoded, numpy_type
from geartrain.backends.cpus import usable_cpus
from geartrain.backends.foreign import what_is
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.libraries import note, require
from geartrain.backends.options import Options, flag, mapping, text, whole_number, wrong
from geartrain.domain.tensors.tensor import VARIABLE

if TYPE_CHECKING:
    import numpy as np

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


# The numbers of fields in onnx.proto.
_IR_VERSION: Final = 1  # of ModelProto
_GRAPH: Final = 7
_INITIALIZER, _INPUT, _OUTPUT = 5, 11, 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR_TYPE: Final = 1  # of TypeProto
_SHAPE: Final = 2  # of TypeProto.Tensor
_EXTERNAL_DATA: Final = 13  # of TensorProto
_KEY, _VALUE = 1, 2  # of StringStringEntryProto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # encodings of a field

Span = tuple[int, int]  # begin and end of a field
_Field = tuple[int, int, Span]  # its number, how it is written, and where


class OnnxFile(NamedTuple):
    """Facts of a file. `unranked` are inputs and outputs without a known number of dimensions.

    `weights` are the files with external data, and the least bytes of each.
    """

    unranked: frozenset[str]
    weights: dict[str, int]


class _BadMessageError(Exception):
    pass


class _CutError(Exception):
    """The message ends so many bytes too early."""


def read_description(path: Path) -> OnnxFile:
    """Look into a file; raise `BackendError` for one that is cut, or no ONNX at all."""
    other = what_is(path)
    if other in {"is a folder", "is empty"} or other.startswith("cannot be read"):
        raise BackendError(f"this {other}; an ONNX model is expected")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        starts_well = data[0] == _IR_VERSION << 3
        try:
            return _model(data)
        except _CutError as error:
            if starts_well:
                raise BackendError(f"the file is cut: at least {error} bytes are missing at its end") from None
        except _BadMessageError:
            pass
    raise BackendError(f"this {other or 'is another kind of file'}; an ONNX model is expected")


def _model(data: mmap.mmap) -> OnnxFile:
    graphs = [span for number, kind, span in _fields(data, (0, len(data))) if (number, kind) == (_GRAPH, _LENGTH)]
    if not graphs:
        raise _BadMessageError
    unranked: set[str] = set()
    weights: dict[str, int] = {}
    for number, kind, span in _fields(data, graphs[0]):
        if kind != _LENGTH:
            continue
        if number in {_INPUT, _OUTPUT}:
            unranked |= _without_shape(data, span)
        elif number == _INITIALIZER:
            place = dict(_pairs(data, span))
            if "location" in place:
                end = int(place.get("offset", "0")) + int(place.get("length", "0"))
                weights[place["location"]] = max(end, weights.get(place["location"], 0))
    return OnnxFile(frozenset(unranked), weights)


def _without_shape(data: mmap.mmap, value_info: Span) -> set[str]:
    """The name of an input or output, if it is a tensor without a shape."""
    found = {number: span for number, _, span in _fields(data, value_info)}
    kind = {number: span for number, _, span in _fields(data, found.get(_TYPE, (0, 0)))}
    if _TENSOR_TYPE not in kind:
        return set()
    has_shape = any(number == _SHAPE for number, _, _ in _fields(data, kind[_TENSOR_TYPE]))
    return set() if has_shape else {_text(data, found.get(_NAME, (0, 0)))}


def _pairs(data: mmap.mmap, tensor: Span) -> Iterator[tuple[str, str]]:
    """The keys and values that say where the contents of a tensor are, if they are not in it."""
    for number, kind, span in _fields(data, tensor):
        if (number, kind) == (_EXTERNAL_DATA, _LENGTH):
            entry = {number: span for number, _, span in _fields(data, span)}
            yield _text(data, entry.get(_KEY, (0, 0))), _text(data, entry.get(_VALUE, (0, 0)))


def _text(data: mmap.mmap, span: Span) -> str:
    return data[span[0] : span[1]].decode(errors="replace")


def _fields(data: mmap.mmap, span: Span) -> Iterator[_Field]:
    """The fields of a message; raise `_BadMessageError` or `_CutError`."""
    at, end = span
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        begin = at
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _LENGTH:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        if number == 0 or kind not in {_VARINT, _FIXED64, _LENGTH, _FIXED32}:
            raise _BadMessageError
        if at > end:
            raise _CutError(at - end)
        yield number, kind, (begin, at)


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            raise _CutError(1)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return value, at
    raise _BadMessageError


_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}
_BFLOAT: Final = 16  # the number of BFLOAT16 in onnx.proto
_NO_VERSIONS: Final = (0, 2**63 - 1)
_BY_ITSELF: Final = re.compile(r"unk__\d+|.*_dim_\d+")  # names of dimensions that exporters make up
_ADVICE: Final = "export it with options={id(model): {'zipmap': False}} to have it as a tensor"


class OnnxBackend(Backend):
    """An .onnx file, with its external data beside it.

    Inputs and outputs are those of the graph, in its order; inputs that have a value in the graph keep it. Outputs that
    are no tensors are left out, as long as one is left.
    """

    platform = "onnx_onnxv1"
    options = OPTIONS

    def load(self) -> None:
        file = read_description(self.path)
        self._check_weights(file.weights)
        runtime = require("onnxruntime", extra="onnx")
        wanted = providers(runtime, self.given)
        chosen = session_options(runtime, self.given)
        try:
            session = runtime.InferenceSession(str(self.path), chosen, providers=wanted)
        except Exception as error:
            raise BackendError(f"onnxruntime cannot load it: {_sentence(error)}") from error
        self._check_providers(session, wanted)
        self._runtime, self._session = runtime, session
        self._take_tensors(file.unranked)
        self._describe(chosen.intra_op_num_threads)

    def _check_weights(self, weights: dict[str, int]) -> None:
        for location, size in weights.items():
            beside = self.path.parent / location
            name = f"its weights are in {location}"
            if not beside.is_file():
                raise BackendError(f"{name}, which is not there; put that file into {self.path.parent}")
            if beside.stat().st_size < size:
                raise BackendError(f"{name}, which is cut: it has {beside.stat().st_size} of at least {size} bytes")

    def _check_providers(self, session: Any, wanted: list[tuple[str, dict[str, str]]]) -> None:
        """Raise `BackendError` if onnxruntime goes on without a provider that the operator has asked for."""
        used = session.get_providers()
        unused = [name for name, _ in wanted if name not in used]
        if unused and self.given.get("providers") is not None:
            raise BackendError(f"{unused[0]} of `parameters.providers` cannot be used on this machine; see the log")

    def _take_tensors(self, unranked: frozenset[str]) -> None:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        for node in inputs:
            if node.type not in _DATATYPES:
                raise BackendError(f"input '{node.name}' is a {node.type}; only tensors can be sent")
        taken = [node for node in outputs if node.type in _DATATYPES]
        for node in outputs:
            if node not in taken:
                advice = f"; {_ADVICE}" if "map(" in node.type else ""
                problem = f"output '{node.name}' is a {node.type} and no tensor{advice}"
                if not taken:
                    raise BackendError(problem)
                note(f"{self.path.name}: {problem}. It is left out.")
        self.inputs = _specs(inputs, unranked)
        self.outputs = _specs(taken, unranked)
        self._names = [spec.name for spec in self.outputs]
        self._texts = [spec.name for spec in self.inputs if spec.datatype == "BYTES"]
        # onnxruntime knows bfloat16 in its own values, and not in arrays of numpy.
        self._has_bfloat = any(spec.datatype == "BF16" for spec in (*self.inputs, *self.outputs))
        self._rows = are_rows([_named(node) for node in inputs], [_named(node) for node in taken])

    def _describe(self, threads: int) -> None:
        meta = self._session.get_modelmeta()
        version = "" if meta.version in _NO_VERSIONS else f" version {meta.version}"
        maker = f"made with {meta.producer_name}" if meta.producer_name else ""
        self.description = meta.description or ", ".join(filter(None, (f"{meta.graph_name}{version}", maker)))
        using = ", ".join(self._session.get_providers())
        note(f"{self.path.name}: {self.description or 'a model'}")
        note(f"onnxruntime {self._runtime.__version__} with {using}, {threads} threads")

    @property
    def batches(self) -> bool:
        """True if the first dimension is variable everywhere, and by its name is that of a batch."""
        return self._rows and super().batches

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """See `Backend.run`.

        Binding inputs and outputs (`io_binding`) gains nothing here: `run()` hands over the memory of outputs as it is.
        Measured for Relu of 2.5 million floats: 333 µs; with a bound output that is copied to the caller 944, with one
        in memory of our own 351; for 10 floats 5, 7 and 8 µs. Outputs on a GPU have to come from there in any case.
        """
        for name in self._texts:
            inputs[name] = decoded(name, inputs[name])
        if self._has_bfloat:
            return self._run_values(inputs)
        return dict(zip(self._names, self._session.run(self._names, inputs), strict=True))

    def _run_values(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        make = self._runtime.OrtValue
        values = {}
        for spec in self.inputs:
            array = inputs[spec.name]
            if spec.datatype == "BF16":
                bits = _contiguous(array.view("uint16"))
                values[spec.name] = make.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT)
            else:
                values[spec.name] = make.ortvalue_from_numpy(_contiguous(array))
        results = self._session.run_with_ort_values(self._names, values)
        pairs = zip(self.outputs, results, strict=True)
        return {
            spec.name: _bfloats(value) if spec.datatype == "BF16" else value.numpy().copy() for spec, value in pairs
        }

    def close(self) -> None:
        self._session = None


def _specs(nodes: Iterable[Any], unranked: frozenset[str]) -> tuple[TensorSpec, ...]:
    """Return the inputs or outputs that clients see; onnxruntime has `[]` for those of no rank, or no known one."""
    return tuple(
        TensorSpec(
            node.name,
            _DATATYPES[node.type],
            tuple(size if isinstance(size, int) else VARIABLE for size in node.shape),
            variadic=not node.shape and node.name in unranked,
        )
        for node in nodes
    )


def _named(node: Any) -> list[Dimension]:
    return [None if isinstance(size, str) and _BY_ITSELF.fullmatch(size) else size for size in node.shape]


def _contiguous(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.require(array, requirements="C")


def _bfloats(value: Any) -> np.ndarray:
    """A copy of the numbers of one of onnxruntime's values on the processor, which numpy has no type for."""
    import ctypes

    import numpy as np

    shape = value.shape()
    bits = np.empty(shape, np.uint16)
    if bits.size:
        ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits.view(numpy_type("BF16"))


def _sentence(error: Exception) -> str:
    """An error of onnxruntime without its numbers, and without the places in its source."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    text = re.sub(r"^(Load model from \S+ failed:|Fatal error: )", "", text)
    text = re.sub(r"\S*onnxruntime\S*\.(cc|h):\d+ .*?\) (?=[A-Z])", "", text, count=1, flags=re.DOTALL)
    return " ".join(text.split())
