"""Whole responses and tensors of any names among what `run()` gives."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.authoring.requests import BINARY_TYPE, Response, Tensors, check_response, is_json, media_type_of
from geartrain.domain.signature.types import TypeSpec
from geartrain.domain.tensors.tensor import Tensor, join_bytes
from geartrain.worker.errors import ClientError, ReportedError
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.tensor_outputs import Split

_BYTES: Final = (bytes, bytearray, memoryview)
_NONE: Final[dict[str, str]] = {}
_LEAST_FAILURE: Final = HTTPStatus.BAD_REQUEST
_EXTENSIONS: Final[Mapping[str, str]] = {
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
    "video/mp4": ".mp4",
    "application/zip": ".zip",
    "application/pdf": ".pdf",
}


class FailedResponseError(ReportedError):
    """A response whose status says that the server failed, where a protocol has no place for a status."""


class ResponseOutputs:
    """Responses: head and body apart for who can pass both on, otherwise a value that stands for the body."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        """`encode` makes JSON of content that is neither bytes nor text."""
        self._encode = encode

    def split(self, value: Any) -> Split:
        """Return the head, which a bare piece has none of, and the body. Raises `OutputError`."""
        if isinstance(value, _BYTES):
            return Split({}, [_body(bytes(value))])
        response = value if isinstance(value, Response) else Response(b"" if value is None else value)
        try:
            check_response(response.status, response.content_type, response.headers)
        except (ValueError, TypeError) as error:
            raise OutputError(f"is no response: {error}") from None
        content = self._content(response)
        head: dict[str, Any] = {"status": response.status, "content_type": response.content_type}
        if response.headers:
            head["headers"] = [list(pair) for pair in response.headers]
        return Split(head, [_body(content)])

    def plain(self, value: Any) -> Any:
        """Return JSON, text, or a file. Raises `OutputError`, and an error for the status of a failure."""
        if isinstance(value, _BYTES):
            value = Response(bytes(value))
        if not isinstance(value, Response):
            return value
        content = self._content(value)
        if value.status >= _LEAST_FAILURE:
            text = content.decode(errors="replace") or HTTPStatus(value.status).phrase
            error: type[ReportedError] = FailedResponseError if value.status >= 500 else ClientError  # noqa: PLR2004
            raise error(text)
        media_type = media_type_of(value.content_type)
        if is_json(media_type):
            try:
                return msgspec.json.decode(content) if content else None
            except ValueError as error_of_json:
                raise OutputError(f"is called {media_type}, and is no JSON: {error_of_json}") from None
        if media_type.startswith("text/"):
            return content.decode(errors="replace")
        return _File(content, media_type)

    def _content(self, response: Response) -> bytes:
        content = response.content
        if isinstance(content, bytes):
            return content
        if isinstance(content, (bytearray, memoryview)):
            return bytes(content)
        if isinstance(content, str):
            return content.encode()
        if response.streams:
            return b"".join([each.encode() if isinstance(each, str) else bytes(each) for each in content])
        if hasattr(content, "read"):
            found = content.read()
            return found.encode() if isinstance(found, str) else bytes(found)
        if isinstance(content, Path):
            return content.read_bytes()
        return self._encode(content)


class OpenOutputs:
    """Tensors by name. Their datatypes are those of the arrays."""

    def __init__(self) -> None:
        from geartrain.worker import arrays  # with numpy, which few models need

        self._tensor_of = arrays.tensor_of

    def split(self, value: Any) -> Split:
        """Return the tensors. Raises `OutputError`."""
        tensors = []
        known = getattr(value, "datatypes", _NONE)
        for name, array in self._fields(value).items():
            try:
                tensors.append(self._tensor_of(name, known.get(name) or self._datatype(value, name, array), array))
            except ValueError as error:
                raise OutputError(str(error)).inside(name) from None
        return Split({}, tensors)

    def plain(self, value: Any) -> Any:
        """Return an object for each tensor, of its datatype, its shape and its contents. Raises `OutputError`."""
        from geartrain.worker import arrays

        plain: dict[str, Any] = {}
        for name, array in self._fields(value).items():
            try:
                datatype = self._datatype(value, name, array)
                shape, data = arrays.plain_of(datatype, array)
            except ValueError as error:
                raise OutputError(str(error)).inside(name) from None
            plain[name] = {"datatype": datatype, "shape": list(shape), "data": data}
        return plain

    @staticmethod
    def _fields(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise OutputError(f"is of type {type(value).__name__}, and Tensors are declared: return arrays by name")
        return value

    @staticmethod
    def _datatype(value: Any, name: str, array: Any) -> str:
        from geartrain.worker import arrays

        declared = getattr(value, "datatypes", {}).get(name)
        if declared:
            return str(declared)
        kind = getattr(array, "dtype", None)
        if kind is None:
            import numpy as np

            kind = np.asarray(array).dtype
        found = arrays.datatype_of(kind)
        if found:
            return found
        raise ValueError(f"is an array of {kind}, which no protocol has")


class AnyOutputs:
    """Whole responses, and tensors by name: each value says which it is."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        """`encode` makes JSON of the content of a response."""
        self._responses = ResponseOutputs(encode)
        self._tensors = OpenOutputs()

    def split(self, value: Any) -> Split:
        """Return the parts of a response, or the tensors. Raises `OutputError`."""
        return self._of(value).split(value)

    def plain(self, value: Any) -> Any:
        """Return a response or tensors as JSON. Raises as the two do."""
        return self._of(value).plain(value)

    def _of(self, value: Any) -> ResponseOutputs | OpenOutputs:
        return self._tensors if isinstance(value, Tensors) else self._responses


def open_outputs(kind: TypeSpec, encode: Callable[[Any], bytes]) -> ResponseOutputs | OpenOutputs | AnyOutputs:
    """Create the extractor of whole responses, of any tensors, or of both."""
    if kind.form == "any":
        return AnyOutputs(encode)
    return ResponseOutputs(encode) if kind.form == "response" else OpenOutputs()


class _File(io.BytesIO):
    """A body as a file of an output."""

    def __init__(self, content: bytes, media_type: str) -> None:
        super().__init__(content)
        extension = _EXTENSIONS.get(media_type)
        if extension is None:
            import mimetypes

            extension = mimetypes.guess_extension(media_type) or ".bin"
        self.name = f"response{extension if media_type != BINARY_TYPE else '.bin'}"


def _body(content: bytes) -> Tensor:
    return Tensor("body", "BYTES", (1,), join_bytes([content]))
