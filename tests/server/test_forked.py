"""`tests.support.forked`: a forked command behaves as a fresh process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from geartrain import __version__
from tests.support.forked import run_forked, start_forked
from tests.support.servers import PATIENCE, write_model

HERE = """
    import os

    def run(name: str) -> list[str]:
        return [os.getcwd(), os.environ.get(name, "unset")]
    """

Start = Callable[..., "subprocess.Popen[Any]"]


def start_fresh(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, "-m", "geartrain", *arguments], **options)


@pytest.fixture(params=[start_forked, start_fresh])
def start(request: pytest.FixtureRequest) -> Start:
    begin: Start = request.param
    return begin


@contextlib.contextmanager
def waiting(start: Start, folder: pathlib.Path) -> Iterator[subprocess.Popen[Any]]:
    """Start a command that waits for the rest of its standard input, and has read a row of it."""
    write_model(folder / "m", HERE)
    words = ["batch", "m", "-", "--format", "jsonl"]
    with start(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b'{"name": "HOME"}\n')
            process.stdin.flush()
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def links(pid: int) -> dict[int, str]:
    """Files behind the descriptors of a process."""
    found = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(entry.name)] = str(entry.readlink())
    return found


def test_the_exit_code_and_both_streams_are_the_command_s(start: Start) -> None:
    for words, code, texts in (
        (["--version"], 0, (__version__, "")),
        (["no-such-command"], 2, ("", "no-such-command")),
    ):
        with start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            written = process.communicate(timeout=PATIENCE)
        assert process.returncode == process.poll() == process.wait() == code
        for text, stream in zip(texts, written, strict=True):
            assert text in stream
            assert text or not stream


def test_folder_and_variables_and_standard_input_are_those_given(start: Start, tmp_path: pathlib.Path) -> None:
    write_model(tmp_path / "m", HERE)
    environ = {**os.environ, "A_COLOUR": "blue"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(["batch", "m", "-", "--format", "jsonl"], cwd=tmp_path, env=environ, text=True, **pipes) as process:
        stdout, stderr = process.communicate('{"name": "A_COLOUR"}\n', timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert f'["{tmp_path}/m","blue"]' in stdout.replace(" ", "")


def test_a_signal_reaches_it_and_is_its_end(start: Start, tmp_path: pathlib.Path) -> None:
    with waiting(start, tmp_path) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=PATIENCE) == -signal.SIGKILL
    process.send_signal(signal.SIGKILL)  # of an ended process: to nobody


def test_it_leads_a_session_where_that_is_asked_for(start: Start, tmp_path: pathlib.Path) -> None:
    with waiting(start, tmp_path) as process:
        assert os.getsid(process.pid) == os.getsid(0)
    with waiting(lambda words, **options: start(words, start_new_session=True, **options), tmp_path) as process:
        assert os.getsid(process.pid) == process.pid


def test_it_has_no_descriptor_of_the_test_or_of_the_host(tmp_path: pathlib.Path) -> None:
    pipe = os.pipe()  # of the test, opened before the host may have been
    with waiting(start_forked, tmp_path) as process:
        [stat] = pathlib.Path(f"/proc/{process.pid}/stat").read_text().splitlines()
        host = int(stat.rpartition(")")[2].split()[1])
        assert host != os.getpid()
        others = {link for each in (os.getpid(), host) for link in links(each).values() if ":[" in link}
        mine = links(os.getpid())
        assert others >= {mine[end] for end in pipe}
        streams = {mine[end.fileno()] for end in (process.stdin, process.stdout) if end is not None}
        limit = time.monotonic() + PATIENCE
        while shared := (others - streams) & set(
            links(process.pid).values()
        ):  # a moment longer: that of its wait status
            assert time.monotonic() < limit, shared
    for end in pipe:
        os.close(end)


def test_a_terminal_is_one(start: Start, tmp_path: pathlib.Path) -> None:
    """The table of `--help` has a frame in a terminal alone."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    with start(["--help"], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the command has closed its end
            while part := os.read(ours, 65536):
                shown += part
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[" in shown


def test_variables_of_the_interpreter_are_refused() -> None:
    with pytest.raises(ValueError, match="fresh interpreter"):
        run_forked("--version", env={**os.environ, "PYTHONHASHSEED": "7"})
    assert run_forked("--version").returncode == 0
