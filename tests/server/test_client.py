"""`Client` and `AsyncClient` against real servers; nearly every test runs with both."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from geartrain import AsyncClient, Client
from geartrain.client import (
    AccessError,
    BusyError,
    ClientError,
    InvalidInputError,
    NotFoundError,
    OutputFile,
    PredictionCanceledError,
    PredictionFailedError,
    RefusedError,
    TimedOutError,
    UnreachableError,
)
from geartrain.client.asks import new_id
from geartrain.testing import serve
from geartrain.testing.server import Server
from tests.support import modes
from tests.support.blocking import Blocking
from tests.support.cutting_proxy import cutting_proxy
from tests.support.receiver import receiving
from tests.support.servers import PATIENCE, write_model

MODELS: Final = {
    "counter": """
        import time
        from collections.abc import Iterator
        from geartrain import current_scope, streaming

        @streaming
        def run(to: int, pause: float = 0) -> Iterator[int]:
            for number in range(1, to + 1):
                print(f"counting {number}")
                current_scope().record_metric("number", number)
                yield number
                time.sleep(pause)
    """,
    "answer": """
        from geartrain import BaseModel

        class Answer(BaseModel):
            text: str
            runs: int

        class Runner:
            def setup(self) -> None:
                self.runs = 0

            def run(self, text: str, more: list[str] | None = None, loud: bool = False) -> Answer:
                self.runs += 1
                if text == "fail":
                    print("about to fail")
                    raise RuntimeError("it was asked to")
                return Answer(text=f"{text}{more or ''}{'!' * loud}", runs=self.runs)
    """,
    "files": """
        import tempfile
        from geartrain import Path, Secret

        def run(
            first: Path, others: list[Path] = [], note: str = "", times: int = 1, key: Secret = Secret("")
        ) -> list[Path]:
            made = Path(tempfile.mkdtemp(), "made.txt")
            made.write_text(f"{note}{first.stat().st_size}" * times + key.get_secret_value())
            return [made, *others]
    """,
    "arrays": """
        from typing import NamedTuple
        import numpy as np
        from numpy.typing import NDArray

        class Result(NamedTuple):
            sums: NDArray[np.float32]
            words: NDArray[np.str_]
            scale: float

        def run(x: NDArray[np.float32], words: NDArray[np.str_], scale: float = 1.0) -> Result:
            return Result(x.sum(axis=-1) * np.float32(scale), np.char.upper(words), scale)
    """,
}


@dataclass
class Answer:
    text: str
    runs: int


Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name, source in MODELS.items():
        write_model(folder / name, source)
    with serve(folder, queue=2000, allow_private_urls=True) as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make clients, which are closed when the test is over."""
    clients: list[Any] = []
    with asyncio.Runner() as runner:

        def start(url: str, **options: Any) -> Any:
            client = Client(url, **options) if request.param == "sync" else None
            clients.append(client or Blocking(AsyncClient(url, **options), runner))
            return clients[-1]

        yield start
        for client in clients:
            client.close()


@pytest.fixture
def client(connect: Connect, server: Server) -> Any:
    return connect(server.url)


def test_outputs_come_as_json_or_as_a_type_of_ones_own(client: Any) -> None:
    assert client.model("answer").predict(text="hi", more=["a"], loud=True)["text"] == "hi['a']!"
    answer = client.model("answer", output=Answer).predict(text="hi")
    assert isinstance(answer, Answer)
    assert client.model("answer", version="1", output=Answer).predict(text="hi").runs == answer.runs + 1
    with pytest.raises(ClientError, match="the output is not of type"):
        client.model("answer", output=int).predict(text="hi")
    assert client.model("counter", output=list[int]).predict(to=2) == [1, 2]


def test_whole_prediction_has_logs_metrics_and_times(client: Any) -> None:
    prediction = client.model("counter").run({"to": 2})
    assert (prediction.status, prediction.output, prediction.logs) == ("succeeded", [1, 2], "counting 1\ncounting 2\n")
    assert prediction.metrics["number"] == 2
    assert prediction.created_at <= prediction.completed_at
    failed = client.model("answer").run({"text": "fail"})
    assert (failed.status, failed.error) == ("failed", "RuntimeError: it was asked to")


def test_errors_have_the_servers_words(client: Any) -> None:
    with pytest.raises(InvalidInputError) as invalid:
        client.model("answer").predict(text=1, nosuch=2)
    assert str(invalid.value).splitlines()[0].startswith('input.nosuch: Unexpected field "nosuch"')
    assert [fault["loc"] for fault in invalid.value.detail] == [["body", "input", "nosuch"], ["body", "input", "text"]]
    assert invalid.value.status == 422
    with pytest.raises(PredictionFailedError, match="RuntimeError: it was asked to") as failed:
        client.model("answer").predict(text="fail")
    assert failed.value.prediction.logs.startswith("about to fail\nTraceback")
    with pytest.raises(NotFoundError, match="unknown model: 'nosuch'"):
        client.model("nosuch").predict()
    with pytest.raises(ClientError, match="name one of them: answer, arrays, counter, files"):
        client.model().infer({"x": np.zeros(1)})
    with pytest.raises(RefusedError, match="does not support streaming"):
        list(client.model("answer").stream(text="a"))
    with pytest.raises(TypeError, match="cannot be sent as JSON"):
        client.model("answer").predict(text=object())


