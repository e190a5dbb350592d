"""The package `kserve` where it is not installed: the parts of it that models use.

Models that leave `predict()` to a predictor elsewhere need the package.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import struct
import uuid
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np

_LENGTH: Final = struct.Struct("<I")
_TYPES: Final[dict[str, Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
_NAMES: Final = {np.dtype(kind): name for name, kind in _TYPES.items()}

logger = logging.getLogger("kserve")
trace_logger = logging.getLogger("kserve.trace")


# errors


class InferenceError(RuntimeError):
    """An inference that failed."""

    def __init__(self, reason: Any, status: str | None = None, debug_details: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.debug_details = debug_details

    def __str__(self) -> str:
        return str(self.reason) if self.status is None else f"[{self.status}] {self.reason}"


class InvalidInput(ValueError):  # noqa: N818 - the name of KServe
    """A request that its client has to change."""

    def __init__(self, reason: Any) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelNotFound(Exception):  # noqa: N818 - the name of KServe
    """A model that is not there."""

    def __init__(self, model_name: str | None = None) -> None:
        self.reason = f"Model with name {model_name} does not exist."
        super().__init__(self.reason)


class ModelNotReady(RuntimeError):  # noqa: N818 - the name of KServe
    """A model that is not loaded."""

    def __init__(self, model_name: str, detail: str | None = None) -> None:
        self.model_name = model_name
        self.error_msg = f"Model with name {model_name} is not ready." + (f" {detail}" if detail else "")
        super().__init__(self.error_msg)


class ModelMissingError(Exception):
    """Files of a model that are not there."""


class UnsupportedProtocol(Exception):  # noqa: N818 - the name of KServe
    """A protocol that is not known."""


# requests and responses


def to_np_dtype(datatype: str) -> Any:
    """Return numpy's type for a datatype of the protocol; None for one that it has not."""
    return _TYPES.get(datatype)


def from_np_dtype(kind: Any) -> str | None:
    """Return the protocol's datatype for a type of numpy; None for one that it has not."""
    kind = np.dtype(kind)
    return "BYTES" if kind.kind in "USOM" else _NAMES.get(kind)


