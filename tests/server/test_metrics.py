"""The metrics of a server that runs: read by the parsers of Prometheus' client, and by a real Prometheus.

The dashboard and the alerts of `deploy/` ask for nothing that the server does not give.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import httpx
import pytest
import yaml
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.processes import children
from tests.support.servers import PATIENCE, ServerProcess, write_model

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD: Final = DEPLOY / "grafana" / "geartrain.json"
OPENMETRICS: Final = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
OWN: Final = """
    import os
    from geartrain import BaseRunner, metrics

    words = metrics.counter("words", "Words that came in", labels=["first"])
    pid = metrics.gauge("latest_pid", "A number of its own for each worker", merge="max")
    alive = metrics.gauge("alive", "1 for each worker")
    sizes = metrics.histogram("text_size", "Characters", buckets=[1, 10])

    class Runner(BaseRunner):
        def setup(self) -> None:
            alive.set(1)

        def run(self, text: str) -> str:
            if text == "die":
                os._exit(3)
            words.inc(len(text.split()), first=text[:1])
            sizes.observe(len(text))
            pid.set(os.getpid())
            if text == "raise":
                raise ValueError(text)
            return text
"""
TOKENS: Final = """
    from geartrain import BaseRunner, ConcatenateIterator, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, text: str) -> ConcatenateIterator[str]:
            yield from text
"""
BATCHED: Final = """
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=4)
        def run(self, text: list[str]) -> list[str]:
            return text
"""
NVML: Final = """
    from types import SimpleNamespace

    class NVMLError(Exception):
        pass

    def nvmlInit(): pass
    def nvmlDeviceGetCount(): return 1
    def nvmlDeviceGetHandleByIndex(index): return index
    def nvmlDeviceGetMemoryInfo(device): return SimpleNamespace(used=1, total=2)
    def nvmlDeviceGetUUID(device): return "GPU-1"
    def nvmlDeviceGetName(device): return "fake"
    def nvmlDeviceGetUtilizationRates(device): return SimpleNamespace(gpu=50)
"""
TRACE: Final = "0123456789abcdef0123456789abcdef"

Values = dict[str, float]
T = TypeVar("T")


class Watched:
    """A server with models of every kind, one of which cannot be loaded."""

    def __init__(self, root: Path) -> None:
        for name, code in (("own", OWN), ("tokens", TOKENS), ("batched", BATCHED), ("broken", "import nothing_such")):
            write_model(root / "models" / name, code)
        (root / "models" / "own" / "geartrain.yaml").write_text("replicas: 2\n")
        (root / "pynvml.py").write_text(_dedented(NVML))
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        self.process = ServerProcess(
            str(root / "models"), "--grpc-port", "0", "--latency-buckets", "1ms,1h", env={"PYTHONPATH": path}
        )

    def start(self) -> None:
        """Wait until its models are there."""
        events = [self.process.wait_for_one("listening", "listening-grpc", "ready", "setup-failed") for _ in range(6)]
        urls = {event["message"]: event["url"] for event in events if "url" in event}
        self.url, self.grpc_url = urls["listening"], urls["listening-grpc"]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def ask(self, model: str, text: str, **headers: str) -> httpx.Response:
        """Make a prediction by Cog's API."""
        return self.client.post(f"/models/{model}/predictions", json={"input": {"text": text}}, headers=headers)

    def text(self) -> str:
        """The metrics as Prometheus' text."""
        response = self.client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return response.text

    def values(self) -> Values:
        """The values of the metrics, by name and labels as they are written."""
        return {
            key: float(value)
            for key, value in (line.rsplit(" ", 1) for line in self.text().splitlines() if not line.startswith("#"))
        }

    def until(self, is_so: Callable[[Values], bool]) -> Values:
        """Wait until the values are so."""
        return until(self.values, is_so)


def until(look: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    """Look again and again until it is so."""
    end = time.monotonic() + PATIENCE
    while not is_so(seen := look()):
        assert time.monotonic() < end, seen
        time.sleep(0.05)
    return seen


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("watched"))
    try:
        watched.start()
        yield watched
        watched.client.close()
    finally:
        watched.process.end()


def key(name: str, /, **labels: str) -> str:
    found = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{found}}}"


def own(name: str, **labels: str) -> str:
    return key(name, model="own", version="1", **labels)


def infer(text: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}


