"""The official client of MCP, which calls models as tools."""

from __future__ import annotations

import base64
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.clients.asking import Server, run


def test_models_are_tools(server: Server) -> None:
    async def ask() -> tuple[list[str], Any, Any, Any]:
        headers = {"authorization": f"Bearer {server.key}"}
        async with (
            httpx2.AsyncClient(headers=headers) as web,
            Client(streamable_http_client(f"{server.url}/mcp", http_client=web)) as client,
        ):
            tools = [tool.name for tool in (await client.list_tools()).tools]
            good = await client.call_tool("shout", {"text": "hello"})
            bad = await client.call_tool("shout", {"text": 5})
            drawn = await client.call_tool("painter", {"prompt": "a cat"})
            uris = [resource.uri for resource in (await client.list_resources()).resources]
            assert drawn.content[0].meta["geartrain/uri"] in uris  # type: ignore[index]
            return tools, good, bad, (await client.read_resource(uris[0])).contents[0]

    tools, good, bad, file = run(ask())
    assert base64.b64decode(file.blob) == b"a cat auto "
    assert "shout" in tools
    assert "late" not in tools
    assert good.content[0].text == "HELLO"
    assert bad.is_error
    assert "text" in bad.content[0].text
