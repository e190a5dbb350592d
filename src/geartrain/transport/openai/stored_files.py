"""`/v1/files`: the files of clients, kept in the store as they come, and read from it piece by piece."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import msgspec

from geartrain.apis.openai.errors import invalid
from geartrain.apis.openai.stored import (
    PURPOSE,
    check_fields,
    describe_file,
    encode_deleted,
    encode_file,
    encode_list,
    file_too_large,
    no_store,
    over_quota,
    read_life,
    read_selection,
    unknown_file,
)
from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.multipart import MultipartReader, PartHead
from geartrain.domain.predictions.batch_jobs import OF_MESSAGES, PIECE, FileRemoval, Selection, StoredFile
from geartrain.domain.predictions.ledger import LeaseEndedError
from geartrain.domain.principal import Principal
from geartrain.service.durable.durability import Durability
from geartrain.transport.cog.forms import FORM, media_type_of
from geartrain.transport.openai.api import refusal
from geartrain.transport.runs import Request, start
from geartrain.transport.wire.exchange import Answer, BodyReader, ClientGoneError, Head, Responder

logger = logging.getLogger(__name__)

MAX_FILE: Final = 200_000_000
"""Bytes of a file."""

MAX_FILES: Final = 1000
"""Files of one principal, the answers of batches included."""

MAX_FIELDS: Final = 4096
"""Bytes of the other fields of an upload."""

_MOST_LISTED: Final = 10_000
_LONGEST_NAME: Final = 255  # characters of a file's name
_LINES_AT_ONCE: Final = 16  # answers that are read first; then as many as fit into a piece
_OK: Final = HTTPStatus.OK
_FILE: Final = ((b"content-type", b"application/octet-stream"),)


def needed(durability: Durability | None) -> Durability:
    """Return the store; raise `OpenAIError` on a server without one."""
    if durability is None:
        raise no_store()
    return durability


class Files:
    """The endpoints of files, each for one request."""

    def __init__(self, durability: Durability | None) -> None:
        self._durability = durability

    async def list_all(self, request: Request) -> Answer:
        """Return the files of a client. Raises `GeartrainError`."""
        durability = needed(self._durability)
        head = request.head
        selection = read_selection(
            head.query, head.notes.principal, most=_MOST_LISTED, usual=_MOST_LISTED, of_files=True
        )
        found = await durability.ask(durability.store.batches.list_files(one_more(selection)))
        shown = [describe_file(each) for each in found[: selection.limit]]
        return Answer(_OK, (encode_list(shown, has_more=len(found) > selection.limit),))

    async def describe(self, request: Request) -> Answer:
        """Return one file. Raises `GeartrainError`."""
        return Answer(_OK, (encode_file(await self._find(request.params["id"], request.head)),))

    async def remove(self, request: Request) -> Answer:
        """Remove a file. Raises `GeartrainError`."""
        file = await self._find(request.params["id"], request.head)
        durability = needed(self._durability)
        if await durability.ask(durability.store.batches.remove_file(file.id)) is FileRemoval.IN_USE:
            msg = "The file is read by a batch that has not ended: cancel the batch first."
            raise GeartrainError(Code.CONFLICT, msg)
        return Answer(_OK, (encode_deleted(file.id),))

    async def _find(self, name: str, head: Head) -> StoredFile:
        return await find_file(needed(self._durability), name, head.notes.principal)

    async def content(self, request: Request, responder: Responder) -> None:
        """Answer with the content of a file. Raises `GeartrainError` before its first piece."""
        durability = needed(self._durability)
        file = await self._find(request.params["id"], request.head)
        await send_pieces(responder, _FILE, content_of(durability, file))


async def send_pieces(
    responder: Responder, headers: tuple[tuple[bytes, bytes], ...], pieces: AsyncIterator[bytes]
) -> None:
    """Answer with pieces as they come. Raises what the first of them raises; later the answer breaks off."""
    first = await anext(pieces, b"")
    stream = responder.open_stream(_OK, headers)
    try:
        await stream.write(first)
        async for piece in pieces:
            await stream.write(piece)
    except ClientGoneError:
        return
    except Exception:
        logger.exception("an answer out of the store broke off")
        stream.abort()
        return
    stream.end()


def one_more(selection: Selection) -> Selection:
    """Return a selection with one member more: if it is there, another page follows."""
    return msgspec.structs.replace(selection, limit=selection.limit + 1)


async def find_file(durability: Durability, name: str, principal: Principal) -> StoredFile:
    """Return a file that a client may see. Raises `GeartrainError`."""
    file = await durability.ask(durability.store.batches.find_file(name)) if is_id(name) else None
    if file is None or file.purpose == OF_MESSAGES or not principal.may_see(file.principal):
        raise unknown_file(name)
    return file


def is_id(name: str) -> bool:
    """True if a text can be the id of a file or a batch; databases do not take every text."""
    return name.isascii() and name.isprintable() and len(name) <= _LONGEST_NAME


async def content_of(durability: Durability, file: StoredFile) -> AsyncIterator[bytes]:
    """Yield the content of a file, about a piece at once. Raises `GeartrainError`."""
    batches = durability.store.batches
    if not file.batch:
        for number in range(file.pieces):
            piece = await durability.ask(batches.read_piece(file.id, number))
            if piece is None:
                raise unknown_file(file.id)
            yield piece
        return
    after, limit = 0, _LINES_AT_ONCE
    while True:
        lines = await durability.ask(batches.read_lines(file.batch, is_error=file.is_errors, after=after, limit=limit))
        if not lines:
            return
        after = lines[-1][0]
        piece = b"".join(body + b"\n" for _, body in lines)
        limit = max(1, PIECE * len(lines) // len(piece))
        yield piece


async def keep_requests(durability: Durability, principal: Principal, data: bytearray, *, max_bytes: int) -> StoredFile:
    """Write the requests of a batch of messages into a file of its own. Raises `GeartrainError`.

    `data` is empty afterwards. `max_bytes`: of all files of one client.
    """
    parts = _Parts()
    parts.data, parts.file_name, parts.fields = data, "requests.jsonl", {"purpose": PURPOSE}
    upload = _Upload(durability, principal, max_bytes, purpose=OF_MESSAGES)
    try:
        return await upload.complete(parts)
    except BaseException:
        await upload.remove()
        raise


class UploadExchange:
    """One upload. See `PartsExchange`."""

    def __init__(self, durability: Durability | None, head: Head, responder: Responder, *, max_bytes: int) -> None:
        """`max_bytes`: of all files of one client."""
        self._durability = durability
        self._head = head
        self._responder = responder
        self._max_bytes = max_bytes

    def receive(self, body: BodyReader) -> None:
        """Read the form, and answer."""
        start(self._run(body))

    def abandon(self) -> None:
        """Leave it to the reader of the body, which raises: the client has disconnected."""

    async def _run(self, body: BodyReader) -> None:
        try:
            file = await self._take(body)
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and answered
            self._responder.respond(refusal(error))
            return
        self._responder.respond(Answer(_OK, (encode_file(file),)))

    async def _take(self, body: BodyReader) -> StoredFile:
        durability = needed(self._durability)
        content_type = self._head.header(b"content-type") or b""
        if media_type_of(content_type) != FORM:
            msg = "Expected a form: send the file with `Content-Type: multipart/form-data`."
            raise GeartrainError(Code.UNSUPPORTED_MEDIA_TYPE, msg)
        parts = _Parts()
        reader = MultipartReader(content_type, parts)
        upload = _Upload(durability, self._head.notes.principal, self._max_bytes)
        try:
            while piece := await body.read():
                reader.feed(piece)
                check_fields(parts.fields)
                await upload.write(parts)
            reader.end()
            return await upload.complete(parts)
        except BaseException:
            await upload.remove()
            raise


class _Parts:
    """The parts of an upload; see `PartListener`. What has come of the file waits in `data`."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.data = bytearray()
        self.file_name: str | None = None  # None before the file
        self._text: bytearray | None = None
        self._name = ""
        self._room = MAX_FIELDS

    def begin_part(self, head: PartHead) -> None:
        """See `PartListener`."""
        self._name, self._text = head.name, None
        if head.name != "file":
            if head.name in self.fields:
                raise invalid("a field is sent twice", head.name)
            self._text = bytearray()
        elif not head.is_file:
            raise invalid("'file' has to be a file; curl sends one as -F file=@path", "file")
        elif self.file_name is not None:
            raise invalid("'file' is sent twice: an upload is one file", "file")
        else:
            name = head.file_name.replace("\\", "/").rpartition("/")[2].replace("\x00", "")
            self.file_name = name[:_LONGEST_NAME] or "file"

    def add_data(self, data: memoryview) -> None:
        """See `PartListener`."""
        if self._text is None:
            self.data += data
            return
        self._room -= len(data)
        if self._room < 0:
            raise GeartrainError(Code.TOO_LARGE, f"The fields of the form have more than {MAX_FIELDS} bytes")
        self._text += data

    def end_part(self) -> None:
        """See `PartListener`."""
        if self._text is not None:
            try:
                self.fields[self._name] = self._text.decode()
            except UnicodeDecodeError:
                raise invalid("a field is not valid UTF-8", self._name) from None