def test_requests_of_every_protocol_and_status_are_counted(server: Watched) -> None:
    before = server.values()
    assert server.ask("own", "a").status_code == 200
    assert server.client.post("/models/own/predictions", json={"input": {}}).status_code == 422
    assert server.client.post("/v2/models/own/infer", json=infer("a")).status_code == 200
    assert server.client.post("/v2/models/none/infer", json=infer("a")).status_code in {400, 404}
    assert server.client.post("/v2/models/own/generate", json={"text": "a"}).status_code == 200
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        contents = pb.InferTensorContents(bytes_contents=[b"a"])
        tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1], contents=contents)
        stub.ModelInfer(pb.ModelInferRequest(model_name="own", inputs=[tensor]), timeout=PATIENCE)
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(pb.ModelInferRequest(model_name="none", inputs=[tensor]), timeout=PATIENCE)
    after = server.values()
    grown = {
        name: after[name] - before.get(name, 0)
        for name in after
        if name.startswith("geartrain_requests_total") and "system" not in name and after[name] != before.get(name, 0)
    }
    protocols = {tuple(re.findall(r'="(\w+)"', name)) for name in grown}
    assert {("cog", "200"), ("cog", "422"), ("rest", "200"), ("generate", "200"), ("grpc", "OK")} <= protocols
    assert len([protocol for protocol, status in protocols if protocol == "grpc" and status != "OK"]) == 1
    assert len([protocol for protocol, status in protocols if protocol == "rest" and status != "200"]) == 1
    assert set(grown.values()) == {1.0}


def test_runs_are_in_the_histograms(server: Watched) -> None:
    before = server.values()
    assert server.ask("own", "a").json()["status"] == "succeeded"
    assert server.ask("own", "raise").json()["status"] == "failed"
    stream = server.ask("tokens", "abc", accept="text/event-stream")
    assert stream.text.count("event: output") == 3
    after = server.values()

    def grown(name: str, model: str = "own", **labels: str) -> float:
        label = key(name, model=model, version="1", **labels)
        return after[label] - before[label]

    for name in ("queue_duration", "run_duration", "prediction_duration"):
        assert grown(f"geartrain_{name}_seconds_count") == 2
        assert grown(f"geartrain_{name}_seconds_bucket", le="3600.0") == 2
    assert grown("geartrain_run_duration_seconds_sum") > 0
    assert grown("geartrain_input_size_bytes_count") == 2
    assert grown("geartrain_input_size_bytes_sum") == len('{"text":"a"}{"text":"raise"}')
    assert grown("geartrain_output_size_bytes_count") == 1
    assert grown("geartrain_output_size_bytes_sum") == len('"a"')
    assert grown("geartrain_first_output_seconds_count", "tokens") == 1
    assert grown("geartrain_first_output_seconds_count") == 0
    assert grown("nv_inference_request_failure", reason="BACKEND") == 1


def test_processes_workers_and_gpus(server: Watched) -> None:
    values = server.values()
    for replica in ("0", "1"):
        assert values[own("geartrain_worker_ready", replica=replica)] == 1
        assert values[own("geartrain_worker_memory_bytes", replica=replica)] > 2**20
        assert values[own("geartrain_worker_open_descriptors", replica=replica)] > 3
    assert values["process_resident_memory_bytes"] > 2**20
    assert values["process_cpu_seconds_total"] > 0
    assert values[own("geartrain_model_health", health="READY")] == 1
    assert values[own("geartrain_predictions_running")] == values[own("geartrain_predictions_waiting")] == 0
    assert values[key("geartrain_model_load_failed", model="broken", version="1")] == 1
    assert values[key("geartrain_gpu_utilization_ratio", gpu="0", name="fake", uuid="GPU-1")] == 0.5


def test_metrics_of_the_author_are_those_of_all_workers(server: Watched) -> None:
    for _ in range(8):  # by both workers, as far as it goes
        server.ask("own", "two words")
    words, short, long = (
        own("words_total", first="t"),
        own("text_size_bucket", le="1.0"),
        own("text_size_bucket", le="10.0"),
    )

    def is_told(values: Values) -> bool:
        sizes = values.get(long, 0) - values.get(short, 0)
        return values.get(words) == 16 and values.get(own("alive")) == 2 and sizes >= 8

    values = server.until(is_told)
    assert values[own("latest_pid")] in children(server.process.popen.pid)


