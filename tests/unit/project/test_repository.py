"""A folder of models on disk, and what `geartrain.yaml` says of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.predictions.priorities import Level, Priorities
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository, find_repository
from geartrain.project.settings import Settings, read_settings
from geartrain.project.source import ModelSource, find_model

RUNNER = "class Runner:\n    def run(self) -> str: ...\n"


def write(root: Path, **files: str) -> Path:
    """Write files by their paths."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def repository(root: Path, *paths: str, **settings: str) -> Repository:
    """Write a model's file at each of the paths, and `geartrain.yaml` by model."""
    write(root, **dict.fromkeys(paths, RUNNER))
    write(root, **{f"{name}/geartrain.yaml": text for name, text in settings.items()})
    found = find_repository(str(root), environ={})
    assert found is not None
    return found


def read(found: Repository, name: str) -> dict[str, Any]:
    """The versions of a model: its folder, or what is wrong with it."""
    return {
        number: source.root.relative_to(found.root).as_posix() if isinstance(source, ModelSource) else source.message
        for number, source in found.read(name).versions.items()
    }


# which folders are models


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["cats/run.py", "dogs/predict.py"], ["cats", "dogs"]),
        (["cats/1/run.py", "cats/2/run.py"], ["cats"]),
        (["cats/run.py", "data/notes.txt", ".git/run.py", "__pycache__/run.py", "_old/run.py"], ["cats"]),
        (["cats/run.py", "readme.md"], ["cats"]),
        (["cats/run.py", "9/run.py"], ["9", "cats"]),
    ],
)
def test_models_are_found_by_what_they_hold(tmp_path: Path, paths: list[str], names: list[str]) -> None:
    assert repository(tmp_path, *paths).names() == names


def test_a_cog_yaml_makes_a_model(tmp_path: Path) -> None:
    write(
        tmp_path, **{"cats/cog.yaml": "run: tom.py:Tom", "cats/tom.py": "class Tom:\n    def run(self) -> str: ...\n"}
    )
    found = find_repository(str(tmp_path), environ={})
    assert found is not None
    source = found.read("cats").versions["1"]
    assert isinstance(source, ModelSource)
    assert (source.name, source.runner, source.root) == ("cats", "tom.py:Tom", tmp_path / "cats")


@pytest.mark.parametrize("paths", [["run.py", "other/run.py"], ["notes.txt"], ["a/b/run.py"], []])
def test_a_model_or_an_empty_folder_is_no_repository(tmp_path: Path, paths: list[str]) -> None:
    write(tmp_path, **dict.fromkeys(paths, RUNNER))
    assert find_repository(str(tmp_path), environ={}) is None
    assert find_repository(str(tmp_path / "nothing"), environ={}) is None


def test_the_current_folder_may_be_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{"cats/run.py": RUNNER})
    monkeypatch.chdir(tmp_path)
    found = find_repository(None, environ={})
    assert found is not None
    assert found.names() == ["cats"]


def test_a_folder_of_versions_alone_is_one_model(tmp_path: Path) -> None:
    root = tmp_path / "cats"
    found = repository(root, "1/run.py", "2/run.py")
    assert found.names() == ["cats"]
    assert read(found, "cats") == {"1": "1", "2": "2"}
    assert found.name_of(root / "2" / "run.py") == "cats"


def test_files_belong_to_models(tmp_path: Path) -> None:
    found = repository(tmp_path, "cats/run.py")
    assert found.name_of(tmp_path / "cats" / "deep" / "down.py") == "cats"
    assert found.name_of(tmp_path / "new" / "run.py") == "new"
    assert found.name_of(tmp_path / "gone") == "gone"
    assert found.name_of(tmp_path) is None
    assert found.name_of(Path("/elsewhere/run.py")) is None


# versions


def test_files_in_the_folder_itself_are_version_1(tmp_path: Path) -> None:
    assert read(repository(tmp_path, "cats/run.py"), "cats") == {"1": "cats"}


@pytest.mark.parametrize(
    ("settings", "served", "default"),
    [
        ("", ["1", "3", "10"], None),
        ("versions: all", ["1", "3", "10"], None),
        ("versions: latest", ["10"], None),
        ("versions: {latest: 2}", ["3", "10"], None),
        ("versions: {latest: 9}", ["1", "3", "10"], None),
        ("versions: [3, 1]", ["1", "3"], None),
        ("default_version: 3", ["1", "3", "10"], "3"),
        ("default_version: latest", ["1", "3", "10"], None),
    ],
)
def test_versions_are_chosen(tmp_path: Path, settings: str, served: list[str], default: str | None) -> None:
    found = repository(tmp_path, "cats/1/run.py", "cats/3/run.py", "cats/10/run.py", cats=settings)
    assert list(found.read("cats").versions) == served
    assert found.read("cats").default_version == default


