"""`geartrain serve` as a process: what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.servers import ServerProcess, write_model
from tests.support.terminal import on_terminal

HELLO = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("setting up")

        def run(self, name: str = "world") -> str:
            return f"hello {name}"
    """

Start = Callable[..., ServerProcess]


def test_machine_reads_json_lines(server_process: Start, tmp_path: Path) -> None:
    process = server_process(str(write_model(tmp_path / "model", HELLO)))
    url = process.wait_for("listening")["url"]
    ready = process.wait_for("ready")
    assert (ready["model"], ready["slots"], ready["level"]) == ("model", 1, "info")
    answer = httpx.post(f"{url}/predictions", json={"input": {"name": "bob"}})
    assert answer.json()["output"] == "hello bob"
    process.popen.send_signal(signal.SIGINT)
    process.wait_for("stopping")
    assert process.popen.wait(timeout=40) == 0
    assert "setting up" in json.dumps(process.lines)


@pytest.mark.parametrize("variables", [("PORT",), ("AIP_HTTP_PORT",), ("PORT", "AIP_HTTP_PORT")])
def test_cog_variables_name_the_model_and_the_port(tmp_path: Path, variables: tuple[str, ...]) -> None:
    """That of Vertex AI counts without the one of Cog."""
    write_model(tmp_path, HELLO)
    environ = {key: value for key, value in os.environ.items() if key not in {"PORT", "AIP_HTTP_PORT"}}
    environ |= {"HOST": "", "COG_PREDICT_TYPE_STUB": "run.py:Runner"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "geartrain", "serve"],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environ, **dict(zip(variables, (str(port), "1"), strict=False))},
        )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use. Choose")
    assert done.stderr.count("\n") == 1


def test_files_of_tls_are_checked_before_anything_is_started(tmp_path: Path) -> None:
    write_model(tmp_path, HELLO)
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", "serve", "--tls-cert", "none.pem", "--tls-key", "none.key"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (1, "error: --tls-cert: there is no file none.pem\n")


def test_server_on_loopback_has_nothing_to_warn_of(server_process: Start, tmp_path: Path) -> None:
    process = server_process(str(write_model(tmp_path / "hello", HELLO)))
    process.wait_for("ready")
    assert {line["level"] for line in process.lines} == {"info"}


def test_server_whose_setup_failed_stays_up_and_ends_with_1(server_process: Start, tmp_path: Path) -> None:
    source = HELLO.replace('print("setting up")', 'raise RuntimeError("boom")')
    process = server_process(str(write_model(tmp_path / "model", source)))
    url = process.wait_for("listening")["url"]
    process.wait_for("setup-failed")
    assert httpx.get(f"{url}/health-check").json()["status"] == "SETUP_FAILED"
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=40) == 1