def test_openmetrics_has_the_trace_of_a_request(server: Watched) -> None:
    server.ask("own", "a", traceparent=f"00-{TRACE}-0123456789abcdef-01")
    response = server.client.get("/metrics", headers=OPENMETRICS)
    assert response.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    parse: Callable[[str], Iterable[Any]] = openmetrics.text_string_to_metric_families  # which has no types
    families = {family.name: family for family in parse(response.text)}
    total = families["geartrain_prediction_duration_seconds"].samples
    traces = {sample.exemplar.labels["trace_id"] for sample in total if sample.exemplar is not None}
    assert TRACE in traces
    # In the text format information is a gauge.
    plain = {family.name.removesuffix("_info") for family in text_string_to_metric_families(server.text())}
    assert families.keys() == plain


# the files of deploy/

_NAME: Final = re.compile(r"\b(?:geartrain|nv|process)_[a-z_]+\b")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_every_name_in_dashboard_and_alerts_is_one_that_a_server_gives(server: Watched) -> None:
    server.ask("batched", "a")
    server.ask("own", "a")
    server.client.post("/v1/completions", json={"model": "tokens", "prompt": "ab"}).raise_for_status()
    given = {sample.partition("{")[0] for sample in server.values()}
    variables = [each["definition"] for each in json.loads(DASHBOARD.read_text())["templating"]["list"][1:]]
    wanted = {name for text in (*queries(), *variables) for name in _NAME.findall(text)}
    wanted |= {name for rule in alerts() for name in _NAME.findall(rule["expr"])}
    assert len(wanted) > 30
    assert wanted <= given


def test_dashboard_is_laid_out_without_gaps_of_meaning() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["id"] is None  # Grafana gives it one
    assert dashboard["uid"] == "geartrain"
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["title"]
        assert panel["type"] in {"row", "stat", "timeseries", "heatmap"}
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"]
            references = [target["refId"] for target in panel["targets"]]
            assert references
            assert len(set(references)) == len(references)
            assert all(target["legendFormat"] and target["expr"] for target in panel["targets"])


PROMTOOL: Final = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
PROMETHEUS: Final = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus")


@PROMTOOL
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yaml"), ("check", "config", "prometheus.yaml"), ("test", "rules", "alerts.test.yaml")],
    ids=" ".join,
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class RealPrometheus:
    """Prometheus with the alerts of `deploy/`, none of which waits before it fires."""

    def __init__(self, folder: Path, target: str) -> None:
        rules = re.sub(r"^ +for: .*\n", "", ALERTS.read_text(), flags=re.MULTILINE)
        (folder / "alerts.yaml").write_text(rules)
        config = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "200ms"),
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "geartrain", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        self.popen = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self.popen.stderr is not None
        address = next(
            match[1]
            for line in self.popen.stderr
            if (match := re.search(r'msg="Listening on" address=(127\.0\.0\.1:\d+)', line))
        )
        self.client = httpx.Client(base_url=f"http://{address}", timeout=PATIENCE)

    def query(self, expression: str) -> list[Any]:
        """The result of a query; nothing while Prometheus is not ready."""
        response = self.client.get("/api/v1/query", params={"query": expression})
        if response.status_code == 503:
            return []
        answer = response.json()
        assert answer["status"] == "success", answer
        found: list[Any] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        response = self.client.get("/api/v1/alerts")
        found = response.json()["data"]["alerts"] if response.status_code == 200 else []
        return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.popen.send_signal(signal.SIGTERM)
        assert self.popen.stderr is not None
        self.popen.stderr.read()
        self.popen.wait(PATIENCE)
        self.popen.stderr.close()


@PROMETHEUS
def test_real_prometheus_answers_every_query_and_fires_when_a_worker_dies(server: Watched, tmp_path: Path) -> None:
    server.ask("batched", "a")
    server.ask("tokens", "a", accept="text/event-stream")
    server.client.post("/v1/completions", json={"model": "tokens", "prompt": "ab"}).raise_for_status()
    server.ask("own", "raise")
    server.client.post("/models/own/predictions", json={"input": {}})
    prometheus = RealPrometheus(tmp_path, server.url.removeprefix("http://"))
    try:
        for query in queries():
            asked = query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*")
            until(lambda asked=asked: prometheus.query(asked), bool)  # type: ignore[misc]
        until(prometheus.firing, lambda names: "GeartrainModelLoadFailed" in names)
        assert not prometheus.firing() & {"GeartrainModelNotReady", "GeartrainDown"}
        for _ in range(2):  # both workers
            server.ask("own", "die")
        until(prometheus.firing, lambda names: "GeartrainModelNotReady" in names)
        server.process.end()
        until(prometheus.firing, lambda names: "GeartrainDown" in names)
    finally:
        prometheus.close()
