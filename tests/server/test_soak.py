"""The soak, as short as it can be: mixed load and faults on real servers, for no lost and no mixed up answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.own_wire(reason="it starts its own servers")
@pytest.mark.without_store(reason="it has its own stores")
@pytest.mark.one_server(reason="it starts its own servers")
def test_short_soak_has_no_fault(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.soak", "--minutes", "0.25", "--report", str(report)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    for server in ("all", "demand"):
        assert found["counts"][server]["sync"] > 5
        assert {sample["server"] for sample in found["samples"]} == {"all", "demand"}
    assert sum(counts.get("disturbed by load", 0) for counts in found["counts"].values()) >= 1
