"""Gives a config to Ray Serve, and waits for what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from geartrain.project.errors import ProjectError
from geartrain.ray.config import merged

_LOOK: Final = 1.0  # seconds between two looks
_FAILED: Final = frozenset({"DEPLOY_FAILED", "UNHEALTHY", "DELETING"})
_RUNNING: Final = "RUNNING"
_STARTING: Final = "STARTING"  # of a proxy
_LONGEST: Final = 2000  # characters of what Serve says


def deploy(
    config: Mapping[str, Any], address: str, *, time_limit: float, tell: Callable[[str], object] = lambda _line: None
) -> None:
    """Deploy the applications of a config beside those that are there; return when they run and all nodes have proxies.

    `address`: of the dashboard, such as http://127.0.0.1:8265. `tell` hears of what others should know. Raises
    `ProjectError` if the cluster cannot be reached, refuses the config, or does not get the applications to run within
    `time_limit` seconds.
    """
    try:
        client = ServeSubmissionClient(address)
        there = client.get_serve_details().get("applications", {})
        deployed = [each["deployed_app_config"] for each in there.values() if each.get("deployed_app_config")]
        client.deploy_applications(merged(config, deployed))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ProjectError(f"Ray at {address}: {_shortened(str(error))}") from error
    names = [application["name"] for application in config["applications"]]
    if set(there) - set(names):
        tell(f"Serve has several applications now: calls of gRPC need the metadata `application: {names[0]}`.")
    for name in names:
        _wait(client, name, time.monotonic() + time_limit)


def _wait(client: ServeSubmissionClient, name: str, until: float) -> None:
    """Wait until an application runs as it was deployed last; raises `ProjectError`.

    Ray says that it runs before the nodes that have got their first replica listen for its requests.
    """
    while True:
        details = client.get_serve_details()
        found = details["applications"].get(name, {})
        status = found.get("status", "NOT_STARTED")
        is_late = time.monotonic() > until
        starting = [each for each in details.get("proxies", {}).values() if each.get("status") == _STARTING]
        if status == _RUNNING and (is_late or not starting):
            return
        if status in _FAILED or is_late:
            said = [
                found.get("message", ""),
                *(each.get("message", "") for each in found.get("deployments", {}).values()),
            ]
            raise ProjectError(f"the application {name} is {status}: {_shortened(' '.join(filter(None, said)))}")
        time.sleep(_LOOK)


def _shortened(text: str) -> str:
    """Return the end of a text, where a traceback has its error."""
    return text if len(text) <= _LONGEST else f"… {text[-_LONGEST:]}"
