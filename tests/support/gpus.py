"""GPUs that are only said to be there."""

from __future__ import annotations

import shlex
from pathlib import Path


def fake_smi(folder: Path, listing: str, *, code: int = 0) -> str:
    """Write an `nvidia-smi` that answers `-L` with a listing and this exit code; return what `PATH` has to be."""
    folder = folder / "bin"
    folder.mkdir(exist_ok=True)
    command = folder / "nvidia-smi"
    command.write_text(f'#!/bin/sh\n[ "$1" = -L ] || exit 2\nprintf %s {shlex.quote(listing)}\nexit {code}\n')
    command.chmod(0o755)
    return str(folder)
