"""Every message of the inner wire against its golden file: a change of the wire is a change here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from geartrain.domain.errors import Code
from geartrain.domain.predictions.batching import Batching, BatchPolicy
from geartrain.domain.predictions.calls import (
    ALL,
    Canceled,
    Failed,
    FileRef,
    ItemEnd,
    ItemEvent,
    Outcome,
    Succeeded,
)
from geartrain.domain.predictions.events import Log, Metric, Output
from geartrain.domain.predictions.own_metrics import OwnMetric, OwnReport, Series
from geartrain.domain.signature.types import Declared, DeclaredTensor, InputField, OutputSpec, Signature, TypeSpec
from geartrain.ipc import messages as m

GOLDEN = Path(__file__).parent / "golden" / "messages.json"

SIGNATURE = Signature(
    inputs=(
        InputField("prompt", TypeSpec("string"), description="What to say", max_length=9),
        InputField("image", TypeSpec("path", nullable=True), required=False, accept="image/*"),
    ),
    output=OutputSpec(TypeSpec("string"), mode="iterator"),
    streaming=True,
)

DECLARED = DeclaredTensor("x", "FP32", (-1, 3), is_reshaped=True, inner=(-1, 1, 3))
EXAMPLES: dict[str, tuple[m.Message, Any]] = {
    "control/Init": (
        m.Init(
            1,
            "run.py:Runner",
            "/model",
            4,
            "train",
            "w.bin",
            inspect=True,
            probe="/proc/1/fd/4",
            environment={"GEARTRAIN_REPLICA": "1"},
        ),
        "to_worker",
    ),
    "control/Init of a file": (
        m.Init(
            1,
            "",
            "/model",
            wakeup="blocking",
            backend=m.BackendChoice(
                "onnx",
                "/model/model.onnx",
                {"threads": 2},
                Declared(
                    "config.pbtxt", (DeclaredTensor("x", "FP32", (-1, 3), False, True, (-1, 1, 3)),), first="batch"
                ),
            ),
            batching={"max_size": 8, "pad_to": [4, 8]},
        ),
        "to_worker",
    ),
    "control/Init of a model that is debugged": (
        m.Init(
            1,
            "run.py:Runner",
            "/model",
            debugging=m.Debugging(7, 5678, waits=True, profiles="/profiles", profile_format="html"),
        ),
        "to_worker",
    ),
    "control/Cancel": (m.Cancel(2, 17), "to_worker"),
    "control/Healthcheck": (m.Healthcheck(7), "to_worker"),
    "control/Shutdown": (m.Shutdown(), "to_worker"),
    "control/TerminalLent": (m.TerminalLent(3), "to_worker"),
    "control/TerminalRefused": (m.TerminalRefused(3, "the command is in the background"), "to_worker"),
    "control/Loaded": (
        m.Loaded((0, 1), SIGNATURE, is_async=True, has_healthcheck=False, shares_memory=True),
        "to_parent",
    ),
    "control/Loaded with batches": (
        m.Loaded(
            (0,),
            SIGNATURE,
            is_async=False,
            has_healthcheck=False,
            batching=Batching(BatchPolicy(8, 0.01, (4, 8), (8,), retry_singly=True), by_rows=True, shared=("scale",)),
            platform="onnx_onnxv1",
        ),
        "to_parent",
    ),
    "control/Ready": (m.Ready(), "to_parent"),
    "control/Log": (m.SetupLog("stdout", "loading\n"), "to_parent"),
    "control/WorkerLog": (m.WorkerLog("model", "info", "a thread spoke\n"), "to_parent"),
    "control/Idle": (m.Idle(3), "to_parent"),
    "control/Cancelled": (m.SlotCancelled(3, "pred_1"), "to_parent"),
    "control/Failed": (m.SlotFailed(3, "the slot's channel broke"), "to_parent"),
    "control/Fatal": (m.Fatal("setup() failed: RuntimeError: boom"), "to_parent"),
    "control/DroppedLogs": (m.DroppedLogs(12, 1000), "to_parent"),
    "control/HealthcheckResult": (m.HealthcheckResult(7, "unhealthy", "it said no"), "to_parent"),
    "control/OwnMetrics": (
        m.OwnMetrics(
            (
                OwnReport(OwnMetric("tokens", "counter", "Made", ("kind",)), (Series(("answer",), 12.0),)),
                OwnReport(OwnMetric("cache", "gauge", "", (), "max"), (Series((), 3.5),)),
                OwnReport(
                    OwnMetric("decode_seconds", "histogram", "", (), "sum", (0.1, 1.0)), (Series((), 0.25, (0, 1, 0)),)
                ),
            )
        ),
        "to_parent",
    ),
    "control/TerminalWanted": (m.TerminalWanted(3), "to_parent"),
    "control/TerminalReturned": (m.TerminalReturned(3), "to_parent"),
    "control/ShuttingDown": (m.ShuttingDown(), "to_parent"),
    "call/Predict": (
        m.Predict(
            "pred_1", 3, 17, (m.CallItem("pred_1", context={"user": "u1"}),), m.Inline(b'{"prompt":"hi"}'), "/run/out"
        ),
        "calls",
    ),
    "call/Predict prefetched": (
        m.Predict("pred_2", 3, 22, (m.CallItem("pred_2"),), m.Inline(b"{}"), prefetched=True),
        "calls",
    ),
    "call/Withdraw": (m.Withdraw(22), "calls"),
    "call/ModelCall": (
        m.ModelCall(7, 3, 22, ALL, "detector", "2", m.Handle("/proc/1/fd/6", 0, 99), packed=True),
        "reports",
    ),
    "call/ModelCall of an answer": (
        m.ModelCall(
            8, 3, 22, 0, "reader", "", m.Inline(b"head"), packed=True, passed=m.Handle("/proc/1/fd/9", 1280, 600_000)
        ),
        "reports",
    ),
    "call/ModelCallEnd": (m.ModelCallEnd(7), "reports"),
    "call/ModelRunEnd": (m.ModelRunEnd(3, 22, (7,)), "reports"),
    "call/ModelAnswer": (
        m.ModelAnswer(7, m.Inline(b'"/run/a.png"'), files=("/run/a.png",), mode="value"),
        "calls",
    ),
    "call/ModelAnswer in memory": (
        m.ModelAnswer(7, m.Handle("/proc/1/fd/9", 0, 601_280), packed=True, mode="value", may_stay=True),
        "calls",
    ),
    "call/ModelAnswer failed": (
        m.ModelAnswer(7, error="ValueError: no", code="run_failed", model="detector"),
        "calls",
    ),
    "call/Predict in a file": (
        m.Predict("pred_1", 3, 18, (m.CallItem("pred_1"),), m.InFile("/run/input.json")),
        "calls",
    ),
    "call/Predict packed": (
        m.Predict(
            "pred_1",
            3,
            19,
            (m.CallItem("pred_1", 4, packed=True, parameters={"seed": 7, "loud": True, "t": 0.5, "who": "me"}),),
            m.Inline(b"packed"),
        ),
        "calls",
    ),
    "call/Predict in memory": (
        m.Predict(
            "pred_1",
            3,
            20,
            (
                m.CallItem(
                    "pred_1", packed=True, request_id="r-1", traceparent=f"00-{7:032x}-{7:016x}-01", tracestate="v=1"
                ),
            ),
            m.Handle("/proc/1/fd/5", 0, 600_000),
            regions=("/proc/1/fd/6", "/proc/1/fd/7"),
        ),
        "calls",
    ),
    "call/Predict in a body": (
        m.Predict("pred_1", 3, 23, (m.CallItem("pred_1", packed=True),), m.Handle("/proc/1/fd/7", 1088, 600_000)),
        "calls",
    ),
    "call/Predict of several": (
        m.Predict(
            "batch-1",
            3,
            21,
            (
                m.CallItem("pred_1"),
                m.CallItem("pred_2", 3, packed=True, context={"user": "u1"}, parameters={"seed": 7}),
            ),
            m.Inline(b"packed"),
            "/run/out",
        ),
        "calls",
    ),
    "call/Log": (m.Reports(0, 17, (ItemEvent(0, Log("stderr", "careful\n")),)), "reports"),
    "call/Log of all": (m.Reports(0, 17, (ItemEvent(ALL, Log("stderr", "careful\n")),)), "reports"),
    "call/Output": (m.Reports(0, 17, (ItemEvent(2, Output(b'"chunk"', 5)),)), "reports"),
    "call/Output in memory": (
        m.Reports(0, 17, (ItemEvent(0, Output(b"", 0)),), shared=((0, m.Handle("/proc/1/fd/7", 0, 600_000)),)),
        "reports",
    ),
    "call/Output with files": (
        m.Reports(
            0,
            17,
            (
                ItemEvent(
                    0,
                    Output(b'["token-1","token-2"]', 0),
                    (
                        FileRef("token-1", "/run/a.png", "image/png"),
                        FileRef(
                            "token-2",
                            "/run/1/b.png",
                            "image/png",
                            temporary_files=("/tmp/x/b.png", "/tmp/x"),  # noqa: S108
                        ),
                    ),
                ),
            ),
        ),
        "reports",
    ),
    "call/Metric": (m.Reports(0, 17, (ItemEvent(0, Metric("timing.decode", 0.25, "increment")),)), "reports"),
    "call/Succeeded": (m.Reports(0, 17, (ItemEnd(0, Succeeded(b'"hello"', 0.5)),), idle=True), "reports"),
    "call/Succeeded in a file": (
        m.Reports(
            0,
            17,
            (
                ItemEnd(
                    0,
                    Succeeded(b"", 0.5),
                    (FileRef("/run/2/output.json", "/run/2/output.json", "application/json", is_output=True),),
                ),
            ),
            idle=True,
        ),
        "reports",
    ),
    "call/Succeeded as a stream": (m.Reports(0, 17, (ItemEnd(0, Succeeded(None, 0.5)),), idle=True), "reports"),
    "call/Failed": (m.Reports(0, 17, (ItemEnd(0, Failed("ValueError: no")),), idle=True), "reports"),
    "call/Failed by its client": (
        m.Reports(0, 17, (ItemEnd(0, Failed("too long", Code.INVALID_INPUT)),), idle=True),
        "reports",
    ),
    "call/Canceled": (m.Reports(0, 17, (ItemEnd(0, Canceled()),), idle=True), "reports"),
    "call/several ends": (
        m.Reports(
            0,
            21,
            (
                ItemEnd(0, Succeeded(b"", 0.5)),
                ItemEnd(3, Succeeded(b"", 0.5)),
                ItemEnd(1, Failed("ValueError: no")),
                ItemEnd(2, Canceled()),
            ),
            shared=((0, m.Handle("/proc/1/fd/6", 0, 6)), (1, m.Handle("/proc/1/fd/6", 6, 8))),
        ),
        "reports",
    ),
    "call/idle": (m.Reports(0, 21, (), idle=True), "reports"),
}

DECODERS = {
    "to_worker": m.decode_control_to_worker,
    "to_parent": m.decode_control_to_parent,
    "calls": m.decode_call,
    "reports": m.decode_call_to_parent,
}


def as_golden(message: m.Message) -> dict[str, object]:
    return {"fields": json.loads(msgspec.json.encode(message)), "msgpack": m.encode(message).hex()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_message_is_as_its_golden_file_says(name: str) -> None:
    message, _ = EXAMPLES[name]
    assert as_golden(message) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_message_comes_back_as_it_went(name: str) -> None:
    message, direction = EXAMPLES[name]
    assert DECODERS[direction](m.encode(message)) == message


def test_every_message_has_an_example_and_every_golden_line_a_message() -> None:
    unions = (m.ControlToWorker, m.ControlToParent, m.CallToWorker, m.CallToParent)
    known = {kind for union in unions for kind in get_args(union)}
    assert {type(message) for message, _ in EXAMPLES.values()} == known
    reports = [each for message, _ in EXAMPLES.values() if isinstance(message, m.Reports) for each in message.reports]
    kinds = {type(each.event if isinstance(each, ItemEvent) else each.outcome) for each in reports}
    assert kinds == {*get_args(get_type_hints(ItemEvent)["event"]), *get_args(Outcome)}
    assert set(json.loads(GOLDEN.read_text())) == set(EXAMPLES)


def test_version_of_the_protocol() -> None:
    assert m.PROTOCOL_VERSION == 19


def test_the_first_message_carries_the_protocol_version() -> None:
    assert m.Init.__struct_fields__[0] == "protocol"


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_control_to_worker(m.encode(m.ShuttingDown()))


if __name__ == "__main__":  # `python -m tests.conformance.test_messages` writes the golden file anew
    GOLDEN.write_text(
        json.dumps({name: as_golden(message) for name, (message, _) in EXAMPLES.items()}, indent=1) + "\n"
    )
