"""Names of Cog beside its authoring API that models import, of version 0.23.1 and of those before it."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class CogError(Exception):
    """The base class of Cog's errors."""


class ConfigDoesNotExist(CogError):  # noqa: N818 - the name is Cog's
    """There is no `cog.yaml`."""


class PredictorNotSet(CogError):  # noqa: N818 - the name is Cog's
    """`cog.yaml` names no predictor."""


class Mode(enum.Enum):
    """True if predictions or trainings are run."""

    PREDICT = "predict"
    TRAIN = "train"

    def __str__(self) -> str:
        return str(self.value)


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Throw away what is printed meanwhile, also by C libraries and subprocesses.

    It is thrown away for the whole process, and so for predictions that run at the same time.
    """
    with contextlib.ExitStack() as stack:
        null = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123 - as in the next lines
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (1, 2):
            kept = os.dup(descriptor)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, descriptor)
            os.dup2(null.fileno(), descriptor)
        stack.enter_context(contextlib.redirect_stdout(null))
        stack.enter_context(contextlib.redirect_stderr(null))
        yield


def load_predictor_from_ref(ref: str) -> Any:
    """Load `predict.py:Predictor`, below the working directory: an instance of a class, or the function.

    Raises `LoadError` with the file, the line, and what to do.
    """
    from geartrain.worker.loading.loader import load_target

    target, _ = load_target(ref, Path.cwd())
    return target() if isinstance(target, type) else target


def has_setup_weights(predictor: Any) -> bool:
    """Tell whether `setup()` of a predictor takes `weights`."""
    from geartrain.worker.loading.callables import signature_of

    setup = getattr(predictor, "setup", None)
    return setup is not None and "weights" in signature_of(setup).parameters


def extract_setup_weights(predictor: Any) -> str | None:  # noqa: ARG001 - Cog's signature
    """Return the value of `COG_WEIGHTS`, or None where it is not set or empty."""
    return os.environ.get("COG_WEIGHTS") or None
