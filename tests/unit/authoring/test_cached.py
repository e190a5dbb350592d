"""`@cached`: its settings, and the errors of those that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain import cached
from geartrain.domain.predictions.caching import CacheSettings
from geartrain.worker.loading.loader import LoadError, load


def loaded(folder: Path, decorator: str, name: str = "run") -> CacheSettings | None:
    (folder / "run.py").write_text(
        f"from geartrain import cached\n{decorator}\ndef {name}(text: str) -> str: return text\n"
    )
    return load("run.py", folder, "train" if name == "train" else "predict").cache


@pytest.mark.parametrize(
    ("decorator", "settings"),
    [
        ("", None),
        ("@cached", CacheSettings()),
        ("@cached()", CacheSettings()),
        ('@cached(ttl="10m", max_bytes="1MiB", share=True)', CacheSettings(600.0, 1024**2, share=True)),
        ("@cached(ttl=1.5, max_bytes=2048)", CacheSettings(1.5, 2048)),
    ],
)
def test_the_worker_reads_it(tmp_path: Path, decorator: str, settings: CacheSettings | None) -> None:
    assert loaded(tmp_path, decorator) == settings


def test_it_is_found_below_others(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "from geartrain import cached, concurrent\n@concurrent(max=2)\n@cached(ttl=9)\n"
        "async def run(text: str) -> str:\n    return text\n"
    )
    assert load("run.py", tmp_path).cache == CacheSettings(9.0)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"ttl": 0}, ValueError, "ttl=0: it is seconds above 0"),
        ({"ttl": -1}, ValueError, "ttl=-1: it is seconds above 0"),
        ({"ttl": "soon"}, ValueError, "ttl='soon': it is seconds above 0, or a time such as '90s'"),
        ({"ttl": float("nan")}, ValueError, "ttl=nan"),
        ({"ttl": True}, TypeError, "ttl=True"),
        ({"ttl": None}, TypeError, "ttl=None"),
        ({"max_bytes": "much"}, ValueError, "max_bytes='much': it is a number of bytes, or a size such as '256MiB'"),
        ({"max_bytes": -1}, ValueError, "max_bytes=-1"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes=1.5"),
        ({"share": 1}, TypeError, "share=1: it is True or False"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cached(**settings)


def test_errors_come_at_load(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="@cached: ttl='soon'"):
        loaded(tmp_path, '@cached(ttl="soon")')
    with pytest.raises(LoadError, match="write @cached or @cached"):
        loaded(tmp_path, '@cached("1h")')
    with pytest.raises(LoadError, match="has the decorator @cached, and trainings are not kept"):
        loaded(tmp_path, "@cached", "train")
