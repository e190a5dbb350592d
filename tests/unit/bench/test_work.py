"""What is sent, and which answers are good."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from geartrain.bench.connection import target_of
from geartrain.bench.work import InputsError, ModelPath, ProtocolName, judge_cog, judge_inference, make_work
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec

SIGNATURE = Signature(
    (
        InputField("text", TypeSpec("string")),
        InputField("names", TypeSpec("array", items=TypeSpec("string")), required=False),
        InputField("x", TypeSpec("tensor", datatype="FP32", shape=(-1, 2)), required=False),
        InputField("half", TypeSpec("tensor", datatype="FP16", shape=(1,)), required=False),
        InputField("count", TypeSpec("integer", nullable=True), required=False),
    ),
    OutputSpec(TypeSpec("string")),
)
TARGET = target_of("http://example.com:8080/base/", key="secret", verify=True)


def sent(
    document: dict[str, Any], protocol: ProtocolName, *, is_only: bool = True
) -> tuple[str, dict[str, str], bytes]:
    """The line, the headers and the body of the request that sends an input."""
    (request,) = make_work(
        TARGET, ModelPath("a model", is_only), [document], protocol=protocol, signature=SIGNATURE
    ).requests
    head, _, body = request.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return line, dict(header.split(": ", 1) for header in headers), body


def test_request_of_cog() -> None:
    line, headers, body = sent({"text": "a"}, "cog")
    assert line == "POST /base/predictions HTTP/1.1"
    assert (headers["Host"], headers["Authorization"]) == ("example.com:8080", "Bearer secret")
    assert (headers["Content-Length"], json.loads(body)) == (str(len(body)), {"input": {"text": "a"}})
    assert sent({}, "cog", is_only=False)[0] == "POST /base/models/a%20model/predictions HTTP/1.1"


def test_request_with_tensors_as_json() -> None:
    document = {"text": "ä", "names": ["b", "c"], "x": [[1, 2], [3, 4.5]], "count": None}
    line, _, body = sent(document, "v2")
    assert line == "POST /base/v2/models/a%20model/infer HTTP/1.1"
    assert json.loads(body)["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["ä"]},
        {"name": "names", "datatype": "BYTES", "shape": [2], "data": ["b", "c"]},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4.5]},
    ]


def test_request_with_tensors_as_bytes() -> None:
    _, headers, body = sent({"text": "ab", "x": [[1, 2]]}, "v2-binary")
    size = int(headers["Inference-Header-Content-Length"])
    described = json.loads(body[:size])["inputs"]
    assert [each["parameters"]["binary_data_size"] for each in described] == [6, 8]
    assert body[size:] == b"\2\0\0\0ab" + np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"txt": "a"}, 'unknown input "txt"; this model takes text, names, x, half, count'),
        ({"text": 7}, "input 'text' cannot be sent as a tensor of BYTES"),
        ({"names": 7}, "input 'names' cannot be sent as a tensor of BYTES"),
        ({"x": "no"}, 'input "x" is no array of FP32'),
        ({"x": [[1], [2, 3]]}, 'input "x" is no array of FP32'),
        ({"half": [1]}, 'input "half" is of FP16, which JSON cannot carry; use --protocol v2-binary'),
    ],
)
def test_input_that_is_no_tensor_is_named(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InputsError, match=words):
        sent(document, "v2")


def test_good_answers() -> None:
    assert judge_cog(200, b'{"status": "succeeded", "output": "\\"status\\": \\"failed\\""}') is None
    assert judge_inference(200, b"anything") is None


@pytest.mark.parametrize(
    ("status", "content", "kind", "example"),
    [
        (200, b'{"status": "failed", "error": "ValueError:\\n  no"}', "failed", "ValueError: no"),
        (200, b'{"status": "canceled"}', "canceled", "no error is given"),
        (200, b"<html>", "no prediction", "<html>"),
        (409, b'{"detail": "busy"}', "HTTP 409", "busy"),
        (422, b'{"detail": [{"loc": ["body", "input", "a"], "msg": "missing"}]}', "HTTP 422", "input.a: missing"),
        (502, b"x" * 1000, "HTTP 502", "x" * 300 + "…"),
    ],
)
def test_other_answers_are_counted_by_what_they_are(status: int, content: bytes, kind: str, example: str) -> None:
    assert judge_cog(status, content) == (kind, example)


def test_refusal_of_the_open_inference_protocol() -> None:
    assert judge_inference(400, b'{"error": "wrong shape"}') == ("HTTP 400", "wrong shape")


@pytest.mark.parametrize("url", ["localhost:5000", "ftp://a", "http://"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="is no URL of a server"):
        target_of(url, key=None, verify=True)


def test_key_cannot_bring_a_header_of_its_own() -> None:
    with pytest.raises(ValueError, match="characters that no key has"):
        target_of("http://a", key="a\r\nX: y", verify=True)
