"""Forms of OpenAI's API: texts, and files that go to the disk as they come.

The model stands in the form, and clients may send it behind the file. It is checked as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from geartrain.apis.openai.errors import invalid
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.multipart import MultipartReader, PartHead
from geartrain.domain.rendering import clip
from geartrain.outbound.concurrency import off_loop
from geartrain.service.ports import AttachmentStorePort
from geartrain.service.scheduling.files import SINGLE, Attachment, Attachments
from geartrain.transport.cog.forms import FORM, MAX_TEXT, FilePart, SentFile, TextPart, media_type_of
from geartrain.transport.wire.exchange import BodyReader

_MODEL: Final = "model"

Check = Callable[[str], Awaitable[None]]
NewStore = Callable[[], AttachmentStorePort]


class SentForm(msgspec.Struct, frozen=True):
    """A form that has come. Brackets behind names, as in `image[]`, are left out.

    Attributes:
        model: the model that it names.
        texts: the other texts, by their names.
        files: the files, by their names.
        store: the folder of the files. The caller makes predictions of it, or removes it.
    """

    model: str
    texts: dict[str, list[str]]
    files: dict[str, list[SentFile]]
    store: AttachmentStorePort


async def read_form(
    body: BodyReader, content_type: bytes, store: AttachmentStorePort, *, files: Mapping[str, int], check: Check
) -> SentForm:
    """Read a form. If that fails, or the caller is cancelled, `store` is empty when it raises.

    `files`: the names of files, and how many of each there may be. `check` is awaited with the model's name before
    more of the body is read; what it raises ends the reading. Raises `GeartrainError`, and `ClientGoneError`.
    """
    fields = _Fields(store, files)
    try:
        return await _read(body, content_type, fields, check=check)
    except BaseException:
        try:
            await off_loop(fields.close)
        finally:
            await store.remove()
        raise


async def _read(body: BodyReader, content_type: bytes, fields: _Fields, *, check: Check) -> SentForm:
    if media_type_of(content_type) != FORM:
        msg = "Expected a form: send the file with `Content-Type: multipart/form-data`."
        raise GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, msg)
    reader = MultipartReader(content_type, fields)
    is_checked = False
    while piece := await body.read():
        await off_loop(reader.feed, piece)
        if not is_checked and fields.model:
            is_checked = True
            await check(fields.model)
    reader.end()
    form = fields.form()
    if not is_checked:
        await check(form.model)
    return form


class _Fields:
    """Gathers the parts of a form; see `PartListener`. All of it happens in threads, one call after the other."""

    def __init__(self, store: AttachmentStorePort, files: Mapping[str, int]) -> None:
        self._store = store
        self._limits = files
        self._texts: dict[str, list[str]] = {}
        self._files: dict[str, list[SentFile]] = {}
        self._name = ""
        self._part: TextPart | FilePart | None = None  # none between two
        self._room = MAX_TEXT

    @property
    def model(self) -> str:
        """The model that the form names, empty until it has come."""
        return next(iter(self._texts.get(_MODEL, ())), "")

    def begin_part(self, head: PartHead) -> None:
        """See `PartListener`."""
        self._name = name = head.name.removesuffix("[]")
        if name not in self._limits:
            self._part = TextPart(name, self._room)
            return
        if not head.is_file:
            raise invalid(f"'{name}' has to be a file; curl sends one as -F {name}=@path", name)
        most = self._limits[name]
        if len(self._files.get(name, ())) >= most:
            raise invalid(f"'{name}' has more than {most} file{'s' if most > 1 else ''}", name)
        self._part = FilePart(head, self._store)

    def add_data(self, data: memoryview) -> None:
        """See `PartListener`."""
        if self._part is not None:
            self._part.write(data)

    def end_part(self) -> None:
        """See `PartListener`."""
        value = None if self._part is None else self._part.end()
        self._part = None
        if isinstance(value, SentFile):
            self._files.setdefault(self._name, []).append(value)
        elif value is not None:
            self._room -= len(value.encode())
            self._texts.setdefault(self._name, []).append(value)

    def close(self) -> None:
        """Release what is open."""
        if self._part is not None:
            self._part.close()

    def form(self) -> SentForm:
        """Return the form, which is complete. Raises `OpenAIError` without exactly one model."""
        models = self._texts.pop(_MODEL, [])
        if len(models) != 1 or not models[0]:
            raise invalid("'model' is missing: name a model of GET /v1/models", _MODEL)
        return SentForm(models[0], self._texts, self._files, self._store)


def one_file(form: SentForm, name: str) -> SentFile:
    """Return the file that has to be there. Raises `OpenAIError`."""
    files = form.files.get(name)
    if not files:
        raise invalid(f"'{clip(name)}' is missing: send a file", name)
    return files[0]


def attach(store: AttachmentStorePort, files: Mapping[str, SentFile | list[SentFile]]) -> Attachments:
    """Return the files as those of a prediction, by the names of its inputs; a list for an input that takes several."""
    attached: list[Attachment] = []
    for name, sent in files.items():
        if isinstance(sent, list):
            attached += [Attachment(name, file.path, index) for index, file in enumerate(sent)]
        else:
            attached.append(Attachment(name, sent.path, SINGLE))
    return Attachments(store, tuple(attached))
