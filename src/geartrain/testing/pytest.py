"""A plugin for pytest: `pytest_plugins = ["geartrain.testing.pytest"]` in a test module, or the `conftest.py` on top.

A test that fails shows what its servers have logged while it ran.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any, Final, Protocol

import pytest

from geartrain.testing import serve
from geartrain.testing.server import Server, target_of

_SERVERS: Final = pytest.StashKey[list[Server]]()
_LOGGED: Final = pytest.StashKey[list[int]]()


class StartServer(Protocol):
    """Starts a server, or gives the one that was started with the same arguments."""

    def __call__(self, model: Any, /, **options: Any) -> Server:
        """`model` and `options` as of `geartrain.testing.serve`."""


@pytest.fixture(scope="session")
def geartrain_server(pytestconfig: pytest.Config) -> Iterator[StartServer]:
    """Serve models: a test takes this fixture, and calls it with a model and options of `geartrain serve`.

    A server is started when a test first asks for it, and ends with the session.
    """
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(model: Any, /, **options: Any) -> Server:
            key = repr((target_of(model), sorted(options.items())))
            if key not in running:
                running[key] = stack.enter_context(serve(model, **options))
                pytestconfig.stash.setdefault(_SERVERS, []).append(running[key])
            return running[key]

        yield start


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how much servers had logged before the test."""
    item.stash[_LOGGED] = [len(server.log) for server in _servers(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs to the report of a test that has failed."""
    report = yield
    if report.failed:
        before = item.stash.get(_LOGGED, [])
        for index, server in enumerate(_servers(item)):
            server.wait_until_quiet()
            text = server.log[before[index] if index < len(before) else 0 :]
            if text:
                report.sections.append((f"log of {server.url}", text))
    return report


def _servers(item: pytest.Item) -> list[Server]:
    return item.config.stash.setdefault(_SERVERS, [])
