"""The backends of scripts, as the server and the worker know them."""

from __future__ import annotations

import importlib

from geartrain.project import formats
from geartrain.worker.loading.backend_runner import SCRIPTS
from geartrain.worker.loading.scripts.script import Script, leaves


def test_the_worker_has_a_class_for_each_backend_of_the_server() -> None:
    assert set(SCRIPTS) == {*formats.SCRIPTS, formats.MLSERVER}
    for kind in SCRIPTS.values():
        module, _, name = kind.partition(":")
        found = getattr(importlib.import_module(f"geartrain.worker.loading.scripts.{module}"), name)
        assert issubclass(found, Script)


def test_leaves() -> None:
    class First: ...

    class Second(First): ...

    class Other: ...

    assert leaves([First, Second, Other, Second]) == [Second, Other]
