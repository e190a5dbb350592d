"""The mix of clients, as short as it can be: no answer is lost, and no reset names a fault of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.own_wire(reason="it starts its own server")
@pytest.mark.without_store(reason="it has its own store")
@pytest.mark.one_server(reason="it starts its own server")
def test_short_mix_has_no_fault(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.mix", "--minutes", "0.05", "--report", str(report)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    counts = found["counts"]
    assert counts["bursts"] >= 1
    assert counts["pipelined right"] >= 16
    assert counts["sync"] >= 1
    assert found["faults"] == found["found"] == []
