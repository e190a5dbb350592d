"""TLS of a server: the files that an operator names, and the context for new connections, which follows the files.

A renewed certificate gets a context of its own, with its own session tickets. Connections that are open keep theirs. A
ticket of an earlier context leads to a full handshake, so no client gets in by a session that a former CA allowed.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Never, Self, cast

import msgspec

logger = logging.getLogger(__name__)

HTTP: Final = ("h2", "http/1.1")

MAX_HANDSHAKE: Final = 128 * 1024
"""Bytes of a handshake that are read; OpenSSL takes certificates of 100 KiB."""

MAX_IDLE_RECORDS: Final = 64
"""Records without data that a connection may send after its handshake, and one more for each MiB of data."""

TINY_RECORDS: Final = 256
"""Records with fewer than 8 bytes of data that count as much as one without: no frame of HTTP/2 is so small."""

_HEADER: Final = 5  # bytes of the header of a record
_TINY: Final = 8  # bytes
_DATA_FOR_RECORD: Final = 1024**2


class TlsFilesError(Exception):
    """The files of TLS cannot be used; the text names the option and the reason."""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that files of TLS come from, as an operator writes them."""

    cert: str = "--tls-cert"
    key: str = "--tls-key"
    client_ca: str = "--tls-client-ca"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files. With `client_ca`, only clients that show a certificate signed by it are let in.

    Attributes:
        cert: the certificate of the server, then those of the authorities between it and the root.
        key: the private key of the certificate, which is not encrypted.
        client_ca: certificates of the authorities that sign those of clients.
        options: where the files were named, for messages.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    options: TlsOptions = TlsOptions()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of the files."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


def check(files: TlsFiles) -> None:
    """Raise `TlsFilesError` unless the certificate, its key and the CA of clients can be read, and fit together."""
    make_context(files)


