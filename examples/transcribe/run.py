"""Speech to text with PocketSphinx: a recording in, its sentences out, each as soon as it is recognized."""

import wave
from collections.abc import Iterator
from time import perf_counter

import numpy as np
from pocketsphinx import Decoder, Endpointer

from geartrain import BaseModel, BaseRunner, Input, Path, current_scope, streaming

RATE = 16_000  # samples per second that the model was trained with


class Sentence(BaseModel):
    start: float  # seconds
    end: float
    text: str


class Runner(BaseRunner):
    def setup(self) -> None:
        self.decoder = Decoder(samprate=RATE, loglevel="ERROR")  # English; the package brings the weights

    @streaming
    def run(
        self, audio: Path = Input(description="A WAV file, 16 bits, of any sample rate", accept="audio/wav")
    ) -> Iterator[Sentence]:
        samples = read(audio)
        begin = perf_counter()
        for start, end, speech in sentences(samples):
            text = self.recognize(speech)
            if text:
                yield Sentence(start=round(start, 2), end=round(end, 2), text=text)
        seconds = len(samples) / RATE
        current_scope().record_metric("audio_seconds", seconds)
        current_scope().record_metric("times_real_time", seconds / (perf_counter() - begin))

    def recognize(self, speech: bytes) -> str:
        """Return the words of a piece of speech. Between its seconds a cancel takes effect."""
        self.decoder.start_utt()
        try:
            for place in range(0, len(speech), 2 * RATE):
                self.decoder.process_raw(speech[place : place + 2 * RATE])
        finally:
            self.decoder.end_utt()
        found = self.decoder.hyp()
        return found.hypstr if found else ""


def sentences(samples: np.ndarray) -> Iterator[tuple[float, float, bytes]]:
    """Yield the start, the end and the samples of what is spoken between two pauses."""
    pauses = Endpointer(sample_rate=RATE)
    data, size, speech = samples.tobytes(), pauses.frame_bytes, bytearray()
    for place in range(0, len(data), size):
        frame = data[place : place + size]
        # The last frame may be shorter, and ends what is being said.
        heard = pauses.process(frame) if place + size < len(data) else pauses.end_stream(frame)
        speech += heard or b""
        if speech and not pauses.in_speech:
            yield pauses.speech_start, pauses.speech_end, bytes(speech)
            speech.clear()


def read(file: Path) -> np.ndarray:
    """Return the samples of a WAV file at `RATE`, its channels mixed to one."""
    with wave.open(str(file)) as audio:
        if audio.getsampwidth() != 2:
            raise ValueError(f"the file has {8 * audio.getsampwidth()} bits a sample; 16 are taken")
        samples = np.frombuffer(audio.readframes(audio.getnframes()), "<i2").reshape(-1, audio.getnchannels())
        rate = audio.getframerate()
    if not samples.size:
        raise ValueError("the recording is empty")
    mono = samples.mean(axis=1)
    places = np.arange(int(len(mono) * RATE / rate)) * (rate / RATE)
    return np.interp(places, np.arange(len(mono)), mono).astype("<i2")
