"""Pictures and recordings in chats, for models that take them as files, on real servers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.support.clients import asyncio_client
from tests.support.servers import LiveServer, Serve
from tests.support.web_server import Server, running_server

if TYPE_CHECKING:
    import httpx

SEES = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, prompt: str, images: list[Path] = [], audio: Path | None = None) -> str:
            sizes = ",".join(str(image.stat().st_size) for image in images)
            sound = "" if audio is None else audio.read_text() + audio.suffix
            return f"{prompt}|{sizes}|{sound}"
"""
SEES_ONE = """
    from typing import Any
    from geartrain import BaseRunner, Input, Path

    class Runner(BaseRunner):
        def run(self, messages: list[dict[str, Any]], photo: Path = Input(accept="image/*")) -> str:
            return f"{messages[-1]['content']}|{photo.read_text()}"
"""
TEMPLATE = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def chat_prompt(self, messages: list[dict]) -> str:
            return "".join(part.get("text", "<" + part["type"] + ">") for part in messages[-1]["content"])

        def run(self, prompt: str, image: Path | None = None) -> str:
            return prompt if image is None else prompt + image.read_text()
"""
READS = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, prompt: str) -> str:
            return prompt
"""


@pytest.fixture
def web() -> Iterator[Server]:
    with running_server() as web:
        yield web


@pytest_asyncio.fixture
async def sees(serve: Serve) -> AsyncIterator[LiveServer]:
    async with serve(SEES) as server:
        yield server


def data(text: str, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(text.encode()).decode()}"


def picture(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def ask(
    server: LiveServer, *content: dict[str, Any], path: str = "/v1/chat/completions", **more: Any
) -> httpx.Response:
    key = "input" if path == "/v1/responses" else "messages"
    body = {"model": "model", key: [{"role": "user", "content": [*content]}], **more}
    async with asyncio_client(server.url) as client:
        return await client.post(path, json=body)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def test_pictures_and_sounds_are_files(sees: LiveServer) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": b64encode(b"la").decode(), "format": "wav"}}
    answer = await ask(sees, words("Look: "), picture(data("one")), picture(data("two!")), sound, words("well?"))
    assert text_of(answer) == "Look: well?|3,4|la.wav"
    assert text_of(await ask(sees, words("nothing"))) == "nothing||"


async def test_other_apis_have_them_too(sees: LiveServer) -> None:
    image = {"type": "input_image", "image_url": data("four")}
    response = await ask(sees, {"type": "input_text", "text": "a"}, image, path="/v1/responses")
    assert response.json()["output"][0]["content"][0]["text"] == "a|4|"
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(b"fives").decode()}
    message = await ask(sees, words("b"), {"type": "image", "source": source}, path="/v1/messages")
    assert message.json()["content"][0]["text"] == "b|5|"


async def test_large_pictures(sees: LiveServer) -> None:
    images = [picture(data("x" * size)) for size in (5_000_000, 70_000, 3)]
    assert text_of(await ask(sees, words("large"), *images)) == "large|5000000,70000,3|"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_pictures_of_the_web_are_fetched(sees: LiveServer, web: Server, path: str) -> None:
    url = web.serve("/cat.png", b"c" * 300_000)
    part: dict[str, Any] = {
        "/v1/chat/completions": picture(url),
        "/v1/responses": {"type": "input_image", "image_url": url},
        "/v1/messages": {"type": "image", "source": {"type": "url", "url": url}},
    }[path]
    text = {"type": "input_text", "text": "see"} if path == "/v1/responses" else words("see")
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    response = await ask(sees, text, part, path=path, **limit)
    assert response.status_code == 200, response.text
    assert "see|300000|" in response.text
    assert [(one.method, one.path) for one in web.received] == [("GET", "/cat.png")]


async def test_picture_of_the_web_that_is_not_there(sees: LiveServer, web: Server) -> None:
    url = f"http://127.0.0.1:{web.server_address[1]}/nothing.png"
    refused = await ask(sees, words("see"), picture(url))
    assert refused.status_code == 500
    assert refused.json()["error"]["code"] == "run_failed"
    assert "404" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"


async def test_private_addresses_are_not_fetched(serve: Serve, web: Server) -> None:
    url = web.serve("/secret.png", b"secret")
    async with serve(SEES, allow_private_urls=False) as server:
        refused = await ask(server, words("see"), picture(url))
        assert refused.status_code >= 400
        assert "secret" not in refused.json()["error"]["message"].replace("secret.png", "")
    assert web.received == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [3, 300_000])
async def test_each_choice_gets_the_pictures(sees: LiveServer, size: int, stream: bool) -> None:
    response = await ask(sees, words("a"), picture(data("x" * size)), picture(data("y")), n=3, stream=stream)
    assert response.status_code == 200, response.text
    if not stream:
        assert [each["message"]["content"] for each in response.json()["choices"]] == [f"a|{size},1|"] * 3
        return
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    said = {0: "", 1: "", 2: ""}
    for choice in (each for line in lines for each in json.loads(line)["choices"]):
        said[choice["index"]] += choice["delta"].get("content", "")
    assert said == dict.fromkeys(range(3), f"a|{size},1|")


async def test_messages_keep_the_places_of_files(serve: Serve) -> None:
    async with serve(SEES_ONE) as server:
        answer = text_of(await ask(server, words("Look"), picture(data("cat"))))
        assert answer == "[{'type': 'text', 'text': 'Look'}, {'type': 'image'}]|cat"
        missing = await ask(server, words("nothing to see"))
        assert (missing.status_code, missing.json()["error"]["message"]) == (400, "'photo' is missing")
    async with serve(TEMPLATE) as server:
        assert text_of(await ask(server, words("Look "), picture(data("cat")), words("!"))) == "Look <image>!cat"
        large = await ask(server, words("Look "), picture(data("c" * 300_000)), words("!"))
        assert text_of(large) == "Look <image>!" + "c" * 300_000


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([picture("file:///etc/passwd")], "no http:, https: or data: URL"),
        ([picture(None)], "no http:, https: or data: URL"),
        ([picture(data("x"))] * 33, "33 parts with image, and at most 32"),
        ([{"type": "input_audio", "input_audio": {"format": "wav"}}], "without its 'data'"),
        ([{"type": "input_audio", "input_audio": {"data": "", "format": "a;b"}}], "without its 'data'"),
        ([{"type": "input_audio", "input_audio": {"data": "bGE=", "format": "wav"}}] * 2, "at most 1"),
        ([picture(data("x")), {"type": "file", "file": {}}], "a part of the type 'file'"),
        ([picture("data:image/png;base64,%%%")], "base64"),
        ([{"type": ["image_url"], "image_url": {"url": data("x")}}], "a part of the type '['image_url']'"),
    ],
)
async def test_parts_that_are_refused(sees: LiveServer, parts: list[dict[str, Any]], said: str) -> None:
    refused = await ask(sees, words("a"), *parts)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "messages"
    assert said in refused.json()["error"]["message"]


async def test_models_without_such_an_input_refuse_them(serve: Serve) -> None:
    async with serve(READS) as server:
        refused = await ask(server, words("a"), picture(data("x")))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
