"""The files under deploy/: Kubernetes takes them, and their options, paths and times are the server's."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml

from geartrain.cli import serve
from geartrain.server import ServeOptions
from geartrain.transport.routing import HEALTH

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
OBJECTS: Final = {path.name: path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))}
TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - of a container
WEBHOOKS: Final = 10.0  # seconds that they have at the end


def parse(words: list[str]) -> dict[str, Any]:
    """The values of the options of `geartrain serve`."""
    command = typer.main.get_command(serve.app)
    return command.make_context("serve", words).params


def ends_after(options: dict[str, Any]) -> float:
    """The seconds that a server with these options may take to end."""
    return float(options["drain_delay"] + options["shutdown_grace"] + WEBHOOKS)


def read(name: str) -> dict[str, Any]:
    [document] = yaml.safe_load_all(OBJECTS[name].read_text())
    found: dict[str, Any] = document
    return found


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = read("deployment.yaml")["spec"]["template"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def options(container: dict[str, Any]) -> dict[str, Any]:
    assert container["command"][:2] == ["geartrain", "serve"]
    return parse([*container["command"][2:], *container["args"]])


def test_the_grace_of_webhooks_is_the_default(options: dict[str, Any]) -> None:
    assert options["model"]
    assert ServeOptions.webhooks.grace == WEBHOOKS


def test_a_pod_has_the_time_to_end(pod: dict[str, Any], options: dict[str, Any]) -> None:
    assert options["drain_delay"] == 5
    assert pod["spec"]["terminationGracePeriodSeconds"] > ends_after(options)


def test_the_probes_ask_for_what_there_is(container: dict[str, Any], options: dict[str, Any]) -> None:
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": options["port"], "admin": options["admin_port"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in HEALTH
        assert asked["port"] in ports
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < options["drain_delay"]


def test_whatever_is_written_has_a_place(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    places = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each["emptyDir"] for each in pod["spec"]["volumes"]}
    assert {place: volumes[name].get("medium") for place, name in places.items()} == {TMP: None, SHM: "Memory"}
    for variable in container["env"]:
        assert variable["value"].startswith(TMP)


def test_names_fit_together(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"]
    deployment, service, autoscaler = (read(f"{each}.yaml") for each in ("deployment", "service", "autoscaler"))
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    target = autoscaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert target["apiVersion"] == deployment["apiVersion"]
    port = int(pod["metadata"]["annotations"]["prometheus.io/port"])
    assert port in {each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}


def test_the_service_of_systemd_has_the_time_to_end() -> None:
    lines = (DEPLOY / "systemd" / "geartrain.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, command, *words = shlex.split(settings["ExecStart"])
    assert (Path(program).name, command) == ("geartrain", "serve")
    options = parse([word for word in words if not word.startswith("$")])
    assert float(settings["TimeoutStopSec"]) > ends_after(options)
    assert settings["KillMode"] == "mixed", "the workers must not get SIGTERM"
    assert settings["Type"] == "notify"
