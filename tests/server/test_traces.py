"""Traces, from a client's request to a collector: a server of its own process, real workers, a receiver of OTLP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as by_grpc

import geartrain
from tests.support.gates import Gates
from tests.support.hosts import hosted
from tests.support.servers import PATIENCE, ServerProcess, write_model
from tests.support.traces import ReceivedSpan, TraceReceiver, receiving_traces
from tests.support.web_server import Server, running_server

CALC = """
    from geartrain import BaseRunner, current_scope
    from opentelemetry import trace

    tracer = trace.get_tracer("the-author")

    class Runner(BaseRunner):
        def run(self, text: str = "") -> str:
            with tracer.start_as_current_span("step"):
                if text == "bad":
                    raise ValueError("no such text")
            return current_scope().traceparent
"""
AWAITS = """
    import asyncio, threading
    from geartrain import BaseRunner
    from opentelemetry import trace

    tracer = trace.get_tracer("the-author")
    together = threading.Barrier(2)

    class Runner(BaseRunner):
        async def run(self, name: str) -> str:
            with tracer.start_as_current_span(f"{name} first"):
                await asyncio.to_thread(self.step, name)
            with tracer.start_as_current_span(f"{name} last"):
                return name

        def step(self, name: str) -> None:
            together.wait()  # the runs are at the same place of the same loop
            with tracer.start_as_current_span(f"{name} in a thread"):
                pass
"""
YIELDS = """
    from collections.abc import Iterator
    from geartrain import BaseRunner, streaming
    from opentelemetry import trace

    class Runner(BaseRunner):
        @streaming
        def run(self, count: int = 2) -> Iterator[str]:
            for number in range(count):
                with trace.get_tracer("the-author").start_as_current_span(f"yield {number}"):
                    yield str(number)
"""
BATCH = """
    import select
    from geartrain import BaseRunner, batched
    from opentelemetry import trace

    class Runner(BaseRunner):
        @batched(max_size=4)
        def run(self, text: list[str], gate: str = "") -> list[str]:
            if gate:
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            with trace.get_tracer("the-author").start_as_current_span("of all"):
                return [each.upper() for each in text]
"""
FILES = """
    import pathlib, tempfile
    from cog import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, first: Path, second: Path) -> Path:
            answer = pathlib.Path(tempfile.mkdtemp()) / "answer.txt"
            answer.write_text(first.read_text() + second.read_text())
            return Path(answer)
"""
MODELS = {"calc": CALC, "awaits": AWAITS, "yields": YIELDS, "batch": BATCH, "files": FILES}


def parent(number: int, *, sampled: bool = True) -> str:
    """The `traceparent` of a client."""
    return f"00-{number:032x}-{number:016x}-{sampled:02x}"


class Traced:
    """A server of `MODELS` whose traces go to a receiver."""

    def __init__(self, root: Path, traces: TraceReceiver, web: Server, **environment: str) -> None:
        for name, source in MODELS.items():
            yaml = "concurrency:\n  max: 2\n" if name == "awaits" else None
            write_model(root / name, source, yaml and f"run: run.py:Runner\n{yaml}")
        self.traces = traces
        self.web = web
        self.numbers = itertools.count(1)
        upload = ("--upload-url", web.url("/uploads/"), "--allow-private-urls", "--grpc-port", "0")
        self.process = ServerProcess(str(root), *upload, env={**traces.environment, **environment})
        waiting = ["listening", "listening-grpc", *["ready"] * len(MODELS)]
        while waiting:
            line = self.process.wait_for_one(*waiting)
            waiting.remove(line["message"])
            if line["message"] == "listening":
                self.client = httpx.Client(base_url=line["url"], timeout=PATIENCE)
            elif line["message"] == "listening-grpc":
                self.grpc = line["url"]

    def next_parent(self) -> str:
        """The `traceparent` of a client that no other has."""
        return parent(next(self.numbers))

    def ask(self, model: str, values: dict[str, Any], traceparent: str, **headers: str) -> httpx.Response:
        """POST to Cog's API."""
        fields = {"traceparent": traceparent, **{name.replace("_", "-"): value for name, value in headers.items()}}
        webhook = {"webhook": fields.pop("webhook")} if "webhook" in fields else {}
        body = {"input": values, **webhook, "webhook_events_filter": ["start", "completed"]}
        return self.client.post(f"/models/{model}/predictions", json=body, headers=fields)

    def spans(self, traceparent: str, *names: str) -> dict[str, ReceivedSpan]:
        """Wait for these spans of a client's trace."""
        return self.traces.trace(traceparent.split("-")[1], *names)

    def close(self) -> None:
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with receiving_traces() as traces, running_server() as web:
        server = Traced(tmp_path_factory.mktemp("models"), traces, web)
        yield server
        server.close()


