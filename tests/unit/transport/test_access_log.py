"""The access log: which requests have a line, what it says, and that none is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.predictions.request_context import NO_REQUEST
from geartrain.transport import access_log
from geartrain.transport.access_log import (
    LOGGER,
    AccessLog,
    AccessLogOptions,
    Mode,
    RequestWriter,
    by_logging,
    fields_of,
    line_of,
    outcome_of,
    read_access_log,
)
from geartrain.transport.records import LEFT, RequestRecord, RequestRecords
from geartrain.transport.wire.exchange import Fields, Head

PATIENCE = 40.0
GRPC_FAILED = ((b"grpc-status", b"3"),)


class Heard:
    """Keeps what is told of requests."""

    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []

    def add(self, request: RequestRecord) -> None:
        self.requests.append(request)


def record(heard: Heard, path: str = "/predictions", **notes: Any) -> RequestRecord:
    head = Head("POST", path.encode(), b"token=secret", ((b"x-request-id", b"r-1"),))
    for name, value in {"protocol": "cog", **notes}.items():
        setattr(head.notes, name, value)
    made = RequestRecords(heard).of(head)("192.0.2.1:999")
    assert isinstance(made, RequestRecord)
    return made


def request(
    status: int = 200, trailers: Fields = (), *, prediction: Prediction | None = None, **notes: Any
) -> RequestRecord:
    heard = Heard()
    kept = record(heard, **notes)
    if prediction is not None:
        kept.prediction = prediction.record
    kept.end(status, trailers)
    (ended,) = heard.requests
    return ended


def test_a_record_that_waits_in_a_log_does_not_keep_the_head_of_its_request() -> None:
    heard = Heard()
    made = record(heard)
    assert made.headers == ((b"x-request-id", b"r-1"),)
    made.leave()
    assert [each.headers for each in heard.requests] == [()]


def prediction(end: str = "succeeded") -> Prediction:
    made = Prediction(PredictionRecord("p1", 100.0, 100.0, NO_REQUEST, "hello", "3"), b"{}", 50.0)
    if end != "starting":
        made.start(100.25)
    if end == "succeeded":
        made.succeed(b"1", at=101.0)
    elif end == "failed":
        made.fail("ValueError: no", at=101.0)
    elif end == "canceled":
        made.cancel(at=101.0)
    return made


# options


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("on", AccessLogOptions("on")),
        ("errors", AccessLogOptions("errors")),
        ("off", AccessLogOptions("off")),
        ("sampled:1", AccessLogOptions("sampled", 1)),
        ("sampled:250", AccessLogOptions("sampled", 250)),
    ],
)
def test_options(text: str, options: AccessLogOptions) -> None:
    assert read_access_log(text) == options


@pytest.mark.parametrize(
    "text", ["", "yes", "ON", "sampled", "sampled:", "sampled:0", "sampled:-1", "sampled:1.5", "on "]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="sampled:N"):
        read_access_log(text)


# what a line says


def test_a_line_of_a_prediction() -> None:
    ended = request(prediction=prediction(), key="ada")
    line = line_of(msgspec.structs.replace(ended, began=1_700_000_000.5, ended=1_700_000_001.75, sent=7))
    assert json.loads(msgspec.json.encode(line)) == {
        "timestamp": "2023-11-14T22:13:21.750000+00:00",
        "level": "info",
        "logger": "geartrain.access",
        "message": "request",
        "protocol": "cog",
        "method": "POST",
        "path": "/predictions",
        "status": 200,
        "outcome": "succeeded",
        "request_id": "r-1",
        "trace_id": ended.context.trace_id,
        "total_ms": 1250.0,
        "bytes_in": 0,
        "bytes_out": 7,
        "model": "hello",
        "version": "3",
        "prediction_id": "p1",
        "queue_ms": 250.0,
        "run_ms": 750.0,
        "peer": "192.0.2.1:999",
        "key": "ada",
    }


def test_what_does_not_apply_is_left_out() -> None:
    fields = fields_of(line_of(request(404, protocol="system")))
    absent = {"model", "version", "prediction_id", "queue_ms", "run_ms", "key", "grpc_status", "requests", "failures"}
    assert not absent & fields.keys()
    assert "secret" not in json.dumps(fields), "a query may hold one"


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (request(prediction=prediction("succeeded")), "succeeded"),
        (request(prediction=prediction("failed")), "failed"),
        (request(prediction=prediction("canceled")), "canceled"),
        (request(202, prediction=prediction("processing")), "accepted"),
        (request(202, prediction=prediction("starting")), "accepted"),
        (request(LEFT, prediction=prediction("processing")), "disconnected"),
        (request(LEFT), "disconnected"),
        (request(422), "refused"),
        (request(200, GRPC_FAILED, protocol="grpc"), "refused"),
        (request(200, ((b"grpc-status", b"0"),), protocol="grpc"), "done"),
        (request(200, protocol="system"), "done"),
    ],
)
def test_outcome(ended: RequestRecord, outcome: str) -> None:
    assert outcome_of(ended) == outcome


def test_a_client_that_leaves() -> None:
    heard = Heard()
    kept = record(heard)
    kept.leave()
    assert [each.status for each in heard.requests] == [LEFT]


def test_a_stream_tells_how_many_requests_came_in_it() -> None:
    heard = Heard()
    kept = record(heard, protocol="grpc")
    kept.requests, kept.failures = 5, 2
    kept.end(HTTPStatus.OK, ((b"grpc-status", b"0"),))
    fields = fields_of(line_of(heard.requests[0]))
    assert (fields["requests"], fields["failures"], fields["grpc_status"]) == (5, 2, 0)


def test_lines_as_records_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        writer = by_logging()
        requests = [request(prediction=prediction()), request(is_routine=True, protocol="system")]
        writer.write([writer.prepare(requests)])
    first, second = caplog.records
    assert (first.getMessage(), first.levelno, second.levelno) == ("POST /predictions 200", logging.INFO, logging.DEBUG)
    assert first.__dict__["prediction_id"] == "p1"


# which requests have a line, and when


class Written(RequestWriter[Sequence[RequestRecord]]):
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.has_begun = threading.Event()

    def prepare(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        self.sizes.append(len(requests))
        return requests

    def write(self, prepared: Sequence[Sequence[RequestRecord]]) -> None:
        self.has_begun.set()
        assert self.gate.wait(PATIENCE)
        for requests in prepared:
            self.requests += requests

    async def begun(self) -> None:
        """Wait until the thread writes."""
        assert await asyncio.to_thread(self.has_begun.wait, PATIENCE)

    def log(self, mode: Mode = "on", each: int = 1) -> AccessLog:
        return AccessLog(AccessLogOptions(mode, each, new_writer=lambda: self))


def test_long_names_are_cut() -> None:
    """A line may wait, and the names in a path may be as long as a head."""
    made = request(path="/p" * 5000, model="m" * 10_000, prediction_id="i" * 10_000)
    assert [len(each) for each in (made.origin.path, made.origin.model, made.origin.prediction_id)] == [1024] * 3


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)


async def test_at_the_end_all_lines_are_written_in_their_order() -> None:
    written = Written()
    requests = [request(200 + number % 2) for number in range(1000)]
    with written.log() as log:
        for begin in range(0, 1000, 100):
            log.add_all(requests[begin : begin + 100])
    assert written.requests == requests


async def test_lines_are_written_while_the_server_runs() -> None:
    written = Written()
    with written.log() as log:
        for _ in range(3):
            written.has_begun.clear()
            log.add_all([request()])
            await written.begun()


@pytest.mark.parametrize(
    ("mode", "each", "lines"),
    [("on", 1, 30), ("sampled", 10, 12), ("sampled", 1, 30), ("errors", 1, 10), ("off", 1, 0)],
)
async def test_mode(mode: Mode, each: int, lines: int) -> None:
    written = Written()
    failed = request(prediction=prediction("failed"))
    with written.log(mode, each) as log:
        for number in range(30):
            log.add_all([failed if number % 3 == 0 else request()])
    assert len(written.requests) == lines


@pytest.mark.parametrize(
    ("status", "trailers", "end"),
    [(500, (), ""), (LEFT, (), ""), (200, GRPC_FAILED, ""), (200, (), "failed")],
)
def test_errors(status: int, trailers: Fields, end: str) -> None:
    ended = request(status, trailers, prediction=prediction(end) if end else None)
    assert ended.has_failed


@pytest.mark.parametrize(("level", "lines"), [(logging.DEBUG, 2), (logging.INFO, 1), (logging.WARNING, 0)])
async def test_level(level: int, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    written = Written()
    with caplog.at_level(level, LOGGER.name), written.log() as log:
        log.add_all([request(), request(503, is_routine=True)])
    assert len(written.requests) == lines


async def test_what_a_slow_reader_does_not_take_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_log, "MAX_WAITING", 65)
    written = Written()
    written.gate.clear()
    with written.log() as log:
        log.add_all([request()])
        await written.begun()
        for _ in range(3):
            log.add_all([request() for _ in range(64)])
        written.gate.set()
    assert len(written.requests) == 65
    (warning,) = [each for each in caplog.records if "dropped" in each.getMessage()]
    assert warning.__dict__["count"] == 128


async def test_a_writer_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[int] = []

    class Failing(Written):
        def write(self, prepared: Sequence[Sequence[RequestRecord]]) -> None:
            lines.extend(map(len, prepared))
            raise OSError("no space")

    with AccessLog(AccessLogOptions(new_writer=Failing)) as log:
        for _ in range(2):
            log.add_all([request(), request()])
    assert sum(lines) == 4
    assert "no space" in caplog.text


async def test_lines_that_cannot_be_made_cost_no_others(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Written):
        def prepare(self, requests: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
            if not self.sizes:
                self.sizes.append(len(requests))
                raise ValueError("not a line")
            return super().prepare(requests)

    written = Failing()
    with AccessLog(AccessLogOptions(new_writer=lambda: written)) as log:
        log.add_all([request(), request()])
        log.add_all([request()])
    assert len(written.requests) == 1
    assert "not a line" in caplog.text
