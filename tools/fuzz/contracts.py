"""Asks a server what its own documents promise: `python -m tools.fuzz.contracts --schemathesis PATH`.

schemathesis (`pip install schemathesis`, in an environment of its own) reads `/openapi.json` of a model with an input
of every kind and makes up requests, good and bad. The routes of the Open Inference Protocol, which that document does
not have, are described here. An answer with a 5xx is a fault of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tools.fuzz.differential import server

MODEL: Final = """
from geartrain import BaseRunner, Input, Path


class Runner(BaseRunner):
    async def run(
        self,
        text: str = Input(default="x", min_length=1, max_length=20, regex="^[a-z]*$"),
        count: int = Input(default=1, ge=0, le=10),
        scale: float = Input(default=1.0),
        flag: bool = False,
        kind: str = Input(default="a", choices=["a", "b"]),
        several: list[int] = [],
        file: Path = None,
    ) -> str:
        return text * count
"""
_PARAMETERS: Final[dict[str, Any]] = {"type": "object"}
_TENSOR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"enum": ["text", "count", "scale", "flag", "kind", "several", "file", "nobody"]},
        "shape": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
        "datatype": {"enum": ["BOOL", "INT64", "UINT8", "FP32", "FP64", "BYTES", "FP16", "nonsense"]},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "maxItems": 8},
    },
}
_INFER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {"type": "array", "items": _TENSOR, "maxItems": 4},
        "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
}
_GENERATE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"text_input": {"type": "string"}, "parameters": _PARAMETERS},
}


def open_inference(model: str) -> dict[str, Any]:
    """Return a document of the routes of the Open Inference Protocol, whose answers may be anything but a 5xx."""
    base = f"/v2/models/{model}"
    paths: dict[str, Any] = {
        path: {"get": _operation()}
        for path in (
            "/v2",
            "/v2/health/live",
            "/v2/health/ready",
            base,
            f"{base}/ready",
            f"{base}/config",
            f"{base}/stats",
        )
    }
    paths[f"{base}/infer"] = {"post": _operation(_INFER)}
    paths[f"{base}/generate"] = {"post": _operation(_GENERATE)}
    paths["/v2/repository/index"] = {"post": _operation({"type": "object"})}
    for verb in ("load", "unload"):
        paths[f"/v2/repository/models/nobody/{verb}"] = {"post": _operation({"type": "object"})}
    return {"openapi": "3.0.3", "info": {"title": "Open Inference Protocol", "version": "2"}, "paths": paths}


def _operation(body: dict[str, Any] | None = None) -> dict[str, Any]:
    operation: dict[str, Any] = {"responses": {"default": {"description": "any answer"}}}
    if body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def check(document: str, url: str, given: argparse.Namespace) -> bool:
    """Run schemathesis on a document, at a path or a URL; return whether it has found nothing."""
    words = [given.schemathesis, "run", document, "--url", url, "--seed", str(given.seed)]
    words += ["--max-examples", str(given.examples), "--checks", "not_a_server_error", "--mode", "all"]
    words += ["--exclude-path-regex", "shutdown", "--request-timeout", "20"]
    return subprocess.run(words, check=False).returncode == 0  # noqa: S603


def main() -> None:
    """Check both documents."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--examples", type=int, default=200, help="requests of each operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schemathesis", default="schemathesis", help="its program")
    given = parser.parse_args()
    with server(MODEL) as url, tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "open-inference.json"
        document.write_text(json.dumps(open_inference("model")))
        documents = (f"{url}/openapi.json", str(document))
        good = [check(each, url, given) for each in documents]
    if not all(good):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
