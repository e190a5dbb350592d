"""Loading models in the styles in which models for Cog are written, and what their authors are told."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from geartrain.authoring.coders import Coder
from geartrain.authoring.values import Path
from geartrain.project.precheck import precheck
from geartrain.project.source import find_model
from geartrain.worker.loading import coders, cog_alias
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load

Load = Callable[..., LoadedRunner]

WRAPPERS = """
    import functools

    def plain(function):
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    def with_self(function):
        def wrapper(self, *args, **kwargs):
            return function(self, *args, **kwargs)
        return wrapper

    def with_another_self(function):
        def wrapper(model, *args, **kwargs):
            return function(model, *args, **kwargs)
        return wrapper

    def by_name(function):
        def wrapper(self, **kwargs):
            return function(self, **kwargs)
        return wrapper

    def wrapped(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    def times(number, *, separator="+"):
        def decorate(function):
            def wrapper(*args, **kwargs):
                return separator.join(function(*args, **kwargs) for _ in range(number))
            return wrapper
        return decorate

    class Meter:
        def __init__(self):
            self.calls = 0
        def __call__(self, function):
            count = self.count
            def wrapper(*args, **kwargs):
                count()
                return function(*args, **kwargs)
            return wrapper
        def count(self):
            self.calls += 1

    def logged(before, after=None):
        def decorate(function):
            def wrapper(*args, **kwargs):
                before()
                return function(*args, **kwargs)
            return wrapper
        return decorate
"""


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what loading leaves in this process."""
    monkeypatch.setattr(Coder, "_coders", {})
    monkeypatch.setattr(coders, "_encoders", {})
    path, modules, finders = list(sys.path), set(sys.modules), list(sys.meta_path)
    cog_alias.install()
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def loaded(tmp_path: pathlib.Path) -> Load:
    def write_and_load(
        text: str, ref: str = "run.py", mode: Literal["predict", "train"] = "predict", wrappers: str = ""
    ) -> LoadedRunner:
        path = tmp_path / ref.partition(":")[0]
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(wrappers) + textwrap.dedent(text))
        return load(ref, tmp_path, mode)

    return write_and_load


def complaint(loaded: Load, text: str, **options: Any) -> str:
    with pytest.raises(LoadError) as raised:
        loaded(text, **options)
    return str(raised.value)


def names(runner: LoadedRunner) -> list[str]:
    return [field.name for field in runner.signature.inputs]


# C2: decorators without functools.wraps


@pytest.mark.parametrize(
    "decorators",
    [
        "@plain",
        "@with_self",
        "@with_another_self",
        "@by_name",
        "@times(1)",
        "@Meter()",
        "@plain\n    @plain",
        "@with_self\n    @plain\n    @times(1)",
        "@wrapped\n    @plain",
        "@plain\n    @wrapped",
        "@wrapped\n    @wrapped\n    @with_self\n    @wrapped\n    @by_name",
    ],
)
def test_c2_a_decorated_method(loaded: Load, decorators: str) -> None:
    text = f"""
class Runner:
    {decorators}
    def setup(self, weights):
        self.weights = weights
        return ""
    {decorators}
    def run(self, text: str, number: int = 2) -> str:
        "Say it."
        return f"{{self.weights}}{{text}}{{number}}"
"""
    runner = loaded(text, wrappers=WRAPPERS)
    assert names(runner) == ["text", "number"]
    assert (runner.signature.output.type.kind, runner.signature.description) == ("string", "Say it.")
    assert runner.setup_takes == {"weights"}
    assert runner.setup is not None
    runner.setup(weights="w")
    assert runner.run(text="a") == "wa2"


@pytest.mark.parametrize("decorators", ["@plain", "@times(1)\n@plain", "@plain\n@wrapped\n@plain"])
def test_c2_a_decorated_function(loaded: Load, decorators: str) -> None:
    runner = loaded(f"{decorators}\ndef run(text: str) -> str:\n    return text\n", wrappers=WRAPPERS)
    assert names(runner) == ["text"]
    assert runner.run(text="a") == "a"


@pytest.mark.parametrize("method", ["train", "predict"])
def test_c2_the_wrapper_is_what_is_called(loaded: Load, method: str) -> None:
    text = f"class Trainer:\n    @times(3)\n    def {method}(self, text: str) -> str:\n        return text\n"
    mode: Literal["predict", "train"] = "train" if method == "train" else "predict"
    runner = loaded(text, mode=mode, wrappers=WRAPPERS)
    assert runner.run(text="a") == "a+a+a"


