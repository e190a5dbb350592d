"""Serve the examples of Triton's Python backend, unchanged, and run their own clients.

    git clone https://github.com/triton-inference-server/python_backend
    python -m tools.try_triton python_backend/examples

The clients ask ports 8000, 8001 and 8002 of this machine, which have to be free.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

MODELS: Final = {  # by the names that the READMEs give them: the class, and the configuration
    "add_sub": ("add_sub/model.py", "add_sub/config.pbtxt"),
    "pytorch": ("pytorch/model.py", "pytorch/config.pbtxt"),
    "nobatch_auto_complete": ("auto_complete/nobatch_model.py", ""),
    "batch_auto_complete": ("auto_complete/batch_model.py", ""),
    "bls_sync": ("bls/sync_model.py", "bls/sync_config.pbtxt"),
    "bls_async": ("bls/async_model.py", "bls/async_config.pbtxt"),
    "bls_decoupled_sync": ("bls_decoupled/sync_model.py", "bls_decoupled/sync_config.pbtxt"),
    "bls_decoupled_async": ("bls_decoupled/async_model.py", "bls_decoupled/async_config.pbtxt"),
    "custom_metrics": ("custom_metrics/model.py", "custom_metrics/config.pbtxt"),
    "repeat_int32": ("decoupled/repeat_model.py", "decoupled/repeat_config.pbtxt"),
    "square_int32": ("decoupled/square_model.py", "decoupled/square_config.pbtxt"),
}
CLIENTS: Final = (
    "add_sub/client.py",
    "pytorch/client.py",
    "auto_complete/client.py",
    "bls/sync_client.py",
    "bls/async_client.py",
    "bls_decoupled/sync_client.py",
    "bls_decoupled/async_client.py",
    "custom_metrics/client.py",
    "decoupled/repeat_client.py",
    "decoupled/square_client.py",
)
LIMIT: Final = 60  # seconds for a client


def lay_out(examples: Path, root: Path) -> None:
    """Make the repository that the READMEs describe."""
    for name, (code, config) in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        shutil.copy(examples / code, root / name / "1" / "model.py")
        if config:
            shutil.copy(examples / config, root / name / "config.pbtxt")


def passes(client: Path) -> bool:
    """Run a client; print the end of what it says, and return True if it passes."""
    found = subprocess.run(  # noqa: S603 - a file that the caller has named
        [sys.executable, client.name], cwd=client.parent, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    last = (found.stdout + found.stderr).strip().splitlines()[-3:]
    is_good = found.returncode == 0 and "PASS" in found.stdout
    print(
        f"{'pass' if is_good else 'FAIL'}  {client.parent.name}/{client.name}", *([] if is_good else last), sep="\n  "
    )
    return is_good


def wait(server: subprocess.Popen[bytes]) -> None:
    """Wait until all models are ready. Raises `SystemExit` if the server has ended."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8000/v2/health/ready"):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server has ended: perhaps a port is not free")


def main() -> int:
    """Run all clients; return 1 if one of them fails."""
    examples = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as root:
        lay_out(examples, Path(root))
        ports = ("--port", "8000", "--grpc-port", "8001", "--admin-port", "8002")
        command = [sys.executable, "-m", "geartrain", "serve", root, *ports]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:  # noqa: S603 - as above
            try:
                wait(server)
                results = [passes(examples / client) for client in CLIENTS]
            finally:
                server.terminate()
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
