"""When traces are asked for, and by which exporter."""

from __future__ import annotations

import pytest

from geartrain.telemetry.settings import TelemetryError, exporter_names, wants_traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "a service", "OTEL_TRACES_SAMPLER": "always_on"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318"}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": " "}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_wants_traces(environ: dict[str, str], *, wanted: bool) -> None:
    assert wants_traces(environ) is wanted


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        (ENDPOINT, ["otlp_proto_http"]),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ["otlp_proto_http"]),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ["otlp_proto_grpc"],
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp,console"}, ["console", "otlp_proto_http"]),
    ],
)
def test_exporters(environ: dict[str, str], names: list[str]) -> None:
    assert exporter_names(environ) == names


def test_unknown_protocol_names_the_variable_and_the_choices() -> None:
    with pytest.raises(TelemetryError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; it may be http/protobuf or"):
        exporter_names({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