def test_c2_kinds_of_functions_below_a_decorator(loaded: Load) -> None:
    text = """
class Runner:
    @plain
    async def setup(self):
        self.ready = True
    @plain
    @with_self
    async def run(self, text: str) -> AsyncIterator[str]:
        yield text
"""
    runner = loaded("from collections.abc import AsyncIterator\n" + text, wrappers=WRAPPERS)
    assert (runner.is_async, runner.is_generator) == (True, True)
    assert runner.setup is not None
    asyncio.run(runner.setup())
    assert runner.instance.ready


def test_c2_a_bound_method_that_is_decorated_when_the_instance_is_made(loaded: Load) -> None:
    text = """
class Runner:
    def __init__(self):
        self.run = times(2)(self.run)
    def run(self, text: str) -> str:
        return text
"""
    runner = loaded(text, wrappers=WRAPPERS)
    assert names(runner) == ["text"]
    assert runner.run(text="a") == "a+a"


@pytest.mark.parametrize("method", ["run", "setup"])
def test_c2_several_functions_behind_a_decorator(loaded: Load, method: str) -> None:
    decorator = "@logged(lambda: None)"
    text = f"""
class Runner:
    {decorator if method == "setup" else ""}
    def setup(self): ...
    {decorator if method == "run" else ""}
    def run(self, text: str) -> str: ...
"""
    message = complaint(loaded, text, wrappers=WRAPPERS)
    assert message.startswith("run.py:")
    assert f"{method}()" in message
    assert f"refers to several functions (Runner.<lambda>, Runner.{method})" in message
    assert "@functools.wraps" in message


def test_c2_what_is_no_mere_wrapper_is_not_looked_through(loaded: Load) -> None:
    text = """
def tagged(function):
    def wrapper(self, tag: str, **kwargs):
        return function(self, **kwargs) + tag
    return wrapper

class Runner:
    @tagged
    def run(self, text: str) -> str: ...
"""
    message = complaint(loaded, text)
    assert "Runner.run() takes **kwargs: write every input as a parameter of its own" in message


def test_c2_stars_of_the_authors_own_are_refused_as_before(loaded: Load) -> None:
    message = complaint(loaded, "class Runner:\n    @plain\n    def run(self, **kwargs) -> str: ...", wrappers=WRAPPERS)
    assert "Runner.run() takes **kwargs" in message


def test_c2_an_error_names_the_line_of_the_function_that_was_written(loaded: Load) -> None:
    text = """def plain(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

class Runner:
    @plain
    def run(self, x) -> str: ...
"""
    assert complaint(loaded, text).startswith("run.py:7: Runner.run(): the parameter 'x' has no annotation")


# C4: methods without self


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def setup(): ...", "run.py:2: Runner.setup() has no parameter self: write `def setup(self)`"),
        ("async def setup(): ...", "run.py:2: Runner.setup() has no parameter self: write `async def setup(self)`"),
        ("def healthcheck(): ...", "run.py:2: Runner.healthcheck() has no parameter self: write"),
        (
            "def setup(*, weights=None): ...",
            "run.py:2: Runner.setup() has no parameter self: write `def setup(self, ...",
        ),
        ("@staticmethod\n    def setup(): ...", ""),
        ("@classmethod\n    def setup(cls): ...", ""),
        ("def setup(this): ...", ""),
        ("def setup(*args): ...", ""),
        ("def setup(me: 'Runner'): ...", ""),
    ],
)
def test_c4_a_method_without_self(loaded: Load, text: str, message: str) -> None:
    source = f"class Runner:\n    {text}\n    def run(self) -> str: ...\n"
    if message:
        assert complaint(loaded, source).startswith(message)
    else:
        runner = loaded(source)
        assert runner.setup is not None
        runner.setup()


@pytest.mark.parametrize("method", ["run", "predict"])
@pytest.mark.parametrize("parameters", ["", "text: str", "text='x'", "*, text: str"])
def test_c4_a_run_without_self(loaded: Load, method: str, parameters: str) -> None:
    message = complaint(loaded, f"class Runner:\n    def {method}({parameters}) -> str: ...\n")
    rest = ", ..." if parameters else ""
    assert message == f"run.py:2: Runner.{method}() has no parameter self: write `def {method}(self{rest})`"


