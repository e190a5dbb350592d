"""Functions of the server that one small request runs: their number may only fall (tools/count_calls.py)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FUNCTIONS: Final = 84
FILES: Final = 25


def test_a_small_request_runs_few_functions_in_few_files() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.count_calls", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *calls, last = done.stdout.splitlines()
    found = re.fullmatch(r"functions (\d+), calls (\d+), files (\d+)", last)
    assert found is not None, last
    assert (calls[0], len(calls)) == ("transport/wire/http1.py: Connection.data_received", int(found[2]))
    assert int(found[1]) <= FUNCTIONS, done.stdout
    assert int(found[3]) <= FILES, done.stdout
