"""Inputs and files of requests: JSON, or a form for large files; and files of outputs."""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from geartrain.authoring.values import Secret
from geartrain.domain.data_urls import ANY_TYPE, data_url_of, media_type_of
from geartrain.domain.signature.types import Kind, Signature

_LARGE: Final = 65_536  # bytes from which base64 costs more than a form


class OutputFile(str):
    """A file of an output: its URL, which is a `data:` URL unless the server uploads files elsewhere."""

    __slots__ = ()

    @property
    def media_type(self) -> str:
        """The media type, such as `image/png`."""
        return self.removeprefix("data:").partition(",")[0].partition(";")[0] or "text/plain"

    def read(self) -> bytes:
        """Return the content."""
        head, _, payload = self.partition(",")
        return base64.b64decode(payload) if head.endswith(";base64") else urllib.parse.unquote_to_bytes(payload)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the content to a file."""
        target = Path(path)
        target.write_bytes(self.read())
        return target


def with_files(value: Any) -> Any:
    """Return an output whose `data:` URLs are `OutputFile`s."""
    if isinstance(value, str):
        return OutputFile(value) if value.startswith("data:") else value
    if isinstance(value, list):
        return [with_files(each) for each in value]
    if isinstance(value, dict):
        return {name: with_files(each) for name, each in value.items()}
    return value


class Upload(NamedTuple):
    """A file of an input."""

    name: str
    media_type: str
    content: bytes | Path

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)

    @property
    def is_large(self) -> bool:
        """True if it had better not be sent as base64."""
        return self.size >= _LARGE

    def data_url(self) -> str:
        """Return it as a URL."""
        return data_url_of(
            self.content.read_bytes() if isinstance(self.content, Path) else self.content, self.media_type
        )

    def opened(self) -> BinaryIO | bytes:
        """Return the contents for a form."""
        return self.content.open("rb") if isinstance(self.content, Path) else self.content


def upload_of(value: Any) -> Upload | None:
    """Return the file that an input is: a path, bytes, or an open file; None for any other value."""
    if isinstance(value, os.PathLike):
        path = Path(value)
        return Upload(path.name, media_type_of(path), path)
    if isinstance(value, bytes | bytearray | memoryview):
        return Upload("file", ANY_TYPE, bytes(value))
    if hasattr(value, "read"):
        content = value.read()
        name = Path(str(getattr(value, "name", "file"))).name
        return Upload(name, media_type_of(name), content.encode() if isinstance(content, str) else content)
    return None


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_TEXTS: Final[frozenset[Kind]] = frozenset({"string", "secret", "path", "file"})
_JSON: Final[frozenset[Kind]] = frozenset({"integer", "number", "boolean", "array", "record", "object", "tensor"})


class Form(NamedTuple):
    """The inputs as fields of `multipart/form-data`."""

    fields: dict[str, str]
    files: list[tuple[str, Upload]]


def with_uploads(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return inputs whose files are `Upload`s; an open file is read, which can be done once only."""
    if all(type(value) in _SCALARS for value in inputs.values()):
        return inputs
    return {name: _uploaded(value) for name, value in inputs.items()}


def plain_inputs(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return inputs that can be encoded as JSON, in which files are `data:` URLs. Raises `OSError`."""
    if all(type(value) in _SCALARS for value in inputs.values()):
        return inputs
    return {name: _plain(value) for name, value in inputs.items()}


def large_files(inputs: Mapping[str, Any]) -> dict[str, list[Upload]]:
    """Return the files that are inputs by themselves, or in lists, if one of them is large; else none."""
    found: dict[str, list[Upload]] = {}
    for name, value in inputs.items():
        values = value if isinstance(value, list) else [value]
        uploads = [each for each in values if isinstance(each, Upload)]
        if uploads and len(uploads) == len(values):
            found[name] = uploads
    return found if any(upload.is_large for uploads in found.values() for upload in uploads) else {}


def form_of(inputs: Mapping[str, Any], files: Mapping[str, list[Upload]], signature: Signature) -> Form | None:
    """Return the inputs as a form; None if there is a value that the server could read in another way."""
    kinds = {field.name: field.type.kind for field in signature.inputs}
    fields: dict[str, str] = {}
    for name, value in inputs.items():
        kind = kinds.get(name)
        if name in files:
            continue
        if isinstance(value, str) and kind in _TEXTS:
            fields[name] = value
        elif value is not None and kind in _JSON and not isinstance(value, str):
            fields[name] = encode(_plain(value)).decode()
        else:
            return None
    return Form(fields, [(name, upload) for name, uploads in files.items() for upload in uploads])


def encode(value: Any) -> bytes:
    """Return a value as JSON. Raises `TypeError` for what JSON cannot carry."""
    return msgspec.json.encode(value, enc_hook=_object)


def _uploaded(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {name: _uploaded(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_uploaded(each) for each in value]
    upload = upload_of(value)
    return value if upload is None else upload


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Upload):
        return value.data_url()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _object(value: Any) -> Any:
    """Return a simpler form of an object: an array as nested lists, a secret as its text, a model as its fields."""
    if isinstance(value, Secret):
        return value.get_secret_value()
    for method in ("tolist", "model_dump"):
        simplify = getattr(value, method, None)
        if callable(simplify):
            return simplify()
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict) and fields:
        return fields
    raise TypeError(f"an input of type {type(value).__name__} cannot be sent as JSON")
