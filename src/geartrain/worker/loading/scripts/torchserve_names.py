"""Names that a handler of TorchServe imports, where `torchserve` is not installed; those that need no torch."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import yaml

from geartrain.authoring.scope import current_scope
from geartrain.domain.sequences import sequence_field

__version__: Final = "0.12.0"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class PredictionException(Exception):  # noqa: N818 - the name is TorchServe's
    """An error with a status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


class MetricTypes(Enum):
    """Kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Dimension:
    """A name and a value of a metric."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value


class Metrics:
    """Metrics of a handler: each is one of the prediction, by its name."""

    def __init__(self) -> None:
        self._added: dict[str, AddedMetric] = {}

    def add_counter(self, name: str, value: float, *_: Any, **__: Any) -> None:
        """Add to a counter."""
        current_scope().record_metric(name, value, "incr")

    def add_time(self, name: str, value: float, *_: Any, **__: Any) -> None:
        """Note a time, in milliseconds unless the handler says another unit."""
        current_scope().record_metric(name, value)

    def add_size(self, name: str, value: float, *_: Any, **__: Any) -> None:
        """Note a size, in MB unless the handler says another unit."""
        current_scope().record_metric(name, value)

    def add_percent(self, name: str, value: float, *_: Any, **__: Any) -> None:
        """Note a percentage."""
        current_scope().record_metric(name, value)

    def add_error(self, name: str, value: str, *_: Any, **__: Any) -> None:
        """Note an error."""
        current_scope().record_metric(name, value)

    def add_metric(self, name: str, value: float = 1, *_: Any, **__: Any) -> None:
        """Note a value."""
        current_scope().record_metric(name, value)

    def add_metric_to_cache(
        self, metric_name: str, *_: Any, metric_type: MetricTypes = MetricTypes.COUNTER, **__: Any
    ) -> AddedMetric:
        """Make a metric that is updated later."""
        made = AddedMetric(metric_name, "incr" if metric_type is MetricTypes.COUNTER else "replace")
        self._added[metric_name] = made
        return made

    def get_metric(self, metric_name: str, *_: Any, **__: Any) -> AddedMetric:
        """Return a metric that `add_metric_to_cache` has made; a new one without it."""
        return self._added.get(metric_name) or self.add_metric_to_cache(metric_name)


class AddedMetric:
    """A metric with a name."""

    def __init__(self, name: str, mode: Any) -> None:
        self._name = name
        self._mode = mode

    def add_or_update(self, value: float, *_: Any, **__: Any) -> None:
        """Note a value."""
        current_scope().record_metric(self._name, value, self._mode)

    update = add_or_update


class RequestProcessor:
    """The head of a request, and that of its answer."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self.request = dict(request_header)
        self.status = 200
        self.response: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """Return a header field; its name may have any case."""
        return self.request.get(key, self.request.get(key.lower()))

    def get_request_properties(self) -> dict[str, Any]:
        """Return the header fields."""
        return self.request

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status; its phrase has no effect."""
        del reason_phrase
        self.status = code

    def get_response_status_code(self) -> int:
        """Return the status."""
        return self.status

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header field of the answer."""
        self.response[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the header fields of the answer."""
        return self.response

    def get_response_header(self, key: str) -> str | None:
        """Return a header field of the answer."""
        return self.response.get(key)


class Context:
    """Facts of the model, and the heads of the requests of a call."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        *,
        batch_size: int,
        gpu: int | None,
        model_yaml_config: dict[str, Any],
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = model_yaml_config
        self.system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": __version__,
            "limit_max_image_pixels": True,
        }
        self.metrics = Metrics()
        self.request_ids: dict[int, str] = {}
        self.request_processor: list[RequestProcessor] = []
        self.stopping_criteria: Any = None
        self.header_key_sequence_id = sequence_field("id")
        self.header_key_sequence_start = sequence_field("start")
        self.header_key_sequence_end = sequence_field("end")
        self.send: Callable[[list[Any]], None] | None = None

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of a request."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header field of a request."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return the header fields of a request."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> str:
        """Return the id of the sequence of a request; empty without one."""
        return str(self.get_request_header(idx, self.header_key_sequence_id) or "")

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of an answer."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the content type of an answer."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of an answer."""
        self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all answers."""
        for each in self.request_processor:
            each.report_status(code, phrase)

    def get_response_status(self, idx: int) -> tuple[int, str]:
        """Return the status of an answer, and no phrase."""
        return self.request_processor[idx].status, ""

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the header fields of an answer."""
        return self.request_processor[idx].response

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header field of an answer."""
        self.request_processor[idx].add_response_property(key, value)


def send_intermediate_predict_response(ret: list[Any], *others: Any, **named: Any) -> None:
    """Send the next piece of each answer. Raises `RuntimeError` for a call that is not under way.

    `others` are the ids of the requests, a message, a code and the context.
    """
    context: Context = named.get("context") or others[3]
    if context.send is None:
        raise RuntimeError("send_intermediate_predict_response() is called by handle(), for one request at a time")
    context.send(ret)


def timed(function: _Function) -> _Function:
    """Note the time of a method of a handler, where `handler: {profile: true}` stands in model-config.yaml."""
    import time

    @wraps(function)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        config = getattr(getattr(self, "context", None), "model_yaml_config", None) or {}
        if not (config.get("handler") or {}).get("profile"):
            return function(self, *arguments, **named)
        begin = time.perf_counter()
        found = function(self, *arguments, **named)
        self.context.metrics.add_time(f"ts_handler_{function.__name__}", (time.perf_counter() - begin) * 1e3)
        return found

    return wrapper  # type: ignore[return-value]


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that a module defines, those of a parent if one is given."""
    own = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return [each for each in own if parent_class is None or issubclass(each, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Read the names of classes by their numbers; None without the file. Raises `ValueError` for another form."""
    path = Path(mapping_file_path)
    if not path.is_file():
        return None
    mapping = json.loads(path.read_bytes())
    if not isinstance(mapping, dict):
        raise ValueError(f"{path.name}: it is an object of names by the numbers of classes")  # noqa: TRY004 - of a file
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        mapping = {str(number): name for number, name in enumerate(names)}
    return {key: str(value[-1] if isinstance(value, list) else value) for key, value in mapping.items()}


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """Return for each row the probabilities by the names of their classes."""
    classes = itertools.repeat(range(len(probs[0]) if probs else 0)) if lbl_classes is None else lbl_classes
    return [
        {(mapping[str(number)] if mapping else str(number)): value for number, value in zip(numbers, row, strict=False)}
        for numbers, row in zip(classes, probs, strict=False)
    ]


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Read a file of YAML."""
    return yaml.safe_load(Path(yaml_file_path).read_text()) or {}


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """Import a class by its dotted name."""
    module, _, name = class_name.rpartition(".")
    return getattr(importlib.import_module(".".join(filter(None, (module_prefix, module)))), name)
