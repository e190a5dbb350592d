"""`geartrain stubs`: what a type checker and a run see of the handles that it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api as mypy

from tests.support.forked import run_forked
from tests.support.servers import write_model

DETECTOR = """
    from typing import Literal, NamedTuple, Optional
    import numpy as np
    from numpy.typing import NDArray
    from geartrain import Path

    class Found(NamedTuple):
        boxes: list[list[int]]
        scores: NDArray[np.float32]

    def run(image: Path, mode: Literal["fast", "good"] = "good", least: Optional[float] = None) -> Found: ...
"""
WRITER = """
    from geartrain import ConcatenateIterator
    def run(prompt: str, max_tokens: int = 10) -> ConcatenateIterator[str]:
        yield prompt
"""
CALLER = """
    import asyncio
    from pathlib import Path

    import geartrain
    from handles import AsyncDetector, Detector, MyWriter, Told


    class Runner(geartrain.BaseRunner):
        detector: Detector
        my_writer: MyWriter
        told: Told

        def run(self, image: str) -> str:
            found = self.detector(image=image, mode="fast")
            reveal_type(found.boxes)
            reveal_type(self.detector.start(image=Path(image)).result().scores)
            for piece in self.my_writer.stream(prompt="x"):
                reveal_type(piece)
            reveal_type(self.told(prompt="x", max_tokens=3))
            self.detector(picture=image)
            self.detector(image=image, mode="slow")
            return self.my_writer(prompt=3)


    class AsyncRunner(geartrain.BaseRunner):
        detector: AsyncDetector

        async def run(self, image: str) -> int:
            found = await self.detector(image=image)
            both = await asyncio.gather(self.detector(image=image), self.detector(image=image))
            reveal_type(both[0].boxes)
            return len(found.boxes)
"""


def geartrain(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_forked("stubs", *words, cwd=folder, timeout=60)


def checked(arguments: list[str]) -> tuple[str, str, int]:
    """What mypy prints, its complaints, and its status. It lifts the limit of recursion, which other tests reach."""
    depth = sys.getrecursionlimit()
    try:
        return mypy.run(arguments)
    finally:
        sys.setrecursionlimit(depth)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    write_model(folder / "models/detector", DETECTOR)
    write_model(folder / "models/my-writer", WRITER)
    write_model(folder / "models/broken", "import no_such_package\ndef run() -> int: ...\n")
    (folder / "models/told").mkdir()
    (folder / "models/told/geartrain.yaml").write_text("pipeline: [my-writer]\n")
    done = geartrain("models", "-o", "handles.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "broken: " in done.stderr
    return folder


def test_a_type_checker_knows_inputs_and_outputs(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(models, CALLER)
    monkeypatch.chdir(models)
    said, _, _ = checked(["--strict", "--no-error-summary", "--cache-dir", str(models / "cache"), "run.py"])
    lines = [line.partition(": ")[2] for line in said.splitlines()]
    for line in (
        'note: Revealed type is "list[list[int]]"',
        'note: Revealed type is "str"',
        'error: Unexpected keyword argument "picture" for "__call__" of "Detector"  [call-arg]',
        'error: Argument "prompt" to "__call__" of "MyWriter" has incompatible type "int"; expected "str"  [arg-type]',
    ):
        assert line in [each.replace("builtins.", "") for each in lines], said
    assert sum("Revealed type" in line for line in lines) == 5, said
    assert sum("ndarray" in line for line in lines) == 1, said
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 3, said  # those two, and the mode
    assert checked(["--strict", "--cache-dir", str(models / "cache"), "handles.py"])[2] == 0


def test_a_run_sees_handles_that_know_their_models(models: Path) -> None:
    code = "import handles, geartrain; print(handles.AsyncMyWriter().name or handles.AsyncMyWriter.model_name)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=models)
    assert done.stdout == "my-writer\n"


def test_a_file_that_is_behind_is_found(models: Path) -> None:
    assert geartrain("models", "-o", "handles.py", "--check", folder=models).returncode == 0
    before = (models / "handles.py").read_text()
    (models / "handles.py").write_text(before.replace("image: str", "picture: str"))
    done = geartrain("models", "-o", "handles.py", "--check", folder=models)
    assert done.returncode == 1
    assert "handles.py is not as the models are" in done.stderr
    (models / "handles.py").write_text(before)


def test_one_model_goes_to_stdout(models: Path) -> None:
    command = [sys.executable, "-m", "geartrain", "stubs", "models/detector"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=models, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "class AsyncDetector(geartrain.Model):" in done.stdout
    assert geartrain("models/broken", folder=models).returncode == 1
    assert "--check needs the file" in geartrain("models", "--check", folder=models).stderr
