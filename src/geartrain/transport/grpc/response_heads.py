"""Responses whose beginning has been written before: all but the id, the parameters and the tensors' bytes.

The fields of a message may stand in any order, so what is the same stands first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from geartrain.apis.open_inference import Place
from geartrain.domain.predictions.inference import InferResponse, Parameters
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.grpc import open_inference_pb2 as pb
from geartrain.transport.grpc.parameters import FINAL, write
from geartrain.transport.grpc.translate import NOWHERE, encode
from geartrain.transport.grpc.wire import ID_TAG, RAW_OUTPUT_TAG, as_stream_response, varint

MAX_HEADS: Final = 256  # heads that are remembered
_SMALL: Final = 4096  # bytes of contents that are cheaper to copy than to send as a part of their own
_ID: Final = bytes((ID_TAG,))


def _final(value: bool) -> bytes:  # noqa: FBT001 - it is what the field says
    message = pb.ModelInferResponse()
    message.parameters[FINAL].bool_param = value
    return message.SerializeToString()


_FINALS: Final = {True: _final(True), False: _final(False)}


class ResponseWriter:
    """Writer of messages of the types `ModelInferResponse` and `ModelStreamInferResponse`.

    Its cached heads are keyed by all that they consist of, names, datatypes and shapes, so they stay right after a
    reload of a model. When there are 256, the oldest one is forgotten.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[Hashable, bytes] = {}

    def write(self, response: InferResponse, places: Mapping[str, Place] = NOWHERE) -> list[Buffer]:
        """Return the parts of a `ModelInferResponse`. What is in `places` has been written there."""
        return encode(response, places) if places else self._parts(response, b"")

    def write_in_stream(
        self, response: InferResponse, places: Mapping[str, Place] = NOWHERE, *, final: bool
    ) -> list[Buffer]:
        """Return the parts of a `ModelStreamInferResponse`; `final`: whether its request gets no further one."""
        parts = encode(response, places, final=final) if places else self._parts(response, _FINALS[final])
        return as_stream_response(parts)

    def _parts(self, response: InferResponse, last: bytes) -> list[Buffer]:
        """Return the parts of a `ModelInferResponse`, with the fields of `last` among them."""
        outputs = response.outputs
        key: Hashable
        if len(outputs) == 1:
            only = outputs[0]
            key = response.model_name, response.model_version, only.name, only.datatype, only.shape
        else:
            key = response.model_name, response.model_version, tuple((e.name, e.datatype, e.shape) for e in outputs)
        head = self._heads.get(key)
        if head is None:
            head = self._remember(key, response)
        if response.id:
            text = response.id.encode(errors="replace")
            head += _ID + varint(len(text)) + text
        if response.parameters:
            head += _parameters(response.parameters)
        parts: list[Buffer] = []
        written = head + last
        for each in outputs:
            size = len(each.data)
            written += RAW_OUTPUT_TAG + varint(size)
            if size <= _SMALL:
                written += each.data
            else:
                parts += (written, each.data)
                written = b""
        if written:
            parts.append(written)
        return parts

    def _remember(self, key: Hashable, response: InferResponse) -> bytes:
        message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version)
        for tensor in response.outputs:
            message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if len(self._heads) >= MAX_HEADS:
            self._heads.pop(next(iter(self._heads)))
        head: bytes = message.SerializeToString()
        self._heads[key] = head
        return head


def _parameters(given: Parameters) -> bytes:
    message = pb.ModelInferResponse()
    for name, value in given.items():
        write(message.parameters[name], value)
    return message.SerializeToString()
