"""MCP's bodies: tools from signatures, and results from outputs."""

from __future__ import annotations

import base64
import mimetypes
from typing import Any

import msgspec
import pytest

from geartrain.apis.mcp.messages import Fault
from geartrain.apis.mcp.tools import call_result, decode_cursor, describe_tool, encode_cursor, error_result
from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.types import InputField, OutputMode, OutputSpec, RecordField, Signature, TypeSpec

TEXT = TypeSpec("string")
NUMBER = TypeSpec("number")
PATH = TypeSpec("path")
NEWEST = "2026-07-28"


def signature(*inputs: InputField, output: TypeSpec = TEXT, mode: OutputMode = "value") -> Signature:
    return Signature(inputs, OutputSpec(output, mode))


def result(output: Any, kind: TypeSpec, *, mode: OutputMode = "value", version: str = NEWEST) -> dict[str, Any]:
    text = msgspec.json.encode(output)
    return call_result(text, signature(output=kind, mode=mode), "pred_1", version=version).answer


@pytest.mark.parametrize(
    ("field", "schema"),
    [
        (InputField("x", TypeSpec("integer", nullable=True), required=False), {"type": ["integer", "null"]}),
        (InputField("x", TypeSpec("array", items=TEXT)), {"type": "array", "items": {"type": "string"}}),
        (
            InputField("x", TypeSpec("union", members=(TEXT, NUMBER), nullable=True)),
            {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
        ),
        (InputField("x", TEXT, choices=("a", "b")), {"enum": ["a", "b"], "type": "string"}),
        (
            InputField("x", TypeSpec("string", nullable=True), required=False, has_default=True, choices=("a",)),
            {"enum": ["a", None], "type": ["string", "null"], "default": None},
        ),
        (
            InputField("x", TypeSpec("array", items=TEXT), choices=("a",)),
            {"type": "array", "items": {"enum": ["a"], "type": "string"}},
        ),
        (
            InputField("x", TypeSpec("record", fields=(RecordField("title", TEXT, required=False),), closed=True)),
            {"type": "object", "properties": {"title": {"type": "string"}}, "additionalProperties": False},
        ),
        (InputField("x", TypeSpec("secret")), {"type": "string", "format": "password", "writeOnly": True}),
        (
            InputField("x", PATH, description="A picture."),
            {"type": "string", "format": "uri", "description": "A picture. A file, as an https: or data: URL."},
        ),
        (InputField("x", TypeSpec("opaque")), {}),
    ],
)
def test_inputs_are_json_schema(field: InputField, schema: dict[str, Any]) -> None:
    assert describe_tool("m", signature(field))["inputSchema"]["properties"]["x"] == schema


def test_output_schema_is_that_of_a_record_alone() -> None:
    record = TypeSpec("record", fields=(RecordField("label", TEXT),), title="Answer")
    schema = describe_tool("m", signature(output=record))["outputSchema"]
    assert schema == {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    for kind, mode in (
        (record, "iterator"),
        (msgspec.structs.replace(record, nullable=True), "value"),
        (TEXT, "value"),
    ):
        assert "outputSchema" not in describe_tool("m", signature(output=kind, mode=mode))  # type: ignore[arg-type]


def test_cursors_come_back() -> None:
    for name in ("a", "model-ü@2", ""):
        assert decode_cursor(encode_cursor(name)) == name
    with pytest.raises(Fault):
        decode_cursor("!")


@pytest.mark.parametrize(
    ("url", "version", "block"),
    [
        ("data:image/png;base64,QUJD", "2024-11-05", {"type": "image", "data": "QUJD", "mimeType": "image/png"}),
        ("data:audio/wav;base64,QUJD", NEWEST, {"type": "audio", "data": "QUJD", "mimeType": "audio/wav"}),
        (
            "data:audio/mpeg;base64,QUJD",
            "2024-11-05",
            {
                "type": "resource",
                "resource": {
                    "uri": "geartrain://predictions/pred_1/files/1.mp3",
                    "mimeType": "audio/mpeg",
                    "blob": "QUJD",
                },
            },
        ),
        (
            "data:text/plain;charset=utf-8,a%20b",
            NEWEST,
            {
                "type": "resource",
                "resource": {
                    "uri": "geartrain://predictions/pred_1/files/1.txt",
                    "mimeType": "text/plain",
                    "text": "a b",
                },
            },
        ),
        (
            f"data:text/plain;base64,{base64.b64encode(bytes([255])).decode()}",
            NEWEST,
            {
                "type": "resource",
                "resource": {
                    "uri": "geartrain://predictions/pred_1/files/1.txt",
                    "mimeType": "text/plain",
                    "blob": "/w==",
                },
            },
        ),
        ("https://h/a/b%20c.png?x=1", NEWEST, {"type": "resource_link", "name": "b c.png", "mimeType": "image/png"}),
        ("https://h/", NEWEST, {"type": "resource_link", "name": "output"}),
        ("https://h/a.png", "2025-03-26", {"type": "text", "text": "https://h/a.png"}),
    ],
)
def test_files_are_blocks(url: str, version: str, block: dict[str, Any]) -> None:
    wanted = {**block, "uri": url} if block["type"] == "resource_link" else block
    if block["type"] in {"image", "audio"}:  # the ending is that of this machine's list
        ending = mimetypes.guess_extension(block["mimeType"]) or ""
        wanted = {**block, "_meta": {"geartrain/uri": f"geartrain://predictions/pred_1/files/1{ending}"}}
    assert result(url, PATH, version=version)["content"] == [wanted]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100_000])
