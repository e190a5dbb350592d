"""`python -m geartrain.cli.sagemaker`: the program `serve` of an image, which SageMaker starts.

Source: Amazon SageMaker's guide for developers, "Use your own inference code with hosting services" and
"Custom containers contract for multi-model endpoints".
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from geartrain.cli import main
from geartrain.cli.failure import fail

_MODEL: Final = "/opt/ml/model"  # unpacked by SageMaker
_MODELS: Final = "/opt/ml/models"  # each at NAME/model, of an endpoint with several
_PORT: Final = "8080"
_ENDS: Final = ("--drain-delay=2s", "--shutdown-grace=20s")  # the container is killed after 30 s


def command_line(models: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command line of `geartrain`.

    `models` are the arguments for the models of the image, which count where SageMaker has brought none. The last of
    two equal options counts: those of `GEARTRAIN_OPTIONS`. Raises `ValueError` where a quotation mark is open there.
    """
    port = f"--port={environ.get('SAGEMAKER_BIND_TO_PORT') or _PORT}"
    common = [port, "--restart=on-crash", *_ENDS, *shlex.split(environ.get("GEARTRAIN_OPTIONS", ""))]
    if environ.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        return ["serve", environ.get("SM_MODELS_DIR") or _MODELS, "--load=none", "--api=sagemaker-models", *common]
    folder = Path(environ.get("SM_MODEL_DIR") or _MODEL)
    served = [str(folder)] if folder.is_dir() and any(folder.iterdir()) else models
    return ["serve", *served, "--api=sagemaker", *common]


if __name__ == "__main__":
    import os

    try:
        sys.argv[1:] = command_line(sys.argv[1:], os.environ)
    except ValueError as error:
        fail(f"GEARTRAIN_OPTIONS: {error}; write it as on a command line")
    main.main()
