"""Codecs of MLServer, where its package is not installed: from tensors to arrays, texts and data frames, and back."""

from __future__ import annotations

import base64
import binascii
import functools
import importlib.util
import json
import math
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Final, get_args

import numpy as np

from geartrain.domain.tensors.tensor import ARRAY_NAMES
from geartrain.worker import arrays
from geartrain.worker.loading.scripts.mlserver_types import (
    HELD,
    InferenceRequest,
    InferenceResponse,
    MLServerError,
    Parameters,
    RequestInput,
    ResponseOutput,
    TensorData,
    content_type_of,
)

DECODED: Final = "_decoded_payload"
UNDECODED: Final = object()
_BYTES: Final = "BYTES"


class CodecError(MLServerError):
    """A value that a codec does not take."""


class CodecNotFound(CodecError):  # noqa: N818 - the name of MLServer
    """A value or an annotation that no codec takes."""

    def __init__(self, name: Any, kind: Any) -> None:
        super().__init__(f"there is no codec for {name}, which is of {getattr(kind, '__name__', kind)}")


class InputCodec:
    """Converts one tensor."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = None

    @classmethod
    def can_encode(cls, _payload: Any) -> bool:
        """True if it converts a value."""
        return False

    @classmethod
    def encode_output(cls, name: str, payload: Any, **options: Any) -> Any:
        """Return a value as an output."""
        raise NotImplementedError

    @classmethod
    def decode_input(cls, request_input: Any) -> Any:
        """Return the value of an input."""
        raise NotImplementedError

    @classmethod
    def decode_output(cls, response_output: Any) -> Any:
        """Return the value of an output."""
        return cls.decode_input(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: Any, **options: Any) -> Any:
        """Return a value as an input."""
        return RequestInput(**vars(cls.encode_output(name, payload, **options)))


class RequestCodec:
    """Converts all tensors of a request."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = None

    @classmethod
    def can_encode(cls, _payload: Any) -> bool:
        """True if it converts a value."""
        return False

    @classmethod
    def encode_response(cls, model_name: str, payload: Any, model_version: str | None = None, **options: Any) -> Any:
        """Return a value as a response."""
        raise NotImplementedError

    @classmethod
    def decode_request(cls, request: Any) -> Any:
        """Return the value of a request."""
        raise NotImplementedError


_INPUT_CODECS: Final[dict[str, Any]] = {}
_REQUEST_CODECS: Final[dict[str, Any]] = {}


def register_input_codec(codec: Any) -> Any:
    """Have a codec found by its content type, its values and its annotation."""
    _INPUT_CODECS[codec.ContentType] = codec
    return codec


def register_request_codec(codec: Any) -> Any:
    """Have a codec of whole requests found likewise."""
    _REQUEST_CODECS[codec.ContentType] = codec
    return codec


def find_input_codec(content_type: str) -> Any:
    """Return the codec of a content type; None for an unknown one."""
    return _INPUT_CODECS.get(content_type)


def find_request_codec(content_type: str) -> Any:
    """Return the codec of whole requests of a content type; None for an unknown one."""
    return _REQUEST_CODECS.get(content_type)


def input_codec_for(payload: Any) -> Any:
    """Return the codec that encodes a value; None for none."""
    return next((each for each in _INPUT_CODECS.values() if each.can_encode(payload)), None)


def request_codec_for(payload: Any) -> Any:
    """Return the codec that encodes a value as a whole response; None for none."""
    return next((each for each in _REQUEST_CODECS.values() if each.can_encode(payload)), None)


def elements_of(tensor: Any) -> list[Any]:
    """Return the elements of a tensor in one list."""
    data = getattr(tensor.data, "root", tensor.data)
    if isinstance(data, np.ndarray):
        return data.ravel().tolist()
    return _flat(data) if isinstance(data, (list, tuple)) else [data]


def _flat(values: Any) -> list[Any]:
    if not any(issubclass(kind, (list, tuple)) for kind in set(map(type, values))):
        return list(values)
    return [inner for each in values for inner in (_flat(each) if isinstance(each, (list, tuple)) else [each])]


