"""Takes an input of every kind, and says what came."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from geartrain import BaseRunner, Input, Path, Secret


class Box(BaseModel):
    left: int
    top: int


class Runner(BaseRunner):
    def run(
        self,
        prompt: str = Input(description="What the picture shows.", min_length=3, max_length=500),
        style: str = Input(description="How it is drawn.", choices=["ink", "oil", "pixels"], default="ink"),
        steps: int = Input(description="More steps take longer and look better.", default=20, ge=1, le=50),
        guidance: float = Input(description="How closely to follow the prompt.", default=7.5, ge=0, le=20),
        seed: int | None = Input(description="Empty for another picture each time.", default=None),
        size: Literal["small", "large"] = "small",
        upscale: bool = Input(description="Make it four times as large.", default=False),
        token: Secret | None = Input(description="Of the service that stores the picture.", default=None),
        tags: list[str] = Input(description="Words to find it by.", default=["gear"]),
        ratios: list[float] = Input(default=[1.5]),
        photo: Path | None = Input(description="A picture to begin with.", accept="image/*", default=None),
        voice: Path | None = Input(description="A sound.", accept="audio/*", default=None),
        references: list[Path] = Input(description="Pictures in the same style.", default=[]),
        options: dict[str, Any] = Input(description="For whoever knows.", default={"fast": True}),
        box: Box | None = None,
        weights: NDArray[np.float32] | None = Input(description="One for each reference.", default=None),
    ) -> dict[str, Any]:
        def size_of(path):
            return None if path is None else path.stat().st_size

        return {
            "prompt": prompt,
            "style": style,
            "steps": steps,
            "guidance": guidance,
            "seed": seed,
            "size": size,
            "upscale": upscale,
            "token": None if token is None else len(token.get_secret_value()),
            "tags": tags,
            "ratios": ratios,
            "photo": size_of(photo),
            "voice": size_of(voice),
            "references": [size_of(each) for each in references],
            "options": options,
            "box": None if box is None else [box.left, box.top],
            "weights": None if weights is None else weights.tolist(),
        }
