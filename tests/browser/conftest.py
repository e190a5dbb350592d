"""One browser for all tests of the playground, and the server with their models."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

try:
    from tests.support.browser import Page, save_picture, start_browser
except ModuleNotFoundError:
    collect_ignore_glob = ["*"]  # selenium is not installed
from tests.support.servers import ServerProcess, server_process

if TYPE_CHECKING:
    from selenium import webdriver

ROOT = Path(__file__).parents[2]

__all__ = ["server_process"]

Picture = Callable[[str], None]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser."""
    started = start_browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()


class Workshop:
    """A server with the models of `tests/models/playground` and `examples/digits`."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        shutil.copytree(ROOT / "tests/models/playground", self.models)
        for name in ("digits", "thumbnails"):
            shutil.copytree(ROOT / "examples" / name, self.models / name)
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.process = ServerProcess(str(self.models), grpc=("--grpc-port", "off"), env={"GATES": str(self.gates)})
        self.url = f"{self.process.wait_for('listening')['url']}/"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory, driver: webdriver.Chrome) -> Iterator[Workshop]:
    """The server. It needs the browser, so that nothing is started where there is none."""
    served = Workshop(tmp_path_factory.mktemp("workshop"))
    yield served
    served.process.end()


@pytest.fixture
def page(driver: webdriver.Chrome, workshop: Workshop) -> Iterator[Page]:
    """The page of the server. At the end of a test it has asked no other host, and the console has no complaint."""
    shown = Page(driver, workshop.url)
    shown.hosts()
    shown.complaints()
    yield shown
    assert shown.hosts() <= {workshop.url.split("/")[2]}
    assert shown.complaints() == []


@pytest.fixture
def picture(driver: webdriver.Chrome, tmp_path: Path, request: pytest.FixtureRequest) -> Picture:
    """Take a picture of the window; with `--write-screenshots` it goes into the docs."""

    return functools.partial(save_picture, driver, tmp_path, keep=request.config.getoption("--write-screenshots"))
