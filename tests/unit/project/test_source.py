"""Finding a model on disk, and reading its cog.yaml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from geartrain.project.config import CogConfig, read_config
from geartrain.project.precheck import precheck
from geartrain.project.source import ModelSource, ProjectError, find_model
from geartrain.project.variables import Variables

RUNNER = "class Runner:\n    def run(self) -> str:\n        return 'x'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder called `pets`, which is also the current one."""
    path = tmp_path / "pets"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def write(folder: Path, cog_yaml: str | None = None, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    if cog_yaml is not None:
        (folder / "cog.yaml").write_text(cog_yaml)
    return folder


def find(target: str | None = None, **environ: str) -> ModelSource:
    return find_model(target, environ=environ)


def find_training(target: str | None = None, **environ: str) -> ModelSource:
    return find_model(target, environ=environ, mode="train")


# where the training is


TRAIN = "def train(n: int) -> str: ..."


def test_training_of_a_model_is_a_source_of_its_own(folder: Path) -> None:
    text = "train: train.py:train\nconcurrency: {max: 4}\nenvironment: [A=1]"
    source = find_model(str(write(folder, text, run=RUNNER, train=TRAIN)), environ={})
    training = source.training()
    assert training == find_training()
    assert training == ModelSource(
        name="pets",
        root=folder,
        runner="train.py:train",
        variables=Variables(max_concurrency=4),
        environment={"A": "1"},
        mode="train",
    )
    assert training.max_concurrency == 1
    assert training.training() is None


def test_model_without_a_training(folder: Path) -> None:
    write(folder, run=RUNNER, train=TRAIN)  # a file of that name means nothing
    assert find().training() is None
    with pytest.raises(ProjectError, match=r"no training here; write a line such as `train: train.py:train` in its"):
        find_training()


def test_training_needs_no_runner(folder: Path) -> None:
    write(folder, "train: train.py:train", train=TRAIN)
    assert find_training().runner == "train.py:train"
    assert find_training("../pets").runner == "train.py:train"


def test_training_that_is_named_comes_first(folder: Path) -> None:
    write(folder, "train: train.py:train", train=TRAIN, learn=TRAIN)
    assert find_training("learn.py").runner == "learn.py"
    assert find_training("learn.py:train").runner == "learn.py:train"
    assert find_training(COG_TRAIN_TYPE_STUB="learn.py:train").runner == "learn.py:train"
    assert find_training(str(folder), COG_TRAIN_TYPE_STUB="learn.py:train").runner == "learn.py:train"
    assert find_training("train.py", COG_TRAIN_TYPE_STUB="learn.py:train").runner == "train.py"


def test_training_that_cannot_load_is_named(folder: Path) -> None:
    write(folder, "train: train.py:train", train="def fit(): ...")
    with pytest.raises(ProjectError, match=r"^train.py has no 'train'; it defines fit$"):
        precheck(find_training())
    with pytest.raises(ProjectError, match=r"^train.py has no class Trainer; it defines fit. Write a class Trainer "):
        precheck(find_training("train.py"))
    write(folder, train="class Runner:\n    def train(self) -> str: ...")
    precheck(find_training("train.py"))


# where the runner is


def test_run_py_is_found_without_a_cog_yaml(folder: Path) -> None:
    write(folder, run=RUNNER)
    assert find() == ModelSource(name="pets", root=folder, runner="run.py")


def test_predict_py_is_found_after_run_py(folder: Path) -> None:
    write(folder, predict=RUNNER)
    assert find().runner == "predict.py"
    write(folder, run=RUNNER)
    assert find().runner == "run.py"


def test_folder_is_a_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, run=RUNNER)
    monkeypatch.chdir(folder.parent)
    assert find("pets") == find(str(folder)) == ModelSource(name="pets", root=folder, runner="run.py")


@pytest.mark.parametrize("target", ["run.py", "./run.py", "../pets/run.py"])
def test_file_is_a_target(folder: Path, target: str) -> None:
    write(folder, run=RUNNER)
    assert find(target) == ModelSource(name="pets", root=folder, runner="run.py")


@pytest.mark.parametrize("target", ["cats.py:Tom", "../pets/cats.py:Tom"])
def test_file_and_class_are_a_target(folder: Path, target: str) -> None:
    write(folder, cats=RUNNER)
    assert find(target) == ModelSource(name="pets", root=folder, runner="cats.py:Tom")