def assert_inside(inner: ReceivedSpan, outer: ReceivedSpan) -> None:
    assert inner.parent_id == outer.span_id
    assert outer.start <= inner.start <= inner.end


def assert_run(spans: dict[str, ReceivedSpan], name: str, traceparent: str) -> None:
    """The spans of a run that has nothing to fetch and nothing to deliver."""
    request, run = spans[name], spans["run"]
    assert (request.kind, request.parent_id) == ("server", traceparent.split("-")[2])
    assert {span.service for span in spans.values()} == {"geartrain"}
    assert_inside(spans["queue"], request)
    assert_inside(run, request)
    assert spans["queue"].end == run.start
    assert run.attributes["geartrain.model.name"] == request.attributes["geartrain.model.name"]
    assert run.attributes["geartrain.prediction.id"] == request.attributes["geartrain.prediction.id"]


# the protocols


def test_cog(traced: Traced) -> None:
    client = traced.next_parent()
    answer = traced.ask("calc", {"text": "good"}, client, x_request_id="request-7", tracestate="vendor=1")
    name = "POST /models/{model}/predictions"
    spans = traced.spans(client, name, "queue", "run", "step")
    request, run = spans[name], spans["run"]
    assert_run(spans, name, client)
    assert_inside(spans["step"], run)
    assert spans["step"].scope == "the-author"
    assert answer.headers["traceparent"] == f"00-{request.trace_id}-{request.span_id}-01"
    assert answer.json()["output"] == f"00-{run.trace_id}-{run.span_id}-01"
    assert {span.state for span in spans.values()} == {"vendor=1"}
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/models/{model}/predictions",
        "url.path": "/models/calc/predictions",
        "geartrain.request.id": "request-7",
        "geartrain.prediction.id": answer.headers["x-prediction-id"],
        "geartrain.outcome": "succeeded",
        "client.address": "127.0.0.1",
    }
    assert expected.items() <= request.attributes.items()
    seat = {"geartrain.batch.size": 1, "geartrain.batch.rows": 1, "geartrain.slot": 0}
    assert seat.items() <= run.attributes.items()
    assert Path(f"/proc/{run.attributes['geartrain.worker.pid']}").exists()
    assert not any(span.failed for span in spans.values())


def test_rest(traced: Traced) -> None:
    client = traced.next_parent()
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}]}
    traced.client.post("/v2/models/calc/infer", json=body, headers={"traceparent": client}).raise_for_status()
    name = "POST /v2/models/{model}/infer"
    spans = traced.spans(client, name, "queue", "run", "step")
    assert_run(spans, name, client)
    assert_inside(spans["step"], spans["run"])


def test_generate(traced: Traced) -> None:
    client = traced.next_parent()
    answer = traced.client.post("/v2/models/calc/generate", json={"text": "good"}, headers={"traceparent": client})
    answer.raise_for_status()
    name = "POST /v2/models/{model}/generate"
    spans = traced.spans(client, name, "queue", "run", "step")
    assert_run(spans, name, client)
    assert_inside(spans["step"], spans["run"])


def test_stream(traced: Traced) -> None:
    """The span of a request whose answer is a stream ends with the stream."""
    client = traced.next_parent()
    path = "/v2/models/yields/generate_stream"
    traced.client.post(path, json={"count": 2}, headers={"traceparent": client}).raise_for_status()
    name = "POST /v2/models/{model}/generate_stream"
    spans = traced.spans(client, name, "queue", "run", "yield 0", "yield 1")
    assert_run(spans, name, client)
    for number in range(2):
        assert_inside(spans[f"yield {number}"], spans["run"])
    assert spans["run"].end <= spans[name].end


