"""What `geartrain deploy` prints is what lies in `deploy/`, its platforms take it, and it fits the server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import kubernetes_validate
import pytest
import typer
import yaml

from geartrain.cli import batch, serve
from geartrain.server import ServeOptions
from tests.support.manifests import InvalidManifestError, check
from tools.make_deploy import ROOT, files, printed

FILES: Final = {
    str(path.relative_to(ROOT / "deploy")): path
    for platform in ("kubernetes", "kserve", "seldon")
    for path in sorted((ROOT / "deploy" / platform).rglob("*.yaml"))
}
VERSIONS: Final = ["1.30", kubernetes_validate.latest_version()]
FREE: Final = {"labels", "annotations", "matchLabels", "selector", "requests", "limits"}  # any key is good in them
TEXT_TOO: Final = {"port", "maxSurge", "maxUnavailable"}  # the name of a port; a percentage
PATHS: Final = {"livenessProbe": "live", "readinessProbe": "ready", "startupProbe": "ready"}
MODELS: Final = ("examples/digits", "--image", "registry.example.com/geartrain:1")


def read(name: str) -> dict[str, Any]:
    [found] = yaml.safe_load_all(FILES[name].read_text())
    assert isinstance(found, dict)
    return found


def containers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("containers", [])
        for each in value.values():
            yield from containers(each)


def test_the_files_are_what_the_command_prints() -> None:
    clouds = ("sagemaker/endpoint.yaml", "vertex/deploy.sh", "azure/deploy.sh")  # tests/unit/platforms/test_clouds.py
    paths = {**FILES, **{name: ROOT / "deploy" / name for name in clouds}}
    assert {name: path.read_text() for name, path in paths.items()} == files()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_platforms_take_the_files(name: str, version: str) -> None:
    check(read(name), version)


def mutants(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give copies of an object, each with one fault: a field that is unknown, or a value of another type."""
    for path in places(document, ()):
        wrong = copy.deepcopy(document)
        *above, last = path
        parent: Any = wrong
        for step in above:
            parent = parent[step]
        value = parent[last]
        if isinstance(value, dict):
            if path[0] != "metadata" and not FREE & set(map(str, path)) and path[-2:] != (0, "metadata"):
                value["unknownField"] = 1
                yield f"{path}: unknownField", wrong
        elif isinstance(value, bool | int) and last not in TEXT_TOO:
            parent[last] = str(value)
            yield f"{path}: {value!r} as text", wrong
        elif isinstance(value, list):
            parent[last] = "one"
            yield f"{path}: a text for a list", wrong


def places(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*path, step)
        yield from places(inner, (*path, step))


@pytest.mark.parametrize("name", FILES)
def test_mutants_are_refused(name: str) -> None:
    found = list(mutants(read(name)))
    taken = []
    for fault, wrong in found:
        try:
            check(wrong, VERSIONS[-1])
        except InvalidManifestError:
            continue
        taken.append(fault)
    assert len(found) >= 3
    assert not taken


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("kserve/servingruntime.yaml", ("spec", "containers")),
        ("kserve/inferenceservice.yaml", ("spec", "predictor")),
        ("seldon/server.yaml", ("spec", "serverConfig")),
        ("seldon/model.yaml", ("spec", "storageUri")),
        ("kubernetes/autoscaling/keda.yaml", ("spec", "scaleTargetRef")),
        ("kubernetes/autoscaling/queue.yaml", ("spec", "maxReplicas")),
        ("kubernetes/deployment.yaml", ("spec", "selector")),
    ],
)
def test_what_is_missing_is_noticed(name: str, path: tuple[str, ...]) -> None:
    document = read(name)
    del document[path[0]][path[1]]
    with pytest.raises(InvalidManifestError, match=path[1]):
        check(document, VERSIONS[-1])


JOB: Final = "kubernetes/batch.yaml"
SERVING: Final = [name for name in FILES if list(containers(read(name))) and name != JOB]


