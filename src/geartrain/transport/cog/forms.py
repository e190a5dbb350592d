"""Bodies that are no JSON: forms whose fields are the inputs of a model, and a file for its only file input.

Files go to the disk as they come. Their reading and writing happens in threads, a piece at a time; the next piece is
not asked for before the last one is on the disk.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.predictions.prediction import Prediction
from geartrain.domain.signature.constraints import unexpected
from geartrain.domain.signature.text_values import (
    MismatchError,
    TextReader,
    encode_values,
    refuse_several,
)
from geartrain.domain.signature.types import InputField, Signature, takes_file, takes_files
from geartrain.outbound.concurrency import off_loop
from geartrain.outbound.files import clip_text, name_from_file_name, name_from_media_type
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.deployment import Deployment
from geartrain.service.ports import AttachedFilePort, AttachmentStorePort
from geartrain.service.scheduling.files import SINGLE, Attachment, Attachments
from geartrain.transport.errors import BUG
from geartrain.transport.runs import start
from geartrain.transport.wire.exchange import BodyReader, ClientGoneError

if TYPE_CHECKING:
    from geartrain.domain.multipart import MultipartReader, PartHead

logger = logging.getLogger(__name__)

MAX_TEXT: Final = 1_048_576  # bytes of all text fields of a form
FORM: Final = b"multipart/form-data"
_URL_ENCODED: Final = b"application/x-www-form-urlencoded"
_MEDIA_TYPE: Final = re.compile(rb"[a-z0-9!#$&^_.+\-]{1,127}/[a-z0-9!#$&^_.+\-]{1,127}")  # RFC 6838, section 4.2
_NO_FILE: Final = re.compile(rb"multipart/.*|application/(json|.*\+json|x-www-form-urlencoded)|text/json")
_LONGEST_SHOWN: Final = 100  # characters of what a client sent in a sentence
_URL_SCHEMES: Final = ("http:", "https:", "data:")


class Form(msgspec.Struct, frozen=True):
    """An input that came as a form or as a file.

    Attributes:
        input: JSON text, with the name of each file in its place.
        attachments: the files. Who has a form either makes a prediction of it or removes their folder.
    """

    input: bytes
    attachments: Attachments


def may_be_input(content_type: bytes) -> bool:
    """Return True if a body of this type can be the input of some model: a form, or a file. Never true of JSON."""
    media_type = media_type_of(content_type)
    return media_type == FORM or _is_file(media_type)


def wrong_type(content_type: bytes) -> GeartrainError:
    """Say that a body of this type is not accepted. The sentence begins as Cog's."""
    hint = ""
    if media_type_of(content_type) == _URL_ENCODED:
        hint = ". To `curl -d`, add -H 'Content-Type: application/json'; a form is sent with -F"
    msg = f"Expected request with `Content-Type: application/json`{hint}"
    return GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, msg)