class _Upload:
    """A file on its way into the store."""

    def __init__(self, durability: Durability, principal: Principal, max_bytes: int, *, purpose: str = PURPOSE) -> None:
        self._durability = durability
        self._batches = durability.store.batches
        self._principal = principal
        self._max_bytes = max_bytes
        self._purpose = purpose
        self._file: StoredFile | None = None
        self._size = 0
        self._pieces = 0

    async def write(self, parts: _Parts, *, is_last: bool = False) -> None:
        """Write whole pieces of what has come; at the end the rest as well. Raises `GeartrainError`."""
        if parts.file_name is None:
            return
        file = self._file or await self._begin(parts.file_name)
        data = parts.data
        while len(data) >= PIECE or (is_last and data):
            piece = bytes(data[:PIECE])
            del data[:PIECE]
            self._size += len(piece)
            if self._size > MAX_FILE:
                raise file_too_large(MAX_FILE)
            used = await self._durability.ask(
                self._batches.add_piece(file, self._durability.owner, piece, piece=self._pieces)
            )
            if used < 0:
                raise GeartrainError(Code.STORE_UNAVAILABLE, "The upload was lost by the store: send it again.")
            if used > self._max_bytes:
                raise self._over_quota()
            self._pieces += 1

    async def _begin(self, name: str) -> StoredFile:
        durability = self._durability
        new_id = f"file-{secrets.token_hex(12)}"
        file = StoredFile(new_id, name, self._purpose, time.time(), principal=self._principal.name)
        limits = {"most": MAX_FILES, "most_bytes": self._max_bytes}
        try:
            is_added = await durability.ask(self._batches.add_file(file, durability.owner, **limits))
        except LeaseEndedError:
            await durability.renew()
            is_added = await durability.ask(self._batches.add_file(file, durability.owner, **limits))
        if not is_added:
            raise self._over_quota()
        self._file = file
        return file

    def _over_quota(self) -> GeartrainError:
        return over_quota(
            f"You keep {MAX_FILES:,} files or {self._max_bytes:,} bytes in files already: delete some with "
            "DELETE /v1/files/{id} or DELETE /v1/messages/batches/{id}, or let the operator raise --store-size."
        )

    async def complete(self, parts: _Parts) -> StoredFile:
        """Complete the file, whose form has been read. Raises `GeartrainError`."""
        if parts.file_name is None:
            raise invalid("'file' is missing: send a file of JSON lines", "file")
        life = read_life(parts.fields)
        await self.write(parts, is_last=True)
        if self._file is None or not self._size:
            raise invalid("'file' is empty: send a file of JSON lines, one request each", "file", "empty_file")
        file = self._file
        found = await self._durability.ask(
            self._batches.complete_file(file.id, self._durability.owner, expires_at=file.created_at + life)
        )
        if found is None:
            raise GeartrainError(Code.STORE_UNAVAILABLE, "The upload was lost by the store: send it again.")
        return found

    async def remove(self) -> None:
        """Remove what has been written. Never raises: what stays goes after the lease of this server."""
        if self._file is not None:
            with contextlib.suppress(GeartrainError):
                await self._batches.remove_file(self._file.id)
