"""Asks the servers that the pages `docs/migrate-*.md` come from for what these pages show under "Before".

    PYTHONPATH=benchmarks python -m tools.try_guides [GUIDE ...]

Each server is installed into `.cache/peers`, which takes some minutes the first time. Ends with 1 if an answer differs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import urllib.request
from typing import Final

import peer_servers
from report import peers_environment
from servers import Server, coglet, running
from tools import guides

_ADDRESS: Final = ("--host", "127.0.0.1", "--port", "{port}")
_LITSERVE: Final = (  # as server.py starts it, but for the address
    "server.litserve.LitServer(server.Iris(), accelerator='cpu')"
    ".run(host='127.0.0.1', port={port}, generate_client_file=False)"
)


def server(guide: str, folder: pathlib.Path) -> Server:
    """Return the other server of a guide, whose files are in `folder`."""
    match guide:
        case "cog":
            peer = coglet(folder, peers_environment("coglet"))
            return dataclasses.replace(
                peer, environment={**peer.environment, "COG_PREDICT_TYPE_STUB": "predict.py:Predictor"}
            )
        case "triton":
            return peer_servers.triton(folder, model="iris", models=guides.MODELS / "triton")
        case "mlserver":
            peer = peer_servers.mlserver(folder / "iris", model="iris")
            return dataclasses.replace(peer, environment={**peer.environment, "PYTHONPATH": str(folder / "iris")})
        case "litserve":
            return _python(guide, folder, "-c", f"import server; {_LITSERVE}", ready="/health")
        case "bentoml":
            return _python(guide, folder, "-m", "bentoml", "serve", "service:Iris", *_ADDRESS, ready="/readyz")
        case _:
            return _python(guide, folder, "-m", "uvicorn", "app:app", *_ADDRESS, ready="/docs")


def _python(guide: str, folder: pathlib.Path, *arguments: str, ready: str) -> Server:
    binaries = peers_environment(guide) / "bin"
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(folder)}
    command = (str(binaries / "python"), *arguments)
    return Server(name=guide, command=command, folder=folder, environment=environment, ready=ready)


def differing(guide: str) -> list[str]:
    """Ask the other server of a guide; return what it answers differently."""
    found = []
    with tempfile.TemporaryDirectory(prefix="guide-") as temporary:
        folder = pathlib.Path(shutil.copytree(guides.MODELS / guide, pathlib.Path(temporary, guide)))
        with running(server(guide, folder)) as peer:
            for shown in guides.requests(guide, "Before"):
                answer = _post(f"http://127.0.0.1:{peer.port}{shown.path}", shown.body)
                if guides.comparable(answer) != guides.comparable(shown.answer):
                    found.append(json.dumps(answer))
    return found


def _post(url: str, body: object) -> object:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - it is on this machine
        return json.load(response)


def main() -> None:
    """Ask each of them."""
    failed = False
    for guide in sys.argv[1:] or guides.GUIDES:
        different = differing(guide)
        print(f"{guide}: {'as shown' if not different else 'answers ' + ', '.join(different)}")
        failed = failed or bool(different)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