@pytest.mark.parametrize("name", SERVING)
def test_options_probes_and_rights_fit_the_server(name: str) -> None:
    [container] = containers(read(name)["spec"])
    assert container["command"][:2] == ["geartrain", "serve"]
    words = [*container["command"][2:], *container["args"]]
    options = typer.main.get_command(serve.app).make_context("serve", words).params
    assert (options["host"], options["restart"], options["drain_delay"]) == ("0.0.0.0", "on-crash", 5)  # noqa: S104
    for probe, what in PATHS.items():
        asked = container[probe]["httpGet"]
        assert asked["path"] in {f"/v2/health/{what}", f"/{what}z", f"/{what[:4]}z"}
        port = {"http": options["port"], "server-http": options["port"]}.get(asked["port"], asked["port"])
        assert port == options["port"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert container["readinessProbe"]["periodSeconds"] < options["drain_delay"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/tmp", "/dev/shm"}  # noqa: S108
    grace = list(values(read(name), "terminationGracePeriodSeconds"))
    ends = float(options["drain_delay"] + options["shutdown_grace"] + ServeOptions.webhooks.grace)
    assert all(each > ends for each in grace)
    assert grace or "runtime" in name, "KServe has it in the service"


def test_a_job_runs_each_share_once() -> None:
    spec = read(JOB)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 32, 8)
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "`backoffLimitPerIndex` takes nothing else"
    [container] = containers(spec)
    assert container["command"][:2] == ["geartrain", "batch"]
    words = [*container["command"][2:], *container["args"]]
    options = typer.main.get_command(batch.app).make_context("batch", words).params
    assert (options["model"], options["source"], options["output"]) == (
        *("/models", "/data/digits.parquet", "/data/answers"),
    )
    assert (options["part"], options["resume"]) == ("$(JOB_COMPLETION_INDEX)/32", True)
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/data", "/tmp", "/dev/shm"}  # noqa: S108
    [claim] = values(spec, "persistentVolumeClaim")
    assert claim == {"claimName": "data"}
    server = read("kubernetes/service.yaml")["spec"]["selector"]
    assert spec["template"]["metadata"]["labels"] != server


def test_a_job_of_a_model_in_a_folder_with_its_options() -> None:
    words = (
        "--batch",
        "s3://bucket/in.jsonl",
        "-o",
        "/data/out.jsonl",
        "--data",
        "pvc://claim/deep/er",
        "--parts",
        "2",
    )
    more = ("--option", "keep=id,name", "--option", "map=text=body", "--option", "no-pickle", "--gpus", "1")
    [job] = yaml.safe_load_all(printed("kubernetes", *MODELS, "--namespace", "team", *words, *more))
    check(job, VERSIONS[-1])
    assert (job["metadata"]["namespace"], job["metadata"]["name"]) == ("team", "digits-batch")
    [container] = containers(job["spec"])
    assert container["args"][3:] == ["--keep=id,name", "--map=text=body", "--no-pickle"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert job["spec"]["parallelism"] == 2
    assert list(values(job, "subPath")) == ["deep/er"]


BATCH: Final = ("kubernetes", *MODELS, "--batch", "/data/in", "-o", "/data/out", "--data", "pvc://claim")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*BATCH, "--batch", "in.jsonl"), "the pods have no in.jsonl; write a path below /data"),
        ((*BATCH, "-o", "out"), "'out' would end with its pod; write a path below /data"),
        (
            (*BATCH, "--data", "gs://bucket"),
            "--data: Kubernetes itself mounts nothing from 'gs://bucket'; write pvc://",
        ),
        (BATCH[:-2], "--data: Kubernetes itself mounts nothing from ''; write pvc://CLAIM/PATH"),
        ((*BATCH, "--option", "kep=id"), "--option: No such option: --kep"),
        ((*BATCH, "--option", "errors=all"), "--errors"),
        ((*BATCH, "--option", "part=0/2"), "--option: the Job sets --part itself"),
        ((*BATCH, "--replicas", "2"), "at most --max-replicas pods at once"),
        ((*BATCH, "--autoscaler", "keda"), "at most --max-replicas pods at once"),
        (("kubernetes", "examples", *BATCH[2:], "--name", "all"), "--batch runs one model, and there are "),
        (("kubernetes", *MODELS, "-o", "/data/out"), "--output is for a Job: write --batch IN as well"),
        (("kubernetes", *MODELS, "--data", "pvc://claim"), "--data is for a Job: write --batch IN as well"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        printed(*words)
    assert message in capsys.readouterr().err


def values(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (each for name, each in value.items() if name == key)
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from values(each, key)


def test_kserve_and_seldon_have_their_contracts() -> None:
    runtime = read("kserve/servingruntime.yaml")["spec"]
    service = read("kserve/inferenceservice.yaml")
    [container] = runtime["containers"]
    assert container["name"] == "kserve-container"
    assert container["command"][2] == "/mnt/models"
    assert {"--model-name={{.Name}}", "--port=8080", "--grpc-port=9000", "--health-body"} <= set(container["args"])
    assert runtime["protocolVersions"] == ["v2", "grpc-v2"]
    assert runtime["annotations"] == {"prometheus.kserve.io/port": "8080", "prometheus.kserve.io/path": "/metrics"}
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == read("kserve/servingruntime.yaml")["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["supportedModelFormats"]}
    everywhere = read("kserve/clusterservingruntime.yaml")
    assert everywhere["spec"] == runtime
    assert "namespace" not in everywhere["metadata"]
    [agent] = read("seldon/server.yaml")["spec"]["podSpec"]["containers"]
    assert {"--load=none", "--port=9000", "--grpc-port=9500"} <= set(agent["args"])
    assert agent["command"][2] == "/mnt/agent/models"
    assert set(read("seldon/model.yaml")["spec"]["requirements"]) <= set(
        read("seldon/server.yaml")["spec"]["capabilities"]
    )


def test_version_1_of_kserves_protocol() -> None:
    words = ("kserve", *MODELS, "--storage-uri", "gs://bucket/digits", "--protocol", "v1")
    runtime, service = yaml.safe_load_all(printed(*words, "--runtime", "torch", "--model-format", "pytorch"))
    assert runtime["spec"]["protocolVersions"] == ["v1", "v2", "grpc-v2"]
    assert runtime["spec"]["supportedModelFormats"][0] == {"name": "pytorch", "autoSelect": True}
    formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert len(formats) == len(set(formats))
    [container] = runtime["spec"]["containers"]
    assert "--api=kserve" in container["args"]
    model = service["spec"]["predictor"]["model"]
    assert (model["protocolVersion"], model["modelFormat"], model["runtime"]) == ("v1", {"name": "pytorch"}, "torch")


@pytest.mark.parametrize(
    "words",
    [
        ("kserve", *MODELS),
        ("kserve", *MODELS, "--knative", "--grpc", "--namespace", "team"),
        ("kserve", *MODELS, "--knative", "--storage-uri", "s3://bucket/digits", "--gpus", "2"),
        ("kserve", *MODELS, "--storage-uri", "gs://b/d", "--protocol", "v1", "--model-format", "pytorch"),
        ("kserve", *MODELS, "--protocol", "v1"),
        ("kserve", "examples", *MODELS[1:], "--name", "all", "--storage-uri", "gs://bucket/models"),
        ("seldon", *MODELS, "--storage-uri", "gs://bucket/digits", "--server", "mine", "--namespace", "team"),
        ("kubernetes", *MODELS, "--autoscaler", "none", "--replicas", "3", "--namespace", "team"),
        ("kubernetes", *MODELS, "--storage-uri", "pvc://claim/deep/digits", "--gpus", "1"),
        ("kubernetes", *MODELS, "--storage-uri", "pvc://claim", "--autoscaler", "keda", "--name", "other"),
    ],
)
def test_every_option_gives_what_platforms_take(words: tuple[str, ...]) -> None:
    documents = list(yaml.safe_load_all(printed(*words)))
    for document in documents:
        check(document, VERSIONS[-1])
        if "--namespace" in words:
            assert document["metadata"]["namespace"] == "team"
    if "--gpus" in words:
        limits = [each["nvidia.com/gpu"] for each in values(documents, "limits")]
        assert set(limits) == {words[words.index("--gpus") + 1]}
    named = [word for each in values(documents, "args") for word in each if word.startswith("--model-name")]
    if words[1] == "examples" or words[0] == "seldon":
        assert named == []
    else:
        assert named == (
            ["--model-name={{.Name}}"] if "--storage-uri" in words and words[0] == "kserve" else ["--model-name=digits"]
        )
    if "--storage-uri" in words and words[0] == "kubernetes":
        [claim] = values(documents, "persistentVolumeClaim")
        assert claim == {"claimName": "claim", "readOnly": True}
        assert list(values(documents, "subPath")) == (["deep/digits"] if "deep" in words[5] else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kubernetes", *MODELS, "--storage-uri", "gs://bucket/digits"), "write pvc://CLAIM/PATH"),
        (("kubernetes", *MODELS, "--storage-uri", "pvc:///digits"), "write pvc://CLAIM/PATH"),
        (("kubernetes", *MODELS, "--storage-uri", "digits"), "--storage-uri: 'digits' is no URI"),
        (("kubernetes", *MODELS, "--name", "Digits"), "'Digits' is no name for objects of Kubernetes"),
        (("kubernetes", *MODELS, "--name", "a" * 51), "of at most 50 small letters"),
        (("kubernetes", *MODELS, "--namespace", "a b"), "--namespace: 'a b' is no name"),
        (("kubernetes", *MODELS, "--replicas", "9"), "--max-replicas is 4, less than --replicas, 9"),
        (("kubernetes", "examples/digits", "--image", "a b"), "--image: 'a b' is no image"),
        (("kserve", "nowhere", *MODELS[1:]), "nowhere: no such file or folder"),
        (("seldon", *MODELS), "say where they lie: --storage-uri"),
        (("seldon", "examples", *MODELS[1:], "--storage-uri", "gs://bucket"), "'slow_counter' is no name for objects"),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        printed(*words)
    assert message in capsys.readouterr().err