def test_models_are_listed_and_described(client: Any) -> None:
    assert sorted(client.models()) == sorted(MODELS)
    assert client.is_ready()
    signature = client.model("files").signature()
    assert [field.name for field in signature.inputs] == ["first", "others", "note", "times", "key"]
    assert [field.type.kind for field in signature.inputs] == ["path", "array", "string", "integer", "secret"]
    assert client.model("counter").signature().output.mode == "iterator"
    assert client.model("counter").signature().streaming
    assert client.model("counter").openapi()["openapi"] == "3.0.2"


def test_files_go_and_come(client: Any, tmp_path: Path) -> None:
    small = tmp_path / "small.txt"
    small.write_text("small")
    made, back = client.model("files").predict(first=small, others=[b"other"], note="n")
    assert isinstance(made, OutputFile)
    assert (made.read(), made.media_type, back.read()) == (b"n5", "text/plain", b"other")
    assert made.save(tmp_path / "saved.txt").read_text() == "n5"
    assert client.model("files").predict(first="data:,abc")[0].read() == b"3"
    assert client.model("files").predict(first=io.BytesIO(b"abcd"))[0].read() == b"4"
    with pytest.raises(FileNotFoundError):
        client.model("files").predict(first=tmp_path / "gone")


def test_large_files_are_sent_as_a_form(client: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * 100_000)
    prediction = client.model("files").run({"first": large, "note": "1", "times": 2, "key": "s"})
    assert prediction.input["first"] == "large.bin"  # not base64
    assert prediction.output[0].read() == b"11000001100000s"
    several = client.model("files").run({"first": large, "others": [b"y" * 70_000, large]})
    assert [len(file.read()) for file in several.output[1:]] == [70_000, 100_000]
    as_url = client.model("files").run({"first": large, "others": [large, "data:,abc"]})
    assert as_url.input["first"] == "large.bin"
    assert [len(file.read()) for file in as_url.output[1:]] == [100_000, 3]  # a list of both kinds is JSON in the form


def test_stream_gives_values_as_they_come(client: Any) -> None:
    with client.model("counter").stream(to=3) as stream:
        assert next(stream) == 1
        assert list(stream) == [2, 3]
        assert stream.prediction.logs.count("counting") == 3
    with client.model("counter").stream(to=1) as stream:
        assert [event.name for event in stream.events()] == ["start", "log", "metric", "output", "completed"]


def test_stream_is_canceled(client: Any) -> None:
    stream = client.model("counter").stream(to=1000, pause=0.05)
    assert next(stream) == 1
    stream.cancel()
    with pytest.raises(PredictionCanceledError) as canceled:
        list(stream)
    assert 1 in (canceled.value.prediction.output or ())
    left = client.model("counter").stream(to=1000, pause=0.05)
    assert next(left) == 1
    left.close()  # its only reader
    assert client.model("counter").handle(left.id).wait(PATIENCE).status == "canceled"


def test_submitted_prediction_is_polled_waited_for_and_iterated(client: Any) -> None:
    handle = client.model("counter").submit({"to": 3, "pause": 0.01})
    assert handle.poll().status in {"starting", "processing", "succeeded"}
    assert list(handle) == [1, 2, 3]
    assert handle.wait(PATIENCE).is_over
    assert handle.result() == [1, 2, 3]
    assert client.model("counter").handle(handle.id).result() == [1, 2, 3]
    name = new_id()
    long = client.model("counter").submit({"to": 1000, "pause": 0.05}, id=name)
    assert long.id == name
    with pytest.raises(TimedOutError, match="is not over in time"):
        long.wait(0.05)
    long.cancel()
    with pytest.raises(PredictionCanceledError):
        long.result(PATIENCE)
    long.cancel()  # nothing is left to be canceled
    with pytest.raises(NotFoundError, match="No such prediction"):
        client.model("counter").handle("nosuch").poll()


def test_time_is_limited(connect: Connect, server: Server) -> None:
    with pytest.raises(TimedOutError, match="has not answered in time"):
        connect(server.url, timeout=0.2).model("counter").predict(to=1000, pause=0.05)
    assert connect(server.url, timeout=PATIENCE).model("counter").predict(to=1) == [1]


