"""`POST /v1/images/generations` and `/v1/images/edits`: a description, and perhaps pictures, answered with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from time import time
from typing import Any, Final

import msgspec

from geartrain.apis.openai.files import GivenFile, given_files, given_urls
from geartrain.apis.openai.forms import members_of
from geartrain.apis.openai.images import (
    MOST_SOURCES,
    ImageRequest,
    check_images,
    check_sources,
    encode_images,
    read_images,
    read_sources,
)
from geartrain.apis.openai.parameters import Members
from geartrain.domain.predictions.prediction import Prediction
from geartrain.outbound.concurrency import off_loop
from geartrain.service.models.catalogue import Catalogue
from geartrain.service.ports import AttachmentStorePort
from geartrain.transport.cog.forms import SentFile
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.openai.api import ignored
from geartrain.transport.openai.asking import Asked, begin, check_ignored, check_served, find_ready, read_asked
from geartrain.transport.openai.forms import NewStore, SentForm, attach, read_form
from geartrain.transport.openai.whole import Begin, WholeExchange
from geartrain.transport.wire.exchange import JSON, Answer, Body, BodyReader, Head, Responder

_OK: Final = HTTPStatus.OK
_FILES: Final = {"image": MOST_SOURCES, "mask": 1}
_COPIED: Final = 1_048_576  # bytes at a time
_encode = msgspec.json.Encoder().encode

_Files = dict[str, SentFile | list[SentFile]]


class _ImageExchange(WholeExchange):
    """One request for pictures; `gives_urls` as for `read_images`."""

    def __init__(self, catalogue: Catalogue, head: Head, responder: Responder, *, gives_urls: bool) -> None:
        super().__init__(catalogue, head, responder)
        self.gives_urls = gives_urls

    async def draw(self, asked: Asked, request: ImageRequest, begin_one: Begin) -> Answer:
        """Run the model, and answer with what it has drawn."""
        predictions = await self.complete(asked, request.inputs, begin_one)
        body = await read_aside(_encode_all, request, predictions)
        return Answer(_OK, (body,), (*JSON, *ignored(request.ignored)))


class GenerationExchange(_ImageExchange):
    """One request for pictures, whose body is JSON. `is_edit`: it has URLs of pictures to be changed."""

    def __init__(
        self, catalogue: Catalogue, head: Head, responder: Responder, *, gives_urls: bool, is_edit: bool
    ) -> None:
        super().__init__(catalogue, head, responder, gives_urls=gives_urls)
        self._is_edit = is_edit

    def receive(self, body: Body) -> None:
        """Read the body, run the model, and answer."""
        self.respond(self._answer(body))

    async def _answer(self, body: Body) -> Answer:
        asked = await read_asked(self.catalogue, self.head, body)
        del body
        check_served(asked.deployment, "image_edits" if self._is_edit else "images")
        media, signature = asked.view.media, asked.signature
        check_images(media, is_edit=self._is_edit)
        sources = await read_aside(read_sources, asked.members, media) if self._is_edit else {}
        request = read_images(asked.members, signature, media, gives_urls=self.gives_urls)
        check_ignored(asked.deployment, request.ignored)
        if sources:
            inputs = tuple({**one, **sources} for one in request.inputs)
            names = {**request.names, media.image: "images"}
            request = msgspec.structs.replace(request, inputs=inputs, names=names)

        def begin_one(number: int, values: Members) -> Prediction:
            choice, inline = asked.for_choice(number), not request.has_urls
            return begin(choice, values, names=request.names, record=self.record, inline=inline)

        return await self.draw(asked, request, begin_one)


class EditExchange(_ImageExchange):
    """One request for changed pictures, which come in a form."""

    def __init__(
        self, catalogue: Catalogue, head: Head, responder: Responder, *, gives_urls: bool, new_store: NewStore
    ) -> None:
        super().__init__(catalogue, head, responder, gives_urls=gives_urls)
        self._new_store = new_store
        self._spare: dict[int, AttachmentStorePort] = {}  # the files of runs that have not begun

    def receive(self, body: BodyReader) -> None:
        """Read the form, run the model, and answer."""
        self.respond(self._answer(body))

    async def _answer(self, body: BodyReader) -> Answer:
        content_type = self.head.header(b"content-type") or b""
        form = await read_form(body, content_type, self._new_store(), files=_FILES, check=self._check)
        self._spare[0] = form.store
        try:
            return await self._edit(form)
        finally:
            for store in self._spare.values():
                await store.remove()

    async def _check(self, name: str) -> None:
        """Check the model before large files are taken. Raises `GeartrainError`."""
        deployment = await find_ready(self.catalogue, self.head, name)
        check_served(deployment, "image_edits")
        check_images(deployment.openai.view.media, is_edit=True)

    async def _edit(self, form: SentForm) -> Answer:
        deployment = await find_ready(self.catalogue, self.head, form.model)
        check_served(deployment, "image_edits")
        signature = deployment.openai.signature
        media = deployment.openai.view.media
        check_images(media, is_edit=True)  # again: the model may have been reloaded
        images, masks = form.files.get("image", []), form.files.get("mask", [])
        check_sources(media, len(images), has_mask=bool(masks), name="image")
        members = members_of(form.texts, {field.name: field for field in signature.inputs}, media.names)
        request = read_images(members, signature, media, gives_urls=self.gives_urls)
        check_ignored(deployment, request.ignored)
        files: _Files = {media.image: images if media.takes_images else images[0]}
        if masks:
            files[media.mask] = masks[0]
        sent = [files]
        for number in range(1, len(request.inputs)):
            self._spare[number] = self._new_store()
            sent.append(await off_loop(_copied, files, self._spare[number]))
        asked = Asked(deployment, members, form.model)
        return await self.draw(asked, request, self._beginning(asked, request, sent))

    def _beginning(self, asked: Asked, request: ImageRequest, sent: Sequence[_Files]) -> Begin:
        """Create the starter of predictions with files of their own, which are removed at their ends."""

        def begin_one(number: int, values: Members) -> Prediction:
            files = sent[number]
            shown = {name: msgspec.Raw(_encode(_names_of(file))) for name, file in files.items()}
            prediction = begin(
                asked.for_choice(number),
                {**values, **shown},
                names=request.names,
                record=self.record,
                attachments=attach(self._spare[number], files),
                inline=not request.has_urls,
            )
            del self._spare[number]
            return prediction

        return begin_one


def _encode_all(request: ImageRequest, predictions: Sequence[Prediction]) -> bytes:
    read: Any = given_urls if request.has_urls else given_files
    chunks = [chunk for prediction in predictions for chunk in prediction.chunks]
    files: list[GivenFile | str] = [file for chunk in chunks for file in read(chunk)]
    metrics = [prediction.metrics for prediction in predictions]
    return encode_images(request, files, created=int(time()), metrics=metrics)


def _names_of(sent: SentFile | list[SentFile]) -> str | list[str]:
    return [file.name for file in sent] if isinstance(sent, list) else sent.name


def _copied(files: _Files, store: AttachmentStorePort) -> _Files:
    """Copy files into another folder. Blocks."""
    return {
        name: [_copy(each, name, store) for each in sent] if isinstance(sent, list) else _copy(sent, name, store)
        for name, sent in files.items()
    }


def _copy(file: SentFile, place: str, store: AttachmentStorePort) -> SentFile:
    copy = store.open(place, file.name)
    try:
        with Path(file.path).open("rb") as source:
            while piece := source.read(_COPIED):
                copy.write(memoryview(piece))
    finally:
        copy.close()
    return SentFile(file.name, copy.path)
