"""The page at `/`, as its readers use it: in a browser, with real models."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import ROOT, Picture, Workshop
from tests.support.browser import DESKTOP, PHONE, SMALL_PHONE, Page
from tests.support.servers import PATIENCE, ServerProcess, write_model

if TYPE_CHECKING:
    from selenium import webdriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # of which a few seconds, where nobody else is

SHOUT = """
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, text: str) -> str:
            return text.upper()
"""
DIGITS = ROOT / "examples/digits"
THREE, SEVEN = DIGITS / "three.png", DIGITS / "seven.png"
LONG = 10_000_000  # characters of the line of `hostile`
SOON = 5000  # milliseconds in which a page that is not stuck takes a turn, on a machine that is busy with others


# a picture in, an answer out


def test_picture_of_a_digit_and_its_answer(page: Page, picture: Picture) -> None:
    page.open_model("digits")
    page.says(".health", "Ready")
    page.give_file("image", THREE)
    page.says(".file-name", "three.png")
    page.run()
    assert page.text(".scalar.large, .entries .scalar") == "3"
    assert "9737" in page.text(".facts")
    assert page.find("svg.bars").get_attribute("aria-label") == "probabilities: 10 numbers, the greatest, 0.9737, at 3"
    assert page.faults() == []
    picture("playground-digits")
    page.resize(DESKTOP, "dark")
    assert page.faults() == []
    picture("playground-digits-dark")
    for scheme, name in (("light", "playground-digits-phone"), ("dark", "playground-digits-phone-dark")):
        page.resize(PHONE, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
        picture(name)


def test_runs_of_the_session_can_be_returned_to(page: Page) -> None:
    page.open_model("digits")
    page.give_file("image", THREE)
    page.run()
    page.give_file("image", SEVEN)
    page.says(".file-name", "seven.png")
    page.click("button.run")
    page.until(lambda: page.text(".entries .scalar") == "7", "the second answer")
    assert [row.text.split("\n")[0:2][-1] for row in page.all(".history-row")] == ["Succeeded"] * 2
    page.all(".history-row")[1].click()
    page.until(lambda: page.text(".entries .scalar") == "3", "the first answer")
    assert page.text(".file-name") == "three.png"
    page.click(".history .quiet")
    assert page.all(".history-row") == []


# runs that take their time


def test_stream_is_shown_as_it_comes(page: Page, workshop: Workshop, picture: Picture) -> None:
    gate = workshop.gates / "story"
    gate.unlink(missing_ok=True)
    page.open_model("story")
    page.click("button.run")
    page.says(".result-head", "Running")
    page.says(".live pre", "Once upon a time. In a workshop by the river")
    page.until(lambda: page.text('[data-tab="logs"] .tab-badge') == "24", "lines of the log")
    assert page.find("button.cancel").is_enabled()
    assert not page.find("button.run").is_enabled()
    picture("playground-stream")
    page.tab("logs")
    page.says("pre.log", "word 24 of")
    page.tab("details")
    page.says(".facts", "words\n24")
    gate.touch()
    page.says(".result-head", "Succeeded")
    page.tab("output")
    assert page.text(".markdown strong") == "That is a gear train."
    page.click('.text-output [aria-pressed="true"]')
    assert "**That is a gear train.**" in page.text(".long-text")
    assert page.all("pre.columns") == []
    assert page.answer()[:3] == ["Once upon a time.", " In", " a"]


@pytest.mark.parametrize("model", ["patience", "story"])
def test_run_is_canceled(page: Page, workshop: Workshop, model: str) -> None:
    (workshop.gates / "story").unlink(missing_ok=True)
    page.open_model(model)
    page.click("button.run")
    page.says(".live", "5" if model == "patience" else "workshop")  # without a stream it is asked for
    page.click("button.cancel")
    page.says(".result-head", "Canceled")
    page.says(".result-body", "What had come until then:")
    assert page.find("button.run").is_enabled()
    page.until(lambda: not any(each.is_displayed() for each in page.all("button.cancel")), "no run to cancel")


def test_run_that_fails_shows_why(page: Page, picture: Picture) -> None:
    page.open_model("broken")
    page.run("Failed")
    assert page.text(".failure-text") == "ZeroDivisionError: division by zero"
    assert "return 360 / teeth" in page.text(".failure pre")
    assert page.faults() == []
    picture("playground-failure")
    page.write("teeth", "x")
    page.click("button.run")
    page.says(f"{page.field('teeth')} .fault", '"x" is not a number')
    page.write("teeth", "8")
    page.run()
    assert page.text(".scalar") == "45"


def test_second_run_of_a_model_that_is_busy_can_be_tried_again(page: Page) -> None:
    page.open_model("patience")
    page.click("button.run")
    page.says(".live", "5")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.open_model("patience")
        page.run("Not accepted")
        assert "--queue" in page.text(".failure")
        page.find(".failure button")
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)
    page.click("button.cancel")
    page.says(".result-head", "Canceled")


# inputs


SLIDE = """
const slider = document.querySelector(`[data-field=${arguments[0]}] input[type=range]`);
slider.value = arguments[1];
slider.dispatchEvent(new Event("input"));
"""


def test_every_kind_of_input(page: Page, picture: Picture) -> None:
    page.open_model("everything")
    page.write("prompt", 'two gears, "fine" lines')
    page.choose("style", "oil")
    page.script(SLIDE, "steps", 31)
    assert page.all(f"{page.field('steps')} .number")[0].get_attribute("value") == "31"
    page.write("guidance", "3.25")
    page.write("seed", "7")
    page.choose("size", "large")
    page.click(f"{page.field('upscale')} input")
    page.write("token", "hush")
    page.click(f"{page.field('tags')} .list > button")
    page.all(f"{page.field('tags')} input")[1].send_keys("mill")
    page.give_file("photo", THREE)
    page.give_file("references", THREE, SEVEN)
    page.write("options", '{"fast": false, "deep": [1, {"a": null}]}')
    page.write("box", '{"left": 1, "top": 2}')
    page.write("weights", "[1.5, 2]")
    page.script("scrollTo(0, 0)")
    picture("playground-inputs")
    assert page.faults() == []
    page.run()
    sizes = [path.stat().st_size for path in (THREE, SEVEN)]
    assert page.answer() == {
        "prompt": 'two gears, "fine" lines',
        "style": "oil",
        "steps": 31,
        "guidance": 3.25,
        "seed": 7,
        "size": "large",
        "upscale": True,
        "token": 4,
        "tags": ["gear", "mill"],
        "ratios": [1.5],
        "photo": sizes[0],
        "voice": None,
        "references": sizes,
        "options": {"fast": False, "deep": [1, {"a": None}]},
        "box": [1, 2],
        "weights": [1.5, 2.0],
    }
    page.click(".run-bar button:nth-of-type(3)")  # reset
    assert page.find(f"{page.field('steps')} .number").get_attribute("value") == "20"
    assert page.all(".file-item") == []
    page.resize(PHONE)
    assert not page.is_too_wide()
    page.script("scrollTo(0, 0)")
    picture("playground-inputs-phone")


def test_what_the_server_refuses_is_said_at_its_input(page: Page, picture: Picture) -> None:
    page.open_model("everything")
    page.write("prompt", "x")
    page.write("steps", "51")
    page.write("box", '{"left": "a"}')
    page.run("Not accepted")
    for name, text in (
        ("prompt", "shorter than 3"),
        ("steps", "51 is greater than the maximum of 50"),
        ("box", "top: Field required"),
    ):
        page.says(f"{page.field(name)} .fault", text)
    prompt = page.find(f"{page.field('prompt')} textarea")
    assert page.driver.switch_to.active_element == prompt
    assert prompt.get_attribute("aria-invalid") == "true"
    assert "shorter" in page.content(f"#{(prompt.get_attribute('aria-describedby') or '').split()[-1]}")
    assert page.faults() == []
    picture("playground-refused")
    prompt.send_keys("yz")
    page.until(lambda: prompt.get_attribute("aria-invalid") is None, "no fault any more")


DROP = """
const [selector, kind, data] = arguments;
const transfer = new DataTransfer();
const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
transfer.items.add(new File([bytes], "given.png", { type: "image/png" }));
const options = { bubbles: true, cancelable: true };
const event =
  kind === "drop"
    ? new DragEvent("drop", { ...options, dataTransfer: transfer })
    : new ClipboardEvent("paste", { ...options, clipboardData: transfer });
