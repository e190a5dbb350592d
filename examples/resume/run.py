"""A long job that writes checkpoints: after a restart of the server it goes on where it was.

It fits a line through points by gradient descent, slowly. Served with `--store`, a job that was accepted with 202 runs
again after a crash or a restart, under the same id; the checkpoint of that id says where it stopped.
"""

import hashlib
import os
import time
from pathlib import Path

import numpy as np

from geartrain import BaseModel, BaseRunner, Input, current_scope

CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", "checkpoints"))  # in a container: a volume that outlives it
KEPT = 7 * 24 * 3600  # seconds that the checkpoint of a job that never ended is kept


class Fit(BaseModel):
    slope: float
    offset: float
    resumed_at: int  # the step that this run began with


class Runner(BaseRunner):
    def setup(self) -> None:
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        for file in CHECKPOINTS.glob("*.npz"):
            if time.time() - file.stat().st_mtime > KEPT:
                file.unlink()

    def run(
        self,
        steps: int = Input(description="Steps of the descent", ge=1, le=100_000, default=200),
        pause: float = Input(description="Seconds for each step", ge=0, le=60, default=0.1),
        every: int = Input(description="Steps from one checkpoint to the next", ge=1, default=10),
    ) -> Fit:
        file = checkpoint_of(current_scope().prediction_id)
        step, parameters = load(file)
        begun = step
        print(f"goes on at step {step}" if step else "begins")
        x = np.linspace(-1, 1, 100)
        y = 3 * x + 1
        while step < steps:
            error = parameters @ [x, np.ones_like(x)] - y
            parameters = parameters - 0.3 * np.array([(error * x).mean(), error.mean()])
            time.sleep(pause)  # a real step takes its time
            step += 1
            if step % every == 0:
                save(file, step, parameters)
                current_scope().record_metric("progress", step / steps)
                print(f"step {step} of {steps}")
        # Not in a `finally`: a run that is canceled because its server stops is to find the checkpoint again.
        file.unlink(missing_ok=True)
        slope, offset = (round(float(each), 4) for each in parameters)
        return Fit(slope=slope, offset=offset, resumed_at=begun)


def checkpoint_of(prediction_id: str) -> Path:
    """Return the file of a prediction. Its id is a client's, and no name of a file."""
    return CHECKPOINTS / f"{hashlib.sha256(prediction_id.encode()).hexdigest()[:32]}.npz"


def load(file: Path) -> tuple[int, np.ndarray]:
    """Return the step and the parameters of a checkpoint, or the first ones where there is none."""
    if not file.exists():
        return 0, np.zeros(2)
    with np.load(file) as saved:
        return int(saved["step"]), saved["parameters"]


def save(file: Path, step: int, parameters: np.ndarray) -> None:
    """Write a checkpoint: first beside it, since a process that is killed while it writes leaves half a file."""
    part = file.with_suffix(".part")
    with part.open("wb") as written:
        np.savez(written, step=step, parameters=parameters)
        written.flush()
        os.fsync(written.fileno())
    part.replace(file)