def test_person_sees_model_setup_and_urls(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", HELLO)
    with on_terminal("serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0") as terminal:
        shown = terminal.read_until("Ctrl-C stops.")
        assert "gRPC    127.0.0.1:" in shown
        for words in (f"geartrain 0.1.0  model  {folder}/run.py", "Setting up model", "setting up\n", "1 slot\n"):
            assert words in shown
        found = re.search(r"POST (http://127.0.0.1:\d+)/predictions", shown)
        assert found is not None
        assert httpx.get(f"{found[1]}/health-check").json()["status"] == "READY"
        terminal.process.send_signal(signal.SIGINT)
        assert "listening" not in terminal.read_until("Stopping.")
        assert terminal.process.wait(timeout=40) == 0


def test_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", HELLO)
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    with on_terminal("serve", str(folder), "--host", "::1", "--port", "0", "--grpc-port", "off") as terminal:
        found = re.search(r"POST (http://\[::1\]:\d+)/predictions", terminal.read_until("Ctrl-C stops."))
        assert found is not None
        assert httpx.get(f"{found[1]}/health-check").json()["status"] == "READY"


def test_person_sees_why_setup_failed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", HELLO.replace('print("setting up")', 'raise RuntimeError("boom")'))
    with on_terminal("serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "off") as terminal:
        shown = terminal.read_until("Ctrl-C stops.")
        assert "Setup failed: " in shown
        assert "RuntimeError: boom" in shown
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(timeout=40) == 1


BROKEN = [
    ("class Runner:\n    def run(self) -> str\n        return 'x'\n", "run.py:2: SyntaxError: expected ':'"),
    ("x = 1\n", "run.py has no class Runner"),
]


@pytest.mark.parametrize(("source", "reason"), BROKEN)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a6_server_with_a_broken_file_stays_up(
    server_process: Start, tmp_path: Path, source: str, reason: str, *, several: bool
) -> None:
    folder = write_model(tmp_path / "models" / "broken", source)
    if several:
        write_model(folder.parent / "good", HELLO)
    process = server_process(str(folder.parent if several else folder))
    url = process.wait_for("listening")["url"]
    root = f"{url}/models/broken" if several else url
    process.wait_for("ready" if several else "setup-failed")
    health = httpx.get(f"{root}/health-check").json()
    assert health["status"] == "SETUP_FAILED"
    assert reason in health["setup"]["logs"]
    assert httpx.post(f"{root}/predictions", json={"input": {}}).status_code == 503


@pytest.mark.parametrize("name", ["run", "schema"])
def test_syntax_error_ends_other_commands_with_file_and_line(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model", "class Runner:\n    def run(self) -> str\n        return 'x'\n")
    done = subprocess.run(
        [sys.executable, "-m", "geartrain", name, str(folder)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: run.py:2: SyntaxError: expected ':': def run(self) -> str\n"


def test_start_imports_nothing_for_other_commands() -> None:
    script = (
        "import sys, geartrain.cli.main, geartrain.cli.serve, geartrain.server;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    late = {"httpx", "jsonschema_rs", "numpy", "pydantic", "rich", "structlog", "uvicorn", "yaml"}
    assert not late & set(done.stdout.split())


TALKER = """
    def run(text: str, times: int = 1) -> str:
        print("saying", text)
        return text * times
    """


def test_person_sees_requests_prints_failures_and_ends(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TALKER)
    with on_terminal("serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "off") as terminal:
        found = re.search(r"POST (http://[\d.:]+)/predictions", terminal.read_until("Ctrl-C stops."))
        assert found is not None
        url = f"{found[1]}/predictions"
        prediction = httpx.post(url, json={"input": {"text": "hello"}}).json()["id"]
        terminal.read_until(f"{prediction} saying hello\n")
        terminal.read_until(f" ms {prediction}\n")
        httpx.post(url, json={"input": {"text": 1}})
        terminal.read_until("POST /predictions 422 refused in ")
        httpx.put(f"{url}/job1", json={"input": {"text": "ab", "times": 2}}, headers={"prefer": "respond-async"})
        shown = terminal.read_until("job1 succeeded after ")
        assert re.search(r"\n\d\d:\d\d:\d\d POST /predictions 200 succeeded in [\d.]+ m?s pred_\w+\n", shown)
        assert re.search(r"422 refused in [\d.]+ ms: text: .+\n", shown)
        assert re.search(r"PUT /predictions/job1 202 accepted in [\d.]+ ms\n", shown)
        assert "request_id" not in shown


def test_person_sees_why_the_worker_is_gone_in_short_lines(tmp_path: Path) -> None:
    model = "import os, signal\n\n\ndef run() -> str:\n    os.kill(os.getpid(), signal.SIGKILL)\n    return ''\n"
    folder = write_model(tmp_path / "model", model)
    with on_terminal("serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "off") as terminal:
        found = re.search(r"POST (http://[\d.:]+)/predictions", terminal.read_until("Ctrl-C stops."))
        assert found is not None
        httpx.post(f"{found[1]}/predictions", json={"input": {}})
        shown = terminal.read_until("another worker follows by itself\n")
    lines = shown[shown.index("the worker is gone") :].splitlines()
    assert lines[:3] == [
        "the worker is gone; no further prediction is possible",
        f"{' ' * 9}Worker crashed: killed by SIGKILL (out of memory, or killed from outside)",
        f"{' ' * 9}start the server again; with --restart on-crash another worker follows by itself",
    ]


def test_person_sees_all_addresses_of_several_models_and_how_many_are_ready(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "one", TALKER)
    write_model(tmp_path / "models" / "two", TALKER)
    with on_terminal(
        "serve", str(tmp_path / "models"), "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"
    ) as terminal:
        shown = terminal.read_until("Ctrl-C stops.")
        for words in ("  Page    http://127.0.0.1:", "  Docs    http://127.0.0.1:", "  gRPC    127.0.0.1:"):
            assert words in shown
        assert re.search(r"\n2 of 2 ready after [\d.]+ s\n", shown)


def test_error_at_import_has_its_chain_in_log_and_health(server_process: Start, tmp_path: Path) -> None:
    source = "raise ModuleNotFoundError('no GPT2') from RuntimeError('no operator nms')\ndef run() -> int: ...\n"
    process = server_process(str(write_model(tmp_path / "model", source)))
    url = process.wait_for("listening")["url"]
    reason = process.wait_for("setup-failed")["text"]
    assert reason == "run.py:1: ModuleNotFoundError: no GPT2 (caused by RuntimeError: no operator nms)"
    output = "".join(line["text"] for line in process.lines if line["message"] == "setup-output")
    setup = httpx.get(f"{url}/health-check").json()["setup"]
    for text in (output, setup["logs"]):
        assert "RuntimeError: no operator nms\n\nThe above exception was the direct cause" in text
