import tempfile

from cog import BaseModel, Input, Path


class TrainingOutput(BaseModel):
    weights: Path


class Trainer:
    def setup(self):
        self.prepared = True

    def train(self, steps: int = Input(ge=1, le=100), name: str = "model") -> TrainingOutput:
        path = Path(tempfile.mkdtemp()) / "weights.txt"
        path.write_text(f"{name} {steps} {self.prepared}")
        return TrainingOutput(weights=path)
