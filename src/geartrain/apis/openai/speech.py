"""Speech: a text in, a file of sound out, whole or in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.apis.openai.files import GivenFile
from geartrain.apis.openai.parameters import Members, Parameters
from geartrain.apis.openai.text_answers import NO_USAGE, event, usage_of
from geartrain.domain.signature.openai_media import MediaView
from geartrain.domain.signature.types import Signature

_FORMATS: Final = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
_UNKNOWN: Final = "application/octet-stream"
# Other media types of these formats. A file without a name is raw sound, for all that is known of it.
_OTHERS: Final = {
    "audio/mp3": "mp3",
    "audio/opus": "opus",
    "audio/x-aac": "aac",
    "audio/vnd.dlna.adts": "aac",
    "audio/x-flac": "flac",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/l16": "pcm",
    _UNKNOWN: "pcm",
}
_NAMES: Final = {**{kind: name for name, kind in _FORMATS.items()}, **_OTHERS}

_encode = msgspec.json.Encoder().encode


class SpeechRequest(msgspec.Struct, frozen=True):
    """A request for speech. `given`: the members of the model's input.

    `form`: the format that the client wants, empty for any; `chooses`: true if the model has an input for it.
    """

    given: Members
    form: str
    chooses: bool
    is_sse: bool
    names: dict[str, str]
    ignored: tuple[str, ...]

    def media_type(self, file: GivenFile) -> str:
        """Return the media type of the answer, whose first file is given.

        Raises `OpenAIError` for a format that is not the one that the client wants.
        """
        name = _NAMES.get(file.media_type, "")
        if self.form and self.chooses:
            return _FORMATS[self.form] if file.media_type == _UNKNOWN else _FORMATS.get(name, file.media_type)
        if self.form and name != self.form:
            advice = f"ask for {name}, or for none" if name else "leave it out"
            raise unsupported("response_format", f"the model gives {file.media_type}; {advice}")
        return file.media_type if file.media_type == _UNKNOWN else _FORMATS.get(name, file.media_type)


def read_speech(members: Members, signature: Signature, view: MediaView) -> SpeechRequest:
    """Read the body of a request for speech, but for its model. Raises `OpenAIError`."""
    if not view.speech:
        msg = 'The model has no speech: its run() is not declared with @endpoint("speech").'
        raise invalid(msg, "model", "unsupported_model")
    parameters = Parameters(members)
    text = parameters.take("input", str, "")
    if not text:
        raise invalid("'input' has to be a text that is not empty", "input")
    stream_format = parameters.take("stream_format", str, "audio")
    if stream_format not in {"audio", "sse"}:
        raise invalid("'stream_format' has to be audio or sse", "stream_format")
    fields = {field.name: field for field in signature.inputs if field.name != view.speech}
    form = parameters.text("response_format")
    if form and form not in _FORMATS:
        raise invalid(f"'response_format' has to be one of {', '.join(_FORMATS)}", "response_format")
    chooses = view.names.get("response_format", "response_format") in fields
    if not chooses:
        parameters.raw("response_format")
    _read_voice(parameters)
    given, ignored, names = parameters.place(view.names, frozenset(fields))
    given[view.speech] = msgspec.Raw(_encode(text))
    return SpeechRequest(given, form, chooses, stream_format == "sse", {**names, view.speech: "input"}, ignored)


def _read_voice(parameters: Parameters) -> None:
    """Put the id of a custom voice in the place of the object that it comes in."""
    voice = parameters.take_any("voice", str | dict[str, Any])
    chosen = voice.get("id") if isinstance(voice, dict) else voice
    if voice is not None and not isinstance(chosen, str):
        raise invalid("'voice' has to be a name, or an object with an 'id'", "voice")
    if chosen is not None:
        parameters.put("voice", msgspec.Raw(_encode(chosen)))


def speech_delta(file: GivenFile) -> bytes:
    """Return the event of a piece of sound."""
    return event({"type": "speech.audio.delta", "audio": file.base64})


def speech_done(metrics: Mapping[str, Any]) -> bytes:
    """Return the last event of a stream; tokens that the model has not counted are 0."""
    usage = usage_of([metrics], 1) or NO_USAGE
    told = {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
    return event({"type": "speech.audio.done", "usage": told})
