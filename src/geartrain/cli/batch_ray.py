"""`geartrain batch --ray`: a data set on a cluster of Ray."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from geartrain.cli.batch_run import Asked, check_ending
from geartrain.cli.batch_run import run as run_here
from geartrain.cli.batch_view import Account, BatchView
from geartrain.cli.failure import FAILURE, INTERRUPTED, complain, warn
from geartrain.dataset.columns import read_pairs
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.shares import read_share
from geartrain.domain.errors import GeartrainError
from geartrain.project.digest import Digests
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Devices
from geartrain.ray.options import absolute

_PART_ROWS: Final = 1024
_NOT_HERE: Final = {
    "target": "--target sends rows to a server that has the model already, so Ray would have nothing to run: several "
    "processes without Ray share its rows by --part",
    "window": "--window is of one process",
}


def run(asked: Asked, gpus: float) -> int:
    """Run it; return the exit code. What is wrong is said on stderr."""
    view = BatchView()
    try:
        _check(asked)
        devices = _devices(asked.devices, gpus)
        if asked.dry_run:  # before anything starts on the cluster
            return run_here(dataclasses.replace(asked, replicas=1))
        _run(asked, view, devices=devices, gpus=gpus)
    except (DatasetError, GeartrainError, ProjectError) as error:
        view.close()
        complain(str(error))
        return FAILURE
    except KeyboardInterrupt:
        view.close()
        warn("the run was ended before its end; go on with --resume")
        return INTERRUPTED
    finally:
        view.close()
    return 0


def _run(asked: Asked, view: BatchView, *, devices: Devices | None, gpus: float) -> None:
    mapped, kept = read_pairs(asked.mapped, "--map"), read_pairs(asked.keep, "--keep")
    share = None if asked.part is None else read_share(asked.part, os.environ)
    try:
        from geartrain.ray.batch import BatchOptions, View
        from geartrain.ray.batch import run as run_on_ray
        from geartrain.ray.rows import RowOptions
    except ModuleNotFoundError as error:
        raise DatasetError(f"{error.name} is not installed: pip install 'geartrain[ray]'") from None
    models = [each for each in (asked.model, asked.other) if each is not None]
    rows = RowOptions(
        model=absolute(asked.model),
        other=None if asked.other is None else absolute(asked.other),
        metric=asked.metric,
        tolerance=asked.tolerance,
        folder=str(Path.cwd()),
        mapped=mapped,
        kept=kept,
        errors=asked.errors,
        devices=devices,
        gpus=gpus,
        run_timeout=asked.run_timeout,
        setup_timeout=asked.setup_timeout,
        no_pickle=asked.no_pickle,
    )
    options = BatchOptions(
        source=asked.source,
        form=asked.form,
        output=asked.output,
        rows=rows,
        model="".join(_digest(asked, each) for each in models),
        share=share,
        resume=asked.resume,
        resume_changed=asked.resume_changed,
        overwrite=asked.overwrite,
        part_rows=asked.part_rows or _PART_ROWS,
        max_errors=None if asked.errors == "fail" else asked.max_errors,
        replicas=asked.replicas or 1,
    )
    tally, agreement = run_on_ray(options, View(lambda tally: view.begin(tally, dict), view.show, warn))
    view.close()
    more = [] if agreement is None else agreement.lines()
    view.summarize(Account(tally, {}, more, is_bound_known=False), to=asked.output, report=asked.report)


def _digest(asked: Asked, model: str) -> str:
    """Return the digest of a model of this machine, nothing for one elsewhere. Raises `ProjectError`."""
    if not Path(model).exists():
        return ""
    return Digests().of_folder(asked.local.find(model, no_pickle=asked.no_pickle).root)


def _check(asked: Asked) -> None:
    """Raise `DatasetError` for what Ray does not do."""
    for name, sentence in _NOT_HERE.items():
        if getattr(asked, name):
            raise DatasetError(f"{sentence}; leave it or --ray out")
    if asked.source == "-" or (asked.output == "-" and not asked.dry_run):
        raise DatasetError("--ray reads and writes on several machines: name IN and -o OUT as all of them reach them")
    check_ending(asked.output)


def _devices(devices: Devices | None, gpus: float) -> Devices | None:
    """Return the devices of each actor. Raises `DatasetError` for names: Ray gives out GPUs."""
    if devices is not None and devices.kind == "named":
        raise DatasetError(f"--devices {','.join(devices.names)}: Ray gives out the GPUs; say how many with --gpus")
    if devices is not None and devices.kind == "cpu" and gpus:
        raise DatasetError("--devices cpu uses no GPU; leave --gpus out")
    return devices