document.querySelector(selector).dispatchEvent(event);
"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_file_is_dropped_or_pasted(page: Page, kind: str) -> None:
    page.open_model("digits")
    page.script(DROP, ".drop" if kind == "drop" else "main", kind, base64.b64encode(SEVEN.read_bytes()).decode())
    page.says(".file-name", "given.png")
    page.run()
    assert page.text(".entries .scalar") == "7"
    page.click(".file-item button")
    assert page.all(".file-item") == []


def test_camera_and_microphone(page: Page) -> None:
    page.open_model("everything")
    page.write("prompt", "what I see")
    page.click('[aria-label="Take a photo for Photo"]')
    page.until(lambda: page.find("dialog .primary").is_enabled(), "the camera")
    page.click("dialog .primary")
    page.says(f"{page.field('photo')} .file-name", "photo-")
    page.click('[aria-label="Record a sound for Voice"]')
    page.until(lambda: page.find("dialog .primary").is_enabled(), "the microphone")
    page.says("dialog .clock", " s")
    page.click("dialog .primary")
    page.says(f"{page.field('voice')} .file-name", "sound-")
    assert page.all('[aria-label="Take a photo for Voice"]') == []  # it takes sounds alone
    page.run()
    answer = page.answer()
    assert answer["photo"] > 100
    assert answer["voice"] > 100


