"""The requests of a measurement, made before it begins, and whether an answer to one is good."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from geartrain.bench.connection import Target
from geartrain.domain.errors import GeartrainError
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import ARRAY_NAMES, Tensor

ProtocolName = Literal["cog", "v2", "v2-binary", "sse", "generate", "openai"]

JSON: Final = {"Content-Type": "application/json"}
_BINARY: Final = "application/octet-stream"
_LENGTH: Final = "Inference-Header-Content-Length"
_OK: Final = 200
_SHOWN: Final = 300  # characters of an example of an error
MOST_BYTES: Final = 1_000_000_000
"""Of all requests together: they are kept in memory."""


class InputsError(Exception):
    """Inputs that cannot be sent; the message is a sentence for the person who gave them."""


class Fault(NamedTuple):
    """A request that came to nothing: the `kind` by which such are counted, and what was said of this one."""

    kind: str
    example: str


class StreamForm(NamedTuple):
    """The form of answers that are streams.

    `token` is found in each event with a token. `tokens` returns the number of tokens of a whole answer, and whether
    the model has counted them.
    """

    token: re.Pattern[bytes]
    tokens: Callable[[bytes], tuple[int, bool]]


class Work(NamedTuple):
    """Whole `requests`, to be sent in turn, and what judges their answers by status and content; None is good.

    `stream` is the form of answers that are streams.
    """

    requests: tuple[bytes, ...]
    judge: Callable[[int, bytes], Fault | None]
    stream: StreamForm | None = None


class ModelPath(NamedTuple):
    """Path of a model on its server; `is_only`: it needs no name in Cog's API."""

    name: str
    is_only: bool


def make_work(
    target: Target, model: ModelPath, inputs: Sequence[dict[str, Any]], *, protocol: ProtocolName, signature: Signature
) -> Work:
    """Create the sender of these inputs. Raises `InputsError`."""
    name = quote(model.name, safe="")
    requests = []
    size = 0
    for document in inputs:
        if protocol == "cog":
            path = "/predictions" if model.is_only else f"/models/{name}/predictions"
            content, headers = encode({"input": document}), JSON
        else:
            path = f"/v2/models/{name}/infer"
            content, headers = _infer_body(tensors_of(signature, document), is_binary=protocol == "v2-binary")
        requests.append(target.request("POST", path, headers=headers, content=content))
        size += len(requests[-1])
        if size > MOST_BYTES:
            raise InputsError(f"the inputs are more than {MOST_BYTES // 10**6} MB as requests; give fewer of them")
    return Work(tuple(requests), judge_cog if protocol == "cog" else judge_inference)


def tensors_of(signature: Signature, document: dict[str, Any]) -> list[Tensor]:
    """Return an input as the tensors that the Open Inference Protocol has for it. Raises `InputsError`."""
    view = TensorView(signature)
    specs = {spec.name: spec for spec in view.inputs}
    tensors = []
    for name, value in document.items():
        if name not in specs:
            raise InputsError(f'unknown input "{name}"; this model takes {", ".join(specs)}')
        if value is None:
            continue  # the protocol has no tensor for it
        if view.is_converted(name):
            try:
                tensors.append(view.from_json(name, value))
            except GeartrainError as error:
                raise InputsError(error.message) from None
        else:
            tensors.append(_array(name, specs[name].datatype, value))
    return tensors


def judge_cog(status: int, content: bytes) -> Fault | None:
    """Judge an answer of Cog's API: a prediction that has succeeded is good."""
    if status != _OK:
        return Fault(f"HTTP {status}", message_of(content))
    try:
        prediction = _PREDICTION.decode(content)
    except msgspec.DecodeError:
        return Fault("no prediction", clip(content.decode(errors="replace")))
    if prediction.status == "succeeded":
        return None
    return Fault(prediction.status, clip(prediction.error or "no error is given"))


def judge_inference(status: int, content: bytes) -> Fault | None:
    """Judge an answer of the Open Inference Protocol."""
    return None if status == _OK else Fault(f"HTTP {status}", message_of(content))


class _Prediction(msgspec.Struct):
    status: str
    error: str | None = None


_PREDICTION: Final = msgspec.json.Decoder(_Prediction)


def message_of(content: bytes) -> str:
    """Return the sentence of a refusal."""
    try:
        body = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return clip(content.decode(errors="replace"))
    if isinstance(body.get("error"), dict):  # of OpenAI's API
        return clip(str(body["error"].get("message")))
    detail = body.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        first = detail[0]
        return clip(f"{'.'.join(map(str, first.get('loc', ())[1:]))}: {first.get('msg')}")
    return clip(str(body.get("error") or detail or "no error is given"))


def clip(text: str) -> str:
    """Return a text as one line of an example."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def encode(value: Any) -> bytes:
    """Return an input as JSON. Raises `InputsError`."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise InputsError(f"the input cannot be sent as JSON: {error}") from None


def _array(name: str, datatype: str, value: Any) -> Tensor:
    import numpy as np  # late: most models take none

    from geartrain.domain.tensors.tensor import join_bytes

    try:
        if datatype == "BYTES":
            texts = np.array(value, dtype=object)
            data = join_bytes([str(each).encode() for each in texts.ravel().tolist()])
            return Tensor(name, datatype, texts.shape, data)
        array = np.array(value, dtype=ARRAY_NAMES[datatype])
    except (TypeError, ValueError, OverflowError) as error:
        raise InputsError(f'input "{name}" is no array of {datatype}: {error}') from None
    return Tensor(name, datatype, array.shape, array.tobytes())


def _infer_body(tensors: Sequence[Tensor], *, is_binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return a body and the headers that say what it is. Raises `InputsError`."""
    if not is_binary:
        return encode({"inputs": [_as_json(tensor) for tensor in tensors]}), JSON
    described = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors
    ]
    head = encode({"inputs": described, "parameters": {"binary_data_output": True}})
    contents = b"".join(tensor.data for tensor in tensors)
    return head + contents, {"Content-Type": _BINARY, _LENGTH: str(len(head))}


def _as_json(tensor: Tensor) -> dict[str, Any]:
    from geartrain.apis import tensor_json  # late: it is for this protocol alone

    try:
        data = tensor_json.encode(tensor)
    except GeartrainError:
        raise InputsError(
            f'input "{tensor.name}" is of {tensor.datatype}, which JSON cannot carry; use --protocol v2-binary'
        ) from None
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": msgspec.Raw(data)}
