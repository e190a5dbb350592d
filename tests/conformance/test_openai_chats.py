"""Chat templates: chats as prompts of models that take a text, on real servers. Needs jinja2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from geartrain.service.workers.pool import ModelSetupError
from tests.support.clients import asyncio_client
from tests.support.servers import LiveServer, Serve, ServerProcess, eventually, write_model

if TYPE_CHECKING:
    from collections.abc import Mapping

ECHO = """
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(self, prompt: str = Input(min_length=2)) -> ConcatenateIterator[str]:
            yield prompt
"""
BATCHED = """
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(self, prompt: list[str]) -> list[str]:
            return [each + "!" for each in prompt]
"""
OWN_METHOD = """
    from geartrain import BaseRunner
    from geartrain.openai import Message

    class Runner(BaseRunner):
        def chat_prompt(self, messages: list[Message]) -> str:
            return " | ".join(message["content"] for message in messages)

        def run(self, prompt: str) -> str:
            return prompt
"""
OWN_TEXT = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        chat_template = "{{ messages[-1].content }} of {{ messages | length }}"

        def run(self, prompt: str) -> str:
            return prompt
"""
OWN_FILE = """
    from pathlib import Path
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        chat_template = Path("templates/chat.jinja")

        def run(self, prompt: str) -> str:
            return prompt
"""
TOKENIZER = """
    from geartrain import BaseRunner

    class Tokenizer:
        chat_template = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ bos_token }}yes"}]
        special_tokens_map = {"bos_token": "<s>"}

    class Runner(BaseRunner):
        def setup(self) -> None:
            self.tokenizer = Tokenizer()

        async def run(self, prompt: str) -> str:
            return prompt
"""
CHATML = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ raise_exception('Tools are "not" for this model') }}{% endif %}
    {%- generation %}[{{ message.role }}]{{ message.content | trim }}{% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
QUICK_OR_NOT = "{% if messages[-1].content == 'slow' %}" + ENDLESS + "{% endif %}quick"


async def chat(server: LiveServer, *contents: str, roles: Mapping[int, str] = {}, **body: Any) -> httpx.Response:
    """POST a chat whose messages are of the user, but for those with other `roles`."""
    messages = [{"role": roles.get(at, "user"), "content": content} for at, content in enumerate(contents)]
    given = {"model": server.deployment.name, "messages": messages, **body}
    return await server.client.post("/v1/chat/completions", json=given, timeout=30)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def with_files(folder: Path, source: str, **files: str) -> Path:
    """Write a model and other files beside it; `__` stands for a dot in a name."""
    write_model(folder, source)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize("source", [ECHO, BATCHED])
async def test_template_of_the_folder(serve: Serve, tmp_path: Path, source: str) -> None:
    config = json.dumps({"chat_template": CHATML, "bos_token": {"content": "<s>", "lstrip": False}})
    folder = with_files(tmp_path / "model", source, tokenizer_config__json=config)
    end = "!" if source == BATCHED else ""
    async with serve(folder) as server:
        text = text_of(await chat(server, "be good", " grüß\n 𝄞 ", roles={0: "system"}))
        assert text == f"<s>[system]be good[user]grüß\n 𝄞[assistant]{end}"
        answers = await asyncio.gather(*(chat(server, f"number {number}") for number in range(20)))
        expected = [f"<s>[user]number {number}[assistant]{end}" for number in range(20)]
        assert [text_of(answer) for answer in answers] == expected
        given = {"model": server.deployment.name, "prompt": "as it is"}
        answer = (await server.client.post("/v1/completions", json=given)).json()
        assert answer["choices"][0]["text"] == f"as it is{end}"


@pytest.mark.parametrize(
    ("files", "prompt"),
    [
        ({"chat_template__jinja": "a file", "tokenizer_config__json": '{"chat_template": "no"}'}, "a file"),
        ({"chat_template__json": '{"chat_template": "old {{ messages[0].content }}"}'}, "old hi"),
        ({"tokenizer_config__json": '{"chat_template": [{"name": "default", "template": "named"}]}'}, "named"),
        ({"tokenizer_config__json": '{"bos_token": "<s>"}'}, "hi"),
        ({}, "hi"),
    ],
)
async def test_files_that_have_a_template(serve: Serve, tmp_path: Path, files: dict[str, str], prompt: str) -> None:
    async with serve(with_files(tmp_path / "model", ECHO, **files)) as server:
        assert text_of(await chat(server, "hi")) == prompt


@pytest.mark.parametrize("source", [ECHO, OWN_METHOD])
async def test_template_of_the_settings_comes_first(serve: Serve, tmp_path: Path, source: str) -> None:
    folder = with_files(
        tmp_path / "model",
        source,
        geartrain__yaml="openai: {chat_template: mine.jinja}\n",
        mine__jinja="{{ bos_token }}mine: {{ messages[0].content }}",
        chat_template__jinja="another",
        tokenizer_config__json='{"bos_token": "<s>"}',
    )
    async with serve(folder) as server:
        assert text_of(await chat(server, "hi")) == "<s>mine: hi"


async def test_template_of_the_settings_that_is_not_there(serve: Serve, tmp_path: Path) -> None:
    folder = with_files(tmp_path / "model", ECHO, geartrain__yaml="openai: {chat_template: mine.jinja}\n")
    with pytest.raises(ModelSetupError, match=r"mine\.jinja cannot be read"):
        async with serve(folder):
            pass


@pytest.mark.parametrize(
    ("source", "prompt"), [(OWN_METHOD, "a | b"), (OWN_TEXT, "b of 2"), (OWN_FILE, "own: a"), (TOKENIZER, "<s>yes")]
)
async def test_template_of_the_author_comes_before_that_of_the_folder(
    serve: Serve, tmp_path: Path, source: str, prompt: str
) -> None:
    folder = with_files(tmp_path / "model", source, chat_template__jinja="of the folder")
    (folder / "templates").mkdir()
    (folder / "templates" / "chat.jinja").write_text("own: {{ messages[0].content }}")
    async with serve(folder) as server:
        assert text_of(await chat(server, "a", "b")) == prompt


@pytest.mark.parametrize("source", [ECHO, BATCHED])
@pytest.mark.parametrize("stream", [False, True])
async def test_chat_that_the_template_refuses(serve: Serve, tmp_path: Path, source: str, stream: bool) -> None:
    async with serve(with_files(tmp_path / "model", source, chat_template__jinja=CHATML)) as server:
        response = await chat(server, "hi", "found", roles={1: "tool"}, stream=stream)
        assert response.status_code == 400, response.text
        assert response.json()["error"] == {
            "message": 'Tools are "not" for this model',
            "type": "invalid_request_error",
            "param": "messages",
            "code": "invalid_input",
        }
        assert "hi" in text_of(await chat(server, "hi"))


async def test_other_forms_of_chats_get_the_template(serve: Serve, tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "a"}
    async with serve(with_files(tmp_path / "model", ECHO, chat_template__jinja=CHATML)) as server:
        name = server.deployment.name
        response = await server.client.post("/v1/responses", json={"model": name, "input": "hi"})
        assert "[user]hi[assistant]" in response.json()["output"][0]["content"][0]["text"]
        response = await server.client.post("/v1/responses", json={"model": name, "input": [call, output]})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "input"
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
        response = await server.client.post("/v1/messages", json={"model": name, "system": "be", "messages": messages})
        assert "[system]be[user]hi[assistant]" in response.json()["content"][0]["text"]
        messages[0]["content"] = [{"type": "tool_result", "tool_use_id": "c", "content": "a"}]
        response = await server.client.post("/v1/messages", json={"model": name, "messages": messages})
        assert response.status_code == 400
        error = {"type": "invalid_request_error", "message": 'Tools are "not" for this model'}
        assert response.json() == {"type": "error", "error": error}


async def test_input_is_still_checked(serve: Serve, tmp_path: Path) -> None:
    async with serve(with_files(tmp_path / "model", ECHO, chat_template__jinja="quick")) as server:
        response = await chat(server, "h")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages"
        response = await server.client.post("/predictions", json={"input": {"prompt": [{"role": "user"}]}})
        assert response.status_code == 422  # only a chat has messages in place of a text


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDLESS, "takes longer than 2 s"),
        ("{% for i in range(10**12) %}a{% endfor %}", "OverflowError"),
        ("{{ 7 ** (10 ** 9) }}", "takes longer than 2 s"),
        ("{% for i in range(99999) %}{{ 'abcdefghij' * 100 }}{% endfor %}", "more than"),
        ("{{ 'a' * 10 ** 10 }}", "of memory"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ unknown.member }}", "UndefinedError"),
    ],
)
async def test_template_that_gives_no_prompt(serve: Serve, tmp_path: Path, template: str, said: str) -> None:
    async with serve(with_files(tmp_path / "model", ECHO, chat_template__jinja=template)) as server:
        begin = perf_counter()
        response = await chat(server, "hi")
        assert perf_counter() - begin < 10
        assert response.status_code == 500, response.text
        error = response.json()["error"]
        assert "the chat template" in error["message"]
        assert said in error["message"]
        assert len(error["message"]) < 1000
        assert response.headers["x-should-retry"] == "false"