def test_input_as_json_and_by_the_keyboard_alone(page: Page) -> None:
    page.open_model("echo")
    page.tab("json")
    area = page.find(".json-area")
    assert json.loads(area.get_attribute("value") or "") == {"text": "hello"}
    area.clear()
    area.send_keys('{"text": "wri')
    page.click("button.run")
    page.says(".json-panel .fault", "This is not JSON")
    area.send_keys("tten", '"}', "\ue009\ue007")  # Control and Enter
    page.says(".text-output", "v2: written")
    page.tab("form")
    assert page.find(f"{page.field('text')} textarea").get_attribute("value") == "written"


# outputs


OUTPUTS = {  # where each is shown, and what is said there
    "picture": ("figure img.picture", "96 × 96 pixels"),
    "sound": ("figure audio", "audio/"),
    "file": (".file-name-only", "output.bin"),
    "table": ("table", "gear 7"),
    "tensor": ("svg.bars", "[4, 64]"),
    "markdown": (".markdown table", "fast"),
    "drawing": ("pre.columns", ":*%="),
    "json": (".json-tree details", "list of 300"),
    "nothing": (".result-body p", "Nothing"),
}


def test_outputs_are_shown_as_what_they_are(page: Page) -> None:
    page.open_model("outputs")
    for what, (selector, text) in OUTPUTS.items():
        page.choose("what", what)
        page.click("button.run")
        page.find(f".result {selector}")
        page.says(".result .result-body", text)
        page.says(".result-head", "Succeeded")
        if what in {"table", "tensor", "markdown", "json"}:
            assert page.faults() == []


GROWN = """
const [parts, done] = arguments;
const app = document.querySelector("script[type=module]").src;
import(new URL("outputs/words.js", app)).then(({ growingText }) => {
  const { element, append } = growingText();
  document.body.append(element);
  const shown = element.querySelector("pre");
  const fonts = parts.map((part) => (append(part), getComputedStyle(shown).fontFamily.includes("mono")));
  element.remove();
  done(fonts);
});
"""


def test_letters_of_a_drawing_have_one_width_as_soon_as_it_is_one(page: Page) -> None:
    page.open_model("outputs")
    parts = ["Two wheels:\n", "  .-+-.\n", "  :*", "%=\n", "turn."]
    assert page.driver.execute_async_script(GROWN, parts) == [False, False, True, True, True]
    prose = ["Two wheels.  They turn.\n", "  - one\n", "One is small.\n"]
    assert page.driver.execute_async_script(GROWN, prose) == [False, False, False]


def test_pictures_are_shown_side_by_side(page: Page) -> None:
    page.open_model("thumbnails")
    page.give_file("image", THREE)
    page.find(f"{page.field('widths')} .list > button").click()
    page.all(f"{page.field('widths')} input")[1].send_keys("128")
    page.run()
    page.until(lambda: [each.size["width"] for each in page.all(".gallery img")] == [64, 128], "two pictures")


# what must not be believed


HOSTILE = {  # what is shown of each
    "html": '<img src=x onerror="document.title=1"><script>document.title=2</script><b>bold</b>',
    "markdown": "<script>document.title=2</script>",
    "line": f"The first 20,000 of {LONG:,} characters",
    "escapes": "␛[31mred␛]0;title␇ ⟨U+009B⟩2J ⟨U+202E⟩back",
    "keys": "<script>document.title=2</script>",
    "svg": "image/svg+xml, 64 B",
    "page": "<script>alert(1)</script>",
}