def test_files_have_their_sizes(size: int) -> None:
    url = f"data:image/png;base64,{base64.b64encode(bytes(size)).decode()}"
    (file,) = call_result(msgspec.json.encode(url), signature(output=PATH), "pred_1", version=NEWEST).files
    assert (file.size, file.media_type) == (size, "image/png")


def test_text_that_looks_like_a_file_is_text() -> None:
    assert result("data:image/png;base64,QUJD", TEXT)["content"][0]["type"] == "text"
    union = TypeSpec("union", members=(TEXT, PATH))
    assert [block["type"] for block in result("plain", union)["content"]] == ["text"]
    assert [block["type"] for block in result("data:image/png;base64,QUJD", union)["content"]] == ["text", "image"]


def test_large_files_are_taken_over_as_they_stand() -> None:
    content = base64.b64encode(bytes(range(256)) * 1024).decode()
    large = f"data:image/png;base64,{content}"
    record = TypeSpec(
        "record", fields=(RecordField("label", TEXT), RecordField("files", TypeSpec("array", items=PATH)))
    )
    given = {"label": 'x,"data:,', "files": [large, "data:image/png;base64,QUJD", large]}
    made = msgspec.json.decode(msgspec.json.encode(result(given, record)))
    assert [block.get("data") for block in made["content"]] == [None, content, "QUJD", content]
    assert made["structuredContent"]["label"] == given["label"]
    (block,) = msgspec.json.decode(msgspec.json.encode(result(large.replace("image/png", "text/x"), PATH)))["content"]
    assert block["resource"]["blob"] == content  # it is no UTF-8
    (text,) = result(large, TEXT)["content"]
    assert text["text"] == large
    both = result({**given, "label": large}, record)  # a text that looks like a file
    assert both["structuredContent"]["label"] == large
    assert [block.get("data") for block in both["content"]] == [None, content, "QUJD", content]
    quoted = f'say "data:image/png;base64,{content}"'
    assert (
        result([quoted], TypeSpec("array", items=TEXT))["content"][0]["text"] == msgspec.json.encode([quoted]).decode()
    )


def test_files_in_objects_have_names() -> None:
    kind = TypeSpec("object", values=PATH)
    text, first, second = result({"a": "data:image/png;base64,QQ==", "b": "data:,x"}, kind)["content"]
    names = msgspec.json.decode(text["text"])
    assert first["_meta"]["geartrain/uri"] == names["a"]
    assert second["resource"]["uri"] == names["b"] != names["a"]


@pytest.mark.parametrize(
    ("output", "mode", "text"),
    [(["a", "b"], "concatenate", "ab"), ([], "concatenate", ""), (["a", "b"], "iterator", '["a","b"]')],
)
def test_streams_are_whole(output: Any, mode: OutputMode, text: str) -> None:
    assert result(output, TEXT, mode=mode)["content"] == [{"type": "text", "text": text}]


def test_errors_say_when_to_try_again() -> None:
    full = error_result(GeartrainError(Code.QUEUE_FULL, "Exceeds maximum queue size", retry_after=7))
    assert full["content"][0]["text"] == "Exceeds maximum queue size. Try again in 7 s."
    assert full["_meta"] == {"geartrain/code": "queue_full", "geartrain/retryAfter": 7}
    fields = (FieldError(("body", "input", "text"), "is too short", "value_error"),)
    wrong = error_result(GeartrainError(Code.INVALID_INPUT, "no", fields=fields), "pred_1")
    assert (wrong["content"][0]["text"], wrong["isError"]) == ("text: is too short", True)
    assert wrong["_meta"] == {"geartrain/code": "invalid_input", "geartrain/prediction": "pred_1"}
