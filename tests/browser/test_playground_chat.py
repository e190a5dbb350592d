"""The chat of the playground, and its comparison of texts: in a browser, with real models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from tests.browser.conftest import ROOT, Picture
from tests.support.browser import DESKTOP, PHONE, Page
from tests.support.servers import PATIENCE, ServerProcess

if TYPE_CHECKING:
    from selenium import webdriver
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CHATS = ROOT / "tests/models/chats"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
HARM = "<img src=x onerror='window.harm = 1'>"
ENTER, SHIFT, CONTROL, ESCAPE = "\ue007", "\ue008", "\ue009", "\ue00c"


class Chats:
    """A server with the models of `tests/models/chats`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.gate = folder / "guide"
        self.process = ServerProcess(
            str(CHATS),
            *options,
            grpc=("--grpc-port", "off"),
            env={"GATES": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.url = f"{self.process.wait_for('listening')['url']}/"


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory, driver: webdriver.Chrome) -> Iterator[Chats]:
    """The server. It needs the browser, so that nothing is started where there is none."""
    served = Chats(tmp_path_factory.mktemp("gates"))
    yield served
    served.process.end()


@pytest.fixture
def page(driver: webdriver.Chrome, chats: Chats) -> Iterator[Page]:
    """The page of the server. At the end of a test it has asked no other host, and the console has no complaint."""
    shown = Page(driver, chats.url)
    shown.hosts()
    shown.complaints()
    yield shown
    assert shown.hosts() <= {chats.url.split("/")[2]}
    assert shown.complaints() == []


def open_chat(page: Page, name: str = "guide") -> None:
    """Load the chat of a model, without what was said before."""
    page.open(f"models/{name}//chat")
    page.find(".composer textarea")


def say(page: Page, text: str) -> None:
    """Send a message."""
    page.find(".composer textarea").send_keys(text, ENTER)


def answered(page: Page, count: int = 1) -> WebElement:
    """Wait for the end of so many answers; return the last one."""

    def last() -> WebElement | None:
        found = page.all(".message.assistant:not([data-state=writing])")
        return found[-1] if len(found) == count else None

    return page.until(last, f"answer {count}")


# a chat


def test_answer_is_written_as_it_comes(page: Page, chats: Chats, picture: Picture) -> None:
    chats.gate.unlink(missing_ok=True)
    page.open("models/guide")  # whose chat comes first, for it takes messages
    page.find(".composer textarea")
    assert [each.text for each in page.all(".empty .example")] == [
        "What is a gear train?",
        "Why is the large gear slow?",
    ]
    page.click(".empty .example")
    say(page, " Please wait.")
    page.says(".message.assistant", "A gear train passes turning")
    page.says(".message.assistant .folded summary", "Reasoning")
    assert page.text(".message.user .message-body") == "What is a gear train? Please wait."
    assert page.find("button.stop").is_displayed()
    assert page.text(".composer textarea") == ""
    chats.gate.touch()
    answered(page)
    assert page.text(".message.assistant .markdown strong") == "gear train"
    assert [each.text for each in page.all(".message.assistant .markdown th")] == ["gear", "teeth", "turns"]
    assert "return follower / driver" in page.text(".message.assistant .code-box pre")
    assert "tokens/s" in page.text(".message.assistant .message-figures")
    assert "first after" in page.text(".message.assistant .message-figures")
    assert page.content("#announcements").startswith("A **gear train** passes")
    page.click(".message.assistant .folded summary")
    page.says(".message.assistant .folded pre", "a definition, a table and a line of code")
    page.click(".message.assistant .folded summary")
    page.script("scrollTo(0, 0)")
    picture("playground-chat")
    assert page.faults() == []
    page.resize(DESKTOP, "dark")
    assert page.faults() == []
    picture("playground-chat-dark")
    for scheme, name in (("light", "playground-chat-phone"), ("dark", "playground-chat-phone-dark")):
        page.resize(PHONE, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
        picture(name)


def test_answer_is_stopped_and_made_again(page: Page, chats: Chats) -> None:
    chats.gate.unlink(missing_ok=True)
    open_chat(page)
    say(page, "wait")
    page.says(".message.assistant .markdown", "gear train")
    page.click("button.stop")
    page.says(".message.assistant .message-end", "Stopped")
    assert page.find("button.send").is_displayed()
    chats.gate.touch()
    page.click(".message.assistant .message-tools button:last-child")  # Regenerate
    answered(page)
    page.until(lambda: "more force" in page.text(".message.assistant .markdown"), "the whole answer")
    assert len(page.all(".message")) == 2
    assert page.text(".message.assistant .message-end") == ""


def test_message_is_changed(page: Page) -> None:
    open_chat(page)
    say(page, "parameters")
    answered(page, 1)
    say(page, "parameters again")
    answered(page, 2)
    assert "turns 3" in page.all(".message.assistant")[1].text
    page.click(".message.user .edit")
    box = page.find(".message.user textarea")
    assert page.script("return document.activeElement === arguments[0]", box)
    box.clear()
    box.send_keys("parameters, once", CONTROL + ENTER)
    page.until(lambda: len(page.all(".message")) == 2 and "once" in page.text(".message.user"), "a shorter chat")
    answered(page, 1)
    assert "turns 1" in page.text(".message.assistant .message-body")
    page.click(".message.assistant .edit")
    page.find(".message.assistant textarea").send_keys(" and more")
    page.click(".message.assistant .message-tools .primary")
    page.says(".message.assistant .message-body", "turns 1 and more")
    page.click(".chat .panel-head button:last-child")  # New chat
    page.until(lambda: not page.all(".message"), "a new chat")


def test_system_prompt_and_parameters_are_sent(page: Page) -> None:
    open_chat(page)
    page.find(".settings .field textarea").send_keys("Be brief.")
    page.write("temperature", "0.25")
    page.write("max_tokens", "3")
    say(page, "parameters")
    answered(page, 1)
    assert page.text(".message.assistant .message-body") == "temperature 0.25, max_tokens 3, turns 2"
    say(page, "gears")
    answered(page, 2)
    last = page.all(".message.assistant")[1]
    assert "Be brief. A" in last.text
    assert "Ended at the limit of tokens" in last.text
    page.write("max_tokens", "99999")
    say(page, "gears")
    page.says(".message.assistant .failure", "1024")
    page.says(f"{page.field('max_tokens')} .fault", "1024")


def test_tools_are_called_and_answered(page: Page, picture: Picture) -> None:
    open_chat(page)
    page.write("tools", json.dumps([TOOL]))
    say(page, "What is the weather in Ulm?")
    answered(page, 1)
    page.says(".message.assistant .call summary", "Calls weather")
    page.click(".message.assistant .call summary")
    page.says(".message.assistant .call pre", '"city": "Ulm"')
    page.find(".results-form textarea").send_keys("12 degrees, rain")
    page.script("scrollTo(0, document.body.scrollHeight)")
    picture("playground-chat-tools")
    assert page.faults() == []
    page.click(".results-form button")
    answered(page, 2)
    assert "Result of weather" in page.text(".message.tool")
    assert page.all(".message.assistant")[1].find_element("css selector", "strong").text == "12 degrees, rain"


def test_run_that_fails_in_the_middle_says_why(page: Page) -> None:
    open_chat(page)
    say(page, "fail")
    page.says(".message.assistant .failure", "the gear is broken")
    assert "A gear train passes" in page.text(".message.assistant .markdown")
    assert page.faults() == []


def test_hostile_answer_is_text(page: Page) -> None:
    open_chat(page)
    say(page, f"hostile {HARM}")
    answered(page)
    assert HARM in page.text(".message.user")
    assert "<script>window.harm = 1</script>" in page.text(".message.assistant .markdown")
    assert page.all(".message img, .message script, .message iframe, .message a[href^=javascript]") == []
    assert page.text(".message.assistant a[href^=https]") == "a picture"
    assert page.script("return window.harm ?? null") is None


def test_model_that_takes_a_prompt_chats_too_by_the_keyboard_alone(page: Page) -> None:
    page.open_model("writer")
    page.click('[data-job="chat"]')
    box = page.find(".composer textarea")
    box.send_keys("good", SHIFT + ENTER)  # a line, not yet the message
    assert page.all(".message") == []
    box.send_keys("morning", ENTER)
    answered(page)
    assert page.text(".message.assistant .message-body") == "GOOD MORNING"
    page.until(lambda: page.script("return document.activeElement.ariaLabel") == "Message", "the box again")
    assert page.driver.current_url.endswith("#/models/writer//chat")
    page.click('[data-job="predictions"]')
    page.find("form.form")
    page.click('[data-job="chat"]')
    page.says(".message.assistant", "GOOD MORNING")  # is kept while the page is


def test_code_goes_on_with_the_chat(page: Page) -> None:
    open_chat(page, "writer")
    page.click(".chat .panel-head button:last-child")
    page.write("max_new_tokens", "3")
    page.find(".composer textarea").send_keys('It\'s "$HOME" `here` é.')
    page.tab("code")
    samples = {}
    for language in ("openai-python", "openai-javascript", "openai-curl"):
        page.click(f'[data-language="{language}"]')
        page.until(lambda: page.text("pre.code"), "the code")
        samples[language] = page.content("pre.code")
    page.click('[data-language="openai-python"]')
    said = run_code(sys.executable, "-", text=samples["openai-python"])
    assert said == 'IT\'S "$HOME" `HERE` '
    if shutil.which("curl"):
        assert r"\"$HOME\"" in run_code("bash", text=samples["openai-curl"])
    assert run_node(samples["openai-javascript"]) == said


JS = ROOT / "tests/js"


def run_node(code: str) -> str:
    """Run code with the client of npm."""
    node = shutil.which("node")
    if node is None or not (JS / "node_modules/openai-6").is_dir():
        pytest.skip("openai for Node.js is not installed; with npm (Debian: nodejs npm): make clients")
    return run_code(node, "--no-warnings", "--input-type=module", text=code.replace('from "openai"', 'from "openai-6"'))


def run_code(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, cwd=JS, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# texts


def test_texts_are_compared(page: Page, picture: Picture) -> None:
    page.open("models/letters//embeddings")
    page.find(".text-rows textarea")
    texts = ["The mill turns by the river", "A mill that turns by a river", "Nobody reads this"]
    for box, text in zip(page.all(".text-rows textarea"), texts, strict=True):
        box.clear()
        box.send_keys(text)
    page.click(".run-bar .run")
    page.says(".closest", "Closest: 1 and 2")
    cells = [[cell.text for cell in row.find_elements("css selector", "td")] for row in page.all("tbody tr")]
    assert [cells[at][at] for at in range(3)] == ["1.000"] * 3
    assert all(cells[one][other] == cells[other][one] for one in range(3) for other in range(3))
    assert float(cells[0][1]) > float(cells[0][2])
    assert "256 numbers a text" in page.text(".similarity .tools")
    picture("playground-texts")
    assert page.faults() == []
    for scheme in ("light", "dark"):
        page.resize(PHONE, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
    page.resize(DESKTOP)
    page.write("letters", "99")
    page.click(".run-bar .run")
    page.says(f"{page.field('letters')} .fault", "6")
    page.write("letters", "2")
    page.tab("code")
    page.says("pre.code", 'extra_body={"letters": 2}')
    assert run_code(sys.executable, "-", text=page.content("pre.code")).count(" 256 ") == 3
    page.click('[data-language="openai-javascript"]')
    page.says("pre.code", "client.embeddings.create")
    assert run_node(page.content("pre.code")).count(" 256 ") == 3


# keys


def test_chat_with_a_key(driver: webdriver.Chrome, tmp_path: Path) -> None:
    secret = new_key()
    add_key(tmp_path / "keys", Key("reader", ("read", "predict"), digest_of(secret)))
    served = Chats(tmp_path, "--keys", str(tmp_path / "keys"))
    try:
        page = Page(driver, served.url)
        page.open("models/writer//chat")
        page.says("dialog h2", "This server requires a key")
        page.find("#key-input").send_keys(secret, ENTER)
        page.find(".composer textarea").send_keys("good morning", ENTER)
        answered(page)
        assert page.text(".message.assistant .message-body") == "GOOD MORNING"
        page.tab("code")
        page.says("pre.code", "GEARTRAIN_KEY")
        assert secret not in page.content("body")
        page.script("sessionStorage.clear()")
    finally:
        served.process.end()
