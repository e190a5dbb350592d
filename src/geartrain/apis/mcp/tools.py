"""A model as a tool: its name, its description, and the JSON Schemas (2020-12) of its inputs and of its output."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec

from geartrain.apis.mcp.messages import INVALID_PARAMS, Fault
from geartrain.domain.data_urls import ANY_TYPE
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.constraints import holds
from geartrain.domain.signature.json_schema import JsonObject, input_schema, type_schema
from geartrain.domain.signature.types import InputField, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Buffer

PAGE: Final = 100  # tools of a page of the list
_FILE: Final = "A file, as an https: or data: URL."
_RESTING: Final = "This model rests: the first call loads it, and the list then says which inputs it takes."
_MAPS: Final = frozenset({"properties"})  # keywords whose members are schemas
_LISTS: Final = frozenset({"anyOf"})
PREDICTION_KEY: Final = "geartrain/prediction"
URI_KEY: Final = "geartrain/uri"
CODE_KEY: Final = "geartrain/code"
RETRY_KEY: Final = "geartrain/retryAfter"

_WITH_AUDIO: Final = "2025-03-26"  # the first revision with content of the type `audio`
_WITH_LINKS: Final = "2025-06-18"  # the first one with `resource_link`
_DATA: Final = "data:"
_BASE64: Final = ";base64"
_URLS: Final = ("http://", "https://")
_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml"})
_FILES: Final = ("path", "file")
_LARGE: Final = 65_536  # bytes of a content that is taken over as it stands
_LONGEST_TYPE: Final = 256  # bytes in front of it
_BEFORE_VALUES: Final = frozenset({b"", b"[", b",", b":"})
_SOON: Final = frozenset({Code.AT_CAPACITY, Code.QUEUE_FULL, Code.QUEUE_TIMED_OUT, Code.SHUTTING_DOWN})
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class OutputFile(NamedTuple):
    """A file of an output that has a URI of its own, which `resources/read` takes."""

    uri: str
    media_type: str
    size: int  # bytes
    data: str | msgspec.Raw  # in base64; a Raw is a JSON text

    @property
    def resource(self) -> JsonObject:
        """The content as it stands in results and in those of `resources/read`: a text if it is one."""
        is_text = self.media_type.startswith("text/") or self.media_type in _TEXTS
        text = _decoded(self.data) if is_text else None
        return {
            "uri": self.uri,
            "mimeType": self.media_type,
            **({"blob": self.data} if text is None else {"text": text}),
        }


class CallResult(NamedTuple):
    """The result of a call, and its files that have a URI of their own."""

    answer: JsonObject
    files: list[OutputFile]


def describe_tool(name: str, signature: Signature | None) -> JsonObject:
    """Return a tool as `tools/list` has it; a model that rests has no `signature` yet."""
    if signature is None:
        return {"name": name, "description": _RESTING, "inputSchema": {"type": "object"}}
    tool: JsonObject = {
        "name": name,
        "description": signature.description or f"Run the model {name}.",
        "inputSchema": tool_input(signature.inputs),
    }
    if is_structured(signature):
        tool["outputSchema"] = _plain(type_schema(signature.output.type), {})
    return tool


def is_structured(signature: Signature) -> bool:
    """True if a result has `structuredContent`: the output is one record."""
    output = signature.output
    return output.mode == "value" and output.type.kind == "record" and not output.type.nullable


def tool_input(inputs: Sequence[InputField]) -> JsonObject:
    """Return the schema of the arguments."""
    given = input_schema(inputs, title="Input")
    schema: JsonObject = _plain(given.schema, given.components)
    for field in inputs:
        if holds(field.type, "path", "file"):
            shown = schema["properties"][field.name]
            about = shown.get("description", "").rstrip(" .")
            shown["description"] = f"{about}. {_FILE}" if about else _FILE
    return {**schema, "additionalProperties": False}


def _plain(schema: Any, components: JsonObject) -> Any:
    """Turn a schema of OpenAPI 3.0 into one of JSON Schema 2020-12, without references, titles and `x-` keywords."""
    plain: JsonObject = {}
    for keyword, value in schema.items():
        if keyword == "$ref":
            plain |= _plain(components[value.rpartition("/")[2]], components)
            plain.pop("description", None)  # "An enumeration."
        elif keyword == "allOf":
            plain |= _plain(value[0], components)
        elif keyword in _MAPS:
            plain[keyword] = {name: _plain(each, components) for name, each in value.items()}
        elif keyword in _LISTS:
            plain[keyword] = [_plain(each, components) for each in value]
        elif keyword == "items" or (keyword == "additionalProperties" and isinstance(value, dict)):
            plain[keyword] = _plain(value, components)
        elif keyword not in {"nullable", "title"} and not keyword.startswith("x-"):
            plain[keyword] = value
    return _admit_null(plain) if schema.get("nullable") else plain


def _admit_null(schema: JsonObject) -> JsonObject:
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def encode_cursor(name: str) -> str:
    """Return the cursor of the page behind a tool."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_cursor(cursor: str) -> str:
    """Return the last tool of the page before. Raises `Fault`."""
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Fault(INVALID_PARAMS, "'params.cursor' is none that this server has given: begin without it") from None


