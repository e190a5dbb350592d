"""Skip everything where torch cannot use a GPU."""

from __future__ import annotations

from importlib.util import find_spec


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


# The environment of the other tests has no torch, or a build for processors alone.
collect_ignore_glob = [] if _has_gpu() else ["test_*.py"]
