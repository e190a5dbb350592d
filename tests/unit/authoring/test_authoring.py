"""What an author imports: each name does what it promises, and importing it is cheap."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import importlib.metadata
import pathlib
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Iterator

import pydantic
import pytest

import geartrain
from geartrain import (
    AsyncConcatenateIterator,
    BaseModel,
    BasePredictor,
    BaseRunner,
    CancelationException,
    ConcatenateIterator,
    File,
    Input,
    Opaque,
    Path,
    Secret,
    concurrent,
    streaming,
)
from geartrain.authoring.decorators import CONCURRENT_ATTRIBUTE, STREAMING_ATTRIBUTE
from geartrain.authoring.inputs import MISSING, FieldInfo

HEAVY = (
    "asyncio",
    "dataclasses",
    "httpx",
    "inspect",
    "msgspec",
    "numpy",
    "pydantic",
    "starlette",
    "typing_extensions",
    "uvicorn",
    "yaml",
)


def test_importing_the_authoring_api_imports_nothing_heavy() -> None:
    code = f"import sys, geartrain; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True, env=_path())
    assert result.stdout.strip() == "[]"


def _path() -> dict[str, str]:
    return {"PYTHONPATH": str(pathlib.Path(geartrain.__file__).parents[1])}


def test_every_name_is_exported() -> None:
    for name in geartrain.__all__:
        assert hasattr(geartrain, name)


def test_the_version_is_that_of_the_distribution() -> None:
    assert geartrain.__version__ == importlib.metadata.version("geartrain")


# Secret


def test_a_secret_shows_a_mask() -> None:
    secret = Secret("hunter2")
    assert f"{secret} {secret!r} {[secret]}" == "********** Secret(**********) [Secret(**********)]"
    assert secret.get_secret_value() == secret.secret_value == "hunter2"


def test_an_empty_secret_shows_nothing() -> None:
    assert str(Secret()) == ""
    assert repr(Secret()) == "Secret()"
    assert Secret().get_secret_value() is None


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"


def test_a_secret_cannot_be_changed_by_accident() -> None:
    with pytest.raises(AttributeError):
        Secret("a").secret_value = "b"  # type: ignore[misc]


# Path, File, iterators


def test_a_path_is_a_path(tmp_path: pathlib.Path) -> None:
    path = Path(tmp_path) / "a.txt"
    path.write_text("x")
    assert isinstance(path, pathlib.Path)
    assert isinstance(path.parent, Path)
    assert path == tmp_path / "a.txt"
    assert copy.deepcopy(path) == path


def test_pydantic_models_may_have_paths_and_secrets() -> None:
    class Model(pydantic.BaseModel):
        path: Path
        secret: Secret

    made = Model.model_validate({"path": "/a", "secret": "hunter2"})
    assert made == Model(path=Path("/a"), secret=Secret("hunter2"))
    assert type(made.path) is Path
    with pytest.raises(pydantic.ValidationError):
        Model.model_validate({"path": 1, "secret": 2})


def test_a_file_is_for_annotations() -> None:
    assert isinstance(File, type)


def test_the_iterators_know_their_element() -> None:
    assert typing.get_args(ConcatenateIterator[str]) == (str,)
    assert typing.get_origin(ConcatenateIterator[str]) is ConcatenateIterator
    assert typing.get_origin(AsyncConcatenateIterator[str]) is AsyncConcatenateIterator
    assert issubclass(ConcatenateIterator, Iterator)
    assert issubclass(AsyncConcatenateIterator, AsyncIterator)


# Input


def test_input_keeps_what_it_is_told() -> None:
    info = Input(3, description="d", ge=1, le=5, choices=[1, 3], deprecated=True, accept="image/*")
    assert isinstance(info, FieldInfo)
    assert (info.default, info.description, info.ge, info.le) == (3, "d", 1, 5)
    assert (info.choices, info.deprecated, info.accept) == ((1, 3), True, "image/*")


def test_no_default_is_not_none() -> None:
    assert Input().default is MISSING
    assert Input(...).default is MISSING
    assert Input(default=None).default is None


def test_input_shows_what_it_was_told() -> None:
    assert repr(Input(default=[1], ge=1)) == "Input(default=[1], deprecated=False, ge=1)"
    assert "MISSING" in repr(Input())


# BaseModel


class Plain(BaseModel):
    text: str
    score: float = 0.5
    tags: list[str] = dataclasses.field(default_factory=list)


def test_a_model_is_a_dataclass() -> None:
    assert Plain("a") == Plain(text="a", score=0.5, tags=[])
    assert repr(Plain("a")) == "Plain(text='a', score=0.5, tags=[])"
    assert dataclasses.is_dataclass(Plain)


def test_a_model_inherits_fields() -> None:
    class More(Plain):
        more: int = 1

    assert [field.name for field in dataclasses.fields(More)] == ["text", "score", "tags", "more"]


def test_a_model_passes_settings_on() -> None:
    class Frozen(BaseModel, frozen=True):
        a: int

    with pytest.raises(dataclasses.FrozenInstanceError):
        Frozen(1).a = 2  # type: ignore[misc]


def test_a_model_may_be_made_by_hand() -> None:
    class ByHand(BaseModel, auto_dataclass=False):
        def __init__(self) -> None:
            self.a = 1

    assert not dataclasses.is_dataclass(ByHand)
    assert ByHand().a == 1


def test_a_model_made_by_hand_has_no_dataclass_settings() -> None:
    with pytest.raises(TypeError, match="frozen only means something with auto_dataclass"):
        type("Bad", (BaseModel,), {}, auto_dataclass=False, frozen=True)


# Decorators


@pytest.mark.parametrize("decorate", [streaming, streaming()], ids=["bare", "called"])
def test_streaming_decorator(decorate: typing.Callable[[typing.Any], typing.Any]) -> None:
    def run() -> None: ...

    assert decorate(run) is run
    assert getattr(run, STREAMING_ATTRIBUTE) is True


def test_concurrent_decorator() -> None:
    @concurrent(max=8)
    async def run() -> None: ...

    @concurrent
    def plain() -> None: ...

    assert getattr(run, CONCURRENT_ATTRIBUTE) == 8
    assert getattr(plain, CONCURRENT_ATTRIBUTE) == 1


def test_concurrent_takes_an_async_generator() -> None:
    @concurrent(max=2)
    async def run() -> AsyncIterator[int]:
        yield 1

    assert getattr(run, CONCURRENT_ATTRIBUTE) == 2


@pytest.mark.parametrize("wrong", [0, -1])
def test_concurrent_is_at_least_one(wrong: int) -> None:
    with pytest.raises(ValueError, match="max must be at least 1"):
        concurrent(max=wrong)


@pytest.mark.parametrize("wrong", [True, "2", 1.5])
def test_concurrent_takes_an_integer(wrong: typing.Any) -> None:
    with pytest.raises(TypeError, match="takes an integer"):
        concurrent(max=wrong)


def test_concurrent_needs_async() -> None:
    def run() -> None: ...

    with pytest.raises(TypeError, match="make it `async def run`, or leave max at 1"):
        concurrent(max=2)(run)


def test_concurrent_needs_a_function() -> None:
    with pytest.raises(TypeError, match=r"write @concurrent or @concurrent\(max=1\)"):
        concurrent(4)  # type: ignore[call-overload]


def test_opaque_has_a_name() -> None:
    assert repr(Opaque) == "geartrain.Opaque"


# Runners


def test_run_and_predict_stand_for_each_other() -> None:
    class New(BaseRunner):
        def run(self, a: int) -> int:
            return a + 1

    class Old(BasePredictor):
        def predict(self, a: int) -> int:
            return a + 2

    assert New().predict(a=1) == 2
    assert Old().run(a=1) == 3


def test_a_runner_without_run() -> None:
    class Empty(BaseRunner):
        pass

    for method in (Empty().run, Empty().predict):
        with pytest.raises(NotImplementedError, match=r"Empty has no run\(\)"):
            method()


def test_a_runner_needs_no_setup_and_is_healthy() -> None:
    runner = BaseRunner()
    assert runner.setup() is None
    assert runner.healthcheck() is True


def test_outside_of_a_prediction_metrics_are_ignored() -> None:
    runner = BaseRunner()
    runner.record_metric("not a name!", object())
    assert dict(runner.scope.metrics) == {}


def test_cancelation_passes_through_except_exception() -> None:
    assert issubclass(CancelationException, BaseException)
    assert not issubclass(CancelationException, Exception)
    assert not issubclass(CancelationException, asyncio.CancelledError)
    assert geartrain.CancellationException is CancelationException
