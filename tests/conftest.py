"""Lets pytest explain the assertions of the helpers as it explains those of the tests, and choose the wire."""

from __future__ import annotations

import gc
import re
import signal
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# A failure says something of the change, not of luck: the same examples in every run, however long the machine takes.
settings.register_profile("geartrain", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("geartrain")

# Modules that take more than 20 s of processor time, the longest first. Others are ordered by their number of tests.
LONGEST: Final = (
    "test_snippets",
    "test_loop_holds",
    "test_cli_batch",
    "test_batch_shares",
    "test_cli_init_doctor",
    "test_cli_call",
    "test_cli_run",
    "test_cli_stubs",
    "test_cli_tune",
    "test_trainings",
)
OWN_PACKAGES = {"geartrain", "tests", "tools", "benchmarks", "examples"}

pytest.register_assert_rewrite("tests.support")

from tests.support import modes  # noqa: E402 - after what it is rewritten by


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--wire",
        choices=list(modes.MODES),
        default="own",
        help="how servers are served: plain, with TLS and keys, in uvicorn, with stores, behind HAProxy, or by Ray",
    )
    parser.addoption(
        "--need-all", action="store_true", help="fail, instead of skipping, where a package of the tests is missing"
    )
    parser.addoption(
        "--write-snippets", action="store_true", help="write what the commands of the docs print into their pages"
    )
    parser.addoption(
        "--write-screenshots", action="store_true", help="write the pictures of the playground into docs/images"
    )


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Return one more than there are cores: tests that wait for a server or a limit of time leave theirs idle."""
    return (yield) + 1


def pytest_configure(config: pytest.Config) -> None:
    modes.use(config.getoption("--wire"))
    # Under nohup and in the background of a script these are ignored, and servers that tests start would inherit that.
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN and not hasattr(config, "workerinput"):
            signal.signal(number, usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the collected tests, a million objects that stay until the end.

    A pass over them takes 0.6 s of processor time. Tests make hundreds of passes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module whose imports are not installed, so that the other tests run in a small environment."""
    report = yield
    missing = re.findall(r"^E +ModuleNotFoundError: No module named '([^']+)'", str(report.longrepr), re.MULTILINE)
    if report.failed and missing and not collector.config.getoption("--need-all"):
        package = missing[-1].partition(".")[0]
        if package not in OWN_PACKAGES:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {package} is not installed (`make test` installs it)")
    return report


def pytest_unconfigure() -> None:
    modes.current().close()


def _longest_first(items: list[pytest.Item]) -> None:
    """Order files by the time that they take, so that none begins when the other workers are nearly through."""
    sizes = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int]:
        name = item.path.stem
        return LONGEST.index(name) if name in LONGEST else len(LONGEST), -sizes[item.path]

    items.sort(key=place)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what only the server's own connections do, where others have them, and what a store or replicas change."""
    mode = modes.current()
    left_out = {
        "own_wire": mode.is_hosted or mode.is_fronted,
        "without_store": mode.has_store,
        "one_server": mode.is_replicated,
    }
    for name in (name for name, is_left_out in left_out.items() if is_left_out):
        for item in items:
            for mark in item.iter_markers(name):
                item.add_marker(pytest.mark.skip(reason=f"{name.replace('_', ' ')}: {mark.kwargs['reason']}"))
    if hasattr(config, "workerinput"):  # of pytest-xdist, which gives files to its workers in this order
        _longest_first(items)
