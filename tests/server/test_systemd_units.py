"""The units under deploy/systemd, as systemd itself reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

UNITS: Final = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES: Final = ("geartrain.service", "geartrain.socket")
_MOST_EXPOSED: Final = 2.5  # of 10; systemd calls less than 2 OK, and other releases weigh otherwise

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is there."""
    for name in NAMES:
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/geartrain/bin/geartrain", "/bin/true"))
    return tmp_path


def analyze(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
    )


def complaints(units: Path) -> list[str]:
    """What is wrong with the units; what is wrong with others of the machine is left out."""
    done = analyze("--man=no", "verify", *(f"./{name}" for name in NAMES), cwd=units)
    return [line for line in done.stdout.splitlines() if "geartrain." in line]


def test_the_units_are_right(units: Path) -> None:
    assert complaints(units) == []


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("service", "WatchdogSec=", "WatchdogSek="), ("socket", "Backlog=2048", "Backlog=many")],
)
def test_a_mistake_would_be_found(units: Path, name: str, right: str, wrong: str) -> None:
    unit = units / f"geartrain.{name}"
    text = unit.read_text()
    assert right in text
    unit.write_text(text.replace(right, wrong))
    assert len(complaints(units)) == 1


def test_the_service_is_confined(units: Path) -> None:
    done = analyze("security", "--offline=true", "./geartrain.service", cwd=units)
    if "unrecognized option" in done.stdout:
        pytest.skip("this systemd does not look at files")
    found = re.search(r"Overall exposure level for geartrain.service: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) <= _MOST_EXPOSED