def has_files(signature: Signature) -> bool:
    """True if the output of a model may hold files."""
    return holds(signature.output.type, *_FILES)


def call_result(output: Buffer | None, signature: Signature, prediction_id: str, *, version: str) -> CallResult:
    """Return the result of a run that ended well; `output` is the JSON text of the whole, `version` the protocol's.

    Contents of large files are taken over from the text in one copy. To decode and encode them makes three, and each
    holds the interpreter for up to 3 ms a megabyte.
    """
    text, contents = _cut(bytes(output or b"null"))
    files = _Files(prediction_id, version, contents)
    result = _result(text, signature, files)
    if files.taken < len(contents):  # a text that only looks like a file
        files = _Files(prediction_id, version, [])
        result = _result(bytes(output or b"null"), signature, files)
    result["_meta"] = {PREDICTION_KEY: prediction_id}
    return CallResult(result, files.found)


def _result(text: bytes, signature: Signature, files: _Files) -> JsonObject:
    spec = signature.output.type
    given = _decode(text)
    mode = signature.output.mode
    plain = files.take(spec, given) if mode == "value" else [files.take(spec, each) for each in given or ()]
    if mode == "concatenate":
        plain = "".join(each for each in plain if isinstance(each, str))
    content: list[JsonObject] = []
    if given is not None and not (spec.kind in _FILES or (spec.items is not None and spec.items.kind in _FILES)):
        content.append(_text(plain if isinstance(plain, str) else _encode(plain).decode()))
    files.name_all()
    result: JsonObject = {"content": [*content, *files.blocks], "isError": False}
    if is_structured(signature):
        result["structuredContent"] = plain
    return result


def _cut(text: bytes) -> tuple[bytes, list[msgspec.Raw]]:
    """Return a JSON text with marks in place of the contents of large `data:` URLs, and these as JSON texts."""
    parts: list[bytes] = []
    contents: list[msgspec.Raw] = []
    whole = memoryview(text)
    at = 0
    while len(text) - at > _LARGE and (begin := text.find(b'"data:', at)) >= 0:
        end = text.find(b'"', begin + 1)
        comma = text.find(b";base64,", begin, begin + _LONGEST_TYPE)
        first = comma + len(b";base64,")
        is_value = text[max(begin - 1, 0) : begin] in _BEFORE_VALUES
        if is_value and comma >= 0 and end - first > _LARGE and text.find(b"\\", begin, end) < 0:
            parts.append(text[at:first] + b"\\u0000%d" % len(contents))
            contents.append(msgspec.Raw(b"".join((b'"', whole[first : end + 1]))))
            at = end
        else:
            parts.append(text[at : begin + 1])
            at = begin + 1
    return b"".join([*parts, text[at:]]), contents


def error_result(error: GeartrainError, prediction_id: str = "") -> JsonObject:
    """Return the result of a call that the model or the server could not carry out; it names the wrong arguments."""
    text = error.reason
    meta: JsonObject = {CODE_KEY: str(error.code), **({PREDICTION_KEY: prediction_id} if prediction_id else {})}
    if error.code in _SOON:
        text = f"{text.removesuffix('.')}. Try again in {error.retry_after} s."
        meta[RETRY_KEY] = error.retry_after
    return {"content": [_text(text)], "isError": True, "_meta": meta}


