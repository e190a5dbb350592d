"""The playground of servers that ask for keys, speak TLS, or are inside another server, below a path."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import geartrain
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.routing import Scope
from tests.browser.conftest import ROOT
from tests.support.browser import Page
from tests.support.certificates import make_party
from tests.support.hosts import hosted
from tests.support.servers import PATIENCE, ServerProcess

if TYPE_CHECKING:
    from selenium import webdriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ECHO = ROOT / "tests/models/playground/echo/1"
STORY = ROOT / "tests/models/playground/story"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Make a file of keys; return the keys by name."""
    made: dict[str, str] = {}
    scopes: tuple[Scope, ...]
    for name, scopes in (("reader", ("read", "predict")), ("caller", ("predict",))):
        made[name] = new_key()
        add_key(tmp_path / "keys", Key(name, scopes, digest_of(made[name])))
    return made


def test_key_is_asked_for_and_kept_in_the_tab(
    driver: webdriver.Chrome, tmp_path: Path, keys: dict[str, str], server_process: Callable[..., ServerProcess]
) -> None:
    authority = make_party("authority")
    cert, key = make_party("server", authority).write(tmp_path, "server")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    server = server_process(str(ECHO), "--keys", str(tmp_path / "keys"), *tls)
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    assert page.url.startswith("https:")
    server.wait_for("ready")
    page.hosts()
    page.open()
    page.says("dialog h2", "This server requires a key")
    assert page.faults() == []
    page.find("#key-input").send_keys("wrong", "\ue007")
    page.says("dialog .fault", "key")
    page.find("#key-input").send_keys(keys["reader"], "\ue007")
    page.find("form.form")
    page.run()
    assert page.text(".text-output") == "v1: hello"
    page.tab("code")
    page.says("pre.code", "$GEARTRAIN_KEY")
    assert keys["reader"] not in page.content("body")
    page.tab("form")
    page.click(".actions button:nth-of-type(2)")
    page.click("dialog .danger")
    page.says(".banner", "admin")  # what the key does not allow
    page.open("status")
    page.says(".tiles", "Worker memory")
    assert page.driver.get_cookies() == []
    assert page.script("return localStorage.length") == 0
    page.click("#key")
    page.click("dialog .danger")
    page.says("dialog h2", "This server requires a key")
    page.find("#key-input").send_keys(keys["caller"], "\ue007")
    page.says(".empty", "read")
    assert page.hosts() == {page.url.split("/")[2]}
    page.script("sessionStorage.clear()")


class Hosted:
    """A model below a path of a Starlette application in uvicorn, in a thread."""

    def __init__(self) -> None:
        self.url = ""
        self._begun = threading.Event()
        self._over: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._thread.start()
        assert self._begun.wait(PATIENCE)

    async def _serve(self) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Mount

        model: Any = geartrain.asgi(ECHO, wait_ready=True)
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        application = Starlette(routes=[Mount("/ml/models", model)], lifespan=model.lifespan)
        async with hosted("uvicorn", application) as url:
            self.url = f"{url}/ml/models/"
            self._begun.set()
            await self._over.wait()

    def end(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)


@pytest.fixture
def below_a_path(driver: webdriver.Chrome) -> Iterator[str]:
    served = Hosted()
    yield served.url
    served.end()


def test_page_below_a_path_of_another_server(driver: webdriver.Chrome, below_a_path: str) -> None:
    page = Page(driver, below_a_path)
    page.hosts()
    page.complaints()
    page.open()
    page.find("form.form")
    page.write("text", "below")
    page.run()
    assert page.text(".text-output") == "v1: below"
    page.tab("code")
    page.says("pre.code", "/ml/models/predictions")
    page.open("status")
    page.says(".tiles", "Worker memory")
    assert page.hosts() == {page.url.split("/")[2]}
    assert page.complaints() == []


def test_model_that_cannot_be_set_up_says_why(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    (tmp_path / "run.py").write_text(
        "from geartrain import BaseRunner\n\n\nclass Runner(BaseRunner):\n    def setup(self) -> None:\n"
        "        raise OSError('no weights')\n\n    def run(self) -> int:\n        return 1\n"
    )
    server = server_process(str(tmp_path))
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    page.open()
    page.says(".banner", "The setup of this model has failed")
    page.says(".banner", "OSError: no weights")
    assert page.text(".health") == "Setup failed"
    page.run("Not accepted")
    assert page.faults() == []


def test_model_that_cannot_be_imported_leaves_no_form_to_wait_for(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    (tmp_path / "run.py").write_text("import nothing_of_this_name\n")
    server = server_process(str(tmp_path))
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    page.open()
    page.says(".banner", "No module named 'nothing_of_this_name'")
    page.until(lambda: not page.all(".bones"), "the end of the placeholders")
    assert page.faults() == []


def test_run_that_waits_tells_its_place_in_the_queue(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    server = server_process(str(STORY), "--queue", "2", env={"GATES": str(tmp_path)})
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    server.wait_for("ready")
    page.open()
    page.click("button.run")
    page.says(".result-head", "Running")
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        page.open()
        page.click("button.run")
        page.says(".result-head", "place 1 in the queue")
        (tmp_path / "story").touch()
        page.says(".result-head", "Succeeded")
    finally:
        driver.close()
        driver.switch_to.window(first)
    page.says(".result-head", "Succeeded")


APART = """
return [...document.querySelectorAll(".stored .history-row")].map((row) =>
  row.querySelector(".sign").getBoundingClientRect().right <=
  row.querySelector(".history-input").getBoundingClientRect().left);
"""


def test_stored_runs_that_wait_do_not_cover_their_inputs(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    server = server_process(str(STORY), "--queue", "2", "--store", store, env={"GATES": str(tmp_path)})
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    server.wait_for("ready")
    for name in ("runs", "waits"):
        answer = httpx.put(f"{page.url}predictions/{name}", json={"input": {}}, headers={"prefer": "respond-async"})
        assert answer.status_code == 202
    page.open()
    page.says(".stored .history-row", "Waiting for a free slot")
    assert page.script(APART) == [True, True]
    (tmp_path / "story").touch()