def array_of(tensor: Any) -> Any:
    """Return a tensor as an array, maybe the one that it holds; elements of BYTES are texts or bytes."""
    held = getattr(tensor.data, "array", None)
    if held is not None:
        is_whole = held.shape == tuple(tensor.shape) and tensor.datatype == arrays.datatype_of(held.dtype)
        return held if is_whole else held.astype(arrays.numpy_type(tensor.datatype)).reshape(tensor.shape)
    elements = elements_of(tensor)
    if tensor.datatype == _BYTES:
        array = np.empty(len(elements), object)
        array[:] = elements
        fits = math.prod(tensor.shape) == len(elements)
        return array.reshape(tensor.shape) if fits else array
    values = [math.nan if each is None else each for each in elements]
    return np.array(values, ARRAY_NAMES[tensor.datatype]).reshape(tensor.shape)


def _data_of(payload: Any, datatype: str, shape: list[int]) -> Any:
    """Return the elements of an array: a copy of numbers in the shape of the tensor, a list of others."""
    if datatype in HELD and type(payload) is np.ndarray:
        return TensorData(None, array=np.array(payload, arrays.numpy_type(datatype)).reshape(shape))
    elements = payload.ravel().tolist()
    if datatype != _BYTES:
        return elements
    return [each.encode() if isinstance(each, str) else each for each in elements]


def _with_batch(shape: Any) -> list[int]:
    return list(shape) if len(shape) > 1 else [*shape, 1]


def _text(element: Any) -> Any:
    return element.decode() if isinstance(element, bytes) else element


def _is_list_of(payload: Any, kind: Any) -> bool:
    return isinstance(payload, list) and all(isinstance(each, kind) for each in payload)


