"""Transcriptions and translations: a recording in, text out, with times where the model gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import OpenAIError, invalid, unsupported
from geartrain.apis.openai.parameters import Members, Parameters
from geartrain.apis.openai.text_answers import event, usage_of
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.signature.openai_media import MediaView
from geartrain.domain.signature.types import Signature
from geartrain.domain.tensors.tensor import Buffer

JSON_TYPE: Final = b"application/json"
TEXT_TYPE: Final = b"text/plain; charset=utf-8"

_FORMATS: Final = ("json", "text", "verbose_json", "srt", "vtt", "diarized_json")
_TIMED: Final = frozenset({"verbose_json", "srt", "vtt", "diarized_json"})
_STREAMED: Final = frozenset({"json", "text", "diarized_json"})
_GRANULARITIES: Final = ("word", "segment")
_TRANSLATE: Final = "translate"
_TASK: Final = "task"
_SEGMENT: Final[dict[str, Any]] = {
    "seek": 0,
    "tokens": [],
    "temperature": 0.0,
    "avg_logprob": 0.0,
    "compression_ratio": 0.0,
    "no_speech_prob": 0.0,
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """A request for a transcript. `given`: the members of the model's input, without its recording."""

    given: Members
    task: str
    form: str
    granularities: tuple[str, ...]
    is_stream: bool
    language: str
    names: dict[str, str]
    ignored: tuple[str, ...]


def check_audio(view: MediaView, *, translates: bool) -> None:
    """Raise `OpenAIError` unless the model has the endpoint."""
    if not view.audio:
        msg = "The model has no transcriptions: it does not take one recording, or gives no text."
        raise invalid(msg, "model", "unsupported_model")
    if translates and not view.translates:
        msg = f"The model has no translations: it has no input '{_TASK}'."
        raise OpenAIError(Code.NOT_FOUND, msg, param="model", kind="unsupported_model")


def read_transcription(
    members: Members, signature: Signature, view: MediaView, *, translates: bool
) -> TranscriptionRequest:
    """Read the parameters of a form, but for its model and its file. Raises `OpenAIError`."""
    parameters = Parameters(members)
    form = parameters.take("response_format", str, "json")
    if form not in _FORMATS or (translates and form == "diarized_json"):
        raise invalid(f"'response_format' has to be one of {', '.join(_FORMATS)}", "response_format")
    if form in _TIMED and not view.has_segments:
        raise unsupported("response_format", f"the model gives no segments, which {form} needs; ask for json or text")
    if form == "diarized_json" and not view.has_speakers:
        raise unsupported("response_format", "the model names no speakers; ask for another format")
    is_stream = parameters.take("stream", bool, default=False)
    if is_stream and form not in _STREAMED:
        raise unsupported("stream", f"{form} comes as a whole; stream json, text or diarized_json")
    fields = {field.name for field in signature.inputs} - {view.audio}
    granularities = _granularities(parameters, view, fields=fields, form=form)
    language = parameters.text("language")
    given, ignored, names = parameters.place(view.names, frozenset(fields))
    if "timestamp_granularities" in fields and granularities:
        given["timestamp_granularities"] = msgspec.Raw(_encode(granularities))
    if translates:
        given[view.names.get(_TASK, _TASK)] = msgspec.Raw(_encode(_TRANSLATE))
    return TranscriptionRequest(
        given,
        _TRANSLATE if translates else "transcribe",
        form,
        granularities or ("segment",),
        is_stream,
        language,
        {**names, view.audio: "file"},
        ignored,
    )


def _granularities(parameters: Parameters, view: MediaView, *, fields: set[str], form: str) -> tuple[str, ...]:
    name = "timestamp_granularities"
    asked = tuple(parameters.take(name, list[str], []))
    if any(each not in _GRANULARITIES for each in asked):
        raise invalid(f"'{name}' has to have word, segment or both", name)
    if asked and form != "verbose_json":
        raise invalid(f"'{name}' needs the 'response_format' verbose_json", name)
    if "word" in asked and not view.has_words and name not in fields:
        raise unsupported(name, "the model gives no times of words")
    return asked


