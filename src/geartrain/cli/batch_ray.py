"""`geartrain batch --ray`: a data set on a cluster of Ray."""

from __future__ import annotations

import dataclasses
from typing import Final

from geartrain.cli.batch_run import Asked
from geartrain.cli.batch_run import run as run_here
from geartrain.cli.failure import FAILURE, INTERRUPTED, complain, warn
from geartrain.dataset.columns import read_pairs
from geartrain.dataset.errors import DatasetError
from geartrain.domain.errors import GeartrainError
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Devices
from geartrain.ray.options import absolute

_NOT_HERE: Final = {
    "other": "--compare runs on one machine",
    "target": "--target sends rows to a server that has the model already, so Ray would have nothing to run: several "
    "processes without Ray share its rows by --part",
    "part": "--part is for processes without Ray, which spreads the rows itself",
    "resume": "--resume has no progress to go on with: Ray runs again what is lost while a run lasts; use --overwrite",
    "resume_changed": "--resume-changed has no progress to go on with; use --overwrite",
    "report": "--report has the figures of one process; Ray's dashboard has those of a cluster",
    "window": "--window is of one process",
}


def run(asked: Asked, gpus: float) -> int:
    """Run it; return the exit code. What is wrong is said on stderr."""
    try:
        _check(asked)
        devices = _devices(asked.devices, gpus)
        if asked.dry_run:  # before anything starts on the cluster
            return run_here(dataclasses.replace(asked, replicas=1))
        mapped, kept = read_pairs(asked.mapped, "--map"), read_pairs(asked.keep, "--keep")
        try:
            from geartrain.ray.data import BatchOptions
            from geartrain.ray.data import run as run_on_ray
            from geartrain.ray.rows import RowOptions
        except ModuleNotFoundError as error:
            raise DatasetError(f"{error.name} is not installed: pip install 'geartrain[ray]'") from None
        rows = RowOptions(
            model=absolute(asked.model),
            mapped=mapped,
            kept=kept,
            errors=asked.errors,
            devices=devices,
            gpus=gpus,
            run_timeout=asked.run_timeout,
            setup_timeout=asked.setup_timeout,
            no_pickle=asked.no_pickle,
        )
        run_on_ray(
            BatchOptions(
                source=asked.source,
                form=asked.form,
                output=asked.output,
                is_overwritten=asked.overwrite,
                rows=rows,
                replicas=asked.replicas or 1,
            ),
            warn,
        )
    except (DatasetError, GeartrainError, ProjectError) as error:
        complain(str(error))
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _check(asked: Asked) -> None:
    """Raise `DatasetError` for what Ray does not do."""
    for name, sentence in _NOT_HERE.items():
        if getattr(asked, name):
            raise DatasetError(f"{sentence}; leave it or --ray out")
    if asked.max_errors:
        raise DatasetError(
            "--max-errors counts the rows of one process; with --ray write --errors fail, or leave it out"
        )
    if asked.source == "-" or (asked.output == "-" and not asked.dry_run):
        raise DatasetError("--ray reads and writes on several machines: name IN and -o OUT as all of them reach them")


def _devices(devices: Devices | None, gpus: float) -> Devices | None:
    """Return the devices of each actor. Raises `DatasetError` for names: Ray gives out GPUs."""
    if devices is not None and devices.kind == "named":
        raise DatasetError(f"--devices {','.join(devices.names)}: Ray gives out the GPUs; say how many with --gpus")
    if devices is not None and devices.kind == "cpu" and gpus:
        raise DatasetError("--devices cpu uses no GPU; leave --gpus out")
    return devices
