"""The page of the API at `/docs`, as its readers use it."""

from __future__ import annotations

import httpx
import pytest

from tests.browser.conftest import Picture, Workshop
from tests.support.browser import DESKTOP, PHONE, SMALL_PHONE, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # of which a few seconds, where nobody else is

OPERATIONS = """
const text = (each, part) => each.querySelector(`.opblock-summary-${part}`);
return [...document.querySelectorAll(".opblock-tag-section")].map((tag) => [
  tag.querySelector(".opblock-tag").dataset.tag,
  [...tag.querySelectorAll(".opblock")].map((each) =>
    `${text(each, "method").textContent} ${text(each, "path").dataset.path}`),
]);
"""
BACKGROUND = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"


def open_reference(page: Page, place: str = "docs") -> None:
    page.until(lambda: httpx.get(f"{page.url}readyz").is_success, "every model")
    page.driver.get("about:blank")
    page.driver.get(f"{page.url}{place}")
    page.find(".opblock")


def test_reference_has_a_way_there_and_back(page: Page) -> None:
    page.open_model("echo")
    page.click('nav a[href="docs"]')
    page.find(".opblock")
    assert page.driver.title == "API reference - geartrain"
    page.click('nav a[href$="#/results"]')
    page.says("h1", "Results")
    page.click('nav a[href="docs"]')
    page.find(".opblock")
    page.click(".top .brand")
    page.find("form.form")
    open_reference(page, "models/echo/docs")
    assert page.driver.title == "API of echo - geartrain"
    page.click('nav a[href*="#/models/echo"]')
    page.says("h1", "echo")


def test_reference_shows_predictions_first_and_one_model_unfolded(page: Page) -> None:
    open_reference(page)
    page.says(".info", "for applications, and for clients of Cog and Replicate")
    page.says(".info", "for clients of Triton, KServe, MLServer and Seldon")
    tags = dict(page.script(OPERATIONS))
    assert list(tags)[-1] == "this server"
    first, *others = tags.values()
    assert first[0] == "POST /models/broken/predictions"
    assert first[-2:] == ["GET /models/broken/health-check", "GET /models/broken/openapi.json"]
    assert others == [[]] * (len(tags) - 1)
    page.click('[data-tag="digits"]')
    page.says("#swagger-ui", "/v2/models/digits/infer")


def test_reference_of_one_model_keeps_the_order(page: Page) -> None:
    open_reference(page, "models/echo/docs")
    ((_, operations),) = page.script(OPERATIONS)
    assert operations[0] == "POST /predictions"
    assert operations[-4:] == ["GET /openapi.json", "GET /docs", "POST /shutdown", "GET /"]


def test_reference_is_of_the_same_house(page: Page, picture: Picture) -> None:
    open_reference(page)
    assert page.faults() == []
    light = page.script(BACKGROUND, ".opblock")
    picture("docs")
    page.resize(DESKTOP, "dark")
    assert page.script(BACKGROUND, ".opblock") != light
    assert page.faults() == []
    picture("docs-dark")
    page.click("#theme")  # light, whatever the system says
    page.until(lambda: page.script(BACKGROUND, ".opblock") == light, "the light theme")
    page.script("localStorage.clear()")
    open_reference(page)
    for size in (SMALL_PHONE, PHONE):
        page.resize(size)
        assert not page.is_too_wide()
    assert page.faults() == []
    picture("docs-phone")
    page.resize(PHONE, "dark")
    assert page.faults() == []
    picture("docs-phone-dark")
    page.click(".opblock-summary-control")
    page.find(".opblock-body")
    page.until(lambda: page.all(".opblock-body pre[tabindex]"), "an example that the keyboard reaches")
    assert not page.is_too_wide()
    assert page.faults() == []


def test_reference_sends_requests(page: Page, workshop: Workshop) -> None:
    assert page.url == workshop.url
    open_reference(page)
    page.click('[data-tag="echo"]')
    page.click("#operations-echo-echo_predict_predictions_post .opblock-summary-control")
    page.click(".try-out__btn")
    box = page.find("textarea.body-param__text")
    box.clear()
    box.send_keys('{"input": {"text": "from the reference"}}')
    page.click("button.execute")
    page.says(".live-responses-table", "v2: from the reference")
