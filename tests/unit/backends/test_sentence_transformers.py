"""Folders of sentence-transformers, made here with a tiny network, against the library called directly."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geartrain.backends.interface import BackendError, TensorSpec
from geartrain.backends.sentence_transformers import SentenceTransformersBackend

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries warn of one another

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "cat", "sleeps", "##s"]
TEXTS = np.array([b"a dog runs", "a cat sleeps ä".encode(), b"dogs"], object)
SIZE = 16


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """The library, imported late: it takes seconds. What a load sets for its process is put back."""
    before = dict(os.environ)
    yield pytest.importorskip("sentence_transformers")
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def plain(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a transformer alone."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    folder = tmp_path_factory.mktemp("plain")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    settings = {"hidden_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **settings)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(library: Any, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `save()` writes of it, with the mean of the tokens' vectors."""
    path = tmp_path_factory.mktemp("saved")
    model = library.SentenceTransformer(str(plain), device="cpu", prompts={"query": "dog ", "plain": ""})
    model.save(str(path))
    return path


def loaded(path: Path, **options: Any) -> SentenceTransformersBackend:
    backend = SentenceTransformersBackend(path, {"device": "cpu", **options})
    backend.load()
    return backend


def vectors(backend: SentenceTransformersBackend, texts: np.ndarray = TEXTS) -> np.ndarray:
    return backend.run({"text": texts})["embedding"]


def test_vectors_are_those_of_the_library(library: Any, folder: Path) -> None:
    backend = loaded(folder)
    assert backend.inputs == (TensorSpec("text", "BYTES", (-1,)),)
    assert backend.outputs == (TensorSpec("embedding", "FP32", (-1, SIZE)),)
    assert backend.batches
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = [text.decode() for text in TEXTS]
    assert np.array_equal(vectors(backend), model.encode(texts))
    alone = np.concatenate([vectors(backend, TEXTS[index : index + 1]) for index in range(len(TEXTS))])
    np.testing.assert_allclose(alone, vectors(backend), atol=1e-6)
    assert vectors(backend, TEXTS[:0]).shape == (0, SIZE)
    with pytest.raises(ValueError, match="input 'text': element 1 is no UTF-8 text"):
        vectors(backend, np.array([b"a", b"\xff"], object))


def test_options(library: Any, folder: Path) -> None:
    assert np.allclose(np.linalg.norm(vectors(loaded(folder, normalize=True)), axis=1), 1)
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = [text.decode() for text in TEXTS]
    asked = vectors(loaded(folder, prompt_name="query", batch_size=1, threads=1))
    np.testing.assert_allclose(asked, model.encode(texts, prompt_name="query"), atol=1e-6)
    model.max_seq_length = 3
    assert np.array_equal(vectors(loaded(folder, max_tokens=3)), model.encode(texts))
    for options, message in (
        ({"prompt_name": "none"}, "`parameters.prompt_name` is 'none'; the model's prompts are: "),
        ({"max_tokens": 1000}, "`parameters.max_tokens` is 1000; the model takes up to "),
        ({"pooling": "mean"}, "remove `parameters.pooling`: the folder's modules.json says"),
        ({"pooling": "no"}, "`parameters.pooling` is 'no'; write one of mean, cls"),
    ):
        with pytest.raises(BackendError, match=message):
            loaded(folder, **options)


def test_a_transformer_alone_needs_a_pooling(plain: Path, folder: Path) -> None:
    with pytest.raises(BackendError, match=r"there is no modules.json in it, .* or set `parameters.pooling`"):
        loaded(plain)
    assert np.array_equal(vectors(loaded(plain, pooling="mean")), vectors(loaded(folder)))
    assert not np.allclose(vectors(loaded(plain, pooling="cls")), vectors(loaded(folder)))


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"there is no config.json in it"):
        loaded(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(BackendError, match="sentence-transformers cannot load it: SafetensorError"):
        loaded(tmp_path)
    weights.unlink()
    with pytest.raises(BackendError, match=r"cannot load it: OSError: .*model.safetensors"):
        loaded(tmp_path)