def ask_grpc(traced: Traced, text: str, traceparent: str) -> None:
    with by_grpc.InferenceServerClient(traced.grpc) as client:
        tensor = by_grpc.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text], dtype=np.object_))
        client.infer("calc", [tensor], headers={"traceparent": traceparent})


def test_grpc(traced: Traced) -> None:
    client = traced.next_parent()
    ask_grpc(traced, "good", client)
    name = "inference.GRPCInferenceService/ModelInfer"
    spans = traced.spans(client, name, "queue", "run", "step")
    assert_run(spans, name, client)
    assert_inside(spans["step"], spans["run"])
    expected = {"rpc.system.name": "grpc", "rpc.method": name, "rpc.response.status_code": "OK"}
    assert expected.items() <= spans[name].attributes.items()


# failures


def test_failing_run(traced: Traced) -> None:
    client = traced.next_parent()
    traced.ask("calc", {"text": "bad"}, client)
    name = "POST /models/{model}/predictions"
    spans = traced.spans(client, name, "queue", "run", "step")
    assert (spans["run"].failed, spans["run"].error) == (True, "ValueError: no such text")
    assert spans["run"].attributes["error.type"] == "run_failed"
    assert spans["run"].attributes["geartrain.outcome"] == "failed"
    assert spans["step"].failed
    assert spans[name].failed  # though its status is 200
    assert not spans["queue"].failed


def test_failing_run_over_grpc(traced: Traced) -> None:
    client = traced.next_parent()
    with pytest.raises(by_grpc.InferenceServerException):
        ask_grpc(traced, "bad", client)
    name = "inference.GRPCInferenceService/ModelInfer"
    spans = traced.spans(client, name, "run")
    assert spans["run"].failed
    assert spans[name].attributes["rpc.response.status_code"] != "OK"


def test_refused_request(traced: Traced) -> None:
    """An error of the client's is none of the server's."""
    client = traced.next_parent()
    assert traced.ask("calc", {"text": 7}, client).status_code == 422
    request = traced.spans(client, "POST /models/{model}/predictions")["POST /models/{model}/predictions"]
    assert request.attributes["http.response.status_code"] == 422
    assert not request.failed


def test_probes_have_no_spans(traced: Traced) -> None:
    before, after = traced.next_parent(), traced.next_parent()
    for path in ("/livez", "/readyz", "/health-check", "/metrics", "/v2/health/ready"):
        traced.client.get(path, headers={"traceparent": before}).raise_for_status()
    traced.ask("calc", {}, after)
    traced.spans(after, "POST /models/{model}/predictions", "run")
    assert before.split("-")[1] not in {span.trace_id for span in traced.traces.spans}


# batches, and the author's code


def test_batch_links_its_requests(traced: Traced, tmp_path: Path) -> None:
    with contextlib.closing(Closing(Gates(tmp_path / "gates"))) as closing:
        gate = closing.gates["go"]
        first, *others = clients = [traced.next_parent() for _ in range(3)]
        for client in clients:  # each is in the queue when its answer comes; the first holds the only slot
            values = {"text": client, "gate": str(gate.path) if client is first else ""}
            assert traced.ask("batch", values, client, prefer="respond-async").status_code == 202
        gate.open()
        name = "POST /models/{model}/predictions"
        all_spans = [traced.spans(client, name, "queue", "run") for client in others]
        runs = [spans["run"] for spans in all_spans]
        assert [run.attributes["geartrain.batch.size"] for run in runs] == [2, 2]
        assert runs[0].links == [(runs[1].trace_id, runs[1].span_id)]
        assert runs[1].links == [(runs[0].trace_id, runs[0].span_id)]
        assert traced.spans(first, "run")["run"].links == []
        assert traced.spans(others[0], "of all")["of all"].parent_id == runs[0].span_id


