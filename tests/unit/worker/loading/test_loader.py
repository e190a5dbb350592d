"""Loading a model: what a reference may name, and what a person is told when it cannot be loaded."""

from __future__ import annotations

import asyncio
import pathlib
import pickle
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from geartrain.worker.loading import cog_alias
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load

Write = Callable[..., pathlib.Path]


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """Take back what loading leaves in this process."""
    path, modules, finders = list(sys.path), set(sys.modules), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def write_file(text: str, name: str = "run.py") -> pathlib.Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


def loaded(write: Write, text: str, ref: str = "run.py", mode: Literal["predict", "train"] = "predict") -> LoadedRunner:
    root = write(text, ref.partition(":")[0]).parent
    return load(ref, root, mode)


def complaint(write: Write, text: str, ref: str = "run.py", mode: Literal["predict", "train"] = "predict") -> str:
    with pytest.raises(LoadError) as raised:
        loaded(write, text, ref, mode)
    return str(raised.value)


RUNNER = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, text: str) -> str:
            return text.upper()
"""

# What a reference may name


@pytest.mark.parametrize("ref", ["run.py", "run.py:Runner"])
def test_a_class(write: Write, ref: str) -> None:
    runner = loaded(write, RUNNER, ref)
    assert runner.run(text="a") == "A"
    assert type(runner.instance).__name__ == "Runner"
    assert [field.name for field in runner.signature.inputs] == ["text"]
    assert (runner.setup, runner.setup_takes, runner.healthcheck) == (None, frozenset(), None)
    assert (runner.is_async, runner.is_generator, runner.max_concurrency) == (False, False, None)


@pytest.mark.parametrize("base", ["", "(BasePredictor)", "(BaseRunner)"])
@pytest.mark.parametrize("name", ["Runner", "Predictor"])
@pytest.mark.parametrize("method", ["run", "predict"])
def test_older_and_newer_names(write: Write, base: str, name: str, method: str) -> None:
    text = f"""
        from geartrain import BasePredictor, BaseRunner

        class {name}{base}:
            def {method}(self, x: int) -> int:
                return x + 1
    """
    assert loaded(write, text).run(x=1) == 2


def test_runner_comes_before_predictor(write: Write) -> None:
    text = """
        class Predictor:
            def run(self) -> str:
                return "predictor"

        class Runner:
            def run(self) -> str:
                return "runner"
    """
    assert loaded(write, text).run() == "runner"
    assert loaded(write, text, "run.py:Predictor").run() == "predictor"


def test_an_imported_base_class_called_runner_is_not_the_model(write: Write) -> None:
    text = """
        from geartrain import BaseRunner as Runner

        class Predictor(Runner):
            def predict(self) -> str:
                return "predictor"
    """
    assert loaded(write, text).run() == "predictor"


@pytest.mark.parametrize("name", ["run", "predict"])
def test_a_function(write: Write, name: str) -> None:
    runner = loaded(write, f"def {name}(x: int = 2) -> int:\n    return x * 2")
    assert runner.run(x=3) == 6
    assert runner.instance is runner.setup is runner.healthcheck is None


def test_a_named_function(write: Write) -> None:
    assert loaded(write, "def work(x: int) -> int:\n    return x", "run.py:work").run(x=1) == 1


def test_an_object_that_can_be_called(write: Write) -> None:
    text = """
        class Model:
            def __call__(self, x: int) -> int:
                return x + 1

        model = Model()
    """
    assert loaded(write, text, "run.py:model").run(x=1) == 2


def test_a_module_of_a_package(write: Write, tmp_path: pathlib.Path) -> None:
    write("", "pack/__init__.py")
    write("from pack.helper import double\ndef work(x: int) -> int:\n    return double(x)", "pack/model.py")
    write("def double(x):\n    return 2 * x", "pack/helper.py")
    assert load("pack.model:work", tmp_path).run(x=2) == 4


def test_a_file_in_a_folder_below(write: Write, tmp_path: pathlib.Path) -> None:
    write(RUNNER, "src/my-model.py")
    assert load("src/my-model.py:Runner", tmp_path).run(text="a") == "A"


def test_the_models_folder_comes_first_on_the_path(write: Write, tmp_path: pathlib.Path) -> None:
    write("VALUE = 5", "gt_helper_of_model.py")
    write("from gt_helper_of_model import VALUE\ndef run() -> int:\n    return VALUE")
    assert load("run.py", tmp_path).run() == 5
    assert sys.path[0] == str(tmp_path.resolve())
    load("run.py", tmp_path)
    assert sys.path.count(str(tmp_path.resolve())) == 1


def test_a_file_with_the_name_of_a_library(write: Write) -> None:
    assert loaded(write, RUNNER, "json.py").run(text="a") == "A"
    import json

    assert json.loads("1") == 1
    assert sys.modules["geartrain_model_json"].__file__


def test_pickle_and_dataclasses_find_the_module(write: Write) -> None:
    text = """
        from __future__ import annotations
        import dataclasses
        from geartrain import BaseModel

        @dataclasses.dataclass
        class Point:
            x: int

        class Result(BaseModel):
            point: Point

        class Runner:
            def run(self, x: int) -> Result:
                return Result(Point(x))
    """
    runner = loaded(write, text)
    result = runner.run(x=1)
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own
    assert runner.signature.output.type.fields[0].type.title == "Point"


def test_tracebacks_show_the_models_lines(write: Write) -> None:
    runner = loaded(write, "def run() -> str:\n    raise ValueError('boom')  # marked")
    with pytest.raises(ValueError, match="boom") as raised:
        runner.run()
    text = "".join(traceback.format_exception(raised.value))
    assert "raise ValueError('boom')  # marked" in text
    assert "run.py" in text


def test_async_models(write: Write) -> None:
    text = """
        from geartrain import BaseRunner, concurrent

        class Runner(BaseRunner):
            async def setup(self, weights=None):
                self.weights = weights

            @concurrent(max=8)
            async def run(self, x: int) -> int:
                return x + 1

            async def healthcheck(self):
                return False
    """
    runner = loaded(write, text)
    assert runner.is_async
    assert runner.max_concurrency == 8
    assert runner.setup_takes == {"weights"}
    assert runner.setup is not None
    assert runner.healthcheck is not None
    asyncio.run(runner.setup(weights="w"))
    assert runner.instance.weights == "w"
    assert asyncio.run(runner.run(x=1)) == 2


def test_generators(write: Write) -> None:
    text = """
        from typing import Iterator
        from geartrain import streaming

        class Runner:
            @streaming
            def run(self, n: int) -> Iterator[int]:
                yield from range(n)
    """
    runner = loaded(write, text)
    assert runner.is_generator
    assert runner.signature.streaming
    assert runner.signature.output.mode == "iterator"
    assert list(runner.run(n=3)) == [0, 1, 2]


def test_setup_is_not_called(write: Write) -> None:
    text = """
        class Runner:
            ready = False

            def setup(self):
                self.ready = True

            def run(self) -> bool:
                return self.ready
    """
    runner = loaded(write, text)
    assert runner.run() is False
    assert runner.setup is not None
    runner.setup()
    assert runner.run() is True
    assert not runner.setup_takes


def test_a_healthcheck_of_the_base_class_is_none(write: Write) -> None:
    assert loaded(write, RUNNER).healthcheck is None


def test_cog_models(write: Write) -> None:
    cog_alias.install()
    text = """
        import cog
        from cog import BasePredictor, Input, Path

        class Predictor(BasePredictor):
            def predict(self, x: int = Input(default=1, ge=0), p: Path = Input(default=None)) -> cog.Path:
                return p
    """
    runner = loaded(write, text, "predict.py")
    assert [(field.name, field.required) for field in runner.signature.inputs] == [("x", False), ("p", True)]


# Training


@pytest.mark.parametrize(
    "text",
    [
        "def train(n: int) -> str:\n    return 'trained'",
        "class Runner:\n    def train(self, n: int) -> str:\n        return 'trained'",
        "class Trainer:\n    def train(self, n: int) -> str:\n        return 'trained'\nclass Runner: ...",
    ],
)
def test_train_mode(write: Write, text: str) -> None:
    assert loaded(write, text, mode="train").run(n=1) == "trained"


def test_train_mode_of_a_file_without_a_training(write: Write) -> None:
    assert complaint(write, "def fit() -> str: ...", mode="train") == (
        "run.py has no class Trainer and no one function train(); it defines fit."
        " Write a class Trainer with a method train(), or name the class: run.py:Name"
    )


def test_train_mode_of_a_class_without_train(write: Write) -> None:
    assert complaint(write, RUNNER, "run.py:Runner", "train") == (
        "run.py:4: the class Runner has no train(): write the method train()"
    )


# What a person is told


def test_a_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LoadError, match=rf"^there is no file nope\.py in {re.escape(str(tmp_path.resolve()))}$"):
        load("nope.py:Runner", tmp_path)


def test_a_missing_module(tmp_path: pathlib.Path) -> None:
    with pytest.raises(LoadError, match=r"^nope\.mod: ModuleNotFoundError: No module named 'nope'"):
        load("nope.mod:Runner", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def run(:\n    pass", "run.py:1: SyntaxError: invalid syntax: def run(:"),
        ("x = 1\n  y = 2", "run.py:2: IndentationError: unexpected indent: y = 2"),
        ("\n\nx = (1", "run.py:3: SyntaxError: '(' was never closed: x = (1"),
        ("eval('1 +')", "run.py:1: SyntaxError: invalid syntax (<string>, line 1)"),
        ("\nraise ImportError('cannot import this')", "run.py:2: ImportError: cannot import this"),
        (
            "import os\nimport gt_not_there",
            "run.py:2: ModuleNotFoundError: No module named 'gt_not_there' (it is not installed in the environment of "
            + sys.executable,
        ),
        (
            "try:\n    import gt_a\nexcept ImportError:\n    import gt_b",
            "run.py:4: ModuleNotFoundError: No module named 'gt_b' (while handling ModuleNotFoundError: No module "
            "named 'gt_a') (it is not installed in the environment of " + sys.executable,
        ),
        ("import sys\nsys.exit(3)", "run.py:2: SystemExit: 3"),
        ("raise ValueError", "run.py:1: ValueError"),
        ("def f():\n    1 / 0\n\nf()", "run.py:2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')", "run.py:2: JSONDecodeError: Expecting property name"),
        ("", "run.py has no class Runner and no one function run() or predict(); it defines no class and no function."),
        (
            "class Model:\n    def work(self) -> str: ...\ndef helper(): ...",
            "run.py has no class Runner and no one function run() or predict(); it defines Model, helper. Write a",
        ),
        ("def run() -> str: ...\ndef predict() -> str: ...", "run.py has no class Runner and no one function"),
        ("class Runner: ...", "run.py:1: the class Runner has no run() or predict(): write the method run()"),
        (
            "class Runner:\n    def run(self) -> str: ...\n    def predict(self) -> str: ...",
            "run.py:1: the class Runner has both run() and predict(): keep one of them",
        ),
        (
            "class Runner:\n    def __init__(self, path): ...\n    def run(self) -> str: ...",
            "run.py:1: TypeError: Runner.__init__() missing 1 required positional argument: 'path'",
        ),
        (
            "class Runner:\n    def __init__(self):\n        raise OSError('no disk')\n    def run(self) -> str: ...",
            "run.py:3: OSError: no disk",
        ),
        (
            "class Runner:\n    def setup(self, path): ...\n    def run(self) -> str: ...",
            "run.py:2: setup() has the parameter 'path', and nothing but weights and device can be given to it",
        ),
        (
            "class Runner:\n    def run(self, x) -> str: ...",
            "run.py:2: Runner.run(): the parameter 'x' has no annotation: give it a type, such as x: str",
        ),
        (
            "def run(x: set[int]) -> str: ...",
            "run.py:1: run(): the parameter 'x' is annotated set[int], which is not supported: use list[...] instead",
        ),
        (
            "from geartrain import concurrent\nclass Runner:\n    @concurrent(max=2)\n    def run(self) -> str: ...",
            "run.py:3: TypeError: @concurrent(max=2) needs an async function: make it `async def run`, or leave",
        ),
    ],
)
def test_messages(write: Write, text: str, message: str) -> None:
    assert complaint(write, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import json.nothing", "run.py:1: ModuleNotFoundError: No module named 'json.nothing'"),
        ("raise ModuleNotFoundError('no GPT2')", "run.py:1: ModuleNotFoundError: no GPT2"),
        (
            "raise ModuleNotFoundError('no GPT2') from RuntimeError('no operator nms')",
            "run.py:1: ModuleNotFoundError: no GPT2 (caused by RuntimeError: no operator nms)",
        ),
    ],
)
def test_what_is_installed_is_not_said_to_be_missing(write: Write, text: str, message: str) -> None:
    assert complaint(write, text) == message


def test_error_at_import_has_its_chain(write: Write) -> None:
    root = write("import json\ntry:\n    json.loads('{')\nexcept ValueError:\n    raise KeyError('weights')\n").parent
    with pytest.raises(LoadError) as caught:
        load("run.py:Runner", root)
    assert str(caught.value).startswith("run.py:5: KeyError: 'weights' (while handling JSONDecodeError: Expecting")
    assert caught.value.traceback.startswith(f'Traceback (most recent call last):\n  File "{root}/run.py", line 3, in')
    assert "During handling of the above exception, another exception occurred" in caught.value.traceback
    assert "importlib" not in caught.value.traceback


def test_error_in_the_authors_line_alone_needs_no_traceback(write: Write) -> None:
    with pytest.raises(LoadError) as caught:
        load("run.py:Runner", write("import gt_not_there").parent)
    assert caught.value.traceback == ""


def test_a_missing_class_is_told_what_there_is(write: Write) -> None:
    assert complaint(write, RUNNER, "run.py:Nope") == "run.py has no 'Nope'; it defines Runner"


def test_a_name_that_is_no_class(write: Write) -> None:
    assert complaint(write, "x = 1", "run.py:x") == "run.py: 'x' is of type int; name a class or a function"


def test_an_error_in_an_imported_file_is_told_with_that_file(write: Write, tmp_path: pathlib.Path) -> None:
    write("\n\nraise RuntimeError('broken helper')", "gt_broken_helper.py")
    write("import gt_broken_helper")
    with pytest.raises(LoadError, match=r"^gt_broken_helper\.py:3: RuntimeError: broken helper$"):
        load("run.py", tmp_path)


def test_a_syntax_error_in_an_imported_file(write: Write, tmp_path: pathlib.Path) -> None:
    write("x = = 1", "gt_broken_syntax.py")
    write("import gt_broken_syntax")
    with pytest.raises(LoadError, match=r"^gt_broken_syntax\.py:1: SyntaxError: invalid syntax: x = = 1$"):
        load("run.py", tmp_path)


def test_a_name_that_cog_does_not_have_here(write: Write) -> None:
    cog_alias.install()
    message = complaint(write, "from cog import Nope")
    assert message.startswith("run.py:1: ImportError: cannot import name 'Nope' from 'cog'")
    assert "geartrain stands in for Cog here, with AsyncConcatenateIterator, BaseModel" in message


def test_the_cause_is_kept(write: Write) -> None:
    with pytest.raises(LoadError) as raised:
        loaded(write, "1 / 0")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_file_that_failed_can_be_loaded_when_it_is_mended(write: Write) -> None:
    complaint(write, "raise ValueError")
    assert "run" not in sys.modules
    result: Any = loaded(write, "def run() -> str:\n    return 'mended, and of another length'")
    assert result.run().startswith("mended")


FOREIGN = """
    from typing import Annotated
    import pydantic
    {imports}

    def run(n: {annotation}{default}) -> str:
        return ""
