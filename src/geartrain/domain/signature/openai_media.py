"""The endpoints of OpenAI's API for models of media: transcriptions, speech, images and moderations.

Transcriptions follow from the signature. The others are declared, see `OpenAIEndpoint`: a file may be a picture or a
sound, and a dict of numbers anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from geartrain.domain.signature.types import FILE_KINDS, InputField, Signature, TypeSpec, takes_file, takes_files

MediaEndpoint = Literal["transcriptions", "translations", "speech", "images", "image_edits", "moderations"]

_AUDIO: Final = "audio"
_TASK: Final = "task"
_IMAGES: Final = ("image", "images")
_COUNTS: Final = ("n", "num_outputs", "num_images")
_TEXTS: Final = {
    "speech": ("input", "text", "prompt"),
    "images": ("prompt", "text"),
    "moderations": ("input", "inputs", "text", "texts"),
}
_REQUIRED: Final = {"speech": ("voice",), "images": _IMAGES}  # parameters that OpenAI's clients have to send, too
_RECORDS: Final = frozenset({"object", "record", "opaque"})


class MisfitError(Exception):
    """A declared endpoint that the signature does not fit; the text is the end of a sentence for the author."""


class MediaView(msgspec.Struct, frozen=True):
    """The inputs of a model of media, by the endpoint that fills them; empty where it has none of the kind.

    Attributes:
        audio: takes a recording.
        translates: True with an input `task`.
        has_segments: True if transcripts have times; `has_words`: those of words; `has_speakers`: names of voices.
        speech: takes the text that is spoken.
        images: takes the description of a picture.
        image: takes a picture to be changed, or several where `takes_images`; `mask`: its mask.
        count: takes the number of pictures.
        moderated: takes the texts to be judged, or one text where `is_single`.
        threshold: the score from which on a text is flagged.
        names: the inputs of declared parameters, by the name of the parameter.
    """

    audio: str = ""
    translates: bool = False
    has_segments: bool = False
    has_words: bool = False
    has_speakers: bool = False
    speech: str = ""
    images: str = ""
    image: str = ""
    takes_images: bool = False
    needs_image: bool = False
    mask: str = ""
    count: str = ""
    moderated: str = ""
    is_single: bool = False
    threshold: float = 0.5
    names: dict[str, str] = {}

    @property
    def endpoints(self) -> tuple[MediaEndpoint, ...]:
        """The endpoints of the model."""
        has: dict[MediaEndpoint, bool] = {
            "transcriptions": bool(self.audio),
            "translations": self.translates,
            "speech": bool(self.speech),
            "images": bool(self.images) and not self.needs_image,
            "image_edits": bool(self.image),
            "moderations": bool(self.moderated),
        }
        return tuple(name for name, is_there in has.items() if is_there)


def media_view(signature: Signature) -> MediaView:
    """Find what a signature can be asked for; raise `MisfitError` for a declared endpoint that it does not fit."""
    declared = signature.openai
    if declared is None:
        field = _recording(signature)
        output = _transcript(signature)
        return MediaView() if field is None or output is None else _of_audio(signature, field, output, names={})
    fields = {field.name: field for field in signature.inputs}
    names = dict(declared.names)
    for parameter, name in names.items():
        if name not in fields:
            raise MisfitError(f"{parameter}={name!r} names no input; the inputs are {', '.join(fields)}")
    if declared.name == "transcriptions":
        return _declared_audio(signature, names)
    text = _text(declared.name, fields, names)
    _refuse_required(signature, {text.name, *names.values(), *_REQUIRED.get(declared.name, ())})
    if declared.name == "moderations":
        return _of_moderation(signature, text, names)
    _check_files(signature, declared.name)
    if declared.name == "speech":
        return MediaView(speech=text.name, names=names)
    return _of_images(fields, text, names)


def _of_audio(signature: Signature, field: InputField, output: TypeSpec, *, names: dict[str, str]) -> MediaView:
    fields = {each.name: each.type for each in output.fields}
    segments, segment = fields.get("segments"), fields
    if segments is not None and segments.items is not None:
        segment = {each.name: each.type for each in segments.items.fields}
    is_open = output.kind == "object"  # a dict: its members show when it has come
    return MediaView(
        audio=field.name,
        translates=any(each.name == names.get(_TASK, _TASK) for each in signature.inputs),
        has_segments=is_open or segments is not None or {"start", "end"} <= fields.keys(),
        has_words=is_open or "words" in fields or "words" in segment,
        has_speakers=is_open or "speaker" in segment,
        names=names,
    )


def _declared_audio(signature: Signature, names: dict[str, str]) -> MediaView:
    wanted = names.get("file")
    files = [each for each in signature.inputs if takes_file(each.type) and wanted in {None, each.name}]
    if not files:
        raise MisfitError("no input takes the recording, such as audio: Path")
    field = next((each for each in files if each.required), files[0])
    output = _transcript(signature, is_declared=True)
    if output is None:
        raise MisfitError("run() gives no text, no Transcript and no Segments")
    _refuse_required(signature, {field.name, *names.values()})
    return _of_audio(signature, field, output, names=names)


def _recording(signature: Signature) -> InputField | None:
    """Return the one input that is required, if it is a recording by its name or what it accepts."""
    required = [field for field in signature.inputs if field.required]
    if len(required) != 1 or not takes_file(required[0].type):
        return None
    field = required[0]
    return field if field.name == _AUDIO or f"{_AUDIO}/" in (field.accept or "") else None


def _transcript(signature: Signature, *, is_declared: bool = False) -> TypeSpec | None:
    """Return the type of one piece of a transcript: a text, or a record with a `text`."""
    kind = signature.output.type
    if kind.kind == "array" and kind.items is not None and signature.output.mode == "value":
        kind = kind.items
    if kind.kind == "string" or any(field.name == "text" for field in kind.fields):
        return kind
    return kind if is_declared and kind.kind == "object" else None


def _text(endpoint: str, fields: dict[str, InputField], names: dict[str, str]) -> InputField:
    known = _TEXTS[endpoint]
    wanted = [names[each] for each in known if each in names] or list(known)
    for name in wanted:
        field = fields.get(name)
        if field is not None and (_is_text(field.type) or (endpoint == "moderations" and _is_texts(field.type))):
            return field
    raise MisfitError(f"no input takes the text, such as {known[0]}: str; name it as {known[0]}='...'")


def _of_moderation(signature: Signature, text: InputField, names: dict[str, str]) -> MediaView:
    kind = signature.output.type
    is_single = _is_text(text.type)
    if not is_single and kind.kind == "array" and kind.items is not None:
        kind = kind.items
    elif not is_single:
        raise MisfitError("run() takes several texts, so it has to give a list of scores by category")
    if kind.kind not in _RECORDS:
        raise MisfitError("run() has to give the score of each category, such as dict[str, float]")
    threshold = 0.5 if signature.openai is None else signature.openai.threshold
    return MediaView(moderated=text.name, is_single=is_single, threshold=threshold, names=names)


def _of_images(fields: dict[str, InputField], text: InputField, names: dict[str, str]) -> MediaView:
    pictures = [fields[name] for name in _named("image", _IMAGES, names) if name in fields]
    image = next((field for field in pictures if takes_file(field.type) or takes_files(field.type)), None)
    mask = fields.get(names.get("mask", "mask"))
    count = next((name for name in _named("n", _COUNTS, names) if name in fields), "")
    return MediaView(
        images=text.name,
        image="" if image is None else image.name,
        takes_images=image is not None and takes_files(image.type),
        needs_image=image is not None and image.required,
        mask=mask.name if mask is not None and takes_file(mask.type) else "",
        count=count,
        names=names,
    )


def _named(parameter: str, known: Iterable[str], names: dict[str, str]) -> Iterator[str]:
    yield from (names[parameter],) if parameter in names else known


def _check_files(signature: Signature, endpoint: str) -> None:
    kind = signature.output.type
    if kind.kind == "array" and kind.items is not None and endpoint == "images":
        kind = kind.items
    if kind.kind not in FILE_KINDS:
        raise MisfitError("run() has to give a file: annotate it Path, or an iterator of files")


def _refuse_required(signature: Signature, names: set[str]) -> None:
    others = [field.name for field in signature.inputs if field.required and field.name not in names]
    if others:
        raise MisfitError(f"the input {others[0]!r} is required, and no parameter fills it: give it a default")


def _is_text(kind: TypeSpec) -> bool:
    return kind.kind == "string"


def _is_texts(kind: TypeSpec) -> bool:
    return kind.kind == "array" and kind.items is not None and kind.items.kind == "string"
