"""The configuration of a model: as it is written, completed by the model, and as the model is served by it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from geartrain.domain.signature.types import DeclaredTensor
from geartrain.domain.tensors.tensor import DATATYPES, VARIABLE

_TENSOR_KEYS: Final = frozenset({"name", "data_type", "dims", "optional"})
_NUMPY: Final[Mapping[str, Any]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


class ModelConfig:
    """The configuration that `auto_complete_config()` completes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._model_config = config

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration, which may be changed."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch. Raises `ValueError` if a larger one is written."""
        written = self._model_config["max_batch_size"]
        if written > max_batch_size:
            self._conflict("max_batch_size", written, max_batch_size)
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Have requests gathered into batches, unless that is written already."""
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the transaction policy, such as `{"decoupled": True}`. Raises `ValueError` if another one is written."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(f"transaction policy property {key!r} is not known; there is 'decoupled'")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if policy.get(key, value) != value:
                self._conflict(f"model_transaction_policy.{key}", policy[key], value)
            policy[key] = value

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - the name is Triton's
        """Declare an input by `name`, `data_type`, `dims`, and perhaps `optional`; one that is written has to fit."""
        self._add("input", input)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Declare an output as `add_input` does."""
        self._add("output", output)

    def _add(self, kind: str, given: Mapping[str, Any]) -> None:
        for key in given:
            if key not in _TENSOR_KEYS or (key == "optional" and kind == "output"):
                raise ValueError(f"{kind} {given.get('name')!r}: property {key!r} is not known")
        for key in ("name", "data_type", "dims"):
            if key not in given:
                raise ValueError(f"{kind} {given.get('name', '')!r}: property {key!r} is missing")
        tensors = self._model_config[kind]
        known = next((each for each in tensors if each["name"] == given["name"]), None)
        if known is None:
            tensors.append({**given, "dims": list(given["dims"])})
            return
        for key, value in given.items():
            written = known.get(key)
            same = list(written) == list(value) if key == "dims" and written else written == value
            if written and not same:
                self._conflict(f"{kind} {given['name']!r}: {key}", written, value)
            known[key] = list(value) if key == "dims" else value

    def _conflict(self, what: str, written: Any, given: Any) -> None:
        raise ValueError(
            f"model {self._model_config['name']!r}: {what} is {written} in its configuration, and "
            f"auto_complete_config() sets {given}; change one of them"
        )


def whole_config(stated: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration with all fields that models look at."""
    config: dict[str, Any] = {
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "optimization": {},
        "instance_group": [],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        **copy.deepcopy(dict(stated)),
        "name": name,
    }
    tensor = {"format": "FORMAT_NONE", "is_shape_tensor": False, "allow_ragged_batch": False, "optional": False}
    config["input"] = [{**tensor, **each} for each in config["input"]]
    config["output"] = [{"label_filename": "", "is_shape_tensor": False, **each} for each in config["output"]]
    group = {"count": 1, "kind": "KIND_AUTO", "gpus": [], "profile": []}
    groups = config["instance_group"] or [{}]
    config["instance_group"] = [{"name": f"{name}_{index}", **group, **each} for index, each in enumerate(groups)]
    return config


def declared(config: Mapping[str, Any], kind: str) -> tuple[DeclaredTensor, ...]:
    """Return the tensors of a configuration, with the dimension of the batch. Raises `ValueError`, which names one."""
    first = (VARIABLE,) if config["max_batch_size"] > 0 else ()
    found = []
    for each in config[kind]:
        datatype = str(each["data_type"]).removeprefix("TYPE_")
        datatype = "BYTES" if datatype == "STRING" else datatype
        if datatype not in DATATYPES:
            raise ValueError(f"`data_type` of {each['name']!r} is {each['data_type']!r}; write one such as TYPE_FP32")
        shape = (*first, *map(int, each["dims"]))
        found.append(DeclaredTensor(each["name"], datatype, shape, optional=bool(each.get("optional"))))
    return tuple(found)


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Return True if a model sends any number of responses to a request."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))


def numpy_type(data_type: str) -> Any:
    """Return the type of numpy for a name such as TYPE_FP32; None for one that numpy does not have."""
    return _NUMPY.get(data_type)
