"""The Model Context Protocol on real servers: with the official client, in its newest revision and with a handshake."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import jsonschema_rs
import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    LoggingMessageNotificationParams,
    TextContent,
    TextResourceContents,
)

from geartrain.domain.predictions.lifecycle import Status
from geartrain.service.models.deployment import Limits
from tests.support import modes
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, eventually

if TYPE_CHECKING:
    import httpx

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Log levels are deprecated in the newest revision; clients of others set them.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

NEWEST: Final = "2026-07-28"
HANDSHAKE: Final = "2025-11-25"
ERAS: Final = pytest.mark.parametrize("era", ["auto", "legacy"])  # of the official client

SHOUT = '''
    import select, sys
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        """Shouts."""

        def run(
            self,
            text: str = Input(description="What to say", min_length=1),
            mood: str = Input(choices=["glad", "unsure"], default="glad"),
            times: int | None = Input(ge=1, le=10, default=None),
        ) -> str:
            if text.startswith("wait "):
                print("begun")
                with open(text.removeprefix("wait "), "rb", buffering=0) as gate:
                    select.select([gate], [], [])
            if text == "print":
                print("to stdout")
                print("to stderr", file=sys.stderr)
            if text == "fail":
                raise ValueError("it went wrong")
            return " ".join([text.upper()] * (times or 1))
'''
STREAM = """
    import select
    from geartrain import BaseRunner, ConcatenateIterator

    class Runner(BaseRunner):
        def run(self, prompt: str, gate: str = "") -> ConcatenateIterator[str]:
            for word in prompt.split():
                yield word + " "
                if gate:
                    with open(gate, "rb", buffering=0) as file:
                        select.select([file], [], [])
"""
FILES = """
    import tempfile
    from geartrain import BaseModel, BaseRunner, Input, Path

    class Output(BaseModel):
        label: str
        copy: Path | None = None

    class Runner(BaseRunner):
        def run(self, file: Path, ending: str = Input(default="")) -> Output:
            content = file.read_bytes()
            if not ending:
                return Output(label=str(len(content)))
            copy = Path(tempfile.mkdtemp()) / f"copy.{ending}"
            copy.write_bytes(content)
            return Output(label=str(len(content)), copy=copy)
"""
PICTURES = """
    import tempfile
    from geartrain import Path

    def run(endings: list[str]) -> list[Path]:
        made = []
        for ending in endings:
            path = Path(tempfile.mkdtemp()) / f"file.{ending}"
            path.write_bytes(b"content")
            made.append(path)
        return made
"""
ROWS = """
    from collections.abc import Iterator

    def run(count: int) -> Iterator[dict]:
        for number in range(count):
            yield {"number": number}
"""
SUM = """
    def run(numbers: list[int], names: list[str] = []) -> int:
        return sum(numbers)
"""
BAR = """
    import sys

    def run() -> str:
        for percent in (0, 50, 100):
            sys.stderr.write(f"\\r {percent}%|#")
            sys.stderr.flush()
        sys.stderr.write("\\n")
        return "done"