class Transcript:
    """One transcript as it grows: outputs of the model in, text and segments out."""

    def __init__(self, request: TranscriptionRequest) -> None:
        self._request = request
        self._texts: list[str] = []
        self._ends_word = True  # no space is needed before what comes next
        self._whole: dict[str, Any] = {}  # from the model, about the whole recording
        self.segments: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def take(self, piece: Buffer) -> list[bytes]:
        """Take the JSON text of what the model has given; return the events for it.

        It is a text, null, a segment, a whole transcript, or a list of them. Raises `RUN_FAILED` for other records.
        """
        value = _decode(piece)
        events: list[bytes] = []
        for one in value if isinstance(value, list) else [value]:
            events += self._take(one)
        return events

    def _take(self, one: Any) -> Iterator[bytes]:
        if isinstance(one, str):
            yield from self._add(one)
        elif isinstance(one, dict) and {"start", "end"} <= one.keys():
            yield from self._add_segment(one, is_text=True)
        elif isinstance(one, dict):
            self._whole.update(one)
            yield from self._add(_text_of(one))
            for segment in one.get("segments") or ():
                yield from self._add_segment(segment, is_text=False)
        elif one is not None:
            raise _bad("something that is neither text nor a record")

    def _add_segment(self, given: Any, *, is_text: bool) -> Iterator[bytes]:
        """Take a segment. `is_text`: its text is part of the whole one, which has not come by itself."""
        text = _text_of(given)
        segment = {**given, "text": text, "start": _seconds(given, "start"), "end": _seconds(given, "end")}
        self.segments.append(segment)
        if is_text:
            spaced = text if self._ends_word or text[:1].isspace() else f" {text}"
            yield from self._add(spaced)
        if self._is_diarized:
            yield event(_diarized(segment, len(self.segments) - 1))

    def _add(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        self._texts.append(text)
        self._ends_word = text[-1].isspace()
        if not self._is_diarized:
            yield event({"type": "transcript.text.delta", "delta": text})

    @property
    def _is_diarized(self) -> bool:
        return self._request.form == "diarized_json"

    def last(self, metrics: Mapping[str, Any]) -> bytes:
        """Return the last event of a stream."""
        usage = _tokens_used(metrics)
        done = {"type": "transcript.text.done", "text": self.text}
        return event(done if usage is None else {**done, "usage": usage})

    def answer(self, metrics: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the whole answer, and its media type. Raises `RUN_FAILED`."""
        match self._request.form:
            case "text":
                return self.text.encode(), TEXT_TYPE
            case "srt":
                return subtitles(self.segments, is_vtt=False).encode(), TEXT_TYPE
            case "vtt":
                return subtitles(self.segments, is_vtt=True).encode(), TEXT_TYPE
            case "verbose_json":
                return _encode(self._verbose()), JSON_TYPE
            case "diarized_json":
                return _encode(self._with_usage(self._speakers(), metrics)), JSON_TYPE
        return _encode(self._with_usage({"text": self.text}, metrics)), JSON_TYPE

    def _with_usage(self, answer: dict[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
        usage = _tokens_used(metrics)
        if usage is None and "duration" in self._whole:
            usage = {"type": "duration", "seconds": self._duration}
        return answer if usage is None else {**answer, "usage": usage}

    @property
    def _duration(self) -> float:
        if isinstance(self._whole.get("duration"), int | float):
            return float(self._whole["duration"])
        return max((segment["end"] for segment in self.segments), default=0.0)

    def _verbose(self) -> dict[str, Any]:
        language = self._whole.get("language") or self._request.language
        answer: dict[str, Any] = {
            "task": self._request.task,
            "language": str(language),
            "duration": self._duration,
            "text": self.text,
        }
        if "word" in self._request.granularities:
            answer["words"] = [_word(word) for word in self._words()]
        if "segment" in self._request.granularities:
            answer["segments"] = [_verbose(segment, number) for number, segment in enumerate(self.segments)]
        return {**answer, "usage": {"type": "duration", "seconds": self._duration}}

    def _words(self) -> list[Any]:
        words = self._whole.get("words")
        return words if words is not None else [w for segment in self.segments for w in segment.get("words") or ()]

    def _speakers(self) -> dict[str, Any]:
        segments = [_diarized(segment, number) for number, segment in enumerate(self.segments)]
        return {"task": "transcribe", "duration": self._duration, "text": self.text, "segments": segments}


def subtitles(segments: Sequence[Mapping[str, Any]], *, is_vtt: bool) -> str:
    """Return segments as subtitles: SubRip, or WebVTT. Each has its text on one line."""
    lines = ["WEBVTT\n\n"] if is_vtt else []
    for number, segment in enumerate(segments, 1):
        begin, end = (_clock(segment[each], "." if is_vtt else ",") for each in ("start", "end"))
        text = " ".join(segment["text"].split()).replace("-->", "->")  # neither an empty line nor an arrow ends it
        head = "" if is_vtt else f"{number}\n"
        lines.append(f"{head}{begin} --> {end}\n{text}\n\n")
    return "".join(lines)


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _verbose(segment: Mapping[str, Any], number: int) -> dict[str, Any]:
    own = {name: segment[name] for name in _SEGMENT if segment.get(name) is not None}
    times = {"start": segment["start"], "end": segment["end"], "text": segment["text"]}
    return {"id": number, **_SEGMENT, **own, **times}


def _diarized(segment: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": segment["start"],
        "end": segment["end"],
        "text": segment["text"],
        "speaker": str(segment.get("speaker") or ""),
    }


def _word(word: Any) -> dict[str, Any]:
    if not isinstance(word, dict) or not isinstance(word.get("word"), str):
        raise _bad("a word without a 'word'")
    return {"word": word["word"], "start": _seconds(word, "start"), "end": _seconds(word, "end")}


def _seconds(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(f"a segment whose '{name}' is no number of seconds")
    return float(value)


def _text_of(record: Any) -> str:
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise _bad("a record without a 'text'")
    return text


def _tokens_used(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    usage = usage_of([metrics], 1)
    if usage is None:
        return None
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }


def _bad(what: str) -> GeartrainError:
    return GeartrainError(Code.RUN_FAILED, f"The model gave {what}.")
