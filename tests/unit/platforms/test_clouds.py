"""Files for SageMaker, Vertex AI and Azure ML of `geartrain deploy`: these take them, and they fit the server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from geartrain.cli import sagemaker, serve
from tools.make_deploy import printed

DIGITS: Final = ("examples/digits", "--image", "registry.example.com/digits:1")
ROLE: Final = "arn:aws:iam::123456789012:role/models"
RECORDER: Final = """#!/bin/sh
for word; do
    printf '%s\\n' "$word" >>"$RECORD"
    case $word in "$TMPDIR"/*.yml) cp "$word" "$KEPT";; esac
done
echo == >>"$RECORD"
"""


def serve_options(words: list[str]) -> dict[str, Any]:
    assert words[0] == "serve"
    return typer.main.get_command(serve.app).make_context("serve", words[1:]).params


def run_script(text: str, folder: Path, name: str, answers: str) -> list[list[str]]:
    """Run a script of a shell with a program that notes its arguments; return those of each call."""
    program = folder / "bin" / name
    program.parent.mkdir()
    program.write_text(RECORDER + answers)
    program.chmod(0o755)
    (folder / "kept").mkdir()
    (folder / "tmp").mkdir()
    record = folder / "record"
    env = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "RECORD": str(record),
        "KEPT": str(folder / "kept"),
        "TMPDIR": str(folder / "tmp"),
    }
    subprocess.run(["sh", "-c", text], check=True, env=env, timeout=60)
    assert not list((folder / "tmp").iterdir()), "files were left behind"
    return [call.splitlines() for call in record.read_text().split("==\n")[:-1]]


@pytest.mark.parametrize(
    ("words", "container"),
    [
        ((), {}),
        (("--storage-uri", "s3://bucket/digits.tar.gz"), {"ModelDataUrl": "s3://bucket/digits.tar.gz"}),
        (
            ("--storage-uri", "s3://bucket/digits"),
            {
                "ModelDataSource": {
                    "S3DataSource": {
                        "S3Uri": "s3://bucket/digits/",
                        "S3DataType": "S3Prefix",
                        "CompressionType": "None",
                    }
                }
            },
        ),
    ],
)
def test_a_template_has_what_amazons_interface_takes(words: tuple[str, ...], container: dict[str, Any]) -> None:
    """The properties of CloudFormation are parameters of the calls of the same name, which boto3 checks."""
    boto3 = pytest.importorskip("boto3", reason="moto, which has boto3, is not installed")
    validate = pytest.importorskip("botocore.validate", reason="moto, which has boto3, is not installed")

    template = yaml.safe_load(printed("sagemaker", *DIGITS, *words, "--instance", "ml.g5.xlarge"))
    found = template["Resources"]
    properties = {name: each["Properties"] for name, each in found.items()}
    values = {"Role": ROLE, "Model.ModelName": "digits", "Config.EndpointConfigName": "digits"}
    calls = {
        "Model": ("sagemaker", "CreateModel", {"ModelName": "digits"}),
        "Config": ("sagemaker", "CreateEndpointConfig", {"EndpointConfigName": "digits"}),
        "Endpoint": ("sagemaker", "CreateEndpoint", {}),
        "Target": ("application-autoscaling", "RegisterScalableTarget", {}),
    }
    for name, (service, operation, more) in calls.items():
        model = boto3.client(service, region_name="eu-west-1").meta.service_model.operation_model(operation)
        report = validate.ParamValidator().validate({**resolved(properties[name], values), **more}, model.input_shape)
        assert not report.has_errors(), report.generate_report()
        assert set(properties[name]) <= set(model.input_shape.members)
    primary = dict(properties["Model"]["PrimaryContainer"])
    assert primary.pop("Environment") == {"LOG_FORMAT": "json"}
    assert primary == {"Image": "registry.example.com/digits:1", **container}
    assert properties["Config"]["ProductionVariants"][0]["InstanceType"] == "ml.g5.xlarge"


def resolved(value: Any, values: dict[str, str]) -> Any:
    """Put values in the place of the functions of CloudFormation."""
    if isinstance(value, dict):
        if set(value) == {"Ref"}:
            return values[value["Ref"]]
        if set(value) == {"Fn::GetAtt"}:
            return values[".".join(value["Fn::GetAtt"])]
        if set(value) == {"Fn::Sub"}:
            return value["Fn::Sub"].replace("${Endpoint.EndpointName}", "digits")
        return {key: resolved(each, values) for key, each in value.items()}
    return [resolved(each, values) for each in value] if isinstance(value, list) else value


def test_a_number_of_instances_that_stays_needs_nothing_that_changes_it() -> None:
    template = yaml.safe_load(printed("sagemaker", *DIGITS, "--replicas", "3", "--max-replicas", "3"))
    assert set(template["Resources"]) == {"Model", "Config", "Endpoint"}


@pytest.mark.parametrize("storage", ["", "gs://bucket/digits"])
def test_the_script_for_vertex(storage: str, tmp_path: Path) -> None:
    words = [
        "vertex",
        *DIGITS,
        "--accelerator",
        "nvidia-l4",
        "--gpus",
        "2",
        *(["--storage-uri", storage] * bool(storage)),
    ]
    answers = 'case "$*" in "ai endpoints list"*|"ai models list"*) echo projects/1/it;; esac\n'
    calls = run_script(printed(*words), tmp_path, "gcloud", answers)
    assert [call[1:3] for call in calls] == [
        ["endpoints", "list"],
        ["models", "list"],
        ["models", "upload"],
        ["endpoints", "list"],
        ["models", "list"],
        ["endpoints", "deploy-model"],
    ]
    upload, deployed = calls[2], calls[5]
    given = dict(word.removeprefix("--").split("=", 1) for word in upload[3:])
    assert given["parent-model"] == "projects/1/it"
    assert given["container-command"] == "geartrain"
    options = serve_options(given["container-args"].split(","))
    assert (options["api"], options["host"], options["port"]) == ("vertex", "0.0.0.0", int(given["container-ports"]))  # noqa: S104
    assert options["model"] == ("$(AIP_STORAGE_URI)" if storage else "/models")
    assert given.get("artifact-uri", "") == storage
    assert (given["container-predict-route"], given["container-health-route"]) == ("/predict", "/health")
    assert "--accelerator=type=nvidia-l4,count=2" in deployed
    assert deployed[3] == "projects/1/it"
    assert "--traffic-split=0=100" in deployed


def test_the_script_for_vertex_makes_an_endpoint_where_there_is_none(tmp_path: Path) -> None:
    calls = run_script(printed("vertex", *DIGITS), tmp_path, "gcloud", "")
    assert [call[1:3] for call in calls][:2] == [["endpoints", "list"], ["endpoints", "create"]]
    assert not [word for call in calls for word in call if word.startswith("--parent-model")]


@pytest.mark.parametrize(("answers", "verb"), [("", "update"), ('[ "$3" != show ]\n', "create")])
def test_the_script_for_azure(answers: str, verb: str, tmp_path: Path) -> None:
    words = ("azure", *DIGITS, "--storage-uri", "azureml://datastores/own/paths/digits")
    calls = run_script(printed(*words), tmp_path, "az", answers)
    kinds = [call[1:3] for call in calls]
    assert (["online-endpoint", "create"] in kinds) == (verb == "create")
    assert ["online-deployment", verb] in kinds
    assert calls[-1][1:] == ["online-endpoint", "update", "--name", "digits", "--traffic", "blue=100"]
    made = yaml.safe_load((tmp_path / "kept" / "deployment.yml").read_text())
    routes = made["environment"]["inference_config"]
    assert {name: route["path"] for name, route in routes.items()} == {
        "liveness_route": "/livez",
        "readiness_route": "/readyz",
        "scoring_route": "/score",
    }
    assert {str(route["port"]) for route in routes.values()} == {made["environment_variables"]["PORT"]}
    assert made["environment_variables"]["GEARTRAIN_API"] == "azure"
    assert made["model"]["path"] == words[-1]
    assert made["model_mount_path"] == "/models"
    probe = made["readiness_probe"]
    assert probe["period"] * probe["failure_threshold"] >= 600


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sagemaker", *DIGITS, "--storage-uri", "gs://bucket/digits"), "write s3://BUCKET/PATH"),
        (("vertex", *DIGITS, "--storage-uri", "s3://bucket/digits"), "write gs://BUCKET/PATH"),
        (("vertex", *DIGITS, "--replicas", "9"), "--max-replicas is 4, less than --replicas, 9"),
        (("azure", *DIGITS, "--name", "a b"), "is no name"),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        printed(*words)
    assert message in capsys.readouterr().err


def test_sagemakers_program_serves_what_has_been_brought_or_else_the_image(tmp_path: Path) -> None:
    models = ["/models", "--model-name=digits"]
    image = serve_options(sagemaker.command_line(models, {"SM_MODEL_DIR": str(tmp_path)}))
    assert (image["model"], image["model_name"], image["api"], image["port"]) == (
        "/models",
        "digits",
        "sagemaker",
        8080,
    )
    assert image["drain_delay"] + image["shutdown_grace"] < 30
    (tmp_path / "run.py").touch()
    given = {"SAGEMAKER_BIND_TO_PORT": "8123", "SM_MODEL_DIR": str(tmp_path)}
    brought = serve_options(sagemaker.command_line(models, {**given, "GEARTRAIN_OPTIONS": "--queue 7 --port 9"}))
    assert (brought["model"], brought["model_name"], brought["queue"]) == (str(tmp_path), "", 7)
    assert brought["port"] == 9
    assert serve_options(sagemaker.command_line(models, given))["port"] == 8123
