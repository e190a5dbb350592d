"""Whisper of transformers: a folder with `config.json`, safetensors, a feature extractor and a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import note, require
from geartrain.backends.options import text
from geartrain.backends.recordings import Recording
from geartrain.backends.text import Dictation, Heard, PromptError, SpeechBackend
from geartrain.backends.torch_device import choose_device, set_threads

_EXTRA: Final = "speech"
_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
_PREFIX: Final = 3  # tokens before those of a transcript: its start, the language and the task
_SHORTEST: Final = 0.05  # seconds: a rest that is no word
_MOST_NAMED: Final = 10  # languages in an error


class Timed(NamedTuple):
    """A piece of a window: its tokens, with their times in seconds from the beginning of the window."""

    start: float
    end: float
    tokens: list[int]


class WhisperBackend(SpeechBackend):
    """A folder written by `save_pretrained()` of a Whisper and of its processor.

    A recording is read in windows of 30 seconds. Each begins at the end of the last whole segment. Nothing
    is downloaded, and no code in the folder is run.
    """

    platform = "whisper"
    options = frozenset({"device", "dtype", "threads"})

    def load(self) -> None:
        dtype = text(self.given, "dtype", choices=_DTYPES) or "auto"
        # The library would look on the internet for what is not in the folder, and draw bars into the log.
        os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
        library = require("transformers", extra=_EXTRA)
        library.utils.logging.disable_progress_bar()
        library.utils.logging.set_verbosity_error()
        require("soundfile", extra=_EXTRA)
        require("soxr", extra=_EXTRA)
        self._torch = torch = require("torch", extra=_EXTRA)
        device = choose_device(torch, self.given)
        threads = set_threads(torch, self.given)
        try:
            self._processor = library.WhisperProcessor.from_pretrained(self.path, local_files_only=True)
            model = library.WhisperForConditionalGeneration.from_pretrained(
                self.path, dtype=dtype, use_safetensors=True, local_files_only=True
            )
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BackendError(f"transformers cannot load it: {type(error).__name__}: {first}") from error
        self._model = model.to(device).eval()
        config = model.generation_config
        without_times = getattr(config, "no_timestamps_token_id", None)
        if without_times is None:
            raise BackendError(
                "its generation_config.json has no `no_timestamps_token_id`, which tells times from text"
            )
        self._first_time = without_times + 1
        self._languages: dict[str, int] = getattr(config, "lang_to_id", None) or {}
        features = self._processor.feature_extractor
        self._rate, self._size = features.sampling_rate, features.n_samples
        self._step = features.n_samples / features.sampling_rate / model.config.max_source_positions  # seconds
        known = f"{len(self._languages)} languages" if self._languages else "one language"
        self.description = f"Speech recognition ({type(model).__name__}) of {known}."
        note(f"{self.path.name}: transformers {library.__version__} on {device}, {model.dtype}, {threads} threads")

    def transcribe(self, recording: Path, dictation: Dictation) -> Iterator[Heard]:
        options = self._options(dictation)
        sound = Recording(recording, self._rate)
        try:
            language = dictation.language or ("" if self._languages else "en")
            if self._languages and not language:
                language = self._detect(sound)
            if self._languages:
                options["language"] = language
            yield {"text": "", "language": language, "duration": round(sound.duration, 3)}
            yield from self._segments(sound, options, dictation.temperature)
        finally:
            sound.close()

    def _options(self, dictation: Dictation) -> dict[str, Any]:
        """Return the options of the generation of tokens. Raises `PromptError`."""
        if dictation.language and self._languages and f"<|{dictation.language}|>" not in self._languages:
            names = [name.strip("<|>") for name in self._languages]
            known = ", ".join(names[:_MOST_NAMED]) + (" and others" if len(names) > _MOST_NAMED else "")
            raise PromptError(f"The language {dictation.language[:20]!r} is not known to the model; it knows {known}.")
        if not self._languages and (dictation.translates or dictation.language not in {"", "en"}):
            raise PromptError("The model knows English alone, and translates nothing.")
        options: dict[str, Any] = {"return_timestamps": True, "do_sample": dictation.temperature > 0}
        if options["do_sample"]:
            options["temperature"] = dictation.temperature
        if self._languages:
            options["task"] = "translate" if dictation.translates else "transcribe"
        room = int(self._model.config.max_target_positions) - _PREFIX
        if dictation.prompt.strip():
            ids = self._processor.get_prompt_ids(dictation.prompt, return_tensors="pt").to(self._model.device)
            ids = self._torch.cat([ids[:1], ids[1:][-(room // 2) :]])  # the end of it, behind the mark of a prompt
            options["prompt_ids"] = ids
            room -= len(ids)
        options["max_new_tokens"] = room
        return options

    def _detect(self, sound: Recording) -> str:
        """Return the language of the first window."""
        with self._torch.inference_mode():
            found = self._model.detect_language(self._features(sound.window(self._size)))
        token = int(found.flatten()[0])
        return next((name.strip("<|>") for name, own in self._languages.items() if own == token), "")

    def _segments(self, sound: Recording, options: dict[str, Any], temperature: float) -> Iterator[Heard]:
        place = 0  # samples before the window
        while len(samples := sound.window(self._size)) > _SHORTEST * self._rate:
            seconds, is_last = len(samples) / self._rate, len(samples) < self._size
            with self._torch.inference_mode():
                made = self._model.generate(self._features(samples), **options)
            timed, heard = cut(self._own(made), first_time=self._first_time, step=self._step, seconds=seconds)
            for piece in timed:
                said = self._processor.tokenizer.decode(piece.tokens, skip_special_tokens=True).strip()
                if said:
                    begin = place / self._rate
                    yield {
                        "start": round(begin + piece.start, 2),
                        "end": round(begin + piece.end, 2),
                        "text": said,
                        "tokens": piece.tokens,
                        "temperature": temperature,
                    }
            if is_last:
                return
            size = min(int(heard * self._rate), len(samples)) or len(samples)
            place += size
            sound.skip(size)

    def _features(self, samples: Any) -> Any:
        found = self._processor.feature_extractor(samples, sampling_rate=self._rate, return_tensors="pt")
        return found.input_features.to(self._model.device, self._model.dtype)

    def _own(self, made: Any) -> list[int]:
        """Return the tokens of a transcript without those of the prompt, which some versions give back."""
        sequences = made["sequences"] if isinstance(made, dict) else made
        ids: list[int] = sequences[0].tolist()
        start = self._model.generation_config.decoder_start_token_id
        begin = len(ids) - ids[::-1].index(start) if start in ids else 0
        end = self._processor.tokenizer.eos_token_id
        return [token for token in ids[begin:] if token < end or token >= self._first_time]


def cut(tokens: list[int], *, first_time: int, step: float, seconds: float) -> tuple[list[Timed], float]:
    """Cut the tokens of a window into pieces; return these, and the seconds after which the next window begins.

    A token from `first_time` on is a time, `step` seconds after the one before it. Text without a time behind it is
    left to the next window, unless it is the only text: it then ends with this window.
    """
    pieces: list[Timed] = []
    start, said = 0.0, list[int]()
    for token in tokens:
        if token < first_time:
            said.append(token)
            continue
        time = min((token - first_time) * step, seconds)
        if said:
            pieces.append(Timed(start, max(time, start), said))
            said = []
        start = time
    if said and not pieces:
        return [Timed(start, seconds, said)], seconds
    return pieces, pieces[-1].end if said else seconds
