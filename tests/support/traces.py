"""A receiver of traces: OTLP over HTTP, as a collector takes it, decoded with the protocol's own messages."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest

from tests.support.servers import PATIENCE

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

_FAILED = 2  # of a span's status
_KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


class ReceivedSpan:
    """A span as it came."""

    def __init__(self, service: str, scope: str, span: Any) -> None:
        self.service = service
        self.scope = scope
        self.name: str = span.name
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.kind = _KINDS[span.kind]
        self.start: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.attributes = {each.key: _value(each.value) for each in span.attributes}
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.failed = span.status.code == _FAILED
        self.error: str = span.status.message
        self.state: str = span.trace_state

    def __repr__(self) -> str:
        return f"<{self.service}: {self.kind} {self.name} {self.trace_id}/{self.span_id} < {self.parent_id or '-'}>"


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class TraceReceiver:
    """Keeps the spans that are sent to it."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        self.requests = 0
        self.url = ""

    def take(self, body: bytes) -> None:
        """Take a request."""
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.requests += 1
            for of_resource in request.resource_spans:
                service = next(
                    _value(each.value) for each in of_resource.resource.attributes if each.key == "service.name"
                )
                for of_scope in of_resource.scope_spans:
                    self._spans += [ReceivedSpan(service, of_scope.scope.name, span) for span in of_scope.spans]
            self._changed.notify_all()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All that have come."""
        with self._changed:
            return list(self._spans)

    def wait(self, condition: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """Wait until it holds for the spans that have come; return them."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._spans), timeout=PATIENCE):
                pytest.fail(f"these spans have come: {self._spans}")
            return list(self._spans)

    def trace(self, trace_id: str, *names: str) -> dict[str, ReceivedSpan]:
        """Wait for the spans of a trace with these names; return them by name, the last of each."""

        def there(spans: list[ReceivedSpan]) -> bool:
            return set(names) <= {span.name for span in spans if span.trace_id == trace_id}

        return {span.name: span for span in self.wait(there) if span.trace_id == trace_id}

    @contextlib.contextmanager
    def over_grpc(self) -> Iterator[str]:
        """Take them over gRPC, too, for the time of the block; gives the URL."""
        receiver = self
        services = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")

        class Service(services.TraceServiceServicer):  # type: ignore[name-defined, misc]
            def Export(self, request: Any, context: object) -> Any:  # noqa: N802 - the protocol's name
                receiver.take(request.SerializeToString())
                return trace_service.ExportTraceServiceResponse()

        server = grpc.server(ThreadPoolExecutor(2))
        services.add_TraceServiceServicer_to_server(Service(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send traces here, soon after they have been recorded."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}


@contextlib.contextmanager
def receiving_traces() -> Iterator[TraceReceiver]:
    """A receiver for the time of the block."""
    receiver = TraceReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            is_right = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if is_right:
                receiver.take(body)
            self.send_response(200 if is_right else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
