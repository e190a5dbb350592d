"""The recipes behind one server, as clients of HTTP see them. Each model has a process of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from geartrain import Client
from geartrain.testing import serve

HERE = Path(__file__).parent
RECIPES = ("classify", "embeddings", "generate", "gpu", "rerank", "resume", "tabular", "transcribe")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    for name in RECIPES:
        (models / name).symlink_to(HERE / name)
    with serve(models, queue=16, ready_within=180) as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def test_generate_streams_and_says_how_fast(client: Client) -> None:
    with client.model("generate").stream(prompt="The north wind", max_tokens=8) as pieces:
        assert "".join(pieces).startswith(" and the sun")
        assert pieces.prediction is not None
        assert pieces.prediction.metrics["generated_tokens"] == 8


def test_generate_stops_when_its_client_leaves(client: Client) -> None:
    with client.model("generate").stream(prompt="The", max_tokens=250, temperature=2) as pieces:
        assert next(pieces)
    # The next one has to wait for the end of the first: there is one slot.
    assert client.model("generate").predict(prompt="The north wind", max_tokens=8)


def test_embeddings_of_several_clients_share_a_call(client: Client) -> None:
    model = client.model("embeddings")
    with ThreadPoolExecutor(16) as clients:
        done = list(clients.map(lambda number: model.run({"text": f"text {number}"}), range(16)))
    assert {len(each.output or []) for each in done} == {384}
    assert any(not each.logs.startswith("1 at once") for each in done)


def test_rerank_puts_the_answer_first(client: Client) -> None:
    ranked = client.model("rerank").predict(query="Who bakes?", documents=["It rains.", "A baker makes bread."])
    assert [each["index"] for each in ranked] == [1, 0]


def test_tabular_predicts_a_rent(client: Client) -> None:
    rent = client.model("tabular").predict(area=80, rooms=3, district="center")
    assert rent == pytest.approx(80 * 14 + 3 * 15, rel=0.05)


def test_classify_and_gpu_answer_arrays_and_files(client: Client) -> None:
    answer = client.model("classify").predict(image=HERE / "digits/three.png")
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    rows = client.infer("gpu", {"x": np.ones((3, 4), np.float32)})["output"]
    assert rows.shape == (3, 10)


def test_transcribe_streams_sentences(client: Client) -> None:
    (sentence,) = client.model("transcribe").stream(audio=HERE / "transcribe/speech.wav")
    assert sentence["text"].startswith("he might even")


def test_transcribe_answers_as_openai_does(url: str) -> None:
    recording = ("speech.wav", (HERE / "transcribe/speech.wav").read_bytes())
    body = {"model": "transcribe", "response_format": "srt"}
    answer = httpx.post(f"{url}/v1/audio/transcriptions", data=body, files={"file": recording})
    assert answer.text.startswith("1\n00:00:00,000 --> 00:00:03,180\nhe might")


def test_resume_says_how_far_it_is(client: Client) -> None:
    done = client.model("resume").run({"steps": 20, "pause": 0})
    assert (done.status, done.metrics["progress"]) == ("succeeded", 1)