def test_module_and_name_are_a_target(folder: Path) -> None:
    assert find("zoo.cats:Tom") == ModelSource(name="pets", root=folder, runner="zoo.cats:Tom")


def test_cog_yaml_beside_a_file_target_still_counts(folder: Path) -> None:
    write(folder, "run: other.py:X\nconcurrency: {max: 3}\nenvironment: [A=1]", cats=RUNNER)
    source = find("cats.py")
    assert (source.runner, source.max_concurrency, source.environment) == ("cats.py", 3, {"A": "1"})


@pytest.mark.parametrize("key", ["run", "predict"])
def test_cog_yaml_names_the_runner(folder: Path, key: str) -> None:
    write(folder, f"{key}: cats.py:Tom", cats=RUNNER, run=RUNNER)
    assert find().runner == "cats.py:Tom"


def test_cog_yaml_names_a_runner_in_a_folder_below(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "cats.py").write_text(RUNNER)
    write(folder, "run: src/cats.py:Tom")
    source = find()
    assert (source.root, source.runner) == (folder, "src/cats.py:Tom")


def test_cog_yaml_without_a_runner_leaves_the_usual_files(folder: Path) -> None:
    write(folder, "build: {gpu: true}\nimage: r8.im/someone/pets", run=RUNNER)
    assert find().runner == "run.py"


def test_cog_yaml_names_the_training(folder: Path) -> None:
    write(folder, "train: train.py:train", run=RUNNER, train="def train(n: int) -> str: ...")
    assert find().train == "train.py:train"


def test_type_stubs_of_cogs_containers_come_before_cog_yaml(folder: Path) -> None:
    write(folder, "run: run.py:Runner\nenvironment: [A=1]", run=RUNNER, cats=RUNNER, learn=RUNNER)
    source = find(COG_PREDICT_TYPE_STUB="cats.py:Tom", COG_TRAIN_TYPE_STUB="learn.py:train")
    assert (source.runner, source.train, source.environment) == ("cats.py:Tom", "learn.py:train", {"A": "1"})


def test_target_comes_before_the_type_stubs(folder: Path) -> None:
    write(folder, run=RUNNER, cats=RUNNER)
    assert find("run.py", COG_PREDICT_TYPE_STUB="cats.py:Tom").runner == "run.py"


def test_a11_type_stub_holds_for_the_current_folder_by_name(folder: Path, tmp_path: Path) -> None:
    write(folder, run=RUNNER, cats=RUNNER)
    assert find(".", COG_PREDICT_TYPE_STUB="cats.py:Tom").runner == "cats.py:Tom"
    other = tmp_path / "other"
    other.mkdir()
    write(other, run=RUNNER)
    assert find(str(other), COG_PREDICT_TYPE_STUB="cats.py:Tom").runner == "run.py"


def test_empty_type_stub_is_none(folder: Path) -> None:
    write(folder, run=RUNNER)
    assert find(COG_PREDICT_TYPE_STUB="").runner == "run.py"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "nowhere: no such file or folder in "),
        ("nowhere.py", "nowhere.py: no such file in "),
        ("/nowhere/at/all", "/nowhere/at/all: no such file or folder"),
        ("nowhere.py:Runner", "nowhere.py: no such file in "),
        ("notes.md", "notes.md is no Python file, and no model file that is known (.onnx, "),
        ("notes.md:Runner", "notes.md:Runner: notes.md is no Python file, and has no Runner; give notes.md alone"),
        ("run.py:a b", "run.py:a b: `a b` is no name of a class or function; write for example run.py:Runner"),
        ("run.py:", "run.py:: `` is no name of a class or function; write for example run.py:Runner"),
        ("../pets:Runner", "../pets:Runner: ../pets is a folder; name the file too, such as ../pets/run.py:Runner"),
        ("", "the model's name is empty; give a folder or a file such as run.py:Runner"),
        ("a\0b", "the model's name is empty; give a folder or a file such as run.py:Runner"),
    ],
)
def test_wrong_target_is_named(folder: Path, target: str, said: str) -> None:
    write(folder, run=RUNNER)
    (folder / "notes.md").write_text("no model")
    with pytest.raises(ProjectError) as caught:
        find(target)
    assert caught.value.message.startswith(said)
    assert str(caught.value) == caught.value.message


def test_folder_without_a_model_says_what_a_model_is(folder: Path) -> None:
    with pytest.raises(ProjectError, match=r"no model here; a model is a run.py with a class Runner, a cog.yaml"):
        find()


