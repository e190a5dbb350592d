"""The place of a script for SageMaker, which its containers' variables may name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CODE_FOLDER: Final = "code"  # of a model of SageMaker
SAGEMAKER_FILE: Final = "inference.py"


def sagemaker_program(folder: Path) -> Path | None:
    """Return the script that `SAGEMAKER_PROGRAM` names for the model in a folder; None where there is none.

    It lies in `code`, in the folder itself, or in the folder that `SAGEMAKER_SUBMIT_DIRECTORY` names.
    """
    name = os.environ.get("SAGEMAKER_PROGRAM", "")
    if not name.endswith(".py"):
        return None
    places = [folder / CODE_FOLDER, folder]
    submitted = os.environ.get("SAGEMAKER_SUBMIT_DIRECTORY", "")
    if submitted and "://" not in submitted:  # an archive on S3 was unpacked into the model's folder
        places.append(Path(submitted))
    return next((place / name for place in places if (place / name).is_file()), None)