"""
REMEDY = "which is not checked here: write geartrain.Input(), with ge, le, min_length, max_length, regex or choices"


@pytest.mark.parametrize(
    ("annotation", "default", "said"),
    [
        ("Annotated[int, pydantic.Field(ge=0)]", " = 1", "metadata=[Ge(ge=0)]) in its annotation"),
        ("list[pydantic.PositiveInt] | None", " = None", "'n' has Gt(gt=0) in its annotation"),
        ("int", " = pydantic.Field(default=1, ge=0)", "'n' has FieldInfo() as its default"),
    ],
)
def test_limits_of_another_library_are_refused(write: Write, annotation: str, default: str, said: str) -> None:
    text = complaint(write, FOREIGN.format(imports="", annotation=annotation, default=default))
    assert text.startswith("run.py:6: run(): the parameter 'n' has ")
    assert f"{said}, {REMEDY}" in text


def test_limits_of_another_library_are_passed_over_for_cog(write: Write) -> None:
    text = FOREIGN.format(imports="if False: import cog", annotation="pydantic.PositiveInt", default=" = 1")
    assert loaded(write, text).signature.inputs[0].ge is None


def test_other_metadata_stays(write: Write) -> None:
    text = FOREIGN.format(imports="", annotation="Annotated[int, 'how many']", default=" = 1")
    assert loaded(write, text).signature.inputs[0].type.kind == "integer"