def test_arrays_go_and_come_as_bytes(client: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = client.infer("arrays", {"x": x, "words": np.array(["a", "ü"]), "scale": 2.0})
    np.testing.assert_array_equal(outputs["sums"], np.array([6, 24], np.float32))
    assert outputs["words"].tolist() == [b"A", "Ü".encode()]
    assert outputs["scale"].tolist() == [2.0]
    only = client.model("arrays").infer({"x": x, "words": np.array(["a"])}, outputs=["sums"])
    assert list(only) == ["sums"]
    with pytest.raises(RefusedError, match="datatype"):
        client.infer("arrays", {"x": x.astype(np.float64), "words": np.array(["a"])})
    with pytest.raises(TypeError, match="no datatype"):
        client.infer("arrays", {"x": x.astype(np.complex64)})


def test_answer_that_was_lost_is_found_again(connect: Connect, server: Server) -> None:
    with cutting_proxy(server.url) as proxy:
        model = connect(proxy.url).model("answer", output=Answer)
        before = model.predict(text="a").runs
        proxy.cuts = 1
        assert model.predict(text="b") == Answer("b", before + 1)
        assert [line.split()[0] for line in proxy.requests] == [b"PUT", b"PUT", b"GET"]
        assert model.predict(text="c").runs == before + 2  # so "b" was run once
        proxy.cuts = 1
        handle = model.submit({"text": "d"})
        assert handle.result(PATIENCE).runs == before + 3
        proxy.cuts = 10
        with pytest.raises(UnreachableError):
            connect(proxy.url, retries=0).model("answer").predict(text="e")
        proxy.cuts = 0
        assert model.predict(text="f").runs == before + 5


def test_server_without_a_place_is_told(connect: Connect) -> None:
    with serve(Path(__file__).parents[2] / "examples/slow_counter") as server:
        client = connect(server.url, retries=0)
        long = client.submit({"up_to": 1000, "pause": 0.05})
        with pytest.raises(BusyError, match="At capacity") as busy:
            client.predict(up_to=1)
        assert busy.value.retry_after >= 1
        long.cancel()
        assert long.wait(PATIENCE).status == "canceled"
        assert client.run({"up_to": 1, "pause": 0}).output == [1]
    assert not client.is_ready()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        client.predict(up_to=1)


def test_keys_and_tls(connect: Connect) -> None:
    secured = modes.Secured()
    names = iter(secured.arguments)
    options: dict[str, Any] = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(names, names, strict=True)
    }
    assert secured.credentials is not None
    hello = Path(__file__).parents[2] / "examples/hello"
    trusted, key = str(secured.credentials.authority), secured.credentials.key
    with serve(hello, **options) as own:
        assert own.url.startswith("https://")
        for verify in (trusted, False):
            with connect(own.url, verify=verify, key=key) as client:
                assert client.predict(name="Ada") == "Hello, Ada!"
        with pytest.raises(UnreachableError, match=r"(?i)certificate"):
            connect(own.url, key=key, retries=0).predict(name="Ada")
        for wrong in (None, "wrong"):
            with connect(own.url, verify=trusted, key=wrong) as client, pytest.raises(AccessError) as refused:
                client.predict(name="Ada")
            assert refused.value.status == 401
    secured.close()


async def test_webhook_is_told_of_the_end(server: Server) -> None:
    async with receiving() as receiver, AsyncClient(server.url) as client:
        model = client.model("counter")
        handle = await model.submit({"to": 1}, webhook=receiver.url("/hook"), webhook_events=["completed"])
        (call,) = await receiver.wait(1)
        assert (call.prediction["id"], call.prediction["output"]) == (handle.id, [1])


async def test_thousand_calls_at_once(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        model = client.model("answer", output=Answer)
        answers = await asyncio.gather(*[model.predict(text=str(number)) for number in range(1000)])
    assert [answer.text for answer in answers] == [str(number) for number in range(1000)]
    assert len({answer.runs for answer in answers}) == 1000


def test_mypy_accepts_its_use(tmp_path: Path) -> None:
    """With `--strict`; the types of outputs are those that were asked for."""
    sample = """
        import asyncio
        from dataclasses import dataclass
        from pathlib import Path
        from typing import assert_type

        from geartrain import AsyncClient, Client
        from geartrain.client import Prediction

        @dataclass
        class Answer:
            digit: int

        def use(client: Client) -> None:
            digits = client.model("digits", output=Answer)
            assert_type(digits.predict(image=Path("three.png")), Answer)
            assert_type(digits.run({"image": b"..."}), Prediction[Answer])
            assert_type(digits.submit({"image": "https://example.com/three.png"}).result(timeout=3), Answer)
            assert_type(client.models(), list[str])
            with client.stream(up_to=3) as stream:
                for number in stream:
                    print(number)
                stream.no_such()  # type: ignore[attr-defined]  # which would be an error if it were not needed
            print(client.infer("digits", {"x": [1.0]})["y"].shape)

        async def use_async() -> None:
            async with AsyncClient("http://127.0.0.1:5000", key="secret", timeout=3) as client:
                assert_type(await client.model(output=str).predict(text="a"), str)
                async for number in client.stream(up_to=3):
                    print(number)
                handle = await client.model("digits", output=Answer).submit()
                assert_type(await handle.wait(), Prediction[Answer])

        asyncio.run(use_async())
    """
    (tmp_path / "sample.py").write_text(textwrap.dedent(sample))
    # To read the server and other packages would take most of the time.
    skipped = "geartrain.server.*,geartrain.transport.*,httpx.*,numpy.*"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\n[mypy-{skipped}]\nfollow_imports = skip\n")
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--cache-dir",
            str(tmp_path / "cache"),
            "--follow-imports",
            "silent",
            "sample.py",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(source), "PATH": ""},
    )
    assert done.returncode == 0, done.stdout