def test_hostile_output_is_text(page: Page) -> None:
    page.open_model("hostile")
    for what, shown in HOSTILE.items():
        page.choose("what", what)
        page.click("button.run")
        page.says(".result .result-body", shown)
        page.says(".result-head", "Succeeded")
        for tab in ("logs", "details", "output"):
            page.tab(tab)
        turn = page.driver.execute_async_script(
            "const at = performance.now();"
            "requestAnimationFrame(() => setTimeout(() => arguments[0](performance.now() - at)))"
        )
        assert turn < SOON
        assert page.driver.title == "hostile · geartrain"
        assert page.script("return {}.polluted ?? null") is None
        assert page.all(".result script, .result iframe, .result b, .result [onerror]") == []
        for link in page.all(".result a"):
            assert not (link.get_attribute("href") or "").startswith("javascript:")
        sources = page.script("return [...document.images].map((each) => each.src)")
        assert all(each.startswith(("blob:", "data:", page.url)) for each in sources)


def test_no_script_can_be_put_into_the_page(page: Page) -> None:
    page.open_model("echo")
    blocked = """
        const said = [];
        document.addEventListener("securitypolicyviolation", (event) => said.push(event.effectiveDirective));
        try { document.body.innerHTML = "<b>"; } catch { said.push("sink"); }
        const inline = document.createElement("style");
        inline.textContent = "body { display: none }";
        const image = document.createElement("img");
        image.src = "http://192.0.2.1/x.png";
        document.body.append(inline, image);
        fetch("http://192.0.2.1/").catch(() => setTimeout(() => arguments[0](said), 50));
    """
    found = set(page.driver.execute_async_script(blocked))
    assert {"sink", "require-trusted-types-for", "style-src-elem", "img-src", "connect-src"} <= found
    page.complaints()
    assert page.hosts() <= {
        page.url.split("/")[2],
        "192.0.2.1",
    }  # what was blocked is noted as a request, and never sent


# several models


def test_models_versions_load_and_unload(page: Page, picture: Picture, workshop: Workshop) -> None:
    page.open_model("echo")
    names = [each.text for each in page.all(".model-name")]
    assert names == sorted(each.name for each in workshop.models.iterdir())
    page.run()
    assert page.text(".text-output") == "v2: hello"
    picture("playground-models")
    page.choose_version("1")
    page.run()
    assert page.text(".text-output") == "v1: hello"
    page.find("input[type=search]").send_keys("dig")
    assert [each.text for each in page.all(".model-name") if each.is_displayed()] == ["digits"]
    page.click(".actions button:nth-of-type(2)")
    page.says("dialog", "Unload echo?")
    page.click("dialog .danger")
    page.says(".actions", "Load")
    page.until(lambda: page.text(".actions") == "Load", "an unloaded model")
    assert "not loaded" in page.content('[data-model="echo"] .sign')
    page.click(".actions button")
    page.until(lambda: "Unload" in page.text(".actions"), "the model again")
    page.find("form.form")


# as code


@pytest.fixture
def snippets(page: Page) -> dict[str, str]:
    page.open_model("digits")
    page.give_file("image", THREE)
    page.tab("code")
    found: dict[str, str] = {}
    for language in ("curl", "python", "httpx", "javascript", "triton", "grpc"):
        page.click(f'[data-language="{language}"]')
        page.until(lambda name=language: page.all(f'[data-language="{name}"][aria-pressed="true"]'), language)  # type: ignore[misc]
        before = set(found.values())
        page.until(lambda seen=before: page.text("pre.code") and page.text("pre.code") not in seen, "the code")  # type: ignore[misc]
        found[language] = page.content("pre.code")
    return found


