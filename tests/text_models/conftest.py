"""The tiny model, which the tests of a session share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.text_models.tiny import make_model

# The environment of the other tests has none of the libraries.
collect_ignore_glob = [] if find_spec("transformers") and find_spec("tokenizers") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny")
