"""The package `pytriton` where it is not installed: the parts of it that scripts with `bind()` use."""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

# errors


class PyTritonError(Exception):
    """An error of PyTriton."""

    @property
    def message(self) -> str:
        """The message."""
        return str(self)


class PyTritonValidationError(PyTritonError):
    """A wrong value."""


class PyTritonInvalidOperationError(PyTritonError):
    """An operation at the wrong time."""


class PyTritonBadParameterError(PyTritonError):
    """A wrong argument."""


class PyTritonModelConfigError(PyTritonError):
    """A wrong configuration."""


class PyTritonUnrecoverableError(PyTritonError):
    """An error of the model after which it cannot go on."""


class PyTritonRuntimeError(PyTritonError):
    """Any other error."""


# configuration


class DeviceKind(Enum):
    """The place of an instance."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(Enum):
    """The fate of a request that has waited too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclasses.dataclass
class QueuePolicy:
    """The settings of a queue: accepted, and without effect."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclasses.dataclass
class DynamicBatcher:
    """The settings of batches."""

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] | None = None


@dataclasses.dataclass
class WarmupInput:
    """An input of a warm-up: accepted, and without effect."""

    dtype: Any
    shape: Sequence[int]
    zero_data: bool = False
    random_data: bool = False
    input_data_file: str | None = None


@dataclasses.dataclass
class ModelWarmup:
    """A warm-up: accepted, and without effect."""

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]
    count: int


@dataclasses.dataclass
class ModelConfig:
    """The settings of a model."""

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = dataclasses.field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: list[ModelWarmup] | None = None


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or an output of a model."""

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)


@dataclasses.dataclass
class TensorSpec:
    """A tensor of the configuration."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    optional: bool = False


@dataclasses.dataclass
class TritonModelConfig:
    """The configuration of a model, as decorators see it."""

    model_name: str
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = None
    decoupled: bool = False
    inputs: Sequence[TensorSpec] | None = None
    outputs: Sequence[TensorSpec] | None = None


class TritonConfig(SimpleNamespace):
    """The options of Triton itself: accepted, and without effect."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TritonConfig:
        """Make options of a dict."""
        return cls(**config)

    @classmethod
    def from_env(cls) -> TritonConfig:
        """Make options without any."""
        return cls()


class Request:
    """A request: arrays by name, and the parameters that the client sent."""

    def __init__(self, data: dict[str, Any], parameters: Mapping[str, Any] | None = None) -> None:
        self.data = data
        self.parameters = parameters

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __setitem__(self, name: str, array: Any) -> None:
        self.data[name] = array

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def keys(self) -> Any:
        """Return the names."""
        return self.data.keys()

    def values(self) -> Any:
        """Return the arrays."""
        return self.data.values()

    def items(self) -> Any:
        """Return the names and the arrays."""
        return self.data.items()


# decorators

Inputs = Mapping[str, Any]
Wrapper = Callable[..., Any]
Change = Callable[[Wrapper, "list[Any]", dict[str, Any]], Any]
_CONTEXT: Final = "__triton_context__"


class _ModelConfigs(dict[Any, TritonModelConfig]):
    """The configuration of the model of this process, whichever function is asked for."""

    def __getitem__(self, _function: Any) -> TritonModelConfig:
        try:
            return next(iter(self.values()))
        except StopIteration:
            raise PyTritonValidationError("a function with decorators is called before triton.bind()") from None


class TritonContext:
    """The context that decorators look at: that of the one model of this process."""

    model_configs: Final = _ModelConfigs()


def get_model_config(wrapped: Any, instance: Any = None) -> TritonModelConfig:  # noqa: ARG001 - as PyTriton
    """Return the configuration of the model."""
    return TritonContext.model_configs[wrapped]


def _decorator(change: Change) -> Callable[[Wrapper], Wrapper]:
    """Make a decorator of functions, and of methods, of `change(call, arguments, inputs)`."""

    def decorate(function: Wrapper) -> Wrapper:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            place = next((at for at, each in enumerate(args) if isinstance(each, (list, tuple))), len(args))
            return change(functools.partial(function, *args[:place]), list(args[place:]), kwargs)

        return wrapper

    return decorate


def _rows(request: Any) -> int:
    """Return the rows of a request."""
    rows: int = next(iter(request.values())).shape[0]
    return rows


def _named(result: Any) -> Mapping[str, Any]:
    """Return outputs by name. Raises `PyTritonValidationError`."""
    if isinstance(result, Mapping):
        return result
    if not isinstance(result, (list, tuple)):
        raise PyTritonValidationError(f"Unsupported output type {type(result)}.")
    outputs = get_model_config(None).outputs or ()
    if len(result) != len(outputs):
        raise PyTritonValidationError("Outputs length different than config outputs length")
    return {each.name: array for each, array in zip(outputs, result, strict=True)}


def _is_stream(result: Any) -> bool:
    return isinstance(result, Iterator)


