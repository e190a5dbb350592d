"""Language models by llama.cpp and by vLLM through a real server, with stand-ins for these libraries."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import blocking_client
from tests.support.servers import ServerProcess

if TYPE_CHECKING:
    import httpx

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "tests/support/engines"
PACKAGE = ROOT / "packages/geartrain-vllm"
Start = Callable[..., ServerProcess]


def chat(client: httpx.Client, model: str, content: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    return client.post("/v1/chat/completions", json={"model": model, "messages": messages, **body})


def install(site: Path) -> Path:
    """Put what an installed `geartrain-vllm` has of metadata into a folder."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    folder = site / "geartrain_vllm-0.1.0.dist-info"
    folder.mkdir(parents=True)
    points = project["entry-points"]["geartrain.backends"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[geartrain.backends]", *lines]))
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    return site


def path_of(*folders: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])}


def test_gguf_file_is_a_server_of_openais_api(server_process: Start, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": "128",
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}",
    }
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF" + json.dumps(metadata).encode())
    process = server_process(str(tmp_path / "tiny.gguf"), env=path_of(ENGINES / "llama_site"))
    with blocking_client(process.wait_for("listening")["url"]) as client:
        process.wait_for("ready")
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["endpoints"]) == ("tiny", ["chat", "responses", "messages", "completions"])
        assert client.get("/v2/models/tiny").json()["platform"] == "llama_cpp"
        answer = chat(client, "tiny", "grüß dich").json()
        assert answer["choices"][0]["message"]["content"] == "GRÜSS DICH"  # the end of the template is a mark, not text
        assert answer["usage"]["prompt_tokens"] == len("grüß dich".encode()) + 1
        streamed = chat(client, "tiny", "a b c", stream=True, stop=["B"]).text
        assert '"content":"A "' in streamed.replace('"content":"A"', '"content":"A "')
        assert "B" not in streamed.replace("[DONE]", "").replace("chat.completion.chunk", "")
        refused = chat(client, "tiny", "a" * 200)
        assert refused.status_code == 400
        assert "the model takes 128" in refused.json()["error"]["message"]


def test_doctor_and_the_start_say_which_library_is_missing(server_process: Start, tmp_path: Path) -> None:
    if __import__("importlib.util").util.find_spec("llama_cpp"):
        pytest.skip("llama-cpp-python is installed")
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    process = server_process(str(tmp_path / "tiny.gguf"))
    line = process.wait_for("setup-failed")
    assert "pip install 'geartrain[llama-cpp]'" in json.dumps(line)


def test_vllm_in_the_place_of_transformers(server_process: Start, tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    (folder / "geartrain.yaml").write_text(
        "backend: vllm\nparameters: {slots: 8, engine: {gpu_memory_utilization: 0.5}}\n"
    )
    site = install(tmp_path / "site")
    process = server_process(str(folder), env=path_of(site, PACKAGE / "src", ENGINES / "vllm_site"))
    with blocking_client(process.wait_for("listening")["url"]) as client:
        process.wait_for("ready")
        assert client.get("/v2/models/qwen").json()["platform"] == "vllm"
        answer = chat(client, "qwen", "one two", logprobs=True, top_logprobs=2).json()
        (choice,) = answer["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("ONE TWO ", "stop")
        assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
        assert len(choice["logprobs"]["content"]) == 2
        long = chat(client, "qwen", "a " * 70)
        assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
        cut = chat(client, "qwen", "one two", max_tokens=1).json()["choices"][0]
        assert (cut["message"]["content"], cut["finish_reason"]) == ("ONE ", "length")