def test_c4_below_a_decorator(loaded: Load) -> None:
    text = "def plain(f):\n    def w(*a, **k):\n        return f(*a, **k)\n    return w\n"
    source = f"{text}class Runner:\n    @plain\n    def setup(): ...\n    def run(self) -> str: ...\n"
    assert complaint(loaded, source).startswith("run.py:6: Runner.setup() has no parameter self")


# C9: the only class


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("class Upscaler:\n    def run(self) -> str:\n        return 'found'", "run.py"),
        ("class Upscaler(BasePredictor):\n    def predict(self) -> str:\n        return 'found'", "predict.py"),
        (
            "class Helper:\n    def run(self): ...\n"  # noqa: ISC004 - one text
            "class Upscaler(BaseRunner):\n    def run(self) -> str:\n        return 'found'",
            "run.py",
        ),
        (
            "from subprocess import run\n"  # noqa: ISC004 - one text
            "class Upscaler(BaseRunner):\n    def run(self) -> str:\n        return 'found'",
            "run.py",
        ),
        (
            "class _Base(BaseRunner):\n    def run(self) -> str:\n        return 'found'\nclass Upscaler(_Base): ...",
            "run.py",
        ),
    ],
)
def test_c9_the_only_runner_class_is_found(loaded: Load, tmp_path: pathlib.Path, text: str, ref: str) -> None:
    runner = loaded(f"from cog import BasePredictor, BaseRunner\n{text}\n", ref)
    assert type(runner.instance).__name__ == "Upscaler"
    assert runner.run() == "found"
    precheck(find_model(str(tmp_path)))


def test_c9_the_only_class_with_train(loaded: Load) -> None:
    assert loaded("class Tuner:\n    def train(self) -> str:\n        return 'x'", "train.py", "train").run() == "x"


@pytest.mark.parametrize("base", ["", "(BaseRunner)"])
def test_c9_several_are_listed(loaded: Load, base: str) -> None:
    text = f"class Small{base}:\n    def run(self) -> str: ...\nclass Large{base}:\n    def predict(self) -> str: ...\n"
    message = complaint(loaded, f"from cog import BaseRunner\n{text}")
    assert message == (
        "run.py has no class Runner, and several classes that could be the runner: Small, Large;"
        " name the one that is meant: run.py:Small"
    )


def test_c9_a_class_called_runner_that_has_no_run_is_told_so(loaded: Load) -> None:
    text = "class Runner: ...\nclass Helper:\n    def run(self) -> str: ...\n"
    assert complaint(loaded, text).startswith("run.py:1: the class Runner has no run() or predict()")


# Weights, and relative imports


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ("Path", Path),
        ("'Path'", Path),
        ("Optional[Path]", Path),
        ("Path | None", Path),
        ("pathlib.Path", Path),
        ("str", str),
        ("Union[Path, str, None]", str),
        ("Optional[Weights]", str),
        ("'Nowhere'", str),
    ],
)
def test_form_of_weights(loaded: Load, annotation: str, kind: type) -> None:
    text = f"""
import pathlib
from typing import Optional, Union
from cog import Path
from cog.types import Weights

class Runner:
    def setup(self, weights: {annotation}):
        self.weights = weights
    def run(self) -> str: ...
"""
    runner = loaded(text)
    assert runner.setup_takes == {"weights"}
    assert runner.setup is not None
    runner.setup(weights="/some/where")
    assert type(runner.instance.weights) is kind
    assert str(runner.instance.weights) == "/some/where"
    runner.setup(weights=None)
    assert runner.instance.weights is None


@pytest.mark.parametrize("folder", ["", "src/", "no-name/", "json/"])
def test_relative_imports_from_the_runners_file(loaded: Load, tmp_path: pathlib.Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "gt_words.py").write_text("class Words: ...\n")
    runner = loaded("from .gt_words import Words\ndef run() -> str:\n    return Words.__name__\n", f"{folder}run.py")
    assert runner.run() == "Words"


def test_a_relative_and_an_absolute_import_are_one_module(loaded: Load, tmp_path: pathlib.Path) -> None:
    (tmp_path / "gt_source").mkdir()
    (tmp_path / "gt_source" / "words.py").write_text("class Words: ...\n")
    text = """
from gt_source.words import Words
from .words import Words as Same
def run() -> bool:
    return Words is Same
"""
    assert loaded(text, "gt_source/run.py").run()