def _sample(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
    requests, *others = arguments
    return [_named(call(*others, **inputs, **dict(requests[0].items())))]


def _batch(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
    requests, *others = arguments
    names = requests[0].keys()
    if any(each.keys() != names for each in requests):
        raise PyTritonValidationError("Cannot batch requests with different set of inputs keys")
    joined = {name: np.concatenate([each[name] for each in requests]) for name in names}
    counts = [_rows(each) for each in requests]

    def cut(result: Any) -> list[dict[str, Any]]:
        outputs, whole = _named(result), sum(counts)
        wrong = {name: array.shape for name, array in outputs.items() if array.shape[0] != whole}
        if wrong:
            shapes = ", ".join(f"{name}: {shape}" for name, shape in wrong.items())
            raise ValueError(f"Received output tensors with different batch sizes: {shapes}. Expected: {whole}.")
        ends = np.cumsum(counts).tolist()
        return [
            {name: array[end - count : end] for name, array in outputs.items()}
            for end, count in zip(ends, counts, strict=True)
        ]

    found = call(*others, **inputs, **joined)
    return map(cut, found) if _is_stream(found) else cut(found)


sample = _decorator(_sample)
batch = _decorator(_batch)


@_decorator
def group_by_keys(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
    """Make a call for the requests of each set of inputs."""
    requests, *others = arguments
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, each in enumerate(requests):
        groups.setdefault(tuple(sorted(each.keys())), []).append(place)
    found: list[Any] = [None] * len(requests)
    for places in groups.values():
        results = call([requests[place] for place in places], *others, **inputs)
        for place, result in zip(places, results, strict=True):
            found[place] = result
    return found


def group_by_values(*keys: str, pad_fn: Callable[[Any], Any] | None = None) -> Callable[[Wrapper], Wrapper]:
    """Make a call for the rows of each set of values of some inputs; below `@batch`."""

    def change(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
        groups: dict[tuple[bytes, ...], list[int]] = {}
        for row in range(_rows(inputs)):
            key = tuple(repr(inputs[name][row].tolist()).encode() for name in keys)
            groups.setdefault(key, []).append(row)
        results = [
            call(*arguments, **{name: array[rows] for name, array in inputs.items()}) for rows in groups.values()
        ]
        results = list(results if pad_fn is None else pad_fn(results))
        found = {
            name: np.zeros((_rows(inputs), *array.shape[1:]), array.dtype) for name, array in _named(results[0]).items()
        }
        for rows, result in zip(groups.values(), results, strict=True):
            for name, array in _named(result).items():
                found[name][rows] = array
        return found

    return _decorator(change)


def fill_optionals(**defaults: Any) -> Callable[[Wrapper], Wrapper]:
    """Give requests the inputs that they lack; above `@batch`."""

    def change(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
        config = get_model_config(None)
        unknown = sorted(set(defaults) - {each.name for each in config.inputs or ()})
        if unknown:
            raise PyTritonBadParameterError(f"Could not found {', '.join(unknown)} inputs")
        for request in arguments[0]:
            for name, value in defaults.items():
                if name not in request:
                    request[name] = np.stack([value] * _rows(request)) if config.batching else value
        return call(*arguments, **inputs)

    return _decorator(change)


def first_value(*keys: str, squeeze_single_values: bool = True, strict: bool = True) -> Callable[[Wrapper], Wrapper]:
    """Give the first row of some inputs in the place of all; above `@batch`, or below."""

    def replace(request: Any) -> Any:
        for name in keys:
            if name not in request:
                continue
            values = request[name]
            first = values[0]
            if strict and any(not np.array_equal(each, first) for each in values[1:]):
                raise PyTritonRuntimeError(f"The values on the {name!r} input are not equal: {values!r}")
            alone = squeeze_single_values and not np.isscalar(first) and all(size == 1 for size in first.shape)
            request[name] = np.squeeze(first)[()] if alone else first
        return request

    def change(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
        if not get_model_config(None).batching:
            raise PyTritonRuntimeError("The @first_value decorator can only be used with models that support batching.")
        if set(inputs) - {_CONTEXT}:
            return call(*arguments, **replace(inputs))
        return call(list(map(replace, arguments[0])), *arguments[1:])

    return _decorator(change)


@_decorator
def pad_batch(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
    """Repeat the last row up to a preferred size, or up to the largest batch; below `@batch`."""
    config = get_model_config(None)
    preferred = (config.batcher.preferred_batch_size if config.batcher else None) or []
    sizes = [*sorted(preferred), config.max_batch_size]
    rows = _rows(inputs)
    missing = sizes[bisect_left(sizes, rows)] - rows
    padded = {name: np.concatenate([array, *[array[-1:]] * missing]) for name, array in inputs.items()}
    return call(*arguments, **padded)


@_decorator
def triton_context(call: Wrapper, arguments: list[Any], inputs: dict[str, Any]) -> Any:
    """Give a function the context, as `triton_context`."""
    return call(*arguments, triton_context=TritonContext(), **inputs)


_ERRORS: Final = {
    each.__name__: each
    for each in (
        PyTritonBadParameterError,
        PyTritonError,
        PyTritonInvalidOperationError,
        PyTritonModelConfigError,
        PyTritonRuntimeError,
        PyTritonUnrecoverableError,
        PyTritonValidationError,
    )
}
_COMMON: Final = {
    each.__name__: each for each in (DeviceKind, DynamicBatcher, ModelWarmup, QueuePolicy, TimeoutAction, WarmupInput)
}

MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "pytriton.triton": {"TritonConfig": TritonConfig},
    "pytriton": {},
    "pytriton.decorators": {
        "TritonContext": TritonContext,
        "batch": batch,
        "fill_optionals": fill_optionals,
        "first_value": first_value,
        "get_model_config": get_model_config,
        "group_by_keys": group_by_keys,
        "group_by_values": group_by_values,
        "pad_batch": pad_batch,
        "sample": sample,
        "triton_context": triton_context,
    },
    "pytriton.exceptions": _ERRORS,
    "pytriton.model_config": {**_COMMON, "ModelConfig": ModelConfig, "Tensor": Tensor},
    "pytriton.model_config.common": _COMMON,
    "pytriton.model_config.model_config": {"ModelConfig": ModelConfig},
    "pytriton.model_config.tensor": {"Tensor": Tensor},
    "pytriton.model_config.triton_model_config": {"TensorSpec": TensorSpec, "TritonModelConfig": TritonModelConfig},
    "pytriton.proxy.types": {"Request": Request},
}
"""The modules of the package, and their names."""
