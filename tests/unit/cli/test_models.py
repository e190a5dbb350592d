"""What `geartrain serve` understands of a folder of models, and what a person sees of their life."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from geartrain.cli.serving import check_name, find_source, read_load
from geartrain.cli.startup import ServeObserver
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import find_here
from geartrain.project.source import ModelSource
from geartrain.server import Progress
from tests.support.terminals import show_terminal

RUNNER = "class Runner:\n    def run(self) -> str: ...\n"


@pytest.fixture
def models(tmp_path: Path) -> Repository:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.py").write_text(RUNNER)
    return Repository(tmp_path, environ={})


def test_a_folder_of_models_is_served_as_such_and_one_of_them_alone(models: Repository) -> None:
    found = find_source(str(models.root), "predict", reload=True, environ={})
    assert isinstance(found, Repository)
    assert found.names() == ["cats", "dogs"]
    for target in (models.root / "cats", models.root / "cats" / "run.py"):
        source = find_source(str(target), "predict", reload=True, environ={})
        assert isinstance(source, ModelSource)
        assert source.name == "cats"


def test_the_variables_of_cogs_containers_come_before_what_lies_there(
    models: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models.root)
    (models.root / "tom.py").write_text(RUNNER)
    found = find_source(None, "predict", reload=False, environ={"COG_PREDICT_TYPE_STUB": "tom.py:Runner"})
    assert isinstance(found, ModelSource)
    assert isinstance(find_source(None, "predict", reload=False, environ={}), Repository)


def test_a_single_model_has_the_name_that_it_is_given(models: Repository) -> None:
    for target in (models.root / "cats", models.root / "cats" / "run.py"):
        source = find_source(str(target), "predict", reload=False, name="felis", environ={})
        assert isinstance(source, ModelSource)
        assert (source.name, source.root) == ("felis", models.root / "cats")
    (models.root / "dogs" / "run.py").rename(models.root / "cats" / "predict.py")
    versions = models.root / "birds"
    for number in "12":
        (versions / number).mkdir(parents=True)
        (versions / number / "run.py").write_text(RUNNER)
    found = find_source(str(versions), "predict", reload=False, name="aves", environ={})
    assert isinstance(found, Repository)
    assert (found.names(), found.candidates(), list(found.read("aves").versions)) == (["aves"], ["aves"], ["1", "2"])
    with pytest.raises(ProjectError, match="a name can be given to a single model, and here are birds, cats"):
        find_source(str(models.root), "predict", reload=False, name="felis", environ={})
    shutil.rmtree(versions)
    found = find_source(str(models.root), "predict", reload=False, name="felis", environ={})  # as KServe mounts it
    assert isinstance(found, Repository)
    assert (found.names(), found.folder("felis")) == (["felis"], models.root / "cats")
    for name in ("a/b", "..", "ü", "a b", "x" * 256):
        with pytest.raises(ProjectError, match="is no name for a model; write letters, digits"):
            find_source(str(models.root / "cats"), "predict", reload=False, name=name, environ={})


def test_a_folder_may_be_empty_where_nothing_is_loaded_at_the_start(tmp_path: Path) -> None:
    for load in ("none", "on-demand"):
        found = find_source(str(tmp_path), "predict", reload=False, load=load, environ={})
        assert isinstance(found, Repository)
        assert found.names() == []
    with pytest.raises(ProjectError, match="no model here"):
        find_source(str(tmp_path), "predict", reload=False, environ={})
    with pytest.raises(ProjectError, match="no model here"):
        find_source(str(tmp_path), "predict", reload=False, load="none", name="felis", environ={})
    with pytest.raises(ProjectError, match="there is no model 'cats'; there are none yet"):
        check_name("--default-model", "cats", Repository(tmp_path, environ={}))


def test_model_elsewhere_is_pending_under_its_name() -> None:
    for name, known_as in (("", "cats"), ("felis", "felis")):
        source = find_source("s3://bucket/cats.onnx", "predict", reload=False, name=name, load="none", environ={})
        assert isinstance(source, ModelSource)
        assert (source.name, source.is_pending) == (known_as, True)
    with pytest.raises(ProjectError, match="a model elsewhere cannot be reloaded when its files change"):
        find_source("s3://bucket/cats", "predict", reload=True, environ={})
    with pytest.raises(ProjectError, match=r"s3://bucket/cats is not on this machine; fetch it, and name its folder"):
        find_here("s3://bucket/cats")


def test_model_whose_weights_have_not_been_fetched_is_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "geartrain.yaml").write_text("weights:\n  model.onnx: s3://bucket/cats.onnx\n")
    for load in ("all", "none"):
        source = find_source(str(tmp_path), "predict", reload=False, name="felis", load=load, environ={})
        assert isinstance(source, ModelSource)
        assert (source.name, source.root, source.is_pending) == ("felis", tmp_path, True)
    source = find_source(str(tmp_path), "predict", reload=False, load="none", environ={})
    assert isinstance(source, ModelSource)
    with pytest.raises(ProjectError, match="no model here"):
        find_here(str(tmp_path))


def test_a_training_is_not_reloaded(models: Repository) -> None:
    with pytest.raises(ProjectError, match="--reload does not go with --x-mode train"):
        find_source(str(models.root / "cats"), "train", reload=True, environ={})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all", None),
        ("none", frozenset()),
        ("cats", frozenset({"cats"})),
        ("cats, dogs,", frozenset({"cats", "dogs"})),
    ],
)
def test_models_to_load(models: Repository, text: str, wanted: frozenset[str] | None) -> None:
    assert read_load(text, models) == wanted


def test_a_model_that_is_not_there_is_named(models: Repository) -> None:
    with pytest.raises(ProjectError, match="--load: there is no model 'birds'; there are cats, dogs"):
        read_load("cats,birds", models)
    with pytest.raises(ProjectError, match="--default-model: there is no model 'birds'; there are cats, dogs"):
        check_name("--default-model", "birds", models)
    check_name("--default-model", None, models)


def step(observer: ServeObserver, stage: str, model: str = "", *, text: str = "", slots: int = 0) -> None:
    version = "1" if model else ""
    observer(Progress(stage=stage, model=model, version=version, text=text, slots=slots))


def test_the_life_of_many_models_is_a_line_for_each_step(models: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    observer = ServeObserver(models, for_person=sys.stderr.isatty())
    observer(Progress(stage="listening", url="http://0.0.0.0:5000"))
    observer(Progress(stage="listening-admin", url="http://127.0.0.1:5001"))
    step(observer, "setup-output", "cats", text="loading\nweights\n")
    step(observer, "ready", "cats", slots=2)
    step(observer, "setup-failed", "dogs", text="setup() failed: ValueError: [no] weights")
    step(observer, "settled")
    step(observer, "reload-failed", "cats", text="SyntaxError")
    step(observer, "unloaded", "cats")
    step(observer, "stopping")
    shown = re.sub(r"after \d+\.\d s", "after … s", terminal.getvalue())
    assert [line.rstrip() for line in shown.splitlines()] == [
        f"geartrain 0.1.0  2 models  {models.root}",
        "  Models  http://localhost:5000/models",
        "  Page    http://localhost:5000/",
        "  Docs    http://localhost:5000/docs",
        "  Health  http://localhost:5000/health-check",
        "  Admin   http://127.0.0.1:5001",
        "cats 1  | loading",
        "cats 1  | weights",
        "cats 1  ready, 2 slots",
        "dogs 1  setup failed: ValueError: [no] weights",
        "1 of 2 ready after … s",
        "Ctrl-C stops.",
        "cats 1  not reloaded: SyntaxError",
        "cats 1  unloaded",
        "Stopping.",
    ]


def test_a_setup_that_has_failed_counts_until_it_succeeds(models: Repository) -> None:
    observer = ServeObserver(models, for_person=False)
    step(observer, "setup-failed", "cats")
    step(observer, "ready", "dogs")
    assert observer.has_failed
    step(observer, "ready", "cats")
    step(observer, "reload-failed", "cats")
    assert not observer.has_failed


def test_reloads_of_a_model_alone_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show_terminal(monkeypatch)
    source = ModelSource(name="pets", root=Path("/models/pets"), runner="run.py")
    observer = ServeObserver(source, for_person=True)
    observer(Progress(stage="listening", model="pets", url="http://127.0.0.1:5000"))
    observer(Progress(stage="ready", model="pets", slots=1))
    observer(Progress(stage="settled"))
    observer(Progress(stage="reload-failed", model="pets", text="SyntaxError"))
    observer(Progress(stage="ready", model="pets", slots=1))
    assert terminal.getvalue().splitlines()[-2:] == ["Not reloaded: SyntaxError", "Reloaded, 1 slot"]
