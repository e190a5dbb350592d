"""Records of TLS that no client library sends: key updates one after the other, and changes of the cipher."""

from __future__ import annotations

import _ssl
import ctypes
import ssl

import pytest

CHANGE_CIPHER: bytes = b"\x14\x03\x03\x00\x01\x01"
_REQUESTED = 1  # the other end has to answer with one of its own
_SSL_AT = 24  # bytes before the pointer to OpenSSL's object in that of CPython


def key_updates(client: ssl.SSLObject, outgoing: ssl.MemoryBIO, count: int) -> bytes:
    """Make so many key updates of a client whose handshake is over; skip the test where OpenSSL cannot be reached."""
    library = _library()
    inner = client._sslobj  # type: ignore[attr-defined]
    connection = ctypes.c_void_p.from_address(id(inner) + _SSL_AT)
    for _ in range(count):
        assert library.SSL_key_update(connection, _REQUESTED) == 1
        assert library.SSL_do_handshake(connection) == 1
    return outgoing.read()


def _library() -> ctypes.CDLL:
    """Make a function that finds the functions of OpenSSL that Python's `ssl` has been linked with."""
    try:
        library = ctypes.CDLL(_ssl.__file__)
        library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
    except (AttributeError, OSError) as error:
        pytest.skip(f"the functions of OpenSSL cannot be called: {error}")
    return library