def run_code(*command: str, text: str = "") -> str:
    done = subprocess.run(
        command, input=text, cwd=DIGITS, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_does_what_the_form_does(page: Page, snippets: dict[str, str], picture: Picture) -> None:
    page.click('[data-language="python"]')
    picture("playground-code")
    assert page.faults() == []
    if shutil.which("curl"):
        assert json.loads(run_code("bash", "-c", snippets["curl"]))["output"]["digit"] == 3
    assert "from geartrain import Client" in snippets["python"]
    for language in ("python", "httpx"):
        assert "{'digit': 3," in run_code(sys.executable, "-c", snippets[language])
    assert "digit [3]" in run_code(sys.executable, "-c", snippets["triton"])
    if node := shutil.which("node"):
        file = 'const file = await (await import("node:fs")).openAsBlob("three.png");\n'
        assert "digit: 3" in run_code(node, "--no-warnings", "--input-type=module", text=file + snippets["javascript"])
    check_grpc(snippets["grpc"], page.url)


def check_grpc(code: str, url: str) -> None:
    """Send what grpcurl would: it reads messages as the JSON of protobuf."""
    import grpc
    from google.protobuf import json_format

    from geartrain.transport.grpc import open_inference_pb2 as pb

    assert code.startswith("grpcurl -plaintext -d @ ")
    message = run_code("bash", "-c", f"cat {code[code.index('<<END') :]}")
    with grpc.insecure_channel(url.split("/")[2]) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        asked = json_format.Parse(message, pb.ModelInferRequest())
        answer = infer(asked, timeout=PATIENCE)
    assert [output.name for output in answer.outputs] == ["digit", "probabilities"]


def test_code_of_a_stream(page: Page, workshop: Workshop) -> None:
    (workshop.gates / "story").touch()
    page.open_model("story")
    page.write("opening", 'It\'s "$HOME" `here`, \\ there: é.')
    page.tab("code")
    for language, command in (
        ("curl", ["bash"]),
        ("python", [sys.executable, "-"]),
        ("httpx", [sys.executable, "-"]),
        ("javascript", ["node", "--input-type=module"]),
    ):
        if shutil.which(command[0]) is None:
            continue
        page.click(f'[data-language="{language}"]')
        page.until(lambda: page.text("pre.code"), "the code")
        said = run_code(*command, text=page.content("pre.code"))
        assert 'It\'s "$HOME" `here`, \\ there: é.' in said.replace('\\"', '"').replace("\\\\", "\\")
        assert "train.**" in said


# the status


def lines(page: Page) -> set[str]:
    """The colors of the series of all charts: those of their keys that canvases have, too."""
    found = page.script("""
        return [...document.querySelectorAll(".plot-box")].map((box) => {
            const canvas = box.querySelector("canvas");
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const drawn = new Set();
            for (let at = 0; at < pixels.length; at += 4) {
                if (pixels[at + 3] === 255) drawn.add(`rgb(${pixels[at]}, ${pixels[at + 1]}, ${pixels[at + 2]})`);
            }
            const keys = [...box.querySelectorAll(".swatch")].map((key) => getComputedStyle(key).backgroundColor);
            return keys.filter((color) => drawn.has(color));
        }).flat()
    """)
    return set(found)


def has_lines(page: Page, light: set[str], *, is_dark: bool) -> bool:
    drawn = lines(page)
    return bool(drawn) and drawn.isdisjoint(light) is is_dark


def test_status(page: Page, picture: Picture, workshop: Workshop) -> None:
    page.open_model("echo")
    page.run()
    page.click('[data-place="status"]')
    page.says(".tiles", "Worker memory")
    with httpx.Client(base_url=workshop.url, timeout=PATIENCE) as client:

        def has_latency() -> bool:
            client.post("/models/echo/predictions", json={"input": {}}).raise_for_status()
            return "ms" in page.text(".tile:nth-of-type(2) .tile-value")

        page.until(has_latency, "a latency")
    assert len(page.all(".plots canvas")) == 6
    light = page.until(lambda: lines(page), "lines")
    page.resize(DESKTOP, "dark")
    page.until(lambda: (dark := lines(page)) and not dark & light, "lines of other colors")
    page.resize(DESKTOP)
    page.until(lambda: page.text(".status-view tbody").count("Ready") == 11, "eleven workers that are ready")
    page.choose_shown("#status-model", "echo")
    page.until(lambda: page.text(".status-view tbody").count("Ready") == 2, "two workers of the model")
    page.resize(SMALL_PHONE)
    assert not page.is_too_wide()
    for size, scheme, name in (
        (DESKTOP, "light", "playground-status"),
        (DESKTOP, "dark", "playground-status-dark"),
        (PHONE, "light", "playground-status-phone"),
        (PHONE, "dark", "playground-status-phone-dark"),
    ):
        page.resize(size, scheme)
        page.choose_shown("#status-model", "echo" if size == PHONE else "All models")
        page.script("document.activeElement.blur()")
        page.until(functools.partial(has_lines, page, light, is_dark=scheme == "dark"), "lines")
        assert not page.is_too_wide()
        assert page.faults() == []
        picture(name)


TILES = """
const parts = [...document.querySelectorAll(".tile")].map((tile) => [...tile.children].map((each) => each.textContent));
return Object.fromEntries(parts);
"""


def tiles(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.script(TILES)
    return found


def test_status_counts_every_request_once(page: Page, workshop: Workshop) -> None:
    page.open_model("patience")
    page.click("button.run")
    page.says(".live", "5")
    page.click("button.cancel")
    page.says(".result-head", "Canceled")
    page.click('[data-place="status"]')
    page.choose_shown("#status-model", "patience")
    page.until(lambda: tiles(page).get("Canceled", "0") != "0", "a canceled request")
    with httpx.Client(base_url=workshop.url, timeout=PATIENCE) as client:
        client.post("/models/broken/predictions", json={"input": {"teeth": 0}}).raise_for_status()
    page.choose_shown("#status-model", "All models")
    page.until(lambda: tiles(page).get("Failed", "0") != "0", "a failed request")
    counts = {name: int(text) for name, text in tiles(page).items() if text.isdecimal()}
    assert counts["All requests"] == counts["Succeeded"] + counts["Failed"] + counts["Canceled"]


def test_status_is_remembered_by_the_server(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    write_model(tmp_path / "model", SHOUT)
    server = server_process(str(tmp_path / "model"))
    url = server.wait_for("listening")["url"]
    server.wait_for("ready")
    page = Page(driver, f"{url}/")
    page.complaints()
    page.open("status")
    page.find(".plots canvas")
    assert [each.text for each in page.all(".plot-empty") if each.is_displayed()] == ["No requests yet"] * 3
    page.open()  # nobody looks
    asked = httpx.post(f"{url}/predictions", json={"input": {"text": "x"}}, timeout=PATIENCE)
    assert asked.status_code == 200
    page.until(lambda: any(httpx.get(f"{url}/playground/history").json()["succeeded"]), "a point of the request")
    page.open("status")  # a visitor who was not there
    page.find(".plots canvas")
    assert not [each for each in page.all(".plot-empty")[:2] if each.is_displayed()]
    assert "ms" in tiles(page)["Median latency"]
    assert page.complaints() == []


def test_answer_of_the_cache_is_shown_as_one(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    write_model(tmp_path / "kept", SHOUT.replace("text: str", 'text: str = "hi"'))
    (tmp_path / "kept" / "geartrain.yaml").write_text("cache: true\n")
    server = server_process(str(tmp_path))
    url = server.wait_for("listening")["url"]
    page = Page(driver, f"{url}/")
    page.complaints()
    page.open_model("kept")
    page.says(".health", "Ready")
    page.run()
    assert page.all(".kept") == []
    page.click("button.run")
    page.says(".result-head .kept", "from the cache, ")
    assert "HI" in page.text(".result")
    assert page.faults() == []
    assert page.complaints() == []


def test_page_sends_no_request_that_is_refused(page: Page) -> None:
    page.statuses()
    page.open_model("echo")
    page.until(lambda: "Unload" in page.text(".actions"), "what an administrator may do")
    page.click('[data-place="status"]')
    page.find(".plots canvas")
    assert [each for each in page.statuses() if each >= 400] == []


# what a model is


def test_card_says_what_a_model_is_and_has_examples(page: Page, picture: Picture) -> None:
    page.open_model("card")
    assert page.text(".about") == "Reads a picture, and says how sure it is.\n\nScores below `least` are left out."
    page.click(".readme summary")
    page.says(".readme h3", "Readings")
    assert page.all(".readme img") == []
    assert page.all(".readme table")
    assert page.faults() == []
    page.click(".readme summary")
    assert [each.text for each in page.all(".example")][1] == "image: three.png · title: Sure of it · least: 0.4"
    page.all(".example")[0].click()
    page.says(".file-name", "three.png")
    assert page.find(f"{page.field('title')} textarea").get_attribute("value") == "A three"
    page.run()
    assert [each.text for each in page.all(".entries > .entry > dt")] == ["Title", "Scores", "Bytes"]
    assert [each.text for each in page.all(".result th")] == ["Label", "Score"]
    assert [each.text for each in page.all(".result td.number")] == ["0.140174", "0.124850", "0.500000"]
    page.script("document.activeElement.blur()")
    picture("playground-card")
    for size, scheme in ((DESKTOP, "dark"), (PHONE, "light"), (SMALL_PHONE, "dark")):
        page.resize(size, scheme)
        assert not page.is_too_wide()
        assert page.faults() == []
    page.script("scrollTo(0, 0)")
    picture("playground-card-phone-dark")


# a run that takes long, its link, and two runs beside each other

SLOW = """
    import os, sys, time
    from collections.abc import Iterator
    from pathlib import Path
    from geartrain import BaseModel, BaseRunner, ConcatenateIterator, Input, streaming

    class Runner(BaseRunner):
        @streaming
        def run(self, steps: int = 100, name: str = "x") -> ConcatenateIterator[str]:
            yield ""
            print("loading weights", flush=True)
            self.wait("first")
            print(f"\\rsteps:  40%|####      | 40/{steps} [00:04<00:06, 9.9it/s]", end="", file=sys.stderr, flush=True)
            self.wait("second")
            yield f"{name} begins"
            self.wait("third")
            yield " and ends"

        def wait(self, name: str) -> None:
            while not (Path(os.environ["GATES"]) / name).exists():
                time.sleep(0.02)
"""


def test_run_tells_how_far_it_is_where_its_output_will_be(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    write_model(tmp_path / "model", SLOW)
    server = server_process(str(tmp_path / "model"), env={"GATES": str(gates)})
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    server.wait_for("ready")
    page.complaints()
    page.resize(SMALL_PHONE)
    page.open()
    page.click("button.run")
    page.until(lambda: page.script("return scrollY") > 100, "the output in sight")
    page.says(".live .waiting", "Running…")  # though an empty text has come
    page.find(".live .spinner")
    page.says(".live .report", "loading weights")
    (gates / "first").touch()
    page.says(".live .report", "steps · 40 % · 40/100")
    assert page.find(".live progress").get_attribute("value") == "40"
    assert page.faults() == []
    (gates / "second").touch()
    page.says(".live pre", "x begins")
    assert page.all(".live .report") == []
    caret = "return getComputedStyle(document.querySelector('.live .growing'), '::after').content"
    assert page.script(caret) not in {"none", "normal", ""}
    (gates / "third").touch()
    page.says(".result-head", "Succeeded")
    assert page.complaints() == []


def test_run_has_a_link_and_two_runs_are_compared(page: Page) -> None:
    page.open_model("echo")
    page.write("text", "one")
    page.run()
    page.until(lambda: "?run=page_" in page.driver.current_url, "its link")
    first = page.driver.current_url
    page.write("text", "two")
    page.click("button.run")
    page.says(".text-output", "v2: two")
    page.until(lambda: "?run=page_" in page.driver.current_url != first, "another link")
    assert page.all(".history-item .compare")[0].get_attribute("disabled")
    page.all(".history-item .compare")[1].click()
    sides = [each.text for each in page.all(".comparison-side")]
    assert "v2: two" in sides[0]
    assert "v2: one" in sides[1]
    assert page.faults() == []
    page.driver.refresh()
    page.until(lambda: len(page.all(".comparison-side")) == 2, "the comparison after a reload")
    outcomes = [each.text.partition("ms")[2] for each in page.all(".comparison-side")]
    assert outcomes == [each.partition("ms")[2] for each in sides]
    page.says(".result .text-output", "v2: two")
    page.resize(SMALL_PHONE)
    assert not page.is_too_wide()
    page.click(".comparison .panel-head button")
    assert "compare" not in page.driver.current_url
    page.driver.get("about:blank")
    page.driver.get(first)  # another visitor
    page.says(".text-output", "v2: one")
    assert page.find(f"{page.field('text')} textarea").get_attribute("value") == "one"
    page.find('[aria-label="Copy the link to this run"]')
    page.driver.get("about:blank")
    page.driver.get(first.partition("?")[0] + "?run=page_gone")
    page.says(".result .empty", "The server does not have this run any more")


ORDERED = """
    from geartrain import BaseModel, BaseRunner

    class Box(BaseModel):
        top: int
        left: int = 1

    class Found(BaseModel):
        name: str
        boxes: list[list[list[list[Box]]]]

    class Runner(BaseRunner):
        def run(self, boxes: list[dict] = [{"top": 1, "left": 2}], box: Box | None = None) -> list[Found]:
            return [Found(name="gear", boxes=[[[[Box(top=1), Box(top=2)]]]])]
"""


def test_members_stand_in_the_order_of_the_author(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    write_model(tmp_path / "model", ORDERED)
    server = server_process(str(tmp_path / "model"))
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    server.wait_for("ready")
    page.complaints()
    page.open()
    given = page.find(f"{page.field('boxes')} textarea").get_attribute("value") or ""
    assert list(json.loads(given)[0]) == ["top", "left"]
    page.run()
    assert [each.text for each in page.all(".result .entries > .entry > dt")] == ["Name", "Boxes"]
    for _level in range(3):
        page.find(".result .json-box details:not([open]) > summary").click()
    page.find(".result .json-box details details details[open] li")
    shown = page.text(".result .json-box")
    assert shown.index("top") < shown.index("left")


def test_page_opens_on_the_first_model_that_is_ready(
    driver: webdriver.Chrome, tmp_path: Path, server_process: Callable[..., ServerProcess]
) -> None:
    write_model(tmp_path / "models/a-broken", "raise RuntimeError('no weights')")
    write_model(tmp_path / "models/b-fine", "def run() -> str: return 'well'")
    server = server_process(str(tmp_path / "models"))
    page = Page(driver, f"{server.wait_for('listening')['url']}/")
    server.wait_for_one("ready", "setup-failed")
    page.until(lambda: httpx.get(f"{page.url}v2/models/b-fine/ready").is_success, "b-fine")
    page.open()
    page.says("h1", "b-fine")


def test_deep_value_is_put_in_order_as_far_as_it_is_shown(page: Page) -> None:
    page.open_model("outputs")
    assert page.script(ARRANGED) == ['{"a":{"c":2,"d":1},"b":1}', "deep"]


def test_numbers_of_a_table_line_up(page: Page) -> None:
    page.open_model("outputs")
    page.choose("what", "table")
    page.run()
    assert page.all("td.number")
    assert page.all("th.number")
    assert page.script("return getComputedStyle(document.querySelector('th.number')).textAlign") == "right"
    texts = page.script(ALIGNED, [0.12485, 0.140174, 1234.5])
    assert texts == ["0.124850", "0.140174", "1\u202f234.500000"]
    assert page.script(ALIGNED, [1, 20]) == ["1", "20"]
    assert page.script(ALIGNED, [1e-9, 0.5]) == ["1e-9", "0.5"]


def test_what_changes_the_model_stands_below_its_form_on_a_phone(page: Page) -> None:
    page.resize(SMALL_PHONE)
    page.open_model("echo")
    page.until(lambda: "Unload" in page.text(".actions"), "what an administrator may do")
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    assert page.script(top, ".actions") > page.script(top, ".run-bar")
    assert not page.is_too_wide()
    page.resize(DESKTOP)
    assert page.script(top, ".actions") < page.script(top, "form.form")


ALIGNED = """
const [values, app] = [arguments[0], document.querySelector("script[type=module]").src];
return import(new URL("lib/format.js", app)).then(({ aligned }) => aligned(values));
"""

ARRANGED = """
return import(new URL("outputs/output.js", document.querySelector("script[type=module]").src)).then(({ arranged }) => {
  const schema = { properties: { a: { properties: { c: {}, d: {} } }, b: {} } };
  let deep = 1;
  for (let level = 0; level < 200000; level += 1) deep = { deep };
  return [JSON.stringify(arranged({ b: 1, a: { d: 1, c: 2 } }, schema)), Object.keys(arranged(deep))[0]];
});
"""


# a server with a store


def test_predictions_of_the_store_are_listed(
    driver: webdriver.Chrome, server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    write_model(tmp_path / "model", SHOUT)
    server = server_process(str(tmp_path / "model"), "--store", f"sqlite:///{tmp_path}/store.db")
    lines = [server.wait_for_one("listening", "ready") for _ in range(2)]  # in either order
    url = next(line["url"] for line in lines if "url" in line)
    for name in ("first", "second"):
        assert httpx.put(f"{url}/predictions/{name}", json={"input": {"text": name}}).status_code == 200
    page = Page(driver, f"{url}/")
    page.complaints()
    page.open()
    page.find(".stored .history-row")
    assert page.text(".stored h2") == "Stored runs"
    rows = [row.text.split("\n") for row in page.all(".stored .history-row")]
    assert [each[1:3] for each in rows] == [["Succeeded", "text: second"], ["Succeeded", "text: first"]]
    assert all(":" in when and took.endswith("s") for when, _, _, took in rows)
    page.click(".stored .history-row")
    page.says(".stored .json-box", "SECOND")
    page.click(".stored .pad > button")
    page.says(".result .text-output", "SECOND")
    assert page.find(f"{page.field('text')} textarea").get_attribute("value") == "second"
    page.resize(PHONE)
    assert not page.is_too_wide()
    assert all(
        "text: " in row.text and took in row.text
        for row, (_, _, _, took) in zip(page.all(".stored .history-row"), rows, strict=True)
    )
    assert page.faults() == []
    page.resize(DESKTOP)
    page.write("text", "third")
    page.run()
    page.until(lambda: len(page.all(".stored .history-row")) == 3, "the third run")
    assert page.complaints() == []
    assert page.faults() == []
