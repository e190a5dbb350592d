"""Text to tones, one for each letter: a stand-in for a model of speech that needs no weights."""

import math
import struct
import tempfile
import wave
from typing import Literal

from geartrain import BaseRunner, Input, Path
from geartrain.openai import endpoint

RATE = 16_000  # samples per second


class Runner(BaseRunner):
    @endpoint("speech", input="text")
    def run(
        self,
        text: str = Input(description="What to say", max_length=1000),
        voice: Literal["low", "high"] = "low",
        speed: float = Input(default=1.0, ge=0.25, le=4.0),
    ) -> Path:
        sound = Path(tempfile.mkdtemp()) / "speech.wav"
        with wave.open(str(sound), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            for letter in text.lower():
                pitch = (110 if voice == "low" else 220) * 2 ** (ord(letter) % 24 / 12)
                file.writeframes(tone(pitch if letter.isalnum() else 0, 0.08 / speed))
        return sound


def tone(pitch: float, seconds: float) -> bytes:
    """Return the samples of a tone, which swells and fades."""
    count = int(RATE * seconds)
    samples = [
        int(8000 * math.sin(math.pi * at / count) * math.sin(2 * math.pi * pitch * at / RATE)) for at in range(count)
    ]
    return struct.pack(f"<{count}h", *samples)
