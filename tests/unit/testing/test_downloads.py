"""Models of tests that have something elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.project.errors import ProjectError
from geartrain.testing import call, runner
from tests.support.cloud import Cloud, running_cloud
from tests.support.servers import write_model

CODE = """
    from pathlib import Path

    class Runner:
        def setup(self, weights: Path) -> None:
            self.text = weights.read_text() + (Path(__file__).parent / "more").read_text()

        def run(self, text: str) -> str:
            return text + self.text
    """


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("GEARTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_cloud() as cloud:
        cloud.files = {"site/w.bin": b"12345", "site/more": b"a"}
        yield cloud


def model(cloud: Cloud, tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "cats", CODE)
    settings = f"weights:\n- {cloud.url}/site/w.bin\n- {{source: '{cloud.url}/site/more', dest: more}}\n"
    (folder / "geartrain.yaml").write_text(settings)
    return folder


def test_weights_are_there_before_setup(cloud: Cloud, tmp_path: Path) -> None:
    folder = model(cloud, tmp_path)
    assert call(folder, text="hello ") == "hello 12345a"
    bodies = len(cloud.bodies())
    with runner(folder) as run:
        assert [run(text="b"), run(text="c")] == ["b12345a", "c12345a"]
    assert len(cloud.bodies()) == bodies, "they are in the cache"


async def test_weights_are_fetched_for_a_test_with_a_loop(cloud: Cloud, tmp_path: Path) -> None:
    assert call(model(cloud, tmp_path), text="") == "12345a"


def test_weights_of_a_test_come_before_those_of_the_settings(cloud: Cloud, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("mine ")
    with runner(model(cloud, tmp_path), weights=str(own)) as run:
        assert run(text="") == "mine a"


def test_what_is_not_there_is_said(cloud: Cloud, tmp_path: Path) -> None:
    folder = model(cloud, tmp_path)
    del cloud.files["site/more"]
    with pytest.raises(ProjectError, match="/site/more: "):
        call(folder, text="")
    assert not os.path.lexists(folder / "more")
