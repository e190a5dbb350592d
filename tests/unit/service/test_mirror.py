"""What runs print, as records of the server's log: whose, how many, and how long."""

from __future__ import annotations

import logging

import msgspec
import pytest

from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.predictions.request_context import NOTHING_SENT, new_context
from geartrain.service.mirror import MAX_LENGTH, MAX_LINES, MirrorMode, PrintMirror


class Clock:
    """Time that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def prediction(name: str = "p", protocol: str = "rest") -> Prediction:
    sent = new_context(NOTHING_SENT, protocol, shows_logs=protocol in {"cog", "system", "none"})
    request = msgspec.structs.replace(sent, request_id="r")
    made = Prediction(PredictionRecord(name, 0.0, 0.0, request, "m", "1"), b"{}", 0.0)
    made.start(0.0)
    return made


@pytest.fixture(autouse=True)
def levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "geartrain.model")


@pytest.mark.parametrize(
    ("mode", "protocols"),
    [
        ("auto", {"rest", "grpc", "generate"}),
        ("on", {"cog", "rest", "grpc", "generate", "system", "none"}),
        ("off", set()),
    ],
)
def test_whose_prints_are_mirrored(mode: MirrorMode, protocols: set[str], caplog: pytest.LogCaptureFixture) -> None:
    mirror = PrintMirror(mode)
    for protocol in ("cog", "rest", "grpc", "generate", "system", "none"):
        mirror.hear(prediction(protocol=protocol), "stdout", f"{protocol}\n")
    assert set(caplog.messages) == protocols


def test_lines_carry_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    mirror = PrintMirror("auto")
    one, other = prediction("one"), prediction("other")
    mirror.hear(one, "stdout", "a l")
    mirror.hear(other, "stderr", "between\n")
    mirror.hear(one, "stdout", "ine\n\r10%")
    mirror.hear(one, "stderr", "\r20%")
    one.succeed(b"1", at=1.0)
    found = [(vars(record)["prediction_id"], record.getMessage()) for record in caplog.records]
    assert found == [("other", "between"), ("one", "a line"), ("one", "20%")]
    record = vars(caplog.records[0])
    assert (record["model"], record["version"], record["request_id"], record["source"]) == ("m", "1", "r", "stderr")


def test_percent_signs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    PrintMirror("auto").hear(prediction(), "stdout", "100%s done %d\n")
    assert caplog.messages == ["100%s done %d"]


def test_long_lines_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    PrintMirror("auto").hear(prediction(), "stdout", "x" * (MAX_LENGTH + 7) + "\n")
    assert caplog.messages == ["x" * MAX_LENGTH + " [… 7 more characters]"]


def test_too_many_lines_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    mirror = PrintMirror("auto", clock=clock)
    one, other = prediction("one"), prediction("other")
    mirror.hear(one, "stdout", "line\n" * MAX_LINES)
    mirror.hear(other, "stdout", "more\n" * 3)
    assert caplog.messages == ["line"] * MAX_LINES
    caplog.clear()
    clock.now += 1
    mirror.hear(one, "stdout", "again\n")
    assert caplog.messages == [
        f"lines left out that runs have printed: 3; the limit is {MAX_LINES} in a second",
        "again",
    ]
    caplog.clear()
    mirror.hear(one, "stdout", "line\n" * MAX_LINES)
    one.succeed(b"1", at=1.0)
    other.succeed(b"1", at=1.0)
    assert caplog.messages[-1] == f"lines left out that runs have printed: 1; the limit is {MAX_LINES} in a second"


def test_nothing_is_done_where_the_log_shows_no_such_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "geartrain.model")
    made = prediction()
    PrintMirror("on").hear(made, "stdout", "unseen\n")
    assert caplog.messages == []
    made.succeed(b"1", at=1.0)