@pytest.mark.parametrize(
    ("cog_yaml", "environ", "said"),
    [
        ("run: cats.py:Tom", {}, "cog.yaml: `run` names cats.py, and there is no such file in "),
        ("train: learn.py", {}, "cog.yaml: `train` names learn.py, and there is no such file in "),
        ("run: cats", {}, "cog.yaml: `run` is `cats`; write a file and a class, such as run.py:Runner"),
        ("run: 'run.py:a-b'", {}, "cog.yaml: `run` is `run.py:a-b`; write a file and a class"),
        (None, {"COG_PREDICT_TYPE_STUB": "cats.py:Tom"}, "COG_PREDICT_TYPE_STUB names cats.py, and there is no such"),
        (None, {"COG_TRAIN_TYPE_STUB": "learn.py:t"}, "COG_TRAIN_TYPE_STUB names learn.py, and there is no such"),
    ],
)
def test_reference_to_nothing_says_where_it_is_written(
    folder: Path, cog_yaml: str | None, environ: dict[str, str], said: str
) -> None:
    write(folder, cog_yaml, run=RUNNER)
    with pytest.raises(ProjectError) as caught:
        find(**environ)
    assert said in caught.value.message


# concurrency


def test_variable_comes_before_cog_yaml_for_concurrency(folder: Path) -> None:
    write(folder, "concurrency: {max: 3}", run=RUNNER)
    assert find().max_concurrency == 3
    assert find(COG_MAX_CONCURRENCY=" 8 ").max_concurrency == 8


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "٣", "9" * 5000])
def test_useless_concurrency_variable_is_passed_over_with_a_warning(folder: Path, text: str) -> None:
    write(folder, run=RUNNER)
    source = find(COG_MAX_CONCURRENCY=text)
    assert source.max_concurrency is None
    assert source.warnings == (f"COG_MAX_CONCURRENCY={text} is passed over: it is not a whole number of at least 1",)


def test_empty_concurrency_variable_is_none(folder: Path) -> None:
    write(folder, run=RUNNER)
    assert find(COG_MAX_CONCURRENCY="") == find()


# cog.yaml


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", CogConfig()),
        ("# nothing\n", CogConfig()),
        ("build: {python_version: '3.11', run: [x]}\nimage: x\nsome: {other: key}", CogConfig()),
        ("run: ' a.py:B '", CogConfig(run="a.py:B")),
        ("run: a.py:B\npredict: a.py:B", CogConfig(run="a.py:B")),
        ("run:\ntrain: ~\nconcurrency:\nenvironment:", CogConfig()),
        ("concurrency: {default_target: 2}", CogConfig()),
        ("environment:\n- A=1\n- B=x=y\n- C=", CogConfig(environment={"A": "1", "B": "x=y", "C": ""})),
        ("environment:\n  A: one\n  B: 2\n  C: 'yes'", CogConfig(environment={"A": "one", "B": "2", "C": "yes"})),
    ],
)
def test_cog_yaml_is_read(tmp_path: Path, text: str, config: CogConfig) -> None:
    assert read_config(write(tmp_path, text)) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", ": expected keys such as `run: run.py:Runner`, found a list"),
        ("just words", ": expected keys such as `run: run.py:Runner`, found the text 'just words'"),
        ("run: 5", ": `run` is the number 5; write a file and a class, such as `run: run.py:Runner`"),
        ("run: ''", ": `run` is empty text; write a file and a class"),
        ("predict: [a]", ": `predict` is a list; write a file and a class, such as `predict: run.py:Runner`"),
        ("train: {a: 1}", ": `train` is a group of keys; write"),
        ("run: a.py:A\npredict: b.py:B", ": `run` and `predict` name different runners; keep `run` alone"),
        ("concurrency: 4", ": `concurrency` is the number 4; write a `max:` line indented below it"),
        ("concurrency: {max: 0}", ": `concurrency.max` is the number 0; write a whole number of at least 1"),
        ("concurrency: {max: '4'}", ": `concurrency.max` is the text '4'; write a whole number"),
        ("concurrency: {max: 1.5}", ": `concurrency.max` is the number 1.5; write a whole number"),
        ("concurrency: {max: true}", ": `concurrency.max` is true; write a whole number"),
        ("environment: A=1", ": `environment` is the text 'A=1'; write a list of `KEY=VALUE` lines"),
        ("environment: [A]", ": `environment[0]` is `A`, without a value; write `- A=VALUE`"),
        ("environment: [B=1, 5]", ": `environment[1]` is the number 5; write `- KEY=VALUE`"),
        ("environment: ['=1']", ": `environment[0]` has an unusable name ''; write `KEY=VALUE`"),
        ("environment: ['A =1']", ": `environment[0]` has an unusable name 'A '; write `KEY=VALUE`"),
        ('environment: ["A=\\0"]', ": `environment[0]` holds a NUL character, which no environment can carry"),
        ("environment: {A: yes}", ": `environment.A` is true; put the value in quotes"),
        ("environment: {A: 1.10}", ": `environment.A` is the number 1.1; put the value in quotes"),
        ("environment: {A: }", ": `environment.A` is empty; put the value in quotes"),
        ("environment: {A: 2020-01-01}", ": `environment.A` is a date; put the value in quotes"),
        ("run: [a", ":1: not valid YAML: "),
        ("run: x\n  y: z", ":2: not valid YAML: mapping values are not allowed"),
        ("when: 2020-13-45", ": not valid YAML: month must be in"),
        ("a: \x01", ": not valid YAML: "),
    ],
)
def test_wrong_cog_yaml_names_the_file_the_key_and_the_fix(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProjectError) as caught:
        read_config(write(tmp_path, text))
    assert caught.value.message.startswith(f"{tmp_path / 'cog.yaml'}{said}")


