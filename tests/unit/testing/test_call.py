"""`call` and `runner`: a model in the test's own process, with the checks of a server."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray  # noqa: TC002 - annotations of models are read at run time
from pydantic import BaseModel as PydanticModel

import geartrain
from geartrain import BaseModel, BaseRunner, Input, ItemError, Secret, batch_item, batched, current_scope
from geartrain.testing import CanceledError, InvalidInputError, OutputError, RequestFailedError, call, runner
from geartrain.worker.loading.load_errors import LoadError
from tests.support.servers import PATIENCE, write_model

MADE: list[str] = []  # by the models here, which share the process with their tests


class Shout(BaseRunner):
    def setup(self) -> None:
        MADE.append("setup")

    def run(
        self,
        text: str = Input(min_length=1),
        mood: str = Input(choices=["glad", "unsure"], default="glad"),
        times: int = Input(ge=1, le=10, default=1),
    ) -> list[str]:
        print(f"shouting {text}")
        print("aside", file=sys.stderr)
        current_scope().record_metric("letters", len(text))
        return [text.upper() + {"glad": "!", "unsure": "?"}[mood]] * times


def test_defaults_are_filled_in_and_setup_runs_once_in_a_block() -> None:
    MADE.clear()
    assert call(Shout, text="hello") == ["HELLO!"]
    with runner(Shout) as run:
        assert run(text="a", times=2) == ["A!", "A!"]
        assert run(text="b", mood="unsure") == ["B?"]
        assert isinstance(run.instance, Shout)
    assert MADE == ["setup", "setup"]


def test_all_that_is_wrong_is_told_as_a_server_tells_it() -> None:
    with pytest.raises(InvalidInputError) as caught:
        call(Shout, text="", mood="sad", times=20, loud=True)
    assert str(caught.value).splitlines() == [
        'input.loud: Unexpected field "loud"; the inputs of this model are: text, mood, times',
        'input.mood: "sad" is not one of ["glad","unsure"]',
        'input.text: "" is shorter than 1 character',
        "input.times: 20 is greater than the maximum of 10",
    ]
    assert caught.value.detail[1]["loc"] == ["body", "input", "mood"]
    with pytest.raises(InvalidInputError, match=r"input\.text: Field required"):
        call(Shout)


def test_prints_are_logs_and_reach_pytest(capsys: pytest.CaptureFixture[str]) -> None:
    with runner(Shout) as run:
        run(text="a")
        print("the test's own")
        assert run.logs == "shouting a\naside\n"
        assert run.metrics == {"letters": 1}
        run(text="bb")
        assert run.metrics == {"letters": 2}
    assert capsys.readouterr() == ("shouting a\nthe test's own\nshouting bb\n", "aside\naside\n")


def test_output_that_is_not_as_annotated_is_an_error() -> None:
    def wrong(value: int = 1) -> int:
        return str(value)  # type: ignore[return-value]

    with pytest.raises(OutputError, match="is annotated int, and returned a str: '1'"):
        call(wrong)


def test_exception_of_a_run_is_the_tests() -> None:
    def fail() -> str:
        raise KeyError("gone")

    with pytest.raises(KeyError) as caught:
        call(fail)
    assert caught.traceback[-1].name == "fail"

    class Broken(BaseRunner):
        def setup(self) -> None:
            raise OSError("no weights")

        def run(self) -> str:
            return ""

    with pytest.raises(OSError, match="no weights"):
        call(Broken)


def test_model_that_is_none_is_told() -> None:
    def unsupported(values: set[int]) -> str:
        return str(values)

    with pytest.raises(LoadError, match="use list"):
        call(unsupported)
    with pytest.raises(TypeError, match="name the model's folder"):
        call(len)


class Mood(Enum):
    GLAD = "glad"


class Point(BaseModel):
    x: int
    y: int = 2


class Strict(PydanticModel):
    n: int


def test_values_are_converted_as_by_a_worker() -> None:
    def look(
        secret: Secret, point: Point, strict: Strict, mood: Literal["glad"], many: list[float], more: dict[str, Any]
    ) -> list[str]:
        return [type(secret).__name__, f"{point.x},{point.y}", repr(strict.n), mood, repr(many), repr(more)]

    values: dict[str, Any] = {"strict": Strict(n=3), "mood": Mood.GLAD, "many": (1, np.float64(2)), "more": {"a": [1]}}
    seen = call(look, secret="s", point={"x": 1}, **values)
    assert seen == ["Secret", "1,2", "3", "glad", "[1.0, 2.0]", "{'a': [1]}"]
    assert call(look, secret=Secret("s"), point=Point(x=1), **values) == seen


def test_each_run_has_defaults_of_its_own() -> None:
    def grow(values: list[int] = Input(default=[1])) -> list[int]:
        values.append(2)
        return values

    with runner(grow) as run:
        assert run() == run() == [1, 2]


def see_files(
    image: geartrain.Path,
    notes: geartrain.File,
    more: list[geartrain.Path] = Input(default=[]),
) -> list[str]:
    return [image.read_text(), image.suffix, notes.read().decode(), *[each.read_text() for each in more]]


def test_files_are_paths_bytes_open_files_and_urls(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_text("cat")
    with path.open("rb") as opened:
        seen = call(see_files, image=path, notes=b"notes", more=[path, "data:,data", io.StringIO("text"), opened])
    assert seen == ["cat", ".png", "notes", "cat", "data", "text", "cat"]


def test_file_that_is_no_url_or_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r'input\.image: "cat\.png" is not a URL'):
        call(see_files, image="cat.png", notes=b"")
    with pytest.raises(InvalidInputError, match=r"input\.notes: cannot read .*gone: No such file"):
        call(see_files, image=b"", notes=tmp_path / "gone")


def test_file_of_an_output_can_be_looked_at(tmp_path: Path) -> None:
    def write(text: str) -> geartrain.Path:
        path = geartrain.Path(tmp_path, "out.txt")
        path.write_text(text)
        return path

    assert call(write, text="hello").read_text() == "hello"


# streams


def count(to: int) -> Iterator[int]:
    for number in range(1, to + 1):
        print(f"counting {number}")
        try:
            yield number
        except geartrain.CancelationException:
            print(f"canceled at {number}")
            raise


async def count_async(to: int) -> AsyncIterator[int]:
    for number in range(1, to + 1):
        print(f"counting {number}")
        await asyncio.sleep(0)
        try:
            yield number
        except asyncio.CancelledError:
            print(f"canceled at {number}")
            raise


BOTH = pytest.mark.parametrize("model", [count, count_async])


@BOTH
def test_yielded_values_are_a_list_or_come_one_by_one(model: Callable[..., Any]) -> None:
    assert call(model, to=3) == [1, 2, 3]
    with runner(model) as run:
        stream = run.stream(to=3)
        assert next(stream) == 1
        assert run.logs == "counting 1\n"  # the next one has not begun
        assert list(stream) == [2, 3]
        assert next(stream, None) is None


@BOTH
def test_stream_is_canceled_at_its_yield(model: Callable[..., Any]) -> None:
    with runner(model) as run:
        stream = run.stream(to=9)
        assert [next(stream), next(stream)] == [1, 2]
        stream.cancel()
        assert list(stream) == []
        assert run.logs.endswith("counting 2\ncanceled at 2\n")
        assert run(to=1) == [1]


def test_what_goes_wrong_while_a_stream_is_canceled_is_told() -> None:
    def stubborn() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise RuntimeError("the cleanup failed")

    with runner(stubborn) as run:
        stream = run.stream()
        next(stream)
        with pytest.raises(RuntimeError, match="the cleanup failed"):
            stream.cancel()


@BOTH
def test_stream_that_nobody_wants_any_more_is_let_go(model: Callable[..., Any]) -> None:
    with runner(model) as run:
        for number in run.stream(to=9):
            assert number == 1
            break
        assert run(to=2) == [1, 2]


def test_wrong_value_of_a_stream_is_an_error_after_the_good_ones() -> None:
    def mixed() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    with runner(mixed) as run:
        stream = run.stream()
        assert next(stream) == 1
        with pytest.raises(OutputError, match="yielded a str"):
            next(stream)


def test_stream_of_what_yields_nothing_is_told() -> None:
    with runner(Shout) as run, pytest.raises(TypeError, match="call the run itself"):
        next(run.stream(text="a"))


# async, and cancel


async def give_async(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


class Loops(BaseRunner):
    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def run(self) -> bool:
        return self.loop is asyncio.get_running_loop()


def test_async_model_has_one_loop() -> None:
    assert call(give_async, value=1) == 2
    with runner(Loops) as run:
        assert run()
        assert run()


async def test_inside_of_a_test_that_is_async() -> None:
    assert call(give_async, value=1) == 2
    assert call(count_async, to=2) == [1, 2]
    assert call(Shout, text="a") == ["A!"]


class Stuck(BaseRunner):
    def setup(self) -> None:
        self.began = threading.Event()

    def run(self) -> str:
        self.began.set()
        threading.Event().wait(PATIENCE)
        return "it was not canceled"


class StuckAsync(BaseRunner):
    def setup(self) -> None:
        self.began = threading.Event()

    async def run(self) -> str:
        self.began.set()
        await asyncio.sleep(PATIENCE)
        return "it was not canceled"


@pytest.mark.parametrize("model", [Stuck, StuckAsync])
def test_run_is_canceled_from_another_thread(model: type[Stuck | StuckAsync]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with runner(model) as run:

        def cancel() -> None:
            run.instance.began.wait(PATIENCE)
            run.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(CanceledError):
            run()
        thread.join()
    assert signal.getsignal(signal.SIGUSR1) is before


# batches


@batched
def upper(text: list[str]) -> list[str | None]:
    if "bad" in text:
        raise ItemError(text.index("bad"), "no such word")
    for index in range(len(text)):
        with batch_item(index):
            print(f"item {index}")
    return [None if each == "none" else each.upper() for each in text]


def test_batch_gives_each_request_its_part() -> None:
    assert call(upper, text="a") == "A"
    with runner(upper) as run:
        assert run.batch([{"text": "a"}, {"text": "none"}]) == ["A", None]
        assert run.logs == "item 0\nitem 1\n"
        first, bad, last = run.batch([{"text": "a"}, {"text": "bad"}, {"text": "c"}])
        assert (first, last) == ("A", "C")
        assert isinstance(bad, RequestFailedError)
        assert str(bad) == "no such word"
        assert run.batch([]) == []
        with pytest.raises(ItemError, match="no such word"):
            run(text="bad")
        with pytest.raises(InvalidInputError, match="1 is not of type"):
            run.batch([{"text": "a"}, {"text": 1}])
    with runner(Shout) as run, pytest.raises(TypeError, match="no decorator @batched"):
        run.batch([{"text": "a"}])


@batched(max_size=4, pad_to=(4,))
def double(x: NDArray[np.float32]) -> NDArray[np.float32]:
    assert len(x) == 4
    return x * 2


def test_batch_of_tensors_is_cut_by_rows() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    with runner(double) as run:
        np.testing.assert_array_equal(run(x=rows), rows * 2)
        first, last = run.batch([{"x": rows[:1]}, {"x": rows[1:]}])
        np.testing.assert_array_equal(first, rows[:1] * 2)
        np.testing.assert_array_equal(last, rows[1:] * 2)
        with pytest.raises(ValueError, match="do not share a batch"):
            run.batch([{"x": rows}, {"x": rows[:, :1]}])


def test_tensors_are_checked() -> None:
    def total(x: NDArray[np.float32]) -> float:
        assert x.dtype == np.float32
        return float(x.sum())

    assert call(total, x=np.ones((2, 2))) == call(total, x=[[1, 1], [1, 1]]) == 4
    with pytest.raises(InvalidInputError, match=r"input\.x: is COMPLEX|input\.x: is an array of complex"):
        call(total, x=np.ones(2, np.complex64))


# models on disk


def test_model_of_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    source = """
        import os
        from pathlib import Path
        import helper
        from cog import BasePredictor, Input

        class Predictor(BasePredictor):
            def setup(self, weights: Path | None = None):
                self.word = Path("word.txt").read_text()
                self.weights = weights

            def predict(self, text: str = Input(default="x")) -> str:
                return f"{helper.NAME} {self.word} {text} {os.environ['MODEL_MOOD']} {self.weights}"
    """
    for name in ("one", "two"):
        folder = write_model(tmp_path / name, source, "environment: [MODEL_MOOD=glad]\nrun: run.py:Predictor\n")
        (folder / "helper.py").write_text(f"NAME = {name!r}\n")
        (folder / "word.txt").write_text("word")
    before = dict(os.environ), list(sys.path), Path.cwd()
    assert call(tmp_path / "one") == "one word x glad None"
    with runner(tmp_path / "two" / "run.py", weights="w.bin") as run:
        assert run(text="y") == "two word y glad w.bin"
        assert Path.cwd() == before[2]
    assert (dict(os.environ), list(sys.path), Path.cwd()) == before
    assert "helper" not in sys.modules


def test_output_of_a_model_of_cogs_is_a_warning(tmp_path: Path) -> None:
    source = """
        from cog import BasePredictor

        class Predictor(BasePredictor):
            def predict(self) -> int:
                return "x"
    """
    folder = write_model(tmp_path / "model", source)
    with pytest.warns(RuntimeWarning, match="it is passed on, as Cog does"):
        assert call(folder) == "x"


def test_model_file_is_run_by_its_backend() -> None:
    pytest.importorskip("onnxruntime")
    file = Path(__file__).parents[3] / "examples/onnx/digits.onnx"
    answer = call(file, pixels=np.zeros((1, 64), np.float32))
    assert answer["probabilities"].shape == (1, 10)


def test_training_is_run_in_its_mode() -> None:
    class Trainer:
        def train(self, n: int) -> int:
            current_scope().record_metric("points", n)
            return n * 2

    with runner(Trainer, mode="train") as train:
        assert train(n=2) == 4
        assert train.metrics == {"points": 2}


def test_context_and_parameters_are_those_of_the_scope() -> None:
    def look() -> list[str]:
        scope = current_scope()
        return [repr(scope.context), repr(scope.parameters), scope.prediction_id]

    with runner(look, context={"a": "b"}, parameters={"temperature": 0.5}) as run:
        assert run() == ["{'a': 'b'}", "{'temperature': 0.5}", "test-1-0"]


def test_import_is_cheap_and_nobody_else_imports_it() -> None:
    script = (
        "import sys, geartrain; assert 'geartrain.testing' not in sys.modules; import geartrain.testing;"
        " print(*sorted(name.partition('.')[0] for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not {"asyncio", "httpx", "numpy", "pytest", "typer"} & set(done.stdout.split())