"""
NOTHING = """
    def run() -> None:
        return None
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shout(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(SHOUT, name="shout") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stream(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(STREAM, name="stream") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def files(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(FILES, name="files") as server:
        yield server


@contextlib.asynccontextmanager
async def official(server: LiveServer, era: str, **options: Any) -> AsyncIterator[Client]:
    """The official client of a server, let in as the mode wants it."""
    given = modes.current().credentials
    verify = True if given is None else given.trust
    async with httpx2.AsyncClient(headers=modes.current().headers, verify=verify, timeout=60) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def data_url(content: bytes, media_type: str = "text/plain") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def headers_of(method: str, name: str = "", *, version: str = NEWEST) -> dict[str, str]:
    """The header fields of a message: those of the newest revision, or of one with a handshake."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    if version != NEWEST:
        return headers
    return {**headers, "mcp-method": method, **({"mcp-name": name} if name else {})}


def message_of(method: str, params: dict[str, Any] | None = None, *, version: str = NEWEST) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    given = {**(params or {}), **({"_meta": {**meta, **(params or {}).get("_meta", {})}} if version == NEWEST else {})}
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": given}


async def post(
    server: LiveServer,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    version: str = NEWEST,
    changed: dict[str, str] | None = None,
) -> httpx.Response:
    """POST a request; `changed` are header fields."""
    headers = headers_of(method, (params or {}).get("name", ""), version=version) | (changed or {})
    return await server.client.post("/mcp", json=message_of(method, params, version=version), headers=headers)


async def call(server: LiveServer, name: str, **arguments: Any) -> dict[str, Any]:
    response = await post(server, "tools/call", {"name": name, "arguments": arguments})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["result"]
    return result


# what there is


@ERAS
async def test_a_client_learns_what_the_server_is(shout: LiveServer, era: str) -> None:
    async with official(shout, era) as client:
        assert client.protocol_version == (NEWEST if era == "auto" else HANDSHAKE)
        assert client.server_info is not None
        assert client.server_info.name == "geartrain"
        assert client.server_capabilities.tools is not None
        assert "model" in (client.instructions or "")


@ERAS
async def test_a_model_is_a_tool(shout: LiveServer, era: str) -> None:
    async with official(shout, era) as client:
        listed = await client.list_tools()
    (tool,) = listed.tools
    assert (tool.name, tool.description, listed.next_cursor) == ("shout", "Shouts.", None)
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to say", "minLength": 1},
            "mood": {"enum": ["glad", "unsure"], "type": "string", "default": "glad"},
            "times": {"type": ["integer", "null"], "default": None, "minimum": 1, "maximum": 10},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    validator = jsonschema_rs.Draft202012Validator(tool.input_schema)
    assert validator.is_valid({"text": "x", "times": None})
    assert not validator.is_valid({"text": "", "mood": "sad"})


@ERAS
async def test_a_model_is_called(shout: LiveServer, era: str) -> None:
    async with official(shout, era) as client:
        result = await client.call_tool("shout", {"text": "hi", "times": 2})
        assert (text_of(result), result.is_error, result.structured_content) == ("HI HI", False, None)
        assert text_of(await client.call_tool("shout@1", {"text": "hi"})) == "HI"
    assert result.meta is not None
    assert result.meta["geartrain/prediction"].startswith("pred_")


@ERAS
async def test_a_record_is_structured_content(files: LiveServer, era: str) -> None:
    async with official(files, era) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.output_schema is not None
        assert tool.output_schema["required"] == ["label"]
        assert tool.input_schema["properties"]["file"]["description"] == "A file, as an https: or data: URL."
        result = await client.call_tool("files", {"file": data_url(b"abc")})
    assert result.structured_content == {"label": "3", "copy": None}
    assert json.loads(text_of(result)) == result.structured_content


async def test_other_outputs(serve: Serve) -> None:
    async with serve(ROWS, name="rows") as server:
        result = await call(server, "rows", count=2)
        assert json.loads(result["content"][0]["text"]) == [{"number": 0}, {"number": 1}]
        assert "structuredContent" not in result
    async with serve(NOTHING, name="nothing") as server:
        assert (await call(server, "nothing"))["content"] == []


# files


@ERAS
async def test_a_file_in_a_record_is_a_block_and_has_a_uri_in_the_record(files: LiveServer, era: str) -> None:
    async with official(files, era) as client:
        result = await client.call_tool("files", {"file": data_url(b"abc"), "ending": "png"})
    text, image = result.content
    assert isinstance(text, TextContent)
    assert isinstance(image, ImageContent)
    assert (base64.b64decode(image.data), image.mime_type) == (b"abc", "image/png")
    assert result.structured_content is not None
    uri = result.structured_content["copy"]
    assert uri.startswith("geartrain://predictions/pred_")
    assert image.meta == {"geartrain/uri": uri}
    assert uri in text.text


@ERAS
async def test_files_are_blocks_of_their_kinds(serve: Serve, era: str) -> None:
    async with serve(PICTURES, name="pictures") as server, official(server, era) as client:
        result = await client.call_tool("pictures", {"endings": ["png", "wav", "txt", "bin"]})
    image, sound, text, rest = result.content
    assert isinstance(image, ImageContent)
    assert isinstance(sound, AudioContent)
    assert (image.mime_type, sound.mime_type) == ("image/png", "audio/x-wav") or sound.mime_type == "audio/wav"
    assert isinstance(text, EmbeddedResource)
    assert isinstance(text.resource, TextResourceContents)
    assert (text.resource.text, text.resource.mime_type) == ("content", "text/plain")
    assert isinstance(rest, EmbeddedResource)
    assert isinstance(rest.resource, BlobResourceContents)
    assert base64.b64decode(rest.resource.blob) == b"content"


@ERAS
async def test_files_of_a_call_are_resources(serve: Serve, era: str) -> None:
    async with serve(PICTURES, name="pictures") as server, official(server, era) as client:
        assert client.server_capabilities.resources is not None
        assert (await client.list_resources()).resources == []
        first = await client.call_tool("pictures", {"endings": ["png", "txt"]})
        await client.call_tool("pictures", {"endings": ["bin"]})
        listed = (await client.list_resources()).resources
        assert [(each.name, each.mime_type, each.size) for each in listed] == [
            ("pictures-1.bin", "application/octet-stream", 7),
            ("pictures-1.png", "image/png", 7),
            ("pictures-2.txt", "text/plain", 7),
        ]
        image, text = first.content
        assert isinstance(image, ImageContent)
        assert image.meta == {"geartrain/uri": listed[1].uri}
        assert isinstance(text, EmbeddedResource)
        assert text.resource.uri == listed[2].uri
        (blob,) = (await client.read_resource(listed[1].uri)).contents
        assert isinstance(blob, BlobResourceContents)
        assert (blob.uri, base64.b64decode(blob.blob), blob.mime_type) == (listed[1].uri, b"content", "image/png")
        (read,) = (await client.read_resource(listed[2].uri)).contents
        assert isinstance(read, TextResourceContents)
        assert read.text == "content"
        (template,) = (await client.list_resource_templates()).resource_templates
        parts = listed[1].uri.split("/")
        assert template.uri_template.format(prediction=parts[3], file=parts[5]) == listed[1].uri


@ERAS
@pytest.mark.parametrize("uri", ["geartrain://predictions/pred_0/files/1.png", "file:///etc/passwd", ""])
async def test_resources_that_are_not_there(files: LiveServer, era: str, uri: str) -> None:
    async with official(files, era) as client:
        with pytest.raises(MCPError, match="no longer kept") as caught:
            await client.read_resource(uri)
    assert caught.value.error.code == (-32602 if era == "auto" else -32002)
    assert caught.value.error.data == {"uri": uri}


async def test_files_of_failed_calls_and_other_numbers_are_no_resources(files: LiveServer) -> None:
    result = await call(files, "files", file=data_url(b"abc"), ending="png")
    uri = result["structuredContent"]["copy"]
    other = uri.replace("/1.png", "/2.png")
    missing = await post(files, "resources/read", {"uri": other}, changed={"mcp-name": other})
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, -32602)
    contradicting = await post(files, "resources/read", {"uri": uri}, changed={"mcp-name": other})
    assert contradicting.json()["error"]["code"] == -32020
    found = await post(files, "resources/read", {"uri": uri}, changed={"mcp-name": uri})
    answer = found.json()["result"]
    assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")
    assert base64.b64decode(answer["contents"][0]["blob"]) == b"abc"


async def test_pages_of_resources(serve: Serve) -> None:
    async with serve(PICTURES, name="pictures") as server, official(server, "auto") as client:
        for _ in range(3):
            await client.call_tool("pictures", {"endings": ["png"] * 80})
        pages = [await client.list_resources()]
        while (cursor := pages[-1].next_cursor) is not None:
            pages.append(await client.list_resources(cursor=cursor))
            if len(pages) == 2:  # a newer call moves no page
                await client.call_tool("pictures", {"endings": ["png"]})
        assert [len(page.resources) for page in pages] == [100, 100, 40]
        uris = [each.uri for page in pages for each in page.resources]
        assert len(set(uris)) == 240
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor="bm9uZQ==")


async def test_a_server_that_keeps_nothing_has_no_resources(serve: Serve) -> None:
    async with serve(FILES, name="files", limits=Limits(keep=0.0)) as server:
        result = await call(server, "files", file=data_url(b"abc"), ending="png")
        uri = result["structuredContent"]["copy"]
        assert (await post(server, "resources/list")).json()["result"]["resources"] == []
        read = await post(server, "resources/read", {"uri": uri}, changed={"mcp-name": uri})
        assert read.json()["error"]["code"] == -32602


async def test_a_large_file_comes_and_goes(files: LiveServer) -> None:
    content = bytes(range(256)) * 8192  # 2 MiB
    result = await call(files, "files", file=data_url(content, "image/png"), ending="png")
    assert base64.b64decode(result["content"][1]["data"]) == content
    uri = result["structuredContent"]["copy"]
    read = await post(files, "resources/read", {"uri": uri}, changed={"mcp-name": uri})
    assert base64.b64decode(read.json()["result"]["contents"][0]["blob"]) == content


async def test_an_uploaded_file_is_a_link(serve: Serve, tmp_path: Path) -> None:
    received: list[str] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        received.append(head.split()[1])
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    receiver = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/up/"
    async with receiver, serve(PICTURES, name="pictures", upload_url=url) as server:
        (link,) = (await call(server, "pictures", endings=["png"]))["content"]
        assert link == {"type": "resource_link", "uri": f"{url}file.png", "name": "file.png", "mimeType": "image/png"}
        older = await post(
            server, "tools/call", {"name": "pictures", "arguments": {"endings": ["png"]}}, version="2025-03-26"
        )
        (text,) = older.json()["result"]["content"]
        assert (text["type"], text["text"][: len(url)]) == ("text", url)
    assert received


@pytest.mark.slow
async def test_large_arguments_are_read_aside(serve: Serve) -> None:
    async with serve(SUM, name="sum") as server:
        numbers = list(range(400_000))
        assert (await call(server, "sum", numbers=numbers))["content"] == [{"type": "text", "text": str(sum(numbers))}]
        refused = await call(server, "sum", numbers=[*numbers, "x"])
        assert refused["isError"]
        assert "numbers/400000" in refused["content"][0]["text"]
        assert "nope" in (await call(server, "sum", numbers=numbers, nope=1))["content"][0]["text"]


# errors


@ERAS
async def test_a_failure_of_the_model_is_a_result(shout: LiveServer, era: str) -> None:
    async with official(shout, era) as client:
        result = await client.call_tool("shout", {"text": "fail"})
    assert (text_of(result), result.is_error) == ("ValueError: it went wrong", True)


@ERAS
async def test_arguments_that_do_not_fit_are_told_to_the_model(shout: LiveServer, era: str) -> None:
    """The specification says so since 2025-11-25: a language model can then correct itself."""
    async with official(shout, era) as client:
        result = await client.call_tool("shout", {"text": "", "tims": 3, "mood": "sad"})
    assert result.is_error
    assert all(word in text_of(result) for word in ('text: "" is shorter than 1 character', "tims: Unexpected", "mood"))


@ERAS
async def test_an_unknown_tool_is_an_error_of_the_protocol(shout: LiveServer, era: str) -> None:
    async with official(shout, era) as client:
        for name in ("nope", "shout@9", "shout@", "@", "n" * 5000):
            with pytest.raises(MCPError, match="Unknown tool") as caught:
                await client.call_tool(name, {})
            assert caught.value.error.code == -32602


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "params.name"),
        ({"name": 5}, "params.name"),
        ({"name": "shout", "arguments": [1]}, "params.arguments"),
        ({"name": "shout", "_meta": {"progressToken": 1.5}}, "params._meta.progressToken"),
        ({"name": "shout", "_meta": {"io.modelcontextprotocol/logLevel": "loud"}}, "log level"),
    ],
)
async def test_malformed_calls_name_the_field(shout: LiveServer, params: dict[str, Any], field: str) -> None:
    response = await post(shout, "tools/call", params, changed={"mcp-name": str(params.get("name", ""))})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == -32602
    assert field in error["message"]
    assert response.json()["id"] == 7


async def test_a_full_queue_is_a_result_that_says_when_to_try_again(serve: Serve, gates: Gates) -> None:
    async with serve(SHOUT, name="shout", inference_queue=0) as server:
        first = asyncio.ensure_future(call(server, "shout", text=f"wait {gates['go'].path}"))
        await eventually(lambda: bool(server.predictions.live))
        refused = await call(server, "shout", text="x")
        gates["go"].open()
        assert not (await first)["isError"]
    assert refused["isError"]
    assert "Try again in" in refused["content"][0]["text"]
    assert refused["_meta"]["geartrain/code"] == "queue_full"
    assert refused["_meta"]["geartrain/retryAfter"] >= 1


# notifications


@ERAS
async def test_a_stream_of_output_is_progress(stream: LiveServer, era: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))

    async with official(stream, era) as client:
        result = await client.call_tool("stream", {"prompt": "a b c"}, progress_callback=on_progress)
        assert text_of(result) == "a b c "
        assert "".join(message or "" for _, message in told) == "a b c "
        assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
        assert told[-1][0] == 3


async def test_chunks_come_while_the_model_runs(stream: LiveServer, gates: Gates) -> None:
    body = message_of(
        "tools/call",
        {
            "name": "stream",
            "arguments": {"prompt": "a b", "gate": str(gates["go"].path)},
            "_meta": {"progressToken": "t"},
        },
    )
    headers = headers_of("tools/call", "stream")
    async with stream.client.stream("POST", "/mcp", json=body, headers=headers) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        lines = response.aiter_lines()
        first = json.loads([await anext(lines) for _ in range(3)][1].removeprefix("data: "))
        assert first["params"] == {"progressToken": "t", "progress": 1, "message": "a "}
        gates["go"].open()
        rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")]
    assert rest[-1]["result"]["content"] == [{"type": "text", "text": "a b "}]


@ERAS
async def test_prints_are_log_messages(shout: LiveServer, era: str) -> None:
    logs: list[LoggingMessageNotificationParams] = []

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        logs.append(params)

    options = {"log_level": "info"} if era == "auto" else {}
    async with official(shout, era, logging_callback=on_log, **options) as client:
        await client.call_tool("shout", {"text": "print"})
    assert sorted((each.level, each.data, each.logger) for each in logs) == [
        ("info", "to stdout", "shout"),
        ("notice", "to stderr", "shout"),
    ]


async def test_log_messages_are_as_severe_as_the_client_wants(shout: LiveServer) -> None:
    logs: list[str] = []

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        logs.append(str(params.data))

    async with official(shout, "legacy", logging_callback=on_log) as client:
        await client.set_logging_level("notice")
        await client.call_tool("shout", {"text": "print"})
        assert logs == ["to stderr"]
        await client.set_logging_level("error")
        await client.call_tool("shout", {"text": "print"})
    async with official(shout, "auto", logging_callback=on_log) as client:  # without a level there are none
        await client.call_tool("shout", {"text": "print"})
    assert logs == ["to stderr"]


async def test_a_progress_bar_is_progress(serve: Serve) -> None:
    told: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert progress > 0
        assert total is None
        told.append(message)

    async with serve(BAR, name="bar") as server, official(server, "auto") as client:
        assert text_of(await client.call_tool("bar", {}, progress_callback=on_progress)) == "done"
    assert "100%|#" in "\n".join(message or "" for message in told)


@pytest.mark.slow
async def test_log_levels_are_kept_for_a_bounded_number_of_sessions(shout: LiveServer) -> None:
    async def ask(session: str, method: str, **params: Any) -> str:
        response = await post(shout, method, params, version=HANDSHAKE, changed={"mcp-session-id": session})
        assert response.status_code == 200, response.text
        return response.text

    printing = {"name": "shout", "arguments": {"text": "print"}}
    for number in range(1025):
        await ask(f"s{number}", "logging/setLevel", level="error")
    assert "to stdout" not in await ask("s1024", "tools/call", **printing)
    assert "to stdout" not in await ask("s1", "tools/call", **printing)
    assert "to stdout" in await ask("s0", "tools/call", **printing)


async def test_a_long_silence_is_kept_alive(serve: Serve, gates: Gates) -> None:
    async with serve(SHOUT, name="shout", quiet=0.05) as server:
        body = message_of("tools/call", {"name": "shout", "arguments": {"text": f"wait {gates['go'].path}"}})
        headers = headers_of("tools/call", "shout")
        async with server.client.stream("POST", "/mcp", json=body, headers=headers) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            gates["go"].open()
            rest = [line async for line in lines]
    assert '"isError":false' in next(line for line in rest if line.startswith("data: "))


async def test_a_client_that_takes_no_events_gets_json_alone(stream: LiveServer) -> None:
    params = {"name": "stream", "arguments": {"prompt": "a b"}, "_meta": {"progressToken": 1}}
    response = await post(stream, "tools/call", params, changed={"accept": "application/json"})
    assert response.headers["content-type"] == "application/json"
    assert response.json()["result"]["content"][0]["text"] == "a b "


# cancel


@ERAS
async def test_a_client_that_gives_up_cancels_the_run(shout: LiveServer, era: str, gates: Gates) -> None:
    async with official(shout, era) as client:
        calling = asyncio.ensure_future(client.call_tool("shout", {"text": f"wait {gates[era].path}"}))
        await eventually(lambda: bool(shout.predictions.live))
        prediction = shout.newest()
        calling.cancel()
        await asyncio.wait((calling,))
        await shout.ended(prediction.id)
        assert prediction.status is Status.CANCELED
        assert text_of(await client.call_tool("shout", {"text": "next"})) == "NEXT"


async def test_cancelled_ends_a_request_of_the_same_session_alone(shout: LiveServer, gates: Gates) -> None:
    hello = await post(shout, "initialize", {"protocolVersion": HANDSHAKE}, version=HANDSHAKE)
    session = {"mcp-session-id": hello.headers["mcp-session-id"]}
    given = {"name": "shout", "arguments": {"text": f"wait {gates['go'].path}"}}
    calling = asyncio.ensure_future(post(shout, "tools/call", given, version=HANDSHAKE, changed=session))
    await eventually(lambda: bool(shout.predictions.live))
    prediction = shout.newest()
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    headers = headers_of("", version=HANDSHAKE)
    for stranger in ({}, {"mcp-session-id": "another"}):
        response = await shout.client.post("/mcp", json=notice, headers=headers | stranger)
        assert (response.status_code, response.content) == (202, b"")
    for other in ({"requestId": 8}, {"requestId": None}, {}):
        await shout.client.post("/mcp", json={**notice, "params": other}, headers=headers | session)
    assert (await post(shout, "ping", version=HANDSHAKE)).json()["result"] == {}
    assert not prediction.is_terminal
    await shout.client.post("/mcp", json=notice, headers=headers | session)
    await shout.ended(prediction.id)
    assert prediction.status is Status.CANCELED
    assert "result" not in (await calling).text


async def test_a_client_that_hangs_up_cancels_the_run(shout: LiveServer, gates: Gates) -> None:
    given = {"name": "shout", "arguments": {"text": f"wait {gates['go'].path}"}}
    calling = asyncio.ensure_future(post(shout, "tools/call", given, version=HANDSHAKE))
    await eventually(lambda: bool(shout.predictions.live))
    prediction = shout.newest()
    calling.cancel()
    await shout.ended(prediction.id)
    assert prediction.status is Status.CANCELED


# what is hostile, or out of date


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"", -32700, "empty"),
        (b"{", -32700, "JSON"),
        (b"\xff\xfe", -32700, "UTF-8"),
        (b"[" * 100_000, -32600, "batches"),
        (b'  [{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, "batches"),
        (b"5", -32600, "object"),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, "jsonrpc"),
        (b'{"id":1,"method":"ping"}', -32600, "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, "'id'"),
        (b'{"jsonrpc":"2.0","id":[],"method":"ping"}', -32600, "'id'"),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, "'id'"),
        (b'{"jsonrpc":"2.0","id":"%b","method":"ping"}' % (b"x" * 2000), -32600, "1024"),
        (b'{"jsonrpc":"2.0","id":1}', -32600, "'method'"),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600, "'method'"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, "responses"),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","method":"ping"}', -32600, "more than once"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"ping","params":%b}' % (b'{"a":' * 500 + b"1" + b"}" * 500),
            -32700,
            "deep",
        ),
    ],
)
async def test_bodies_that_are_no_message(shout: LiveServer, body: bytes, code: int, said: str) -> None:
    for version in (NEWEST, HANDSHAKE):
        headers = {**headers_of("ping", version=version), "content-type": "application/json"}
        response = await shout.client.post("/mcp", content=body, headers=headers)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["code"] == code, error
        assert said in error["message"]


@pytest.mark.parametrize("params", [[], 5, "x"])
async def test_params_are_an_object(shout: LiveServer, params: Any) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": params}
    response = await shout.client.post("/mcp", json=body, headers=headers_of("ping", version=HANDSHAKE))
    assert (response.status_code, response.json()["error"]["code"]) == (200, -32602)
    assert "'params'" in response.json()["error"]["message"]


async def test_methods_that_are_not_there(shout: LiveServer) -> None:
    for version, methods, status in (
        (NEWEST, ("initialize", "ping", "logging/setLevel", "resources/subscribe", "no"), 404),
        (HANDSHAKE, ("server/discover", "resources/subscribe", "prompts/list", "no"), 200),
    ):
        for method in methods:
            response = await post(shout, method, version=version)
            assert (response.status_code, response.json()["error"]["code"]) == (status, -32601), method


@pytest.mark.parametrize("version", ["1999-01-01", "x" * 3000, ""])
async def test_a_version_that_is_not_there(shout: LiveServer, version: str) -> None:
    response = await post(shout, "tools/list", changed={"mcp-protocol-version": version})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)  # the body says another one
    body = message_of("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": version}})
    headers = headers_of("tools/list") | {"mcp-protocol-version": version}
    response = await shout.client.post("/mcp", json=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32022)
    assert NEWEST in response.json()["error"]["data"]["supported"]
    old = await post(shout, "tools/list", version=version or "x")
    assert (old.status_code, old.json()["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize(
    "changed",
    [
        {"mcp-method": "tools/list"},
        {"mcp-name": "other"},
        {"mcp-name": "=?base64?????="},
        {"mcp-protocol-version": HANDSHAKE},
    ],
)
async def test_headers_that_contradict_the_body(shout: LiveServer, changed: dict[str, str]) -> None:
    params = {"name": "shout", "arguments": {"text": "x"}}
    response = await post(shout, "tools/call", params, changed=changed)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
    encoded = f"=?base64?{base64.b64encode(b'shout').decode()}?="
    assert (await post(shout, "tools/call", params, changed={"mcp-name": encoded})).status_code == 200


@pytest.mark.parametrize("missing", ["protocolVersion", "clientCapabilities"])
async def test_what_each_request_carries(shout: LiveServer, missing: str) -> None:
    body = message_of("tools/list")
    del body["params"]["_meta"][f"io.modelcontextprotocol/{missing}"]
    response = await shout.client.post("/mcp", json=body, headers=headers_of("tools/list"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32602)
    assert missing in response.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_is_no_stream_to_get_and_no_session_to_end(shout: LiveServer, method: str) -> None:
    response = await shout.client.request(method, "/mcp", headers={"accept": "text/event-stream"})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["code"] == -32600


@pytest.mark.parametrize(("session", "status"), [("unknown", 200), ("a b", 400), ("x" * 129, 400)])
async def test_sessions_are_names_alone(shout: LiveServer, session: str, status: int) -> None:
    response = await post(shout, "ping", version=HANDSHAKE, changed={"mcp-session-id": session})
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("asked", "given"),
    [("2025-06-18", "2025-06-18"), ("2024-11-05", "2024-11-05"), ("2030-01-01", HANDSHAKE), (NEWEST, HANDSHAKE)],
)
async def test_a_handshake_agrees_on_a_version(shout: LiveServer, asked: str, given: str) -> None:
    body = message_of("initialize", {"protocolVersion": asked, "capabilities": {}}, version=HANDSHAKE)
    response = await shout.client.post("/mcp", json=body, headers={"accept": "application/json, text/event-stream"})
    assert response.json()["result"]["protocolVersion"] == given
    assert len(response.headers["mcp-session-id"]) == 32


async def test_media_types_that_are_refused(shout: LiveServer) -> None:
    body = json.dumps(message_of("tools/list"))
    for changed, status in (
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json", "accept": "text/html"}, 406),
    ):
        headers = headers_of("tools/list") | changed
        response = await shout.client.post("/mcp", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, -32600)


async def test_a_body_that_is_too_large(serve: Serve) -> None:
    async with serve(SHOUT, name="shout", max_body_bytes=10_000) as server:
        response = await post(server, "tools/call", {"name": "shout", "arguments": {"text": "x" * 20_000}})
        assert (response.status_code, response.json()["error"]["code"]) == (413, -32600)
        assert (await call(server, "shout", text="x"))["isError"] is False


@pytest.mark.parametrize("cursor", ["%%%", "=", "\u00e9", "_w=="])
async def test_a_cursor_that_is_not_there(shout: LiveServer, cursor: str) -> None:
    response = await post(shout, "tools/list", {"cursor": cursor})
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32602)
    assert "cursor" in response.json()["error"]["message"]