def test_one_bad_version_is_told_and_the_others_are_there(tmp_path: Path) -> None:
    found = repository(tmp_path, "cats/1/run.py", cats="versions: [1, 2, 4]")
    write(tmp_path, **{"cats/2/run.py": "def (", "cats/3/notes.txt": ""})
    versions = read(found, "cats")
    assert versions["1"] == "cats/1"
    assert "run.py:1: SyntaxError" in versions["2"]
    assert versions["4"] == "`versions` asks for 4, and there is no such folder; there are 1, 2, 3"


@pytest.mark.parametrize(
    ("paths", "settings", "sentence"),
    [
        (["cats/run.py", "cats/1/run.py"], "", "run.py lies beside version folders; move it into one of them"),
        (["cats/1/run.py", "cats/01/run.py"], "", "01 and 1 are the same version; remove one of them"),
        ([], "replicas: 2", "a model file such as model.onnx, or either into a version folder such as 1/"),
        (["cats/1/run.py"], "default_version: 7", "`default_version` is 7, which is not served; there are 1"),
        (["cats/1/run.py"], "replica: 2", "there is no key `replica`; did you mean `replicas`?"),
    ],
)
def test_a_model_that_is_wrong_as_a_whole_says_so(
    tmp_path: Path, paths: list[str], settings: str, sentence: str
) -> None:
    found = repository(tmp_path, "dogs/run.py", *paths, cats=settings)
    assert found.names() == ["cats", "dogs"]
    with pytest.raises(ProjectError) as caught:
        found.read("cats")
    assert str(tmp_path / "cats") in caught.value.message
    assert caught.value.message.endswith(sentence)
    assert read(found, "dogs") == {"1": "dogs"}


def test_a_folder_that_goes_is_gone(tmp_path: Path) -> None:
    found = repository(tmp_path, "cats/run.py", "dogs/run.py")
    (tmp_path / "cats" / "run.py").unlink()
    assert found.names() == ["dogs"]
    with pytest.raises(ProjectError, match="no model here"):
        found.read("cats")


