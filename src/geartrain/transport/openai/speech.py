"""`POST /v1/audio/speech`: a text, answered with sound: a whole file, or pieces as the model gives them."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from geartrain.apis.openai.files import GivenFile, given_files
from geartrain.apis.openai.speech import SpeechRequest, read_speech, speech_delta, speech_done
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.large_bodies import read_aside
from geartrain.transport.openai.api import EVENT_STREAM, fault_event, ignored
from geartrain.transport.openai.asking import begin, check_ignored, check_served, read_asked
from geartrain.transport.openai.following import Answering, FollowedRun, FollowingExchange
from geartrain.transport.runs import DIRECT_LIMIT
from geartrain.transport.wire.exchange import Answer, AnswerStream, Body, ClientGoneError, Responder

logger = logging.getLogger(__name__)

_OK: Final = HTTPStatus.OK


class SpeechExchange(FollowingExchange[Body]):
    """One request for speech."""

    async def begin(self, body: Body) -> Answering:
        """See `FollowingExchange`."""
        asked = await read_asked(self.catalogue, self.head, body)
        check_served(asked.deployment, "speech")
        signature = asked.signature
        request = read_speech(asked.members, signature, asked.view.media)
        check_ignored(asked.deployment, request.ignored)
        if self.has_left:
            raise ClientGoneError
        prediction = begin(asked, request.given, names=request.names, record=self.record, inline=True)
        run = FollowedRun(asked.deployment, prediction)
        return _Answering(run, self.responder, request, streams=signature.output.mode != "value")


class _Answering(Answering):
    def __init__(self, run: FollowedRun, responder: Responder, request: SpeechRequest, *, streams: bool) -> None:
        """`streams`: whether the model gives its sound in pieces."""
        super().__init__(run, responder)
        self._request = request
        self._streams = streams or request.is_sse
        self._media_type = ""
        self._sound: list[bytes] = []

    async def take(self, chunks: list[Buffer]) -> None:
        for chunk in chunks:
            is_large = len(chunk) > DIRECT_LIMIT
            pieces = await read_aside(self._pieces, chunk) if is_large else self._pieces(chunk)
            if self._streams and pieces:
                await self._open().write(b"".join(pieces))
            elif not self._streams:
                self._sound += pieces

    def _pieces(self, chunk: Buffer) -> list[bytes]:
        files = given_files(chunk)
        if files and not self._media_type:
            self._media_type = self._request.media_type(files[0])
        return [self._piece(file) for file in files]

    def _piece(self, file: GivenFile) -> bytes:
        return speech_delta(file) if self._request.is_sse else file.content()

    async def complete(self) -> None:
        if not self._media_type:
            raise GeartrainError(Code.RUN_FAILED, "The model gave no sound.")
        if not self._streams:
            self.responder.respond(Answer(_OK, tuple(self._sound), self._headers()))
            return
        if self._request.is_sse:
            await self._open().write(speech_done(self.run.prediction.metrics))
        self._open().end()

    async def break_off(self, stream: AnswerStream, error: Exception) -> None:
        """Tell of an error as an event. Sound has no place for one: the client notices that it is not whole."""
        if self._request.is_sse:
            await stream.write(fault_event(error))
            stream.end()
            return
        if isinstance(error, GeartrainError):
            self.responder.record.error = error.reason
        else:
            logger.error("an endpoint failed", exc_info=error)
        stream.abort()

    def _headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"content-type", self._media_type.encode()), *ignored(self._request.ignored))

    def _open(self) -> AnswerStream:
        if self.stream is None:
            headers = (*EVENT_STREAM, *ignored(self._request.ignored)) if self._request.is_sse else self._headers()
            self.stream = self.responder.open_stream(_OK, headers)
        return self.stream
