"""Which GPUs a process may use, found without a library that would initialize them; and what a worker was given.

The variables are those of the vendors: CUDA_VISIBLE_DEVICES of CUDA, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES of
ROCm.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

DEVICE: Final = "GEARTRAIN_DEVICE"
"""The variable by which a worker is told its device: `cpu`, or `cuda:0` if GPUs are its own."""
REPLICA: Final = "GEARTRAIN_REPLICA"
"""The variable by which a worker is told which of its model's replicas it is, from 0 on."""

CUDA: Final = "CUDA_VISIBLE_DEVICES"
HIP: Final = "HIP_VISIBLE_DEVICES"
ROCR: Final = "ROCR_VISIBLE_DEVICES"
_HIDDEN: Final = "-1"

_SMI: Final = "nvidia-smi"
_SMI_LIMIT: Final = 20.0  # seconds; a driver that has to be woken takes several
_ORDER: Final = "CUDA_DEVICE_ORDER"
_KFD: Final = Path("/sys/class/kfd/kfd/topology/nodes")  # processors and GPUs of AMD's driver
_NAME: Final = re.compile(r"\d+|(?:GPU|MIG)-[\w./-]+")
_GPU_LINE: Final = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[\w-]+)\)")
_MIG_LINE: Final = re.compile(r"\s+MIG .*\(UUID: (MIG-[\w./-]+)\)")


class Gpu(NamedTuple):
    """A GPU, or a part of one. `name`: as the variable has it; `uuid`: where it is known, else empty."""

    name: str
    uuid: str = ""


class Visible(NamedTuple):
    """The GPUs that a process may use.

    `variables` narrow them for a child; `source` says where they were found, for a person.
    """

    gpus: tuple[Gpu, ...]
    variables: tuple[str, ...]
    source: str

    def narrowed(self, gpus: tuple[Gpu, ...]) -> dict[str, str]:
        """Return the variables by which a child sees only these."""
        names = ",".join(gpu.name for gpu in gpus)
        found = dict.fromkeys(self.variables, names)
        if self.source == _SMI:
            found[_ORDER] = "PCI_BUS_ID"  # order of nvidia-smi; CUDA's own is another
        return found


HIDING: Final[Mapping[str, str]] = {CUDA: _HIDDEN, HIP: _HIDDEN}
"""The variables by which a child sees no GPU."""


def find_visible(environ: Mapping[str, str], *, kfd: Path = _KFD) -> Visible:
    """Return the GPUs that a process with these variables may use. May block for seconds: see `_ask_smi`.

    A variable that narrows them is believed. Of several that are set the innermost counts: HIP_VISIBLE_DEVICES, before
    CUDA_VISIBLE_DEVICES, which HIP reads too, before ROCR_VISIBLE_DEVICES.
    """
    for variable in (HIP, CUDA, ROCR):
        if variable in environ:
            text = environ[variable]
            alike = [each for each in (HIP, CUDA) if environ.get(each) == text]
            variables = tuple(alike) if variable in alike else (variable,)
            return Visible(tuple(map(Gpu, _names(text))), variables, f"{variable}={text}")
    if shutil.which(_SMI, path=environ.get("PATH")) is not None:
        return _ask_smi(environ)
    gpus = tuple(Gpu(str(index)) for index in range(_count_kfd(kfd)))
    return Visible(gpus, (HIP,), str(kfd)) if gpus else Visible((), (CUDA,), "no driver of a GPU")


def _names(text: str) -> list[str]:
    """Return the names in a variable, up to the first that is none: there CUDA stops reading, too."""
    names: list[str] = []
    for part in map(str.strip, text.split(",")):
        if _NAME.fullmatch(part) is None:
            break
        names.append(part)
    return names


def _ask_smi(environ: Mapping[str, str]) -> Visible:
    """Ask `nvidia-smi -L`, which lists GPUs and the parts that they are divided into.

    Of a GPU that is divided (MIG), programs can only use the parts.
    """
    command = shutil.which(_SMI, path=environ.get("PATH")) or _SMI
    try:
        asked = subprocess.run(  # noqa: S603 - found on the operator's PATH
            [command, "-L"], capture_output=True, text=True, timeout=_SMI_LIMIT, check=False, env=dict(environ)
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Visible((), (CUDA,), f"{_SMI} failed: {error}")
    if asked.returncode != 0:
        said = (asked.stdout or asked.stderr).strip().partition("\n")[0]
        return Visible((), (CUDA,), f"{_SMI} failed: {said}")
    gpus: list[Gpu] = []
    divided: set[str] = set()
    latest = Gpu("")
    for line in asked.stdout.splitlines():
        if (whole := _GPU_LINE.match(line)) is not None:
            latest = Gpu(whole[1], whole[2])
            gpus.append(latest)
        elif (part := _MIG_LINE.match(line)) is not None:
            divided.add(latest.uuid)
            gpus.append(Gpu(part[1], part[1]))
    return Visible(tuple(gpu for gpu in gpus if gpu.uuid not in divided), (CUDA,), _SMI)


def _count_kfd(nodes: Path) -> int:
    """Count the GPUs of AMD: the nodes that have SIMD units."""
    count = 0
    for properties in nodes.glob("*/properties"):
        try:
            lines = properties.read_text(encoding="ascii").splitlines()
        except OSError:  # of another container
            continue
        count += any(line.startswith("simd_count ") and line.split()[1] != "0" for line in lines)
    return count


def own_device() -> str:
    """Return the device of this worker, as PyTorch calls it: `cuda:0` for the first of its GPUs, or `cpu`.

    Other GPUs of the worker are `cuda:1` and so on. Found by the driver where the server has set no `DEVICE`.
    """
    return os.environ.get(DEVICE) or _found_device()


@functools.cache
def _found_device() -> str:
    """Find the device without the server's variable. Cached: the driver may take seconds to answer."""
    return "cuda:0" if find_visible(os.environ).gpus else "cpu"