class Closing:
    """Gates for the time of a block."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates

    def close(self) -> None:
        self.gates.remove()


def test_async_runs_keep_their_spans_apart(traced: Traced) -> None:
    clients = {name: traced.next_parent() for name in ("a", "b")}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: traced.ask("awaits", {"name": name}, clients[name]), clients))
    for name, client in clients.items():
        spans = traced.spans(client, "run", f"{name} first", f"{name} in a thread", f"{name} last")
        assert_inside(spans[f"{name} first"], spans["run"])
        assert_inside(spans[f"{name} in a thread"], spans[f"{name} first"])
        assert_inside(spans[f"{name} last"], spans["run"])


# what the server sends


def test_files_and_webhooks(traced: Traced) -> None:
    web, client = traced.web, traced.next_parent()
    urls = {"first": web.serve("/first", b"one"), "second": web.serve("/second", b"two")}
    web.serve("/uploads/answer.txt")
    traced.ask("files", urls, client, webhook=web.serve("/hook"))
    name = "POST /models/{model}/predictions"
    spans = traced.spans(client, name, "prepare inputs", "queue", "run", "deliver outputs", "PUT")
    request, prepare, deliver = spans[name], spans["prepare inputs"], spans["deliver outputs"]
    for stage in (prepare, spans["queue"], spans["run"], deliver):
        assert_inside(stage, request)
    assert prepare.end == spans["queue"].start
    assert spans["run"].end <= deliver.end
    assert_inside(spans["PUT"], deliver)

    def all_are_there(spans: list[ReceivedSpan]) -> bool:  # two downloads, an upload and two webhooks
        return sum(each.kind == "client" and each.trace_id == request.trace_id for each in spans) == 5

    sent = [each for each in traced.traces.wait(all_are_there) if each.trace_id == request.trace_id]
    downloads = [each for each in sent if each.name == "GET"]
    assert sorted(each.attributes["url.full"] for each in downloads) == sorted(urls.values())
    for download in downloads:
        assert_inside(download, prepare)
        assert download.attributes["http.response.status_code"] == 200
    hooks = [each for each in sent if each.name == "POST"]
    assert {each.parent_id for each in hooks} == {request.span_id}
    told = {headers["traceparent"] for headers in of_trace(web, request.trace_id)}
    assert told == {f"00-{each.trace_id}-{each.span_id}-01" for each in sent if each.kind == "client"}


def of_trace(web: Server, trace_id: str) -> list[dict[str, str]]:
    """The heads of the requests that belong to a trace."""
    return [each.headers for each in web.received if trace_id in each.headers.get("traceparent", "")]


def test_missing_input(traced: Traced) -> None:
    web, client = traced.web, traced.next_parent()
    url = web.serve("/gone", status=404)
    traced.ask("files", {"first": url, "second": "data:,two"}, client)
    spans = traced.spans(client, "POST /models/{model}/predictions", "prepare inputs", "GET")
    assert spans["prepare inputs"].failed
    assert "404" in spans["prepare inputs"].error
    assert (spans["GET"].failed, spans["GET"].attributes["error.type"]) == (True, "404")
    assert {"queue", "run"}.isdisjoint(spans)


def test_failed_upload(traced: Traced) -> None:
    web, client = traced.web, traced.next_parent()
    urls = {"first": web.serve("/first", b"one"), "second": web.serve("/second", b"two")}
    web.serve("/uploads/answer.txt", status=403)
    traced.ask("files", urls, client)
    spans = traced.spans(client, "POST /models/{model}/predictions", "run", "deliver outputs", "PUT")
    assert (spans["deliver outputs"].failed, spans["PUT"].failed, spans["run"].failed) == (True, True, False)


# sampling, and the end


def test_sampling_by_the_parent_and_by_ratio(tmp_path: Path) -> None:
    """Whose parent is sampled has spans, and of the others those whose trace id is in the lower half."""
    with receiving_traces() as traces, running_server() as web:
        variables = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
        server = Traced(tmp_path / "models", traces, web, OTEL_SERVICE_NAME="a service", **variables)
        high = (1 << 64) - 1
        server.ask("calc", {}, parent(high))
        server.ask("calc", {}, parent(1, sampled=False))
        answers = [server.ask("calc", {}, "no parent").headers["traceparent"].split("-") for _ in range(40)]
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(lambda: server.ask("calc", {}, parent(high - 1)).status_code)
            assert asked.result() == 200
        server.process.popen.send_signal(signal.SIGTERM)
        server.process.popen.wait(PATIENCE)
        server.close()
    below = {trace_id for _, trace_id, _, _ in answers if int(trace_id[16:], 16) < 1 << 63}
    assert {trace_id for _, trace_id, _, flags in answers if flags == "01"} == below
    expected = below | {f"{high:032x}", f"{high - 1:032x}"}
    for name in ("POST /models/{model}/predictions", "queue", "run", "step"):
        assert {span.trace_id for span in traces.spans if span.name == name} == expected
    assert {span.service for span in traces.spans} == {"a service"}


LOADED = """
    import sys
    from geartrain import current_scope

    def run() -> list[str]:
        found = [name for name in sys.modules if name.startswith("opentelemetry")]
        return [*found, current_scope().traceparent]