class _Contents:
    """A tensor: a name, a shape, a datatype, and contents as a list, as an array, or as raw bytes."""

    def __init__(  # noqa: PLR0917 - as KServe
        self,
        name: str,
        shape: Sequence[int],
        datatype: str,
        data: Any = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.shape = list(shape)
        self.datatype = datatype.upper()
        self.parameters = None if parameters is None else dict(parameters)
        self.data = data
        self._raw_data: bytes | None = None

    def as_numpy(self) -> Any:
        """Return the contents. Raises `InvalidInput` for a datatype that is not known."""
        kind = to_np_dtype(self.datatype)
        if kind is None:
            raise InvalidInput(f"invalid datatype {self.datatype} in the input")
        if self._raw_data is None:
            return np.array(self.data, dtype=kind).reshape(self.shape)
        if self.datatype == "BYTES":
            return np.array(_strings(self._raw_data), dtype=np.object_).reshape(self.shape)
        return np.frombuffer(self._raw_data, dtype=kind).reshape(self.shape)

    def set_data_from_numpy(self, array: Any, binary_data: bool = True) -> None:  # noqa: FBT001, FBT002 - as KServe
        """Take the contents of an array. Raises `InferenceError` unless it has this datatype and shape."""
        found = from_np_dtype(array.dtype) if isinstance(array, np.ndarray) else None
        if found != self.datatype:
            raise InferenceError(f"got unexpected datatype {found} from numpy array, expected {self.datatype}")
        if list(array.shape) != self.shape:
            raise InferenceError(f"got unexpected numpy array shape {list(array.shape)}, expected {self.shape}")
        self._raw_data = None
        if self.datatype == "BYTES":
            self.data = [each if isinstance(each, (bytes, str)) else str(each) for each in array.ravel().tolist()]
        elif binary_data:
            self.data, self._raw_data = None, array.tobytes()
        else:
            self.data = array.ravel().tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return the tensor as JSON has it."""
        found = {name: getattr(self, name) for name in ("name", "shape", "datatype", "data")}
        if self._raw_data is not None:
            found["data"] = self.as_numpy().ravel().tolist()
        return {**found, "parameters": self.parameters} if self.parameters else found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.datatype} {self.shape}>"


def _strings(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        found.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return found


class InferInput(_Contents):
    """A tensor of a request."""

    def as_string(self) -> list[str]:
        """Return the elements as texts. Raises `InvalidInput` unless they are of BYTES."""
        if self.datatype != "BYTES":
            raise InvalidInput(f"invalid datatype {self.datatype} in the input")
        return [each.decode() if isinstance(each, bytes) else each for each in self.as_numpy().ravel().tolist()]


class InferOutput(_Contents):
    """A tensor of a response."""


class RequestedOutput:
    """An output that a client asks for."""

    def __init__(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.parameters = parameters


class InferRequest:
    """A request of the Open Inference Protocol."""

    def __init__(  # noqa: PLR0913, PLR0917 - as KServe
        self,
        model_name: str,
        infer_inputs: list[InferInput],
        request_id: str | None = None,
        raw_inputs: Sequence[bytes] | None = None,
        from_grpc: bool = False,  # noqa: FBT001, FBT002 - as KServe
        parameters: Mapping[str, Any] | None = None,
        request_outputs: list[RequestedOutput] | None = None,
        model_version: str | None = None,
    ) -> None:
        self.id = request_id
        self.model_name = model_name
        self.model_version = model_version
        self.inputs = infer_inputs
        self.parameters = parameters
        self.request_outputs = request_outputs
        self.from_grpc = from_grpc
        for each, raw in zip(infer_inputs, raw_inputs or (), strict=False):
            each._raw_data = raw  # noqa: SLF001 - of this module

    def get_input_by_name(self, name: str) -> InferInput | None:
        """Return the input of a name; None if there is none."""
        return next((each for each in self.inputs if each.name == name), None)

    def as_dataframe(self) -> Any:
        """Return the inputs as columns of a data frame."""
        import pandas as pd

        columns = []
        for each in self.inputs:
            array = each.as_numpy()
            if each.datatype == "BYTES":
                array = np.array(each.as_string(), object).reshape(array.shape)
            columns.append(pd.DataFrame(array, columns=[each.name]))
        return pd.concat(columns, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as a dict."""
        inputs = [each.to_dict() for each in self.inputs]
        return {"id": self.id, "model_name": self.model_name, "inputs": inputs, "parameters": self.parameters}

    to_rest = to_dict


class InferResponse:
    """A response of the Open Inference Protocol."""

    def __init__(  # noqa: PLR0917 - as KServe
        self,
        response_id: str | None,
        model_name: str,
        infer_outputs: list[InferOutput],
        model_version: str | None = None,
        raw_outputs: Sequence[bytes] | None = None,
        from_grpc: bool = False,  # noqa: FBT001, FBT002 - as KServe
        parameters: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self.id = response_id
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = infer_outputs
        self.parameters = parameters
        self.from_grpc = from_grpc
        for each, raw in zip(infer_outputs, raw_outputs or (), strict=False):
            each._raw_data = raw  # noqa: SLF001 - of this module

    def get_output_by_name(self, name: str) -> InferOutput | None:
        """Return the output of a name; None if there is none."""
        return next((each for each in self.outputs if each.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the response as a dict."""
        found = {"id": self.id, "model_name": self.model_name, "model_version": self.model_version}
        outputs = [each.to_dict() for each in self.outputs]
        return {**found, "outputs": outputs, "parameters": self.parameters}

    to_rest = to_dict


# helpers


def generate_uuid() -> str:
    """Return a new id of a response."""
    return str(uuid.uuid4())


def get_predict_input(payload: Any, columns: Sequence[str] | None = None) -> Any:
    """Return the instances of version 1, or the first tensor of version 2, as an array, or as a list of texts.

    Instances that are dicts, and tensors of the content type `pd`, become a data frame. Raises `InvalidInput`.
    """
    if isinstance(payload, Mapping):
        instances = payload["inputs"] if "inputs" in payload else payload["instances"]
        first = instances[0] if len(instances) else None
        if isinstance(first, str):
            return instances
        if not isinstance(first, dict):
            return np.array(instances)
        import pandas as pd

        return pd.concat([pd.DataFrame(each, columns=columns, index=_rows_of(each)) for each in instances], axis=0)
    if not isinstance(payload, InferRequest):
        raise InvalidInput("payload is neither a dict nor an InferRequest")
    if (payload.parameters or {}).get("content_type") == "pd":
        return payload.as_dataframe()
    given = payload.inputs[0]
    return given.as_string() if given.datatype == "BYTES" else given.as_numpy()


def _rows_of(instance: Mapping[str, Any]) -> Any:
    """Return an index for an instance of single values; None for one of lists, which have their own."""
    return None if any(isinstance(value, list) for value in instance.values()) else [0]


def get_predict_response(payload: Any, result: Any, model_name: str) -> Any:
    """Return an array or a data frame as the answer to a request: a dict in version 1, a response in version 2."""
    is_frame = hasattr(result, "columns")
    if isinstance(payload, Mapping):
        plain = result.to_dict(orient="records") if is_frame else result
        return {"predictions": plain.tolist() if isinstance(plain, np.ndarray) else plain}
    columns = {str(name): result[name].to_numpy() for name in result} if is_frame else {"output-0": np.asarray(result)}
    outputs = []
    for name, array in columns.items():
        output = InferOutput(name, list(array.shape), from_np_dtype(array.dtype) or "BYTES")
        output.set_data_from_numpy(array, binary_data=False)
        outputs.append(output)
    return InferResponse(payload.id or generate_uuid(), model_name, outputs, parameters=payload.parameters)


# models


class InferenceVerb(Enum):
    """A prediction, or an explanation."""

    EXPLAIN = 1
    PREDICT = 2


class Model:
    """The base class of a model."""

    def __init__(self, name: str, return_response_headers: bool = False) -> None:  # noqa: FBT001, FBT002 - as KServe
        self.name = name
        self.ready = False
        self.engine = False
        self.required_response_headers = return_response_headers

    async def healthy(self) -> bool:
        """True if the model is ready."""
        return self.ready

    def load(self) -> bool:
        """Load the model, and say that it is ready."""
        self.ready = True
        return self.ready

    def start(self) -> None:
        """Prepare the model when its server starts."""
        self.ready = True

    def stop(self) -> None:
        """Say that the model is no longer ready."""
        self.ready = False

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return the inputs."""
        return []

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return the outputs."""
        return []

    async def __call__(
        self, body: Any, headers: dict[str, str] | None = None, verb: InferenceVerb = InferenceVerb.PREDICT
    ) -> Any:
        """Run the steps; return the result, and the header fields of the response."""
        response_headers: dict[str, str] = {}
        more = (response_headers,) if self.required_response_headers else ()
        payload = self.validate(await _awaited(self.preprocess(body, headers)))
        if verb == InferenceVerb.EXPLAIN:
            result = await _awaited(self.explain(payload, headers))
        else:
            result = await _awaited(self.predict(payload, headers, *more))
        return await _awaited(self.postprocess(result, headers, *more)), response_headers

    def validate(self, payload: Any) -> Any:
        """Raise `InvalidInput` for instances that are no list."""
        if isinstance(payload, Mapping) and not isinstance(payload.get("instances", []), list):
            raise InvalidInput('Expected "instances" to be a list')
        return payload

    async def preprocess(self, payload: Any, headers: Any = None) -> Any:  # noqa: ARG002 - as KServe
        """Change a request before `predict()`."""
        return payload

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Raise: there is no predictor to ask."""
        raise NotImplementedError("predict() is not there; to ask a predictor elsewhere, install the package kserve")

    async def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> Any:  # noqa: ARG002
        """Change a result of `predict()`."""
        return result

    async def explain(self, payload: Any, headers: Any = None) -> Any:
        """Raise: the model does not explain."""
        raise NotImplementedError("Could not find explainer_host.")


async def _awaited(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


class ModelServer:
    """A server that is none: `start()` tells the models to geartrain."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.registered_models: dict[str, Any] = {}

    def register_model(self, model: Any, name: str | None = None) -> None:
        """Take a model before the start."""
        self.registered_models[name or model.name] = model

    def start(self, models: list[Any]) -> None:
        """Replaced before a script is imported."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("http_port", "grpc_port", "workers", "max_threads"):
        parser.add_argument(f"--{name}", default=1, type=int)
    parser.add_argument("--model_name", default="model")
    parser.add_argument("--predictor_host", default=None)
    parser.add_argument("--protocol", "--predictor_protocol", default="v1", choices=["v1", "v2", "grpc-v2"])
    return parser


parser: Final = _parser()
_ERRORS: Final = {
    each.__name__: each
    for each in (InferenceError, InvalidInput, ModelMissingError, ModelNotFound, ModelNotReady, UnsupportedProtocol)
}
_INFER: Final = {
    each.__name__: each for each in (InferInput, InferOutput, InferRequest, InferResponse, RequestedOutput)
}
_SERVER: Final = {"ModelServer": ModelServer, "parser": parser}
_UTILS: Final = {
    each.__name__: each for each in (from_np_dtype, generate_uuid, get_predict_input, get_predict_response, to_np_dtype)
}
_MODEL: Final = {"InferenceVerb": InferenceVerb, "Model": Model}

MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "kserve": {**_MODEL, **_SERVER, **_INFER, "logger": logger},
    "kserve.errors": _ERRORS,
    "kserve.logging": {"logger": logger, "trace_logger": trace_logger},
    "kserve.model": {**_MODEL, **_INFER},
    "kserve.model_server": _SERVER,
    "kserve.protocol.infer_type": _INFER,
    "kserve.utils.numpy_codec": {"from_np_dtype": from_np_dtype, "to_np_dtype": to_np_dtype},
    "kserve.utils.utils": _UTILS,
}
"""The modules of the package, and their names."""
