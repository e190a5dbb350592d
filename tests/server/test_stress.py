"""Mixed use, compressed: every prediction ends exactly once, every webhook comes, and everything is given back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "benchmarks" / "stress.py"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["stress", "stress_async"])
def test_mixed_use(model: str) -> None:
    command = [sys.executable, str(STRESS), "--predictions", "300", "--models", model]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=55)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for kind in ("waits", "fails", "streams", "is told", "is canceled", "disconnects", "leaves its stream"):
        counts = re.search(rf"^\| {kind} \|(.*)\|$", done.stdout, re.MULTILINE)
        assert counts is not None
        assert any(int(count) for count in counts[1].split("|")), done.stdout