def chunk_text(signature: Signature, chunk: Buffer) -> str:
    """Return one chunk of output as text for a progress message; empty for one with files."""
    spec = signature.output.type
    if holds(spec, *_FILES):
        return ""
    value = _decode(chunk)
    return value if isinstance(value, str) else bytes(chunk).decode()


class _Files:
    """The files of an output: their content blocks, and the URIs that stand for them in the text."""

    def __init__(self, prediction_id: str, version: str, contents: Sequence[msgspec.Raw]) -> None:
        """`contents`: those that are marked in the URLs; see `_cut`."""
        self.blocks: list[JsonObject] = []
        self.found: list[OutputFile] = []
        self.taken = 0  # of the contents
        self._contents = contents
        self._prediction_id = prediction_id
        self._version = version
        self._uris: list[str] = []

    def take(self, spec: TypeSpec, value: Any) -> Any:
        """Return a value of a type with URIs in place of its files."""
        if value is None:
            return None
        if spec.kind in _FILES:
            return self._add(value) if isinstance(value, str) else value
        if spec.kind == "array" and spec.items is not None and isinstance(value, list):
            return [self.take(spec.items, each) for each in value]
        if spec.kind == "record" and isinstance(value, dict):
            types = {field.name: field.type for field in spec.fields}
            return {name: self.take(types[name], each) if name in types else each for name, each in value.items()}
        if spec.kind == "object" and spec.values is not None and isinstance(value, dict):
            return {name: self.take(spec.values, each) for name, each in value.items()}
        if spec.kind == "union" and isinstance(value, str) and value.startswith(_DATA) and holds(spec, *_FILES):
            return self._add(value)
        return value

    def name_all(self) -> None:
        """Name the URI in the blocks that have no place for it: texts and `resources/read` use it."""
        for block, uri in zip(self.blocks, self._uris, strict=True):
            if block["type"] in {"image", "audio"}:
                block["_meta"] = {URI_KEY: uri}

    def _add(self, url: str) -> str:
        if url.startswith(_URLS):
            self.blocks.append(self._link(url))
            self._uris.append(url)
            return url
        head, _, data = url.removeprefix(_DATA).partition(",")
        media_type = head.partition(";")[0].lower() or ANY_TYPE
        content: str | msgspec.Raw = data
        if data.startswith("\0"):
            content = self._contents[int(data[1:])]
            self.taken += 1
        elif not head.endswith(_BASE64):
            content = base64.b64encode(unquote_to_bytes(data)).decode()
        ending = mimetypes.guess_extension(media_type) or ""
        uri = f"geartrain://predictions/{self._prediction_id}/files/{len(self.blocks) + 1}{ending}"
        file = OutputFile(uri, media_type, _size_of(content), content)
        self.found.append(file)
        self.blocks.append(self._embed(file))
        self._uris.append(uri)
        return uri

    def _embed(self, file: OutputFile) -> JsonObject:
        kind = file.media_type.partition("/")[0]
        if kind == "image" or (kind == "audio" and self._version >= _WITH_AUDIO):
            return {"type": kind, "data": file.data, "mimeType": file.media_type}
        return {"type": "resource", "resource": file.resource}

    def _link(self, url: str) -> JsonObject:
        if self._version < _WITH_LINKS:
            return _text(url)
        name = unquote(urlsplit(url).path.rpartition("/")[2]) or "output"
        media_type = mimetypes.guess_type(name)[0]
        return {
            "type": "resource_link",
            "uri": url,
            "name": name,
            **({} if media_type is None else {"mimeType": media_type}),
        }


def _size_of(content: str | msgspec.Raw) -> int:
    """Return the bytes of a content in base64, without decoding it."""
    text = content.encode() if isinstance(content, str) else memoryview(content)[1:-1]
    return len(text) * 3 // 4 - bytes(text[-2:]).count(b"=")


def _decoded(data: str | msgspec.Raw) -> str | None:
    try:
        return base64.b64decode(data if isinstance(data, str) else bytes(data)[1:-1]).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}
