"""Gives outputs of many kinds."""

import wave
from typing import Any

import numpy as np
from PIL import Image

from geartrain import BaseRunner, Input, Path


def picture(name):
    ramp = np.linspace(0, 255, 96, dtype=np.uint8)
    Image.fromarray(
        np.stack(np.broadcast_arrays(ramp[None, :, None], ramp[:, None, None], np.uint8(160)), -1)[:, :, 0, :]
    ).save(name)
    return Path(name)


def sound(name):
    with wave.open(name, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes((np.sin(np.arange(4000) / 4) * 9000).astype("<i2").tobytes())
    return Path(name)


def data(name):
    Path(name).write_bytes(bytes(range(256)))
    return Path(name)


class Runner(BaseRunner):
    def run(
        self,
        what: str = Input(
            choices=[
                "picture",
                "pictures",
                "sound",
                "file",
                "table",
                "tensor",
                "markdown",
                "drawing",
                "json",
                "nothing",
            ]
        ),
        folder: str = "",
    ) -> Any:
        import tempfile

        folder = tempfile.mkdtemp()
        match what:
            case "picture":
                return picture(f"{folder}/a.png")
            case "pictures":
                return [picture(f"{folder}/{name}.png") for name in "abc"]
            case "sound":
                return sound(f"{folder}/a.wav")
            case "file":
                return data(f"{folder}/a.bin")
            case "table":
                return [{"label": f"gear {n}", "teeth": 8 * n, "score": n / 7} for n in range(1, 8)]
            case "tensor":
                return np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
            case "markdown":
                return "# Gears\n\n- small\n- *large*\n\n| teeth | speed |\n|---|---|\n| 8 | fast |\n\n```python\nturn()\n```"
            case "drawing":
                return "\n   .-+-.\n   :*%=\n  -++.\n"
            case "json":
                return {"a": {"b": {"c": {"d": [1, {"e": None}]}}}, "words": ["x"] * 300}
            case _:
                return None
