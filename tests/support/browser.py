"""A headless Chromium, and what tests of the playground do in it."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.servers import PATIENCE

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

AXE: Final = Path(__file__).parents[1] / "js/node_modules/axe-core/axe.min.js"
_IMAGES: Final = Path(__file__).parents[2] / "docs/images"
_COLORS: Final = 128  # of a picture in the docs: enough for a page, and a third of the size
DESKTOP: Final = (1280, 800)
PHONE: Final = (390, 844)
SMALL_PHONE: Final = (375, 667)
NARROW: Final = 500  # pixels: windows below are those of phones

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--ignore-certificate-errors",  # those of the tests' own authority
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
# What the console says of refusals that a test asks for, and of pixels that it reads.
_EXPECTED: Final = ("the server responded with a status of", "willReadFrequently")
_SERIOUS: Final = frozenset({"serious", "critical"})
_RUN_AXE: Final = """
const changes = document.getAnimations().filter((each) => each instanceof CSSTransition);
Promise.allSettled(changes.map((each) => each.finished)).then(() => axe.run()).then(arguments[0]);
"""

Found = TypeVar("Found")


def start_browser(folder: Path) -> webdriver.Chrome:
    """Start Chromium with a new profile in a folder; skips the test where there is none."""
    browser, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if browser is None or driver is None:
        pytest.skip("no Chromium here; on Debian and Ubuntu: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_script_timeout(PATIENCE)
    return started


def save_picture(driver: webdriver.Chrome, folder: Path, name: str, *, keep: bool) -> None:
    """Take a picture of the window into a folder, and `keep` it in the docs."""
    path = folder / f"{name}.png"
    driver.save_screenshot(str(path))
    if keep:
        with Image.open(path) as shot:
            small = shot.convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
        small.save(_IMAGES / f"{name}.png", optimize=True)


class Page:
    """The playground of a server in a tab."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        """`url` is that of the server, with a slash at its end."""
        self.driver = driver
        self.url = url
        self.resize(DESKTOP)

    # going

    def open(self, place: str = "") -> None:
        """Load the page anew at a place, such as `models/digits`."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#/{place}")

    def open_model(self, name: str, job: str = "") -> None:
        """Load the page of a model; wait for its form."""
        self.open(f"models/{name}{job}")
        self.find("form.form")

    def resize(self, size: tuple[int, int], scheme: str = "light") -> None:
        """Give the window a size, and the system a scheme: `light` or `dark`."""
        width, height = self.size = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < NARROW}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # looking

    def until(self, look: Callable[[], Found | None], what: str) -> Found:
        """Wait until `look` gives something."""

        def safely(_: object) -> Found | None:
            try:
                return look()
            except StaleElementReferenceException:
                return None

        # Selenium asks again every half a second, which is long for a test.
        try:
            found = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.03).until(safely)
        except TimeoutException:
            pytest.fail(f"{what} has not come: {self.content('body')[:4000]}")
        assert found
        return found

    def all(self, selector: str) -> list[WebElement]:
        """Return what is there now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def find(self, selector: str) -> WebElement:
        """Wait until there is one, and it can be seen."""
        return self.until(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def text(self, selector: str) -> str:
        """Return the text of the first one, as it is shown; nothing without one."""
        found = self.all(selector)
        return found[0].text if found else ""

    def content(self, selector: str) -> str:
        """Return the text of the first one, shown or not."""
        return str(self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def says(self, selector: str, text: str) -> None:
        """Wait until one shows a text."""
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def script(self, code: str, *arguments: Any) -> Any:
        """Run a function's body in the page."""
        return self.driver.execute_script(code, *arguments)

    # doing

    def click(self, selector: str) -> None:
        """Click one; what moves out of the way is waited for."""

        def attempt() -> bool:
            found = self.find(selector)
            try:
                found.click()
            except ElementClickInterceptedException:  # by what is fixed to the window
                self.script("arguments[0].scrollIntoView({ block: 'center' })", found)
                return False
            return True

        self.until(attempt, f"a click on {selector}")

    def field(self, name: str) -> str:
        """Return the selector of the row of an input."""
        return f'[data-field="{name}"]'

    def write(self, name: str, text: str) -> None:
        """Write into the box of an input, in place of what is there."""
        box = self.find(f"{self.field(name)} :is(textarea, input:not([type=range], [type=file], [type=url]))")
        box.clear()
        box.send_keys(text)

    def choose(self, name: str, text: str) -> None:
        """Choose an option of an input."""
        self.choose_shown(f"{self.field(name)} select", text)

    def choose_shown(self, selector: str, text: str) -> None:
        """Choose an option of a list."""
        Select(self.find(selector)).select_by_visible_text(text)

    def choose_version(self, version: str) -> None:
        """Go to a version of the model."""
        Select(self.find('select[aria-label="Version"]')).select_by_value(version)
        self.until(lambda: self.driver.current_url.endswith(f"/{version}"), "its page")
        self.find("form.form")

    def give_file(self, name: str, *paths: Path) -> None:
        """Choose files for an input."""
        picker = self.all(f"{self.field(name)} input[type=file]")[0]
        picker.send_keys("\n".join(map(str, paths)))

    def run(self, status: str = "Succeeded") -> None:
        """Run the model, and wait for that end."""
        self.click("button.run")
        self.says(".result-head", status)

    def tab(self, name: str) -> None:
        """Show a tab: `form`, `json`, `code`, `output`, `logs` or `details`."""
        self.click(f'[data-tab="{name}"]')

    def answer(self) -> Any:
        """Return the output of the run that is shown, as the server has sent it."""
        self.tab("details")
        return json.loads(self.driver.execute_async_script(_READ_ANSWER))

    # checking

    def faults(self) -> list[str]:
        """Return what axe finds that is serious, in colors that no longer change; skips the test without axe."""
        self.script(_axe())
        found = self.driver.execute_async_script(_RUN_AXE)
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in _SERIOUS
            for node in each["nodes"]
        ]

    def is_too_wide(self) -> bool:
        """True if the page can be moved sideways. A phone makes its window as wide as such a page."""
        return bool(self.script("return document.documentElement.scrollWidth") > self.size[0])

    def hosts(self) -> set[str]:
        """Return the hosts that the browser has asked since the last call."""
        return {urlsplit(url).netloc for url in _requests(self.driver)}

    def statuses(self) -> list[int]:
        """Return the statuses of all answers since the last call, of this or of `hosts`."""
        messages = (json.loads(line["message"])["message"] for line in self.driver.get_log("performance"))  # type: ignore[no-untyped-call]
        return [
            message["params"]["response"]["status"]
            for message in messages
            if message["method"] == "Network.responseReceived"
        ]

    def complaints(self) -> list[str]:
        """Return what the console has said since the last call, but for the statuses of refusals."""
        lines = [line["message"] for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        return [line for line in lines if not any(text in line for text in _EXPECTED)]


_READ_ANSWER: Final = """
const settle = arguments[0];
const button = document.querySelector('[role="tabpanel"]:not([hidden]) .json-box .copy');
navigator.clipboard.writeText = async (text) => {
  settle(JSON.stringify(JSON.parse(text).output ?? null));
};
button.click();
"""


def _requests(driver: webdriver.Chrome) -> Iterator[str]:
    for line in driver.get_log("performance"):  # type: ignore[no-untyped-call]
        message = json.loads(line["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if url.startswith(("http:", "https:", "ws")):
                yield url


@functools.cache
def _axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; with npm (Debian: nodejs npm): make clients")
    return AXE.read_text(encoding="utf-8")