# geartrain.yaml


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", Settings()),
        ("# nothing\n", Settings()),
        ("replicas: 2\nslots: 4\nqueue: 0\n", Settings(replicas=2, slots=4, queue=0)),
        ("timeout: 90", Settings(timeout=90.0)),
        ("priority_levels: 3", Settings(priorities=Priorities((Level(), Level(), Level()), 3))),
        ("priority_levels: 3\ndefault_priority: 2", Settings(priorities=Priorities((Level(), Level(), Level()), 2))),
        (
            "priority_levels:\n- timeout: 2s\n-\n- {max_queue: 7, timeout: 1.5m, on_timeout: continue}\n",
            Settings(priorities=Priorities((Level(timeout=2.0), Level(), Level(7, 90.0, "continue")), 3)),
        ),
        ("priority_levels: [{timeout: 0, max_queue: 0}]", Settings(priorities=Priorities((Level(max_queue=0),), 1))),
        ("timeout: 0", Settings(timeout=0.0)),
        ("timeout: 2.5", Settings(timeout=2.5)),
        ("timeout: 90s", Settings(timeout=90.0)),
        ("timeout: 500ms", Settings(timeout=0.5)),
        ("timeout: 1.5 h", Settings(timeout=5400.0)),
        ("environment:\n  - A=1\n  - B=x=y\n", Settings(environment={"A": "1", "B": "x=y"})),
        ("environment:\n  A: 1\n", Settings(environment={"A": "1"})),
        ("versions: [2, 1, 2]", Settings(versions=(1, 2))),
        ("replicas:\n", Settings()),
    ],
)
def test_settings(tmp_path: Path, text: str, settings: Settings) -> None:
    (tmp_path / "geartrain.yaml").write_text(text)
    assert read_settings(tmp_path) == settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("replicas: 0", "`replicas` is the number 0; write a whole number of at least 1"),
        ("replicas: two", "`replicas` is the text 'two'; write a whole number of at least 1"),
        ("slots: true", "`slots` is true; write a whole number of at least 1"),
        ("slots: 1.5", "`slots` is the number 1.5; write a whole number of at least 1"),
        ("queue: -1", "`queue` is the number -1; write a whole number, 0 for no queue"),
        ("priority_levels: 0", "`priority_levels` has to be a number of levels from 1 to 100, or a list with keys"),
        ("priority_levels: 1000000000000", "`priority_levels` has to be a number of levels from 1 to 100"),
        ("priority_levels: true", "`priority_levels` has to be a number of levels from 1 to 100"),
        ("priority_levels: []", "`priority_levels` has to be a number of levels from 1 to 100"),
        ("priority_levels: [2s]", "`priority_levels[1]` is '2s'; write keys such as `timeout: 2s`, or leave it empty"),
        ("priority_levels: [{}, {time: 1}]", "there is no key `priority_levels[2].time`; there are max_queue, timeout"),
        ("priority_levels: [{max_queue: -1}]", "`priority_levels[1].max_queue` is -1; write a whole number, 0 for"),
        ("priority_levels: [{timeout: soon}]", "`priority_levels[1].timeout` is 'soon'; write seconds, or a time such"),
        (
            "priority_levels: [{on_timeout: wait}]",
            "`priority_levels[1].on_timeout` is 'wait'; write reject or continue",
        ),
        ("priority_levels: [{on_timeout: continue}]", "the level has no timeout; write `timeout`, too"),
        ("default_priority: 2", "`default_priority` is 2, and there are no levels; write `priority_levels`, too"),
        ("priority_levels: 2\ndefault_priority: 3", "`default_priority` is 3; write a level from 1, the highest, to 2"),
        ("default_priority: 0", "`default_priority` is the number 0; write the number of a level, 1 for the highest"),
        ("timeout: -1", "`timeout` is the number -1; write seconds, or a time such as 90s, 5m or 1h; 0 for no limit"),
        ("timeout: soon", "`timeout` is the text 'soon'; write seconds, or a time such as 90s"),
        ("timeout: true", "`timeout` is true; write seconds"),
        ("timeout: .inf", "`timeout` is the number inf; write seconds"),
        ("timeout: [1]", "`timeout` is a list; write seconds"),
        ("versions: newest", "`versions` is the text 'newest'; write `all`, `latest`, `latest: 2` indented below it"),
        ("versions: []", "`versions` is a list; write"),
        ("versions: {latest: 0}", "`versions` is a group of keys; write"),
        ("versions: [one]", "`versions` is a list; write"),
        ("default_version: first", "`default_version` is the text 'first'; write `latest`, or the number of a version"),
        ("environment: 3", "`environment` is the number 3; write a list of `KEY=VALUE` lines"),
        ("slot: 3", "there is no key `slot`; did you mean `slots`?"),
        ("gpu: 3", "there is no key `gpu`; there are versions, default_version, replicas"),
        ("- replicas", "expected keys such as `replicas: 2`, found a list"),
        ("replicas: [", "not valid YAML"),
    ],
)
def test_wrong_settings_name_the_file_the_key_and_the_fix(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "geartrain.yaml"
    path.write_text(text)
    with pytest.raises(ProjectError) as caught:
        read_settings(tmp_path)
    assert caught.value.message.startswith(str(path))
    assert sentence in caught.value.message


def test_settings_are_those_of_the_source(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "run.py": RUNNER,
            "cog.yaml": "run: run.py:Runner\nconcurrency: {max: 2}\nenvironment: [A=cog, B=cog]\n",
            "geartrain.yaml": "replicas: 3\nslots: 4\nqueue: 5\ntimeout: 2m\npriority_levels: 1\n"
            "environment: [B=own, C=own]\n",
        },
    )
    source = find_model(str(tmp_path), environ={})
    assert (source.replicas, source.max_concurrency, source.queue, source.timeout) == (3, 4, 5, 120.0)
    assert source.priorities == Priorities((Level(),), 1)
    assert source.environment == {"A": "cog", "B": "own", "C": "own"}
    assert find_model(str(tmp_path), environ={"COG_MAX_CONCURRENCY": "7"}).max_concurrency == 7


def test_settings_of_a_model_hold_for_each_of_its_versions(tmp_path: Path) -> None:
    found = repository(tmp_path, "cats/1/run.py", "cats/2/run.py", cats="replicas: 2")
    replicas = [getattr(source, "replicas", None) for source in found.read("cats").versions.values()]
    assert replicas == [2, 2]


def test_a_symlink_to_a_model_is_a_model(tmp_path: Path) -> None:
    real = write(tmp_path / "real", **{"run.py": RUNNER})
    models = tmp_path / "models"
    models.mkdir()
    (models / "cats").symlink_to(real, target_is_directory=True)
    assert repository(models).names() == ["cats"]


def test_names_may_be_any(tmp_path: Path) -> None:
    names = ["with space", "ünï", "a.b", "50%"]
    assert repository(tmp_path, *(f"{name}/run.py" for name in names)).names() == sorted(names)


def test_the_inputs_of_a_warm_up_are_json(tmp_path: Path) -> None:
    write(tmp_path, **{"geartrain.yaml": "warmup:\n  - text: hi\n    size: [1, 2]\n  - {}\n"})
    assert read_settings(tmp_path).warmup == (b'{"text":"hi","size":[1,2]}', b"{}")


def test_examples_are_inputs(tmp_path: Path) -> None:
    write(tmp_path, **{"geartrain.yaml": "examples:\n  - text: hi\n"})
    assert read_settings(tmp_path).examples == (b'{"text":"hi"}',)


@pytest.mark.parametrize("text", ["warmup: yes", "warmup: [3]", "warmup: {text: hi}", "warmup: [{1: a}]"])
def test_a_warm_up_that_is_no_list_of_inputs_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, **{"geartrain.yaml": text})
    with pytest.raises(ProjectError, match=r"`warmup` is .*; write a list of inputs, such as `- text: hello`"):
        read_settings(tmp_path)
