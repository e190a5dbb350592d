"""KServe's own clients, REST and gRPC, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import modes
from tests.support.servers import ServerProcess, write_model

CLIENT = Path(__file__).parents[1] / "support" / "kserve_client.py"
MODEL = """
def run(numbers: list[float]) -> list[float]:
    return [2 * number for number in numbers]
"""


def test_o1_o5_o6_both_clients(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    process = server_process(str(write_model(tmp_path / "double", MODEL)), "--grpc-port", "0", "--health-body")
    url = process.wait_for("listening")["url"]
    first, second = (process.wait_for_one("listening-grpc", "ready") for _ in range(2))
    address = first.get("url") or second["url"]
    given = modes.current().credentials
    secrets = () if given is None else (str(given.authority), given.key)
    command = [sys.executable, "-W", "ignore", str(CLIENT), url, address, "double", *secrets]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answer = {"id": "42", "model": "double", "name": "output", "values": [3.0, -4.0, 0.5]}
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rest": answer,
        "rest with nulls": answer,
        "rest metadata": {
            "server": "geartrain",
            "model": ["double", ["1"], "numbers", "output"],
            "models": ["double"],
        },
        "rest live": True,
        "rest server ready": True,
        "rest ready": True,
        "rest ready of another": False,
        "grpc": answer,
        "grpc live": True,
        "grpc ready": True,
        "grpc model ready": True,
        "grpc ready of another": False,
    }