@register_input_codec
class NumpyCodec(InputCodec):
    """Arrays."""

    ContentType = "np"
    TypeHint = np.ndarray

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """True for its values."""
        return isinstance(payload, np.ndarray)

    @classmethod
    def encode_output(cls, name: str, payload: Any, **_: Any) -> Any:
        """Return a value as an output."""
        datatype = arrays.datatype_of(payload.dtype)
        if not datatype:
            raise CodecError(f"{name}: no datatype has elements of {payload.dtype}")
        shape = _with_batch(payload.shape)
        return ResponseOutput(
            name=name,
            datatype=datatype,
            shape=shape,
            data=_data_of(payload, datatype, shape),
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def decode_input(cls, request_input: Any) -> Any:
        """Return the value of an input."""
        array = array_of(request_input)
        if getattr(request_input.data, "array", None) is not None:
            return array.copy()  # the author may change it, and decode the input again
        if array.dtype == object and _is_list_of(array.ravel().tolist(), str):
            return array.astype(str)
        return array


class _Strings(InputCodec):
    """Elements of BYTES."""

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """True for a list of its elements."""
        (kind,) = get_args(cls.TypeHint)
        return _is_list_of(payload, kind)

    @classmethod
    def encode_output(cls, name: str, payload: Any, **_: Any) -> Any:
        """Return a value as an output."""
        return ResponseOutput(
            name=name,
            datatype=_BYTES,
            shape=[len(payload), 1],
            data=[cls._written(each) for each in payload],
            parameters=Parameters(content_type=cls.ContentType),
        )

    @classmethod
    def decode_input(cls, request_input: Any) -> Any:
        """Return the value of an input."""
        return [cls._read(each) for each in elements_of(request_input)]

    @staticmethod
    def _written(element: Any) -> bytes:
        return element.encode() if isinstance(element, str) else element

    @staticmethod
    def _read(element: Any) -> Any:
        return _text(element)


@register_input_codec
class StringCodec(_Strings):
    """Texts."""

    ContentType = "str"
    TypeHint = list[str]


@register_input_codec
class Base64Codec(_Strings):
    """Bytes in base64."""

    ContentType = "base64"
    TypeHint = list[bytes]

    @staticmethod
    def _written(element: Any) -> bytes:
        return base64.b64encode(element.encode() if isinstance(element, str) else element)

    @staticmethod
    def _read(element: Any) -> Any:
        raw = element.encode() if isinstance(element, str) else element
        try:
            return base64.b64decode(raw, validate=True)
        except binascii.Error:
            return raw


@register_input_codec
class DatetimeCodec(_Strings):
    """Times in ISO 8601."""

    ContentType = "datetime"
    TypeHint = list[datetime]

    @staticmethod
    def _written(element: Any) -> bytes:
        return (element if isinstance(element, str) else element.isoformat()).encode()

    @staticmethod
    def _read(element: Any) -> Any:
        return datetime.fromisoformat(_text(element))


class SingleInputRequestCodec(RequestCodec):
    """Takes the one input of a request as all of it."""

    InputCodec: ClassVar[Any] = None

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """True for its values."""
        return bool(cls.InputCodec.can_encode(payload))

    @classmethod
    def encode_response(cls, model_name: str, payload: Any, model_version: str | None = None, **options: Any) -> Any:
        """Return a value as a response."""
        output = cls.InputCodec.encode_output("output-1", payload, **options)
        parameters = Parameters(content_type=cls.ContentType)
        return InferenceResponse(
            model_name=model_name, model_version=model_version, outputs=[output], parameters=parameters
        )

    @classmethod
    def encode_request(cls, payload: Any, **options: Any) -> Any:
        """Return a value as a request."""
        given = cls.InputCodec.encode_input("input-1", payload, **options)
        return InferenceRequest(inputs=[given], parameters=Parameters(content_type=cls.ContentType))

    @classmethod
    def decode_request(cls, request: Any) -> Any:
        """Return the value of a request."""
        if len(request.inputs) != 1:
            many = len(request.inputs)
            raise CodecError(
                f"The '{cls.ContentType}' codec only supports a single input tensor ({many} were received)"
            )
        (only,) = request.inputs
        found = decoded(only)
        return cls.InputCodec.decode_input(only) if found is UNDECODED else found

    @classmethod
    def decode_response(cls, response: Any) -> Any:
        """Return the value of a response."""
        return cls.InputCodec.decode_output(response.outputs[0])


@register_request_codec
class NumpyRequestCodec(SingleInputRequestCodec):
    """One array."""

    InputCodec = NumpyCodec
    ContentType = NumpyCodec.ContentType


@register_request_codec
class StringRequestCodec(SingleInputRequestCodec):
    """One list of texts."""

    InputCodec = StringCodec
    ContentType = StringCodec.ContentType


def decoded(parametrised: Any) -> Any:
    """Return the value that an input was decoded to; `UNDECODED` before."""
    return getattr(parametrised.parameters, DECODED, UNDECODED)


def has_decoded(parametrised: Any) -> bool:
    """True if an input has been decoded."""
    return decoded(parametrised) is not UNDECODED


class PandasCodec(RequestCodec):
    """A data frame, whose columns are the tensors."""

    ContentType = "pd"

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """True for its values."""
        return hasattr(payload, "columns") and hasattr(payload, "iloc")

    @classmethod
    def encode_outputs(cls, payload: Any, **_: Any) -> list[Any]:
        """Return the columns as outputs."""
        return [cls._output(str(name), payload[name]) for name in payload]

    @classmethod
    def encode_response(cls, model_name: str, payload: Any, model_version: str | None = None, **_: Any) -> Any:
        """Return a value as a response."""
        parameters = Parameters(content_type=cls.ContentType)
        outputs = cls.encode_outputs(payload)
        return InferenceResponse(
            model_name=model_name, model_version=model_version, outputs=outputs, parameters=parameters
        )

    @classmethod
    def encode_request(cls, payload: Any, **_: Any) -> Any:
        """Return a data frame as a request."""
        inputs = [RequestInput(**vars(each)) for each in cls.encode_outputs(payload)]
        return InferenceRequest(inputs=inputs, parameters=Parameters(content_type=cls.ContentType))

    @classmethod
    def decode_request(cls, request: Any) -> Any:
        """Return the value of a request."""
        import pandas as pd

        return pd.DataFrame({each.name: cls._column(each) for each in request.inputs})

    @classmethod
    def decode_response(cls, response: Any) -> Any:
        """Return a response as a data frame."""
        import pandas as pd

        return pd.DataFrame({each.name: cls._column(each) for each in response.outputs})

    @classmethod
    def _output(cls, name: str, series: Any) -> Any:
        array = series.to_numpy()
        if array.dtype.kind not in "OUS" and arrays.datatype_of(array.dtype):
            return NumpyCodec.encode_output(name, array)
        elements = array.tolist()
        kind = "str" if all(isinstance(each, (str, bytes)) for each in elements) else "pd_json"
        data = [
            each if isinstance(each, bytes) else (each if kind == "str" else json.dumps(each)).encode()
            for each in elements
        ]
        parameters = Parameters(content_type=kind)
        return ResponseOutput(name=name, datatype=_BYTES, shape=[len(data), 1], data=data, parameters=parameters)

    @classmethod
    def _column(cls, tensor: Any) -> Any:
        if content_type_of(tensor) == "pd_json":
            return [json.loads(each) for each in elements_of(tensor)]
        found = decoded(tensor)
        if found is UNDECODED:
            found = elements_of(tensor) if tensor.datatype == _BYTES else array_of(tensor)
        return found.reshape(len(found), -1)[:, 0] if isinstance(found, np.ndarray) else found


if importlib.util.find_spec("pandas") is not None:
    register_request_codec(PandasCodec)


# annotations


def decode_args(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Have `predict()` take a value for each of its annotated parameters, and return values for its outputs."""
    hints = dict(typing.get_type_hints(predict))
    returned = hints.pop("return", None)
    wanted = {name: _codec_of(name, hint) for name, hint in hints.items()}
    found = typing.get_args(returned) if typing.get_origin(returned) is tuple else [returned]
    given = [_codec_of("return", hint) for hint in found if hint is not None]

    @functools.wraps(predict)
    async def with_request(self: Any, request: Any) -> Any:
        made = await predict(self, **_arguments(request, wanted))
        values = list(made) if isinstance(made, tuple) else [made]
        if len(values) > len(given):
            raise CodecError(f"predict() has returned {len(values)} values, and {len(given)} are annotated")
        outputs: list[Any] = []
        for place, (codec, value) in enumerate(zip(given, values, strict=False)):
            if hasattr(codec, "encode_output"):
                outputs.append(codec.encode_output(f"output-{place}", value))
            else:
                outputs += codec.encode_response("", value).outputs
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

    return with_request


def _arguments(request: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters of a request. Raises `CodecError` for an input that none of them takes."""
    found, others = {}, []
    for each in request.inputs:
        codec = wanted.get(each.name)
        if codec is not None and hasattr(codec, "decode_input"):
            found[each.name] = codec.decode_input(each)
        else:
            others.append(each)
    if others:
        name = next((name for name, codec in wanted.items() if not hasattr(codec, "decode_input")), None)
        if name is None:
            names = ", ".join(each.name for each in others)
            raise CodecError(f"no parameter of predict() takes the inputs {names}; there are {', '.join(wanted)}")
        found[name] = wanted[name].decode_request(InferenceRequest(inputs=others))
    return found


def _codec_of(name: str, hint: Any) -> Any:
    """Return the codec of an annotation. Raises `CodecNotFound`."""
    members = [each for each in typing.get_args(hint) if each is not type(None)]
    if type(None) in typing.get_args(hint) and len(members) == 1:
        hint = members[0]
    wanted = _comparable(hint)
    for codec in _INPUT_CODECS.values():
        if codec.TypeHint is not None and _comparable(codec.TypeHint) == wanted:
            return codec
    if getattr(hint, "__name__", "") == "DataFrame":
        return PandasCodec
    for codec in _REQUEST_CODECS.values():
        if codec.TypeHint is not None and _comparable(codec.TypeHint) == wanted:
            return codec
    raise CodecNotFound(name, hint)


def _comparable(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    return hint if origin is not list else (list, typing.get_args(hint))


NAMES: Final[dict[str, Any]] = {
    "DecodedParameterName": DECODED,
    "InputOrOutput": RequestInput | ResponseOutput,
    "get_decoded": decoded,
} | {
    each.__name__: each
    for each in (
        Base64Codec,
        CodecError,
        CodecNotFound,
        DatetimeCodec,
        InputCodec,
        NumpyCodec,
        NumpyRequestCodec,
        PandasCodec,
        RequestCodec,
        SingleInputRequestCodec,
        StringCodec,
        StringRequestCodec,
        decode_args,
        has_decoded,
        register_input_codec,
        register_request_codec,
    )
}
"""The names of `mlserver.codecs`."""