async def test_template_that_takes_long_is_begun_anew(serve: Serve, tmp_path: Path) -> None:
    async with serve(with_files(tmp_path / "model", ECHO, chat_template__jinja=QUICK_OR_NOT)) as server:
        for _ in range(2):
            assert text_of(await chat(server, "hi")) == "quick"
            assert (await chat(server, "slow")).status_code == 500
        assert text_of(await chat(server, "hi")) == "quick"
        assert server.deployment.workers.setup.completed_at is not None


async def test_cancel_while_a_template_is_rendered(serve: Serve, tmp_path: Path) -> None:
    async with serve(with_files(tmp_path / "model", ECHO, chat_template__jinja=QUICK_OR_NOT)) as server:
        assert text_of(await chat(server, "hi")) == "quick"
        with pytest.raises(httpx.ReadTimeout):
            await server.client.post(
                "/v1/chat/completions",
                json={"model": server.deployment.name, "messages": [{"role": "user", "content": "slow"}]},
                timeout=0.3,
            )
        assert text_of(await chat(server, "hi")) == "quick"  # and not the answer of the other one


def test_other_models_answer_meanwhile(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    with_files(tmp_path / "models" / "slow", ECHO, chat_template__jinja=ENDLESS)
    with_files(tmp_path / "models" / "quick", ECHO, chat_template__jinja="quick")
    process = server_process(str(tmp_path / "models"))
    url = process.wait_for("listening")["url"]
    for _ in range(2):
        process.wait_for("ready")

    async def both() -> int:
        async with asyncio_client(url) as client:

            async def ask(model: str) -> httpx.Response:
                given = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                return await client.post("/v1/chat/completions", json=given, timeout=30)

            assert text_of(await ask("quick")) == "quick"  # its renderer has begun
            slow = asyncio.create_task(ask("slow"))
            count = 0
            while not slow.done():
                assert text_of(await ask("quick")) == "quick"
                count += 1
            assert (await slow).status_code == 500
            return count

    assert asyncio.run(both()) > 10  # within the two seconds of the other one, one after the other


async def test_renderer_ends_with_its_worker(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    folder = with_files(tmp_path / "model", ECHO, chat_template__jinja=QUICK_OR_NOT)
    process = server_process(str(folder))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")

    def processes(name: str) -> list[psutil.Process]:
        below = psutil.Process(process.popen.pid).children(recursive=True)
        return [each for each in below if any(name in part for part in each.cmdline())]

    async with asyncio_client(url) as client:
        assert processes("chat_renderer") == []  # nobody has chatted yet
        given = {"model": "model", "messages": [{"role": "user", "content": "hi"}]}
        assert text_of(await client.post("/v1/chat/completions", json=given)) == "quick"
        (renderer,) = processes("chat_renderer")
        used = renderer.cpu_times().user
        given["messages"] = [{"role": "user", "content": "slow"}]
        slow = asyncio.create_task(client.post("/v1/chat/completions", json=given))
        await eventually(lambda: renderer.cpu_times().user > used + 0.1)
        worker = renderer.parent()
        assert worker is not None
        worker.kill()  # , while the renderer is at work
        assert (await slow).status_code == 500
        await eventually(lambda: not renderer.is_running())
