"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a form with a recording, answered with its text."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis.openai.forms import members_of
from geartrain.apis.openai.transcriptions import Transcript, TranscriptionRequest, check_audio, read_transcription
from geartrain.domain.tensors.tensor import Buffer
from geartrain.service.models.catalogue import Catalogue
from geartrain.transport.openai.api import EVENT_STREAM, fault_event, ignored
from geartrain.transport.openai.asking import Asked, begin, check_ignored, check_served, find_ready
from geartrain.transport.openai.following import Answering, FollowedRun, FollowingExchange
from geartrain.transport.openai.forms import NewStore, SentForm, attach, one_file, read_form
from geartrain.transport.wire.exchange import Answer, AnswerStream, BodyReader, ClientGoneError, Head, Responder

_OK: Final = HTTPStatus.OK
_FILE: Final = "file"
_encode = msgspec.json.Encoder().encode


class TranscriptionExchange(FollowingExchange[BodyReader]):
    """One request for a transcript."""

    def __init__(
        self, catalogue: Catalogue, head: Head, responder: Responder, *, new_store: NewStore, translates: bool
    ) -> None:
        super().__init__(catalogue, head, responder)
        self._new_store = new_store
        self._translates = translates
        self._endpoint = "translations" if translates else "transcriptions"

    async def begin(self, body: BodyReader) -> Answering:
        """See `FollowingExchange`."""
        content_type = self.head.header(b"content-type") or b""
        form = await read_form(body, content_type, self._new_store(), files={_FILE: 1}, check=self._check)
        try:
            return await self._begin(form)
        except BaseException:
            await form.store.remove()
            raise

    async def _check(self, name: str) -> None:
        """Check the model before a large file is taken. Raises `GeartrainError`."""
        deployment = await find_ready(self.catalogue, self.head, name)
        check_served(deployment, self._endpoint)
        check_audio(deployment.openai.view.media, translates=self._translates)

    async def _begin(self, form: SentForm) -> Answering:
        file = one_file(form, _FILE)
        deployment = await find_ready(self.catalogue, self.head, form.model)
        if self.has_left:
            raise ClientGoneError
        check_served(deployment, self._endpoint)
        signature = deployment.openai.signature
        media = deployment.openai.view.media
        check_audio(media, translates=self._translates)  # again: the model may have been reloaded
        members = members_of(form.texts, {field.name: field for field in signature.inputs}, media.names)
        request = read_transcription(members, signature, media, translates=self._translates)
        check_ignored(deployment, request.ignored)
        prediction = begin(
            Asked(deployment, members, form.model),
            {**request.given, media.audio: msgspec.Raw(_encode(file.name))},
            names=request.names,
            record=self.record,
            attachments=attach(form.store, {media.audio: file}),
        )
        return _Answering(FollowedRun(deployment, prediction), self.responder, request)


class _Answering(Answering):
    def __init__(self, run: FollowedRun, responder: Responder, request: TranscriptionRequest) -> None:
        super().__init__(run, responder)
        self._request = request
        self._transcript = Transcript(request)

    async def take(self, chunks: list[Buffer]) -> None:
        events = [event for chunk in chunks for event in self._transcript.take(chunk)]
        if self._request.is_stream and events:
            await self._open().write(b"".join(events))

    async def complete(self) -> None:
        metrics = self.run.prediction.metrics
        if self._request.is_stream:
            await self._open().write(self._transcript.last(metrics))
            self._open().end()
            return
        body, media_type = self._transcript.answer(metrics)
        headers = ((b"content-type", media_type), *ignored(self._request.ignored))
        self.responder.respond(Answer(_OK, (body,), headers))

    async def break_off(self, stream: AnswerStream, error: Exception) -> None:
        await stream.write(fault_event(error))
        stream.end()

    def _open(self) -> AnswerStream:
        if self.stream is None:
            self.stream = self.responder.open_stream(_OK, (*EVENT_STREAM, *ignored(self._request.ignored)))
        return self.stream