def make_context(files: TlsFiles, protocols: Sequence[str] = HTTP) -> ssl.SSLContext:
    """Return a context for connections from clients, TLS 1.2 or newer; raise `TlsFilesError` if that cannot be.

    `protocols`: what ALPN offers, the preferred first.
    """
    _require_files(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # the machine may ask for more
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(protocols)
    names = files.options
    try:
        context.load_cert_chain(files.cert, files.key, password=_refuse_encrypted)  # without it OpenSSL would ask
    except _EncryptedError:
        msg = f"{names.key}: {files.key} is encrypted; write it without a passphrase, with `openssl pkey -in … -out …`"
        raise TlsFilesError(msg) from None
    except (OSError, ssl.SSLError) as error:
        raise TlsFilesError(f"{names.cert} and {names.key} are no certificate and its key: {error}") from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{names.client_ca} has no certificate: {error}") from error
    return context


class TlsContext:
    """Gives each new connection the certificate that the files held when they were last looked at.

    `context` stays the same object, so it can be given to a server once. Call `refresh` about once a second.
    """

    def __init__(self, files: TlsFiles, protocols: Sequence[str] = HTTP) -> None:
        """Read the files; raise `TlsFilesError` if they cannot be used."""
        self._files = files
        self._protocols = protocols
        self._taken = self._seen = _states(files)  # before the files are read: a later change is seen then
        self._front = _Delegating(_reading_records(make_context(files, protocols)), self._look)

    @property
    def context(self) -> ssl.SSLContext:
        """The context to listen with."""
        return self._front

    def refresh(self) -> bool:
        """Take up what has changed in the files; return whether new connections have another context.

        A handshake takes up what has changed by itself. Files that two calls in a row find alike and that cannot be
        used are logged once, and those before them stay in use.
        """
        states = _states(self._files)
        is_settled, self._seen = states == self._seen, states
        if not is_settled or states == self._taken:
            return False
        try:
            return self._take(states)
        except TlsFilesError as error:
            self._taken = states
            logger.error("the certificate that was in use stays: %s", error)  # noqa: TRY400 - the text says it all
            return False

    def _look(self) -> None:
        """Take up what has changed before a handshake; files that cannot be used are left to `refresh`."""
        states = _states(self._files)
        if states != self._taken:
            with contextlib.suppress(TlsFilesError):
                self._take(states)

    def _take(self, states: tuple[tuple[int, ...], ...]) -> bool:
        self._front.present = _reading_records(make_context(self._files, self._protocols))
        self._taken = states
        logger.info("new connections get the certificate that is now in %s", self._files.cert)
        return True


class _Delegating(ssl.SSLContext):
    """Leaves each handshake to another context, which can be exchanged. Event loops begin one with `wrap_bio` alone."""

    present: ssl.SSLContext
    before: Callable[[], None]

    def __new__(cls, present: ssl.SSLContext, before: Callable[[], None]) -> Self:
        """Make one that leaves handshakes to `present`, and calls `before` in front of each."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self.present = present
        self.before = before
        return self

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a handshake."""
        self.before()
        records = ssl.MemoryBIO()
        reader = cast("_RecordReader", self.present.wrap_bio(records, outgoing, *args, **kwargs))
        reader.begin(incoming, records)
        return reader


def _reading_records(context: ssl.SSLContext) -> ssl.SSLContext:
    context.sslobject_class = _RecordReader
    return context


class _RecordReader(ssl.SSLObject):
    """A TLS connection that gives OpenSSL one record after the other.

    OpenSSL reads on until it finds data, so a client that sends nothing but key updates, 27 bytes each, would hold the
    loop for 20 µs with each of them. Here records without data are counted, and end the connection beyond a limit. Each
    is read by itself, so that the limit strikes in time.
    """

    def begin(self, incoming: ssl.MemoryBIO, records: ssl.MemoryBIO) -> None:
        """Take bytes of the client from `incoming`; OpenSSL reads `records`."""
        self._incoming = incoming
        self._records = records
        self._staged = b""  # taken, and not given to OpenSSL yet
        self._at = 0  # so much of it is
        self._rest = 0  # bytes of the record that has been given in part
        self._allowed = MAX_IDLE_RECORDS * TINY_RECORDS
        self._data = 0  # bytes, since a record was allowed for them
        self._handshake = 0  # bytes

    def pending(self) -> int:
        """Return the bytes that can be read without waiting, at least; those of records as they came."""
        return super().pending() + len(self._staged) - self._at

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        while True:
            if self._handshake > MAX_HANDSHAKE:
                raise ssl.SSLError("the handshake is too long")
            try:
                return super().do_handshake()
            except ssl.SSLWantReadError:
                fed = self._feed()
                if not fed:
                    raise
                self._handshake += fed

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - as of `SSLObject`
        """Read data; raise SSLError for too many records with little or none."""
        while True:
            fed = 0 if super().pending() else self._feed()
            try:
                found: Any = super().read(len, buffer)
            except ssl.SSLWantReadError:
                if not fed:
                    raise
                if not self._rest:
                    self._charge(TINY_RECORDS)
                continue
            size = found.__len__() if buffer is None else found
            if size < _TINY:
                self._charge(1)
            self._data += size
            if self._data >= _DATA_FOR_RECORD:
                self._data -= _DATA_FOR_RECORD
                self._allowed += TINY_RECORDS
            return found

    def _charge(self, cost: int) -> None:
        self._allowed -= cost
        if self._allowed < 0:
            raise ssl.SSLError("too many records with little or no data")

    def unwrap(self) -> None:
        """Go on with the end of the connection."""
        while True:
            try:
                return super().unwrap()
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def _feed(self) -> int:
        """Give OpenSSL the next record, or as much of it as has come; return how many bytes."""
        at, staged = self._at, self._staged
        there = len(staged) - at
        if there < _HEADER and self._incoming.pending:
            staged, at = staged[at:] + self._incoming.read(), 0
            there = len(staged)
        if not self._rest:
            if there < _HEADER:  # the rest of a header is on its way
                self._staged, self._at = staged[at:], 0
                return 0
            self._rest = _HEADER + int.from_bytes(staged[at + 3 : at + _HEADER], "big")
        size = min(self._rest, there)
        self._records.write(staged[at : at + size] if size < len(staged) else staged)
        self._rest -= size
        self._at, self._staged = (0, b"") if at + size == len(staged) else (at + size, staged)
        return size


class _EncryptedError(Exception):
    """A key wants a passphrase."""


def _refuse_encrypted() -> Never:
    raise _EncryptedError


def _require_files(files: TlsFiles) -> None:
    names = files.options
    for option, path in ((names.cert, files.cert), (names.key, files.key), (names.client_ca, files.client_ca)):
        if path is None:
            continue
        try:
            path.open("rb").close()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise TlsFilesError(f"{option}: there is no file {path}") from None
        except OSError as error:
            raise TlsFilesError(f"{option}: cannot read {path}: {error.strerror}") from error


def _states(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
    """Return values that change when the files do. The inode's time covers changes of permissions."""
    return tuple(_state(path) for path in files.paths)


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
