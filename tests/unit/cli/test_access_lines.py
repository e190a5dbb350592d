"""Lines of the access log on stderr."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
import typer

from geartrain.cli import logs, options
from geartrain.cli.logs import printable
from geartrain.cli.serving import new_writer
from geartrain.server.option_table import BY_NAME, DEFAULTS
from geartrain.transport.access_log import AccessLogOptions
from geartrain.transport.records import NOBODY, RequestRecord, RequestRecords
from geartrain.transport.wire.exchange import Head


class _Heard:
    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []

    def add(self, request: RequestRecord) -> None:
        self.requests.append(request)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, package = logging.getLogger(), logs._LOGGER
    handlers, levels = root.handlers[:], (root.level, package.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    package.setLevel(levels[1])
    logging.captureWarnings(capture=False)


def ended(path: str = "/predictions") -> RequestRecord:
    heard = _Heard()
    RequestRecords(heard).of(Head("POST", path.encode("latin-1"), b"", ()))("192.0.2.1:1").end(200)
    return heard.requests[0]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    writer = new_writer("json")
    writer.write([writer.prepare([ended()]), writer.prepare([ended('/a"b')])])
    first, second = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert list(first)[:4] == ["timestamp", "level", "logger", "message"]
    assert (first["logger"], first["path"], second["path"]) == ("geartrain.access", "/predictions", '/a"b')


def test_console(capsys: pytest.CaptureFixture[str]) -> None:
    writer = new_writer("console")
    writer.write([writer.prepare([ended()])])
    line = capsys.readouterr().err
    assert " POST /predictions 200 done in " in line
    assert line.endswith(" ms\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("/a%20b", "/a%20b"), ("a b", "'a b'"), ("\x1b[2J", r"'\x1b[2J'"), ("\x9b2J", r"'\x9b2J'"), ("a\nb", r"'a\nb'")],
)
def test_a_client_cannot_write_to_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        logs.write_lines("x\n")


def test_lines_and_records_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", environ={})
    logger = logs._LOGGER.getChild("test")
    text = json.dumps({"message": "x" * 500}) + "\n"
    threads = [threading.Thread(target=logs.write_lines, args=(text * 50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        logger.info("y")
    for thread in threads:
        thread.join()
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert sorted(map(len, lines)) == [1] * 50 + [500] * 200


def test_nobody_hears() -> None:
    RequestRecords(NOBODY).of(Head("GET", b"/", b"", ()))("").end(200)


def test_the_option() -> None:
    parse = options.declared(BY_NAME["access_log"]).how["parser"]
    assert parse("sampled:10") == AccessLogOptions("sampled", 10)
    assert parse(DEFAULTS["access_log"]) is DEFAULTS["access_log"]
    with pytest.raises(typer.BadParameter, match="sampled:100"):
        parse("sampled")
