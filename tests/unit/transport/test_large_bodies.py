"""Large bodies, read on the loop, in a thread and by another process: with the same outcome."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from geartrain.apis import cog, generate, open_inference
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.predictions.calls import WorkerInfo
from geartrain.domain.signature.types import InputField, OutputSpec, Signature, TypeSpec
from geartrain.domain.tensors.tensor import Buffer, join_bytes
from geartrain.outbound.data_urls import HeldUrl, parse_data_url
from geartrain.service.models.admission import Interface
from geartrain.transport import body_messages, large_bodies
from geartrain.transport.large_bodies import CogBody, GenerateBody, InferBody, LargeBodies

REGION = bytes(range(256)) * 1024
TEXT = TypeSpec("string")
LONG = "é\n" * 100_000
URL = "data:;base64," + base64.b64encode(bytes(200_000)).decode()


def interface(**types: TypeSpec) -> Interface:
    inputs = tuple(InputField(name, spec, required=False) for name, spec in types.items())
    return Interface(WorkerInfo(Signature(inputs, OutputSpec(TEXT)), slots=1, is_async=False, has_healthcheck=False))


def array(items: TypeSpec) -> TypeSpec:
    return TypeSpec("array", items=items)


def tensor(datatype: str) -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=(-1,))


PLAIN = interface(s=TEXT, n=array(TypeSpec("number")), o=TypeSpec("opaque"))
FILES = interface(f=TypeSpec("path"), fs=array(TypeSpec("file")), o=TypeSpec("opaque"))
SECRET = interface(s=TEXT, k=TypeSpec("secret"))
TENSORS = interface(x=tensor("FP32"), t=tensor("BYTES"), n=array(TypeSpec("integer")), f=TypeSpec("path"), s=TEXT)
TENSOR = interface(x=tensor("FP32"), s=TEXT)


@pytest.fixture(params=["thread", "process"])
async def bodies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LargeBodies]:
    monkeypatch.setattr(large_bodies, "DIRECT_LIMIT", 0)
    monkeypatch.setattr(large_bodies, "IN_A_THREAD", 1 << 30 if request.param == "thread" else 0)
    monkeypatch.setattr(large_bodies, "FEW_IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "NUMBERS_IN_A_THREAD", 0)
    bodies = LargeBodies()
    yield bodies
    bodies.close()


def fetch(region: str, offset: int, size: int) -> Buffer:
    assert region == "r"
    return memoryview(REGION)[offset : offset + size]


async def read_cog(bodies: LargeBodies, value: Any, model: Interface, **more: Any) -> CogBody:
    return await bodies.read_cog(json.dumps({"input": value, **more}).encode(), model)


@pytest.mark.parametrize("value", [{"s": LONG}, {"n": [1.5] * 100_000}, {"s": "a"}, {}, {"o": {"a": [1]}}])
async def test_cog_input_is_as_it_came(bodies: LargeBodies, value: Any) -> None:
    text = json.dumps({"id": "a", "input": value, "webhook": "http://a"}).encode()
    read = await bodies.read_cog(text, PLAIN)
    assert (read.request.id, read.request.webhook) == ("a", "http://a")
    assert read.input == cog.input_of(cog.read_request(text))
    assert (read.checked.errors, read.checked.values, read.checked.echo) == ((), None, None)
    assert read.checked.interface is PLAIN


@pytest.mark.parametrize("text", [b'{"input":null}', b"{}"])
async def test_cog_input_may_be_absent(bodies: LargeBodies, text: bytes) -> None:
    assert (await bodies.read_cog(bytearray(text), PLAIN)).input == b"{}"


@pytest.mark.parametrize("value", [{"s": 5}, {"n": ["a"] * 1000}, {f"k{n}": n for n in range(1000)}, []])
async def test_faults_of_a_cog_input_are_those_of_the_validator(bodies: LargeBodies, value: Any) -> None:
    read = await read_cog(bodies, value, PLAIN)
    assert read.checked.errors == PLAIN.validator.check(json.dumps(value).encode())
    assert read.checked.errors


@pytest.mark.parametrize("text", [b'{"input":{},"input":{}}', b"[", b'{"id":5}', b'{"id":""}', b'{"zz":"\xff"'])
async def test_refused_cog_body_is_refused_alike(bodies: LargeBodies, text: bytes) -> None:
    with pytest.raises(GeartrainError) as wanted:
        cog.read_request(text)
    with pytest.raises(GeartrainError) as found:
        await bodies.read_cog(text, PLAIN)
    assert (found.value.code, found.value.message) == (wanted.value.code, wanted.value.message)
    assert found.value.fields == wanted.value.fields


def whole(url: str) -> str:
    """Return a URL with its payload."""
    if not isinstance(url, HeldUrl):
        return url
    payload: str = json.loads(b'"%b"' % url.json[url.begin : url.end])
    return url + payload


async def test_s14_large_urls_stay_in_the_text(bodies: LargeBodies) -> None:
    second = URL + "QUJD"
    value = {"f": URL, "fs": ["data:,a", second, "http://a/b"]}
    body = bytearray(json.dumps({"id": "a", "input": value, "x": "é"}).encode())
    read = await bodies.read_cog(body, FILES)
    assert not body
    assert json.loads(read.input) == value
    assert read.request.id == "a"
    values = read.checked.values or {}
    held = [values["f"], values["fs"][1]]
    assert all(isinstance(url, HeldUrl) and url.json is read.input for url in held)
    assert [*map(whole, held)] == [URL, second]
    assert b"".join(parse_data_url(values["f"]).pieces()) == bytes(200_000)


@pytest.mark.parametrize(
    "value",
    [
        {"f": "data:,a", "o": URL},  # no file
        {"f": URL, "o": "\x000\x00"},  # what looks like the place of one that is left out
        {"f": URL, "o": URL},
        {"f": URL, "fs": 5},
        {"f": URL, "zz": 1},
        {"f": "data:,é" + URL},
        {"f": URL, "o": ["a"] * 30_000},
        {"f": URL, "o": LONG * 6},
    ],
)
async def test_s14_what_is_more_than_large_urls_is_read_whole(bodies: LargeBodies, value: Any) -> None:
    text = json.dumps({"input": value}, ensure_ascii=False).encode()
    read = await bodies.read_cog(text, FILES)
    assert read.checked.errors == FILES.validator.check(read.input)
    assert read.input == cog.input_of(cog.read_request(text))
    values = read.checked.values
    if values is not None:
        files = {name: value for name, value in values.items() if name in {"f", "fs"}}
        rest = {name: json.loads(bytes(values[name])) for name in values.keys() - files.keys()}
        assert {"f": whole(files.pop("f")), **files, **rest} == value


@pytest.mark.parametrize("payload", ['QUJD" ', "QU\nJD", "QU\\qJD", "\\"])
async def test_s14_faults_of_json_in_large_urls_are_told(bodies: LargeBodies, payload: str) -> None:
    text = b'{"input":{"f":"%b%b"}}' % (URL.encode(), payload.encode())
    with pytest.raises(GeartrainError) as wanted:
        cog.read_request(text)
    with pytest.raises(GeartrainError) as found:
        await bodies.read_cog(text, FILES)
    assert (found.value.code, found.value.message) == (wanted.value.code, wanted.value.message)


async def test_s14_inputs_with_limits_are_read_whole(bodies: LargeBodies) -> None:
    field = InputField("f", TypeSpec("path"), max_length=70_000)
    signature = Signature((field,), OutputSpec(TEXT))
    model = Interface(WorkerInfo(signature, slots=1, is_async=False, has_healthcheck=False))
    (error,) = (await read_cog(bodies, {"f": URL}, model)).checked.errors
    assert "is longer than 70000" in error.msg


async def test_s14_large_urls_have_an_echo_without_secrets(bodies: LargeBodies) -> None:
    model = interface(f=TypeSpec("path"), k=TypeSpec("secret"))
    read = await read_cog(bodies, {"k": "hidden", "f": URL}, model)
    assert json.loads(read.checked.echo or b"") == {"k": "**********", "f": URL}
    assert json.loads(read.input) == {"k": "hidden", "f": URL}


async def test_s14_large_urls_of_generate_requests(bodies: LargeBodies) -> None:
    model = interface(s=TEXT, f=TypeSpec("path"))
    body = bytearray(json.dumps({"text_input": "a", "f": URL}).encode())
    read = await bodies.read_generate(body, interface(text_input=TEXT, f=TypeSpec("path")))
    assert not body
    assert json.loads(read.request.values) == {"text_input": "a", "f": URL}
    assert isinstance((read.checked.values or {})["f"], HeldUrl)
    read = await read_generate(bodies, {"s": "a", "f": URL, "p": URL}, model)
    assert json.loads(read.request.values) == {"s": "a", "f": URL}
    assert read.request.request.parameters == {"p": URL}


async def test_long_texts_of_files_are_whole(bodies: LargeBodies) -> None:
    odd = "data:text/plain," + "é%41" * 60_000
    value = {"f": URL, "fs": ["data:,a", odd, "data:;base64," + "QUJD" * 50_000], "o": [1, LONG]}
    checked = (await read_cog(bodies, value, FILES)).checked
    assert checked.errors == ()
    assert checked.values is not None
    assert (whole(checked.values["f"]), [*map(whole, checked.values["fs"])]) == (URL, value["fs"])
    assert json.loads(bytes(checked.values["o"])) == value["o"]
    assert [*checked.values] == ["f", "fs", "o"]


@pytest.mark.parametrize("url", ["data:;base64,A" + "=" * 100_000, "file:///etc/passwd", "/etc/passwd"])
async def test_faults_of_urls_are_told(bodies: LargeBodies, url: str) -> None:
    (error,) = (await read_cog(bodies, {"f": url, "o": LONG}, FILES)).checked.errors
    assert (error.loc, error.type) == (("body", "input", "f"), "value_error.url")


async def test_secrets_are_not_in_the_echo(bodies: LargeBodies) -> None:
    read = await read_cog(bodies, {"s": LONG, "k": "hidden"}, SECRET)
    assert json.loads(read.checked.echo or b"") == {"s": LONG, "k": "**********"}
    assert json.loads(read.input)["k"] == "hidden"


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_elements_of_an_input_are_limited(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "DIRECT_LIMIT", 0)
    monkeypatch.setattr(large_bodies, "IN_A_THREAD", 1 << 30 if kind == "thread" else 0)
    monkeypatch.setattr(large_bodies, "FEW_IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "NUMBERS_IN_A_THREAD", 0)
    bodies = LargeBodies(max_elements=1000)
    try:
        (error,) = (await read_cog(bodies, {"n": [1] * 1001}, PLAIN)).checked.errors
        assert "more than 1000 elements, the limit max_json_elements" in error.msg
        assert (await read_cog(bodies, {"x": [1] * 5000}, TENSOR)).checked.errors == ()  # the data of a tensor
        for parameters in ({"data": [1] * 1001}, {"parameters": {"binary_data_size": 8008}}):
            body, size = infer({"name": "n", "shape": [1001], "datatype": "INT64", **parameters}, tail=bytes(8008))
            body = body if "parameters" in parameters else body[:size]
            with pytest.raises(GeartrainError, match="input 'n' has more than 1000 elements"):
                await read_infer(bodies, body, size)
    finally:
        bodies.close()


# tensors


def infer(*inputs: dict[str, Any], tail: bytes = b"", **more: Any) -> tuple[bytes, int]:
    text = json.dumps({"id": "7", "inputs": inputs, **more}).encode()
    return text + tail, len(text)


MIXED = (
    {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5]},
    {"name": "t", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
    {
        "name": "n",
        "shape": [4],
        "datatype": "INT64",
        "parameters": {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 32},
    },
    {"name": "f", "shape": [1], "datatype": "BYTES", "data": [URL]},
)


async def read_infer(bodies: LargeBodies, body: bytes, size: int | None, model: Interface = TENSORS) -> InferBody:
    return await bodies.read_infer(body, size, model, fetch=fetch)


async def test_infer_request_is_what_it_is_on_the_loop(bodies: LargeBodies) -> None:
    body, size = infer(*MIXED, tail=join_bytes([b"a", b"\xffb"]), parameters={"own": 1, "timeout": 5000})
    wanted, reply = open_inference.read_request(body, size, TENSORS.view, fetch=fetch)
    bound = TENSORS.view.bind(wanted.inputs)
    read = await read_infer(bodies, body, size)
    assert (read.request.id, read.request.parameters, read.forms) == ("7", {"own": 1}, reply)
    assert read.request.schedule == wanted.schedule
    assert read.bound.json == bound.json
    assert [(t.name, t.shape, bytes(t.data)) for t in read.bound.tensors] == [
        (t.name, t.shape, bytes(t.data)) for t in bound.tensors
    ]
    assert read.checked is not None
    assert (read.checked.errors, (read.checked.values or {})["f"]) == ((), URL)


@pytest.mark.parametrize(
    "inputs",
    [
        ({"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2]},),
        ({"name": "x", "shape": [1], "datatype": "FP32", "data": ["a"]},),
        ({"name": "x", "shape": [1], "datatype": "FP64", "data": [1]},),
        ({"name": "zz", "shape": [1], "datatype": "BYTES", "data": ["a"]},),
        ({"name": "t", "shape": [1], "datatype": "BYTES", "data": ["a"]},) * 2,
        ({"name": "t", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 4}},),
        ({"name": "x", "shape": [1], "datatype": "FP32"},),
        ({"name": "x", "shape": [1] * 65, "datatype": "FP32", "data": [1]},),
    ],
)
async def test_refused_infer_request_is_refused_alike(bodies: LargeBodies, inputs: tuple[dict[str, Any], ...]) -> None:
    body, size = infer(*inputs)
    with pytest.raises(GeartrainError) as wanted:
        TENSORS.view.bind(open_inference.read_request(body, size, TENSORS.view, fetch=fetch)[0].inputs)
    with pytest.raises(GeartrainError) as found:
        await read_infer(bodies, body, size)
    assert (found.value.code, found.value.message) == (wanted.value.code, wanted.value.message)


async def test_raw_body_of_the_only_input(bodies: LargeBodies) -> None:
    model = interface(x=tensor("FP32"))
    read = await read_infer(bodies, bytes(400), 0, model)
    assert read.bound.tensors[0].shape == (100,)
    with pytest.raises(GeartrainError, match="inference header size should be in range"):
        await read_infer(bodies, bytes(400), 401, model)


async def test_lists_of_numbers_become_the_input(bodies: LargeBodies) -> None:
    body, size = infer({"name": "n", "shape": [5000], "datatype": "INT64", "data": list(range(5000))})
    read = await read_infer(bodies, body, size)
    assert json.loads(read.bound.json) == {"n": list(range(5000))}


# generate


async def read_generate(bodies: LargeBodies, body: Any, model: Interface) -> GenerateBody:
    return await bodies.read_generate(json.dumps(body).encode(), model)


async def test_generate_request_is_what_it_is_on_the_loop(bodies: LargeBodies) -> None:
    body = {"s": LONG, "x": [1, 2.5], "id": "7", "temperature": 0.5, "stop": "."}
    read = await read_generate(bodies, body, TENSOR)
    wanted = generate.read_request(json.dumps(body).encode(), TENSOR.signature, TENSOR.view)
    assert (read.request.values, read.request.request) == (wanted.values, wanted.request)
    assert [bytes(one.data) for one in read.request.tensors or ()] == [bytes(one.data) for one in wanted.tensors or ()]
    assert read.checked.errors == ()


async def test_faults_of_a_generate_request(bodies: LargeBodies) -> None:
    (error,) = (await read_generate(bodies, {"s": 5}, PLAIN)).checked.errors
    assert error.loc == ("body", "input", "s")
    with pytest.raises(GeartrainError, match="unexpected 'zz'"):
        await read_generate(bodies, {"zz": [1]}, PLAIN)


# the process


async def test_process_that_is_killed_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "FEW_IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "PROCESSES", 1)
    bodies = LargeBodies()
    try:
        await read_cog(bodies, {"s": "a"}, PLAIN)
        (process,) = bodies._processes._all
        assert process._process is not None
        number = process._process.pid
        os.kill(number, signal.SIGKILL)
        process._process.wait()
        assert (await read_cog(bodies, {"s": "b"}, PLAIN)).input == b'{"s": "b"}'
        assert process._process.pid != number
    finally:
        bodies.close()


async def test_process_that_ends_over_a_body_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "FEW_IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "PROCESSES", 1)
    bodies = LargeBodies()

    def kill_and_send(*arguments: Any) -> None:
        (process,) = bodies._processes._all
        assert process._process is not None
        process._process.kill()
        process._process.wait()
        send(*arguments)

    send = body_messages.send
    try:
        await read_cog(bodies, {"s": "a"}, PLAIN)
        with monkeypatch.context() as patch:
            patch.setattr(body_messages, "send", kill_and_send)
            with pytest.raises(GeartrainError, match="process that reads large request bodies has ended") as caught:
                await read_cog(bodies, {"s": "a"}, PLAIN)
        assert caught.value.code is Code.INTERNAL
        assert (await read_cog(bodies, {"s": "b"}, PLAIN)).input == b'{"s": "b"}'
    finally:
        bodies.close()


async def test_process_ends_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "FEW_IN_A_THREAD", 0)
    monkeypatch.setattr(large_bodies, "PROCESSES", 1)
    bodies = LargeBodies()
    try:
        await read_cog(bodies, {"s": "a"}, PLAIN)
        (process,) = bodies._processes._all
        child, channel = process._process, process._channel
        assert child is not None
        assert channel is not None
        channel.close()
        assert child.wait(timeout=40) == 0
    finally:
        bodies.close()


# compression


@pytest.mark.parametrize(
    ("kind", "body", "is_quick"),
    [
        ("cog", b'{"input":{"s":"' + b"a" * 300_000 + b'"}}', True),
        ("cog", b'{"input":{"n":[' + b"1," * 200_000 + b"1]}}", False),
        ("generate", b'{"text_input":"' + b"a" * 300_000 + b'"}', True),
        ("infer", b'{"inputs":[{"data":[' + b"1," * 200_000 + b"1]}]}", True),
        ("infer", b'{"inputs":[{"data":[' + b'"a",' * 200_000 + b'"a"]}]}', False),
        ("infer", b" " * 3_000_000, False),
        ("cog", b" " * 13_000_000, False),
        ("bind", b"", False),
    ],
)
def test_bodies_of_few_values_need_no_process(kind: str, body: bytes, *, is_quick: bool) -> None:
    assert large_bodies._is_quick(kind, (body,), len(body)) is is_quick


@pytest.mark.parametrize(
    ("body", "is_light"),
    [
        (b'["a",' * 13_107, True),
        (b"a" * 1_000_000, True),
        (b'"a",' * 100_000, False),
        (b"a" * 2_000_000, False),
    ],
)
def test_what_is_read_on_the_loop(body: bytes, *, is_light: bool) -> None:
    assert large_bodies.is_light(body) is is_light
