"""The machine that a model runs on, for `geartrain doctor`: memory, GPUs, and the build of torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from geartrain.outbound.allowance import size_text
from geartrain.project.checks import Finding, ok, warning
from geartrain.server.memory import usable_memory

_PATIENCE: Final = 10.0  # seconds for a driver that does not answer
_QUERY: Final = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_CUDA: Final = re.compile(r"CUDA Version: ([\d.]+)")
_MEBIBYTE: Final = 1 << 20
_BUILDS: Final = ("cuda", "hip")  # names in torch's `version.py`

Ask = Callable[[Sequence[str]], str]


class Torch(NamedTuple):
    """The installed torch: its version, and the version of CUDA or ROCm that it is built for; empty for none."""

    version: str
    cuda: str = ""
    hip: str = ""

    def __str__(self) -> str:
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "processors alone, no CUDA"
        return f"torch {self.version}, built for {built}"


def check_memory() -> Finding:
    """Tell the memory that a model may use: that of the machine, or the limit of its container."""
    memory = psutil.virtual_memory()
    total = usable_memory()
    free = min(memory.available, total)
    limit = " that this container may use" if total < memory.total else ""
    return ok(f"memory: {size_text(free)} free of {size_text(total)}{limit}")


def check_gpus(ask: Ask | None = None, torch: Torch | None = None) -> list[Finding]:
    """Tell the GPUs of NVIDIA and the build of torch, and warn where they do not fit together."""
    gpus = _gpus(ask or _ask_driver)
    torch = torch or find_torch()
    findings = [ok(f"GPU {index}: {gpu}") for index, gpu in enumerate(gpus)] or [ok("GPU: none of NVIDIA's here")]
    if torch is None:
        return findings
    if gpus and not torch.cuda:
        fix = "install the build of torch for CUDA: https://pytorch.org/get-started/locally/"
        return [*findings, warning(f"{torch}: it cannot use the GPU", fix)]
    without = ', and there is no GPU: device="cuda" fails' if torch.cuda and not gpus else ""
    return [*findings, ok(f"{torch}{without}")]


def has_gpu() -> bool:
    """Return True if NVIDIA's driver finds a GPU."""
    return bool(_gpus(_ask_driver))


def find_torch() -> Torch | None:
    """Read how the installed torch was built from its `version.py`: to import it takes seconds."""
    try:
        version = metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (metadata.PackageNotFoundError, ImportError, ValueError):
        return None
    values: dict[str, object] = {}
    if spec is not None and spec.origin is not None:
        values = _constants(Path(spec.origin).with_name("version.py"))
    return Torch(*(str(value or "") for value in (values.get("__version__", version), *map(values.get, _BUILDS))))


def _constants(path: Path) -> dict[str, object]:
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, object] = {}
    for node in body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign | ast.Assign):
            found[target.id] = node.value.value if isinstance(node.value, ast.Constant) else None
    return found


def _gpus(ask: Ask) -> list[str]:
    """Return a phrase for each GPU."""
    cuda = _CUDA.search(ask(()))
    phrases = []
    for line in ask(_QUERY).splitlines():
        name, _, rest = line.partition(", ")
        size, _, driver = rest.partition(", ")
        memory = f", {size_text(int(size) * _MEBIBYTE)}" if size.isdecimal() else ""
        phrases.append(f"{name}{memory}, driver {driver}{f' for CUDA {cuda[1]}' if cuda else ''}")
    return phrases


def _ask_driver(arguments: Sequence[str]) -> str:
    """Run `nvidia-smi`; return its output, empty where there is none or it finds no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the driver's own program
            [program, *arguments], check=False, capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
