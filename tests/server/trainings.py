"""A model that can be trained, and what its trainings are asked for."""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path

from tests.support.servers import write_model

RUN = """
    from pathlib import Path
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            print("setting up to predict")

        def run(self, text: str = "") -> str:
            with Path("predicted").open("a") as note:
                note.write("x")
            return f"predicted {text}"
"""
TRAIN = """
    import os, time
    from pathlib import Path as LocalPath
    from geartrain import BaseModel, Input, Path, Secret, current_scope

    class TrainingOutput(BaseModel):
        weights: Path
        epochs: int

    class Trainer:
        def setup(self) -> None:
            print("setting up to train", flush=True)
            LocalPath("setups").write_text("1")
            while LocalPath("slow setup").exists() and not LocalPath("go").exists():
                time.sleep(0.002)
            if LocalPath("bad setup").exists():
                raise RuntimeError("no base model")

        def train(
            self,
            data: str = Input(description="What to learn"),
            epochs: int = Input(default=1, ge=1, le=9),
            mode: str = "",
            gate: str = "",
            token: Secret = None,
        ) -> TrainingOutput:
            print("training", flush=True)
            current_scope().record_metric("epochs", epochs)
            while gate and not os.path.exists(gate):
                time.sleep(0.002)
            if mode == "raise":
                raise ValueError("nothing learned")
            if mode == "die":
                os._exit(3)
            weights = LocalPath("weights.bin")
            weights.write_text(data * epochs)
            return TrainingOutput(weights=Path(weights), epochs=epochs)
"""
CONFIG = "run: run.py:Runner\ntrain: train.py:Trainer\n"
ASYNC = {"prefer": "respond-async"}


def write(folder: Path, train: str = TRAIN, config: str = CONFIG, run: str = RUN) -> Path:
    write_model(folder, run, config)
    (folder / "train.py").write_text(textwrap.dedent(train))
    return folder


def url(content: str, media_type: str = "application/octet-stream") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content.encode()).decode()}"
