"""Models in the styles in which models for Cog are written, served unchanged by one server with real workers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import blocking_client
from tests.support.servers import ServerProcess, start_process

if TYPE_CHECKING:
    import httpx

STYLES = Path(__file__).parents[1] / "models" / "styles"


def data_url(text: str, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that has loaded every style."""
    weights = tmp_path_factory.mktemp("weights") / "mine"
    weights.mkdir()
    (weights / "tensor.bin").write_bytes(b"12345")
    process = start_process(str(STYLES), env={"COG_WEIGHTS": str(weights)})
    try:
        url = process.wait_for("listening")["url"]
        for _ in STYLES.iterdir():
            process.wait_for_one("ready", "setup_failed", "failed")
        with blocking_client(url) as client:
            yield client
    finally:
        process.end()


def ask(client: httpx.Client, style: str, values: dict[str, Any]) -> dict[str, Any]:
    response = client.post(f"/models/{style}/predictions", json={"input": values})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert body["status"] == "succeeded", body
    return body


def schemas(client: httpx.Client, style: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/models/{style}/openapi.json").json()["components"]["schemas"]
    return found


ANSWERS: list[tuple[str, dict[str, Any], Any]] = [
    ("bare_concatenate", {"prompt": "a b"}, ["a ", "b "]),
    ("union_output", {}, "picture 0"),
    ("union_output", {"count": 2}, ["picture 0", "picture 1"]),
    ("paths_from_generator", {"count": 2}, [data_url("file 0"), data_url("file 1")]),
    (
        "lists_of_paths",
        {},
        [[data_url("left 0"), data_url("right 0")], [data_url("left 1"), data_url("right 1")]],
    ),
    ("tuple_output", {"text": "abc"}, ["ABC", 3]),
    ("base_class", {"prompt": "x"}, "x-x-x-x"),
    ("inherited", {"prompt": "x", "strength": 0.25}, "X! {'strength': 0.25}"),
    ("expressions", {}, "128 1 0.25"),
    ("expressions", {"size": 64, "scheduler": "heun", "strength": 8}, "64 2 8.0"),
    ("decorators", {"prompt": "hi"}, "mine:hi+mine:hi"),
    ("decorators", {"prompt": "hi", "loud": True}, "mine:HI+mine:HI"),
    ("inference_mode", {"left": 2.5}, {"inference": True, "sum": 3.5}),
    ("relative_imports", {"text": "hi"}, "HI!"),
    ("subfolder", {"name": "Ada"}, "Hello, Ada (3 letters, one class: True)"),
    ("chdir", {"document": data_url("content")}, data_url("read: content")),
    ("weights_path", {}, 5),
    ("weights_str", {}, "mine"),
    ("weights_union", {}, "str"),
    (
        "coder",
        {"colors": [{"hex": "#204060"}], "last": {"hex": "#ffffff"}},
        {"base": {"hex": "#000000"}, "others": [{"hex": "#102030"}, {"hex": "#ffffff"}]},
    ),
    (
        "coder",
        {"colors": [{"hex": "#000000"}], "base": {"hex": "#020202"}},
        {"base": {"hex": "#020202"}, "others": [{"hex": "#010101"}]},
    ),
    ("dict_output", {"text": "a bc"}, {"text": "a bc", "length": 4, "words": {"a": 1, "bc": 2}}),
    ("trained", {}, "predicted"),
]


@pytest.mark.parametrize(("style", "values", "output"), ANSWERS, ids=[style for style, _, _ in ANSWERS])
def test_every_style_is_served(client: httpx.Client, style: str, values: dict[str, Any], output: Any) -> None:
    assert ask(client, style, values)["output"] == output


def test_every_folder_of_styles_is_asked() -> None:
    assert {path.name for path in STYLES.iterdir()} == {style for style, _, _ in ANSWERS} | {"quiet"}


def test_c2_the_schema_is_that_of_the_decorated_function(client: httpx.Client) -> None:
    known = schemas(client, "decorators")
    assert known["Input"]["properties"] == {
        "prompt": {"description": "What to say", "minLength": 1, "title": "Prompt", "type": "string", "x-order": 0},
        "loud": {"default": False, "title": "Loud", "type": "boolean", "x-order": 1},
    }
    assert known["Output"] == {"title": "Output", "type": "string"}
    assert ask(client, "decorators", {"prompt": "x"})["logs"].startswith("took less than ")  # the wrapper is called


def test_c3_the_form_of_a_type_with_a_coder(client: httpx.Client) -> None:
    known = schemas(client, "coder")
    properties = known["Input"]["properties"]
    assert properties["colors"] == {
        "items": {"type": "object"},
        "title": "Colors",
        "type": "array",
        "x-order": 0,
    }
    assert properties["base"]["default"] == {"hex": "#000000"}
    assert known["Output"]["properties"]["others"]["items"] == {"type": "object"}
    refused = client.post("/models/coder/predictions", json={"input": {"colors": ["#fff"]}})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["msg"] == '"#fff" is not of type "object"'
    failed = client.post("/models/coder/predictions", json={"input": {"colors": [{"html": "#fff"}]}}).json()
    assert (failed["status"], failed["error"]) == ("failed", "ArgumentError: input.colors: KeyError: 'hex'")


def test_c3_suppressed_output_is_not_in_the_logs(client: httpx.Client) -> None:
    assert ask(client, "quiet", {"text": "x"})["logs"] == "before\nafter\n"
    assert ask(client, "quiet", {"text": "x"})["logs"] == "before\nafter\n"


def test_c6_the_values_of_a_dict_are_in_the_schema(client: httpx.Client) -> None:
    assert schemas(client, "dict_output")["Output"] == {
        "additionalProperties": {"type": "object"},
        "title": "Output",
        "type": "object",
    }


def test_c9_a_class_of_any_name_is_found(client: httpx.Client) -> None:
    known = schemas(client, "expressions")
    assert known["size"]["enum"] == [64, 128, 192, 256]
    assert known["scheduler"]["enum"] == ["euler", "heun"]
    assert known["Input"]["properties"]["strength"]["default"] == 0.25


@pytest.mark.parametrize(
    ("style", "output"),
    [
        (
            "bare_concatenate",
            {
                "items": {"type": "string"},
                "type": "array",
                "x-cog-array-display": "concatenate",
                "x-cog-array-type": "iterator",
            },
        ),
        ("union_output", {"anyOf": [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]}),
        (
            "paths_from_generator",
            {"items": {"format": "uri", "type": "string"}, "type": "array", "x-cog-array-type": "iterator"},
        ),
        (
            "lists_of_paths",
            {
                "items": {"items": {"format": "uri", "type": "string"}, "type": "array"},
                "type": "array",
                "x-cog-array-type": "iterator",
            },
        ),
    ],
)
def test_output_schemas(client: httpx.Client, style: str, output: dict[str, Any]) -> None:
    assert schemas(client, style)["Output"] == {**output, "title": "Output"}


def test_training_as_a_class(server_process: Callable[..., ServerProcess]) -> None:
    process = server_process(str(STYLES / "trained"))
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with blocking_client(url) as client:
        response = client.post("/trainings", json={"input": {"steps": 3, "name": "n"}})
    assert response.json()["output"] == {"weights": data_url("n 3 True")}