def test_cog_yaml_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cog.yaml").write_bytes(b"run: \xff")
    with pytest.raises(ProjectError, match=r"cog.yaml: the file is not UTF-8 text \(byte 5\); save it as UTF-8"):
        read_config(tmp_path)


def test_cog_yaml_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "cog.yaml").mkdir()
    with pytest.raises(ProjectError, match=r"cog.yaml: Is a directory"):
        read_config(tmp_path)


def test_yaml_is_imported_for_a_cog_yaml_only(folder: Path) -> None:
    write(folder, run=RUNNER)
    script = "import sys; from geartrain.project.source import find_model; find_model(); print('yaml' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=folder)
    assert said.stdout == "False\n"


# the look before the start


@pytest.mark.parametrize(
    "text",
    [
        RUNNER,
        "async def run(n: int) -> str: ...",
        "class Predictor: ...",
        "if True:\n    class Runner: ...",
        "from zoo import Runner",
        "from zoo import Cat as Runner",
        "import Runner",
        "from zoo import *",
        "Runner = type('Runner', (), {})",
        "def __getattr__(name): ...",
        "globals()['Runner'] = 5",
        "exec('class Runner: ...')",
        "import sys\nsys.modules[__name__] = 5",
        "def f():\n    global Runner\n    Runner = 5\nf()",
        "# coding: latin-1\nclass Runner: 'ä'",
        r"x = '\d'; import sys as Runner",
    ],
)
def test_what_may_load_passes(folder: Path, text: str) -> None:
    (folder / "run.py").write_bytes(text.encode("latin-1"))
    precheck(find())


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        ("x = 1\ndef run(self) -> str\n", "run.py", "run.py:2: SyntaxError: expected ':': def run(self) -> str"),
        ("if x:\ny = 1\n", "run.py", "run.py:2: IndentationError: expected an indented block after 'if'"),
        ("x = (\n", "run.py", "run.py:1: SyntaxError: '(' was never closed: x = ("),
        ("x = 'a\0b'", "run.py", "run.py:1: "),
        ("x = '\xff'", "run.py", "run.py:1: SyntaxError: "),
        (RUNNER, "run.py:Nope", "run.py has no 'Nope'; it defines Runner"),
        (
            "class Cat: ...\ndef feed(): ...\ndef _x(): ...",
            "run.py",
            "run.py has no class Runner; it defines Cat, feed. Write a class Runner with run(), or a function run()",
        ),
        ("x = 1", "run.py", "run.py has no class Runner; it defines no class and no function"),
    ],
)
def test_what_cannot_load_is_named_with_file_and_line(folder: Path, text: str, target: str, said: str) -> None:
    (folder / "run.py").write_bytes(text.encode("latin-1"))
    with pytest.raises(ProjectError) as caught:
        precheck(find(target))
    assert caught.value.message.startswith(said)


def test_module_reference_is_left_to_the_worker(folder: Path) -> None:
    precheck(find("zoo.cats:Tom"))
