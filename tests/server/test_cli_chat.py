"""`geartrain chat` with real servers: at a terminal, as a person sees it, and in a pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support.forked import run_forked
from tests.support.gates import Gates
from tests.support.servers import PATIENCE, write_model
from tests.support.terminal import Terminal, on_terminal
from tests.support.text_apis import PLAYER, WRITER, play

EMBED = """
    def run(texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]
"""
# It says what it has been told: the roles and the texts of all messages.
MIRROR = """
    from collections.abc import Iterator
    from geartrain import BaseRunner, current_scope
    from geartrain.openai import Delta, Message

    class Runner(BaseRunner):
        def run(self, messages: list[Message], temperature: float = 1.0, max_tokens: int = 100) -> Iterator[Delta]:
            said = " | ".join(f"{one['role']}: {one['content']}" for one in messages)
            current_scope().record_metric("tokens.completion", 2)
            yield {"content": f"{temperature} {max_tokens} "}
            yield {"content": f"<{said}>"}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, source in (("player", PLAYER), ("mirror", MIRROR), ("embed", EMBED)):
        write_model(folder / name, source)
    with serve(folder) as server:
        yield server


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


def chat(*arguments: str, lines: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Chat in a pipe."""
    return run_forked("chat", *arguments, stdin=lines, timeout=PATIENCE, cwd=cwd)


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def running(server: Server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("geartrain_slots_in_use{"))


def until_idle(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while running(server):
        assert time.monotonic() < end
        time.sleep(0.02)


# in a pipe


def test_lines_of_a_pipe_are_one_conversation(server: Server) -> None:
    lines = 'good morning\n\n{"role": "system", "content": "be brief"}\n{"content": "and now?"}\n[1]\n'
    options = ("--temperature", "0.5", "-p", "max_tokens=7", "--system", "you are kind")
    done = chat(server.url, "-m", "mirror", *options, lines=lines)
    assert done.returncode == 0
    first, second, third = answers(done)
    assert first["content"] == "0.5 7 <system: you are kind | user: good morning>"
    assert (first["role"], first["finish_reason"], first["usage"]["completion_tokens"]) == ("assistant", "stop", 2)
    assert 0 < first["first_token_seconds"] <= first["seconds"] < PATIENCE
    assert first["tokens_per_second"] > 0
    said = f"system: you are kind | user: good morning | assistant: {first['content']} | system: be brief"
    assert second["content"] == f"0.5 7 <{said} | user: and now?>"
    assert third["content"].endswith("| user: [1]>")  # what is no message is a text


def test_reasoning_and_calls_of_tools_in_a_pipe(server: Server, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    call = {"tool_calls": [{"index": 0, "id": "c1", "name": "weather", "arguments": '{"city"'}]}
    rest = {"tool_calls": [{"index": 0, "arguments": ': "Ulm"}'}]}
    line = json.dumps({"content": play({"reasoning": "well, "}, {"reasoning": "let me see"}, "ok", call, rest)})
    done = chat(server.url, "-m", "player", "-p", f"tools=@{tmp_path / 'tools.json'}", lines=f"{line}\n")
    (answer,) = answers(done)
    assert (answer["content"], answer["reasoning_content"]) == ("ok", "well, let me see")
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert answer["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert answer["finish_reason"] == "tool_calls"


def test_failed_answers_are_lines_too(server: Server) -> None:
    lines = [json.dumps({"content": play("a", {"fail": "no more"})}), json.dumps({"content": play("b")})]
    done = chat(server.url, "-m", "player", lines="\n".join(lines))
    assert (done.returncode, done.stderr) == (1, "")
    failed, good = map(json.loads, done.stdout.splitlines())
    assert "no more" in failed["error"]["message"]
    assert good["content"] == "b"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name one with --model: mirror, player"),
        (("-m", "embed"), "there is no model embed that chats; there are mirror, player"),
        (("-m", "player", "-p", "temperature"), "write a parameter as NAME=VALUE"),
        (("-m", "player", "-p", "tools=@nothing.json"), "tools: cannot read nothing.json"),
        (("-m", "player", "--", "--replicas", "2"), "options of `geartrain serve` are for a MODEL"),
    ],
)
def test_what_cannot_be_is_said(server: Server, arguments: tuple[str, ...], said: str) -> None:
    done = chat(server.url, *arguments, lines="a\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_server_that_is_not_there() -> None:
    done = chat("http://127.0.0.1:9", lines="a\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be reached" in done.stderr


def test_wrong_values_and_parameters_without_an_input(server: Server) -> None:
    done = chat(server.url, "-m", "mirror", "--seed", "1", "-p", "min_p=0.1", lines="a\nb\n")
    assert done.stderr.splitlines() == [
        "warning: the model has no seed: it is passed over",
        "warning: the model has no min_p: it is passed over",
    ]
    done = chat(server.url, "-m", "player", "--temperature", "5", lines="a\n")
    assert done.returncode == 1
    assert "temperature" in json.loads(done.stdout)["error"]["message"]


def test_model_gets_a_server_of_its_own(tmp_path: Path) -> None:
    write_model(tmp_path / "writer", WRITER)
    done = chat(str(tmp_path / "writer"), lines="one two\n")
    (answer,) = answers(done)
    assert answer["content"] == "one two "
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(each.info["cmdline"] or ())
    ]


# at a terminal


def typed(terminal: Terminal, line: str, words: str) -> str:
    """Type a line, and read until words have been shown after it."""
    terminal.read_until_prompt("> ")
    before = len(terminal.shown)
    terminal.type(f"{line}\n")
    return terminal.read_until(words, after=before + len(line))[before:]


def test_conversation_at_a_terminal(server: Server) -> None:
    with on_terminal("chat", server.url, "-m", "mirror", stdin=None, stdout=None) as terminal:
        terminal.read_until("Chat with mirror.")
        assert "2 tokens, " in typed(terminal, "hello", " a second, the first after ")
        assert "<user: hello>" in terminal.shown
        typed(terminal, "/system be kind", "The system prompt is set.")
        assert "<system: be kind | user: hello | " in typed(terminal, "again", "the first after")
        assert "| user: again>" in terminal.shown
        shown = typed(terminal, "/retry", "the first after")
        assert shown.count("user: again") == 1
        assert shown.count("assistant:") == 1  # the answer that was given before is gone
        typed(terminal, "/reset", "begins anew")
        assert "1.0 100 <system: be kind | user: /etc>" in typed(terminal, "//etc", "the first after")
        typed(terminal, "/system -", "no system prompt any more")
        typed(terminal, "/nothing", "error: there is no command /nothing; there are /reset")
        assert "user: two\nlines>" in typed(terminal, "two\\\nlines", "the first after")
        terminal.read_until_prompt("> ")
        terminal.type("\x04")
        terminal.read_to_end()
        assert terminal.process.wait(PATIENCE) == 0


def test_ctrl_c_stops_the_answer_and_not_the_chat(server: Server, gates: Gates) -> None:
    with on_terminal("chat", server.url, "-m", "player", stdin=None, stdout=None) as terminal:
        terminal.read_until("Chat with player.")
        terminal.type(play("begun", {"wait": str(gates["go"].path)}) + "\n")
        terminal.read_until("\nbegun")
        assert running(server) == 1
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped")
        until_idle(server)  # the run has been canceled
        shown = typed(terminal, "what was said?", "the first after")
        assert '{\\"role\\": \\"assistant\\", \\"content\\": \\"begun\\"}'.replace("\\", "") in shown.replace("\n", "")
        terminal.read_until_prompt("> ")
        terminal.process.send_signal(signal.SIGINT)
        terminal.type("\n")  # a signal that comes just before readline waits is seen with the next key
        terminal.read_until("Ctrl-D or /exit ends the chat.")
        terminal.read_until_prompt("> ")
        terminal.type("/exit\n")
        terminal.read_to_end()
        assert terminal.process.wait(PATIENCE) == 0


def test_reasoning_is_dimmed_and_controls_do_nothing(server: Server) -> None:
    with on_terminal("chat", server.url, "-m", "player", stdin=None, stdout=None) as terminal:
        terminal.read_until("Chat with player.")
        call = {"tool_calls": [{"index": 0, "id": "c1", "name": "weather", "arguments": "{}"}]}
        pieces = play({"reasoning": "let me see"}, "bad\x1b[31m\x07text", call)
        typed(terminal, pieces, "→ weather({})")
        assert b"\x1b[2mlet me see\x1b[0m" in terminal.raw
        assert b"bad[31mtext" in terminal.raw
        typed(terminal, play("a", {"fail": "no more"}), "error: ValueError: no more")
        terminal.read_until_prompt("> ")
        terminal.type("\x04")
        terminal.read_to_end()


def test_own_server_ends_with_the_chat(tmp_path: Path) -> None:
    write_model(tmp_path / "writer", WRITER)
    with on_terminal("chat", str(tmp_path / "writer"), stdin=None, stdout=None) as terminal:
        terminal.read_until("Chat with writer.")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        assert family
        typed(terminal, "one two", "2 pieces")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.read_to_end()
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family)


def test_chat_is_in_the_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert "chat" in [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
