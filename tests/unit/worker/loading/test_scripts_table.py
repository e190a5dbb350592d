"""The backends of scripts, as the server and the worker know them."""

from __future__ import annotations

import importlib

from geartrain.project import formats
from geartrain.worker.loading.backend_runner import PYTRITON, SCRIPTS
from geartrain.worker.loading.scripts.script import Script, leaves


def test_the_worker_has_a_class_for_each_backend_of_the_server() -> None:
    assert {*SCRIPTS, PYTRITON} == {*formats.SCRIPTS, formats.MLSERVER}  # its loader is one of its own
    for kind in SCRIPTS.values():
        module, _, name = kind.partition(":")
        found = getattr(importlib.import_module(f"geartrain.worker.loading.scripts.{module}"), name)
        assert issubclass(found, Script)


def test_leaves() -> None:
    class First: ...

    class Second(First): ...

    class Other: ...

    assert leaves([First, Second, Other, Second]) == [Second, Other]