"""
OWN = """
    from geartrain import BaseRunner
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    class Runner(BaseRunner):
        def setup(self) -> None:
            self.tracer = TracerProvider().get_tracer("own")

        def run(self) -> str:
            with self.tracer.start_as_current_span("own") as span:
                return f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}"
"""


def test_without_variables(tmp_path: Path) -> None:
    """Nothing is imported, and nothing changed in what the client has sent; a model's own spans are its children."""
    write_model(tmp_path / "loaded", LOADED)
    write_model(tmp_path / "own", OWN)
    process = ServerProcess(str(tmp_path))
    url = process.wait_for("listening")["url"]
    for _ in range(2):
        process.wait_for("ready")
    with httpx.Client(base_url=url, timeout=PATIENCE, headers={"traceparent": parent(5)}) as client:
        answer = client.post("/models/loaded/predictions", json={})
        assert answer.json()["output"] == [parent(5)]
        assert answer.headers["traceparent"] == parent(5)
        assert client.post("/models/own/predictions", json={}).json()["output"] == f"{5:032x}-{5:016x}"
    process.end()


def test_inside_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ASGI application sends its traces, too, and what is left when its host ends it."""
    folder = write_model(tmp_path / "calc", CALC)

    async def ask() -> None:
        application = geartrain.asgi(folder, wait_ready=True)
        async with hosted("uvicorn", application) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            answer = await client.post("/predictions", json={}, headers={"traceparent": parent(3)})
            assert answer.headers["traceparent"].split("-")[1] == f"{3:032x}"

    with receiving_traces() as traces:
        for name, value in {**traces.environment, "OTEL_BSP_SCHEDULE_DELAY": "600000"}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(ask())
        spans = {span.name: span for span in traces.spans}
    assert_run(spans, "POST /predictions", parent(3))
    assert_inside(spans["step"], spans["run"])


def test_over_grpc(tmp_path: Path) -> None:
    """The exporter over gRPC, if the variables name it."""
    folder = write_model(tmp_path / "calc", CALC)
    with receiving_traces() as traces, traces.over_grpc() as url:
        protocol = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        process = ServerProcess(str(folder), env={**traces.environment, **protocol})
        address = process.wait_for("listening")["url"]
        process.wait_for("ready")
        httpx.post(f"{address}/predictions", json={}, headers={"traceparent": parent(9)}, timeout=PATIENCE)
        spans = traces.trace(f"{9:032x}", "POST /predictions", "queue", "run", "step")
        process.end()
    assert_run(spans, "POST /predictions", parent(9))


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER may be otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "may be http/protobuf or grpc"),
    ],
)
def test_variables_that_cannot_be_followed(tmp_path: Path, variables: dict[str, str], warning: str) -> None:
    """The log names the variable, and the server serves without traces."""
    process = ServerProcess(str(write_model(tmp_path / "model", "def run() -> int:\n    return 1\n")), env=variables)
    process.wait_for("ready")
    process.end()
    assert warning in json.dumps(process.lines)