class FormExchange:
    """One request whose body `may_be_input`. See `PartsExchange`.

    It reads the body, starts a prediction and tells of it; or tells why not. A client that leaves before gets neither.
    """

    __slots__ = ("_complete", "_content_type", "_find", "_has_left", "_on_abandoned", "_on_admitted", "_on_refused")

    def __init__(
        self,
        content_type: bytes,
        find: Callable[[], Awaitable[Deployment]],
        *,
        complete: Callable[[Form], NewPrediction],
        on_admitted: Callable[[Prediction], None],
        on_refused: Callable[[GeartrainError], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        """`find` gives who runs it, `complete` adds what the head says; both may raise `GeartrainError`."""
        self._content_type = content_type
        self._find = find
        self._complete = complete
        self._on_admitted = on_admitted
        self._on_refused = on_refused
        self._on_abandoned = on_abandoned
        self._has_left = False

    def receive(self, body: BodyReader) -> None:
        """Begin to read the body."""
        start(self._receive(body))

    def abandon(self) -> None:
        """Stop starting uploads, and pass the call on to the prediction."""
        self._has_left = True
        self._on_abandoned()

    async def _receive(self, body: BodyReader) -> None:
        try:
            prediction = await admit_form(body, self._content_type, self._find, complete=self._complete_if_wanted)
        except ClientGoneError:
            logger.debug("a client disconnected before its request was whole")
        except GeartrainError as error:
            self._on_refused(error)
        except Exception:
            logger.exception("an endpoint failed")
            self._on_refused(BUG)
        else:
            self._on_admitted(prediction)

    def _complete_if_wanted(self, form: Form) -> NewPrediction:
        if self._has_left:
            raise ClientGoneError
        return self._complete(form)


async def admit_form(
    body: BodyReader,
    content_type: bytes,
    find: Callable[[], Awaitable[Deployment]],
    *,
    complete: Callable[[Form], NewPrediction],
) -> Prediction:
    """Read a body that `may_be_input`, and start a prediction of what `complete` makes of it.

    `find` returns what runs it. It is asked before the body comes, which takes its time, and again afterwards: the
    model may have been reloaded meanwhile, or unloaded until a request needs it.

    Raises `GeartrainError`, and what `complete` raises; `ClientGoneError` if the body does not come whole. Nothing of
    the body is left then.
    """
    deployment = await find()
    deployment.workers.check_ready()  # before a large body is taken
    signature, store = deployment.interface.signature, deployment.outbound.new_attachments()
    form = await read_form(body, content_type, signature, store=store)
    try:
        return (await find()).create(complete(form))
    except BaseException:
        start(store.remove())
        raise


async def read_form(body: BodyReader, content_type: bytes, signature: Signature, *, store: AttachmentStorePort) -> Form:
    """Read a body that `may_be_input`. If that fails, or the caller is cancelled, `store` is empty when it raises.

    Raises `ClientGoneError`, and `GeartrainError`: `UNSUPPORTED_MEDIA_TYPE` for a file where not exactly one input
    takes one, `UNPARSABLE`, `INVALID_INPUT` with the wrong fields, `TOO_LARGE`, `NO_STORAGE`. Whether the values keep
    to the rules of the model is left to the admission.
    """
    fields = _Fields(signature, store)
    try:
        reader = _reader(content_type, signature, fields)
        while piece := await body.read():
            await off_loop(reader.feed, piece)
        return await off_loop(_finish, reader, fields)
    except BaseException:
        try:
            await off_loop(fields.close)
        finally:
            await store.remove()
        raise


def _finish(reader: MultipartReader | _FileReader, fields: _Fields) -> Form:
    reader.end()
    return fields.form()


def _reader(content_type: bytes, signature: Signature, fields: _Fields) -> MultipartReader | _FileReader:
    from geartrain.domain.multipart import MultipartReader, PartHead  # late: most bodies are JSON

    media_type = media_type_of(content_type)
    if media_type == FORM:
        return MultipartReader(content_type, fields)
    inputs = [field for field in signature.inputs if takes_file(field.type) or takes_files(field.type)]
    if len(inputs) != 1:
        raise wrong_type(content_type)
    field = inputs[0]
    return _FileReader(PartHead(field.name, is_file=True, media_type=media_type.decode()), fields)


class _FileReader:
    """Reads a body that is one file, as if it were the only part of a form."""

    def __init__(self, head: PartHead, fields: _Fields) -> None:
        self._head = head
        self._fields = fields
        self._has_begun = False

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._begin()
        self._fields.add_data(memoryview(data))

    def end(self) -> None:
        """Note the end of the body."""
        self._begin()
        self._fields.end_part()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._fields.begin_part(self._head)


class SentFile(msgspec.Struct, frozen=True):
    """A file that has come: the name to show, and its path."""

    name: str
    path: str


class TextPart:
    """A part that is a text, possibly from a file."""

    def __init__(self, name: str, room: int) -> None:
        """`room`: the bytes that it may have."""
        self._name = name
        self._room = room
        self._text = bytearray()

    def write(self, data: memoryview) -> None:
        """Take the next piece."""
        if len(self._text) + len(data) > self._room:
            raise GeartrainError(
                Code.TOO_LARGE,
                f"The texts of the form are together larger than {MAX_TEXT} bytes. Send larger ones as JSON.",
            )
        self._text += data

    def end(self) -> str:
        """Return the text."""
        try:
            return self._text.decode()
        except UnicodeDecodeError:
            msg = f'The field "{clip_text(self._name, _LONGEST_SHOWN)}" of the form is not valid UTF-8'
            raise GeartrainError(Code.UNPARSABLE, msg) from None

    def close(self) -> None:
        """Do nothing: there is nothing open."""


class FilePart:
    """A part that becomes a file. Without a name and content it is ignored: no file was chosen."""

    def __init__(self, head: PartHead, store: AttachmentStorePort) -> None:
        self._name = name_from_file_name(head.file_name) or name_from_media_type(head.media_type)
        self._place = head.name
        self._store = store
        self._files: list[AttachedFilePort] = []
        if head.file_name:
            self._open()

    def write(self, data: memoryview) -> None:
        """Take the next piece."""
        if not self._files:
            self._open()
        self._files[0].write(data)

    def end(self) -> SentFile | None:
        """Return the file, which is complete."""
        self.close()
        return next((SentFile(self._name, file.path) for file in self._files), None)

    def close(self) -> None:
        """Close the file."""
        for file in self._files:
            file.close()

    def _open(self) -> None:
        self._files.append(self._store.open(self._place, self._name))


class _Fields:
    """Gathers the fields of a form; see `PartListener`. All of it happens in threads, one call after the other."""

    def __init__(self, signature: Signature, store: AttachmentStorePort) -> None:
        self._inputs = {field.name: field for field in signature.inputs}
        self._store = store
        self._given: dict[str, list[str | SentFile]] = {}
        self._name = ""
        self._part: TextPart | FilePart | None = None  # none between two
        self._room = MAX_TEXT

    def begin_part(self, head: PartHead) -> None:
        """See `PartListener`. A name that the model does not know is refused before its content is read."""
        field = self._inputs.get(head.name)
        if field is None:
            name = clip_text(head.name, _LONGEST_SHOWN)
            msg = unexpected(name, self._inputs, "inputs of this model")
            raise _invalid([FieldError(("body", "input", name), msg, "value_error.extra")])
        self._name = head.name
        if head.is_file and (takes_file(field.type) or takes_files(field.type)):
            self._part = FilePart(head, self._store)
        else:
            self._part = TextPart(head.name, self._room)

    def add_data(self, data: memoryview) -> None:
        """See `PartListener`."""
        if self._part is not None:
            self._part.write(data)

    def end_part(self) -> None:
        """See `PartListener`."""
        value = None if self._part is None else self._part.end()
        self._part = None
        if value is None:
            return
        if isinstance(value, str):
            self._room -= len(value.encode())
        self._given.setdefault(self._name, []).append(value)

    def close(self) -> None:
        """Release what is open."""
        if self._part is not None:
            self._part.close()

    def form(self) -> Form:
        """Return the form, which is complete; raises `GeartrainError` (`INVALID_INPUT`) with every wrong field."""
        values: dict[str, Any] = {}
        files: list[Attachment] = []
        errors: list[FieldError] = []
        for name, given in self._given.items():
            field = self._inputs[name]
            try:
                values[name] = _value(field, given)
            except MismatchError as mismatch:
                errors.append(FieldError(("body", "input", name), mismatch.problem, "value_error"))
            is_list = field.type.kind == "array"
            for index, each in enumerate(given):
                if isinstance(each, SentFile):
                    files.append(Attachment(name, each.path, index if is_list else SINGLE))
        if errors:
            raise _invalid(errors)
        try:
            return Form(encode_values(values), Attachments(self._store, tuple(files)))
        except ValueError as error:
            raise GeartrainError(Code.UNPARSABLE, f"Failed to read the form: {error}") from None


def _value(field: InputField, given: list[str | SentFile]) -> Any:
    """Return the value of an input; a file is its name."""
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) == len(given):
        return _READER.value(field, texts)
    if field.type.kind == "array":
        return [each.name if isinstance(each, SentFile) else _READER.element(field, each) for each in given]
    refuse_several(len(given))
    return next(each.name for each in given if isinstance(each, SentFile))


def _url(text: str) -> str:
    """Admit the text of a file input, which is fetched as one in JSON is."""
    if text[:6].lower().startswith(_URL_SCHEMES):
        return text
    shown = clip_text(text, _LONGEST_SHOWN)
    raise MismatchError(f'expected a file or a URL, got the text "{shown}"; curl sends a file as -F name=@file')


_READER: Final = TextReader(read=lambda text: text, read_file=_url)


def media_type_of(content_type: bytes) -> bytes:
    """Return the media type of a `Content-Type`, in lower case and without parameters."""
    return content_type.partition(b";")[0].strip().lower()


def _is_file(media_type: bytes) -> bool:
    return _MEDIA_TYPE.fullmatch(media_type) is not None and _NO_FILE.fullmatch(media_type) is None


def _invalid(errors: list[FieldError]) -> GeartrainError:
    msg = "The input does not fit the model's signature."
    return GeartrainError(Code.INVALID_INPUT, msg, fields=tuple(errors))
