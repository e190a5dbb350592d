"""Compressed bodies: observed Triton, section 9."""

from __future__ import annotations

import gzip
import threading
import zlib

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport import compression
from geartrain.transport.compression import (
    Encoding,
    accepted_encoding,
    content_encoding,
    deflate_aside,
    inflate,
)
from geartrain.transport.wire.bodies import too_large

LIMIT = 1_000_000
BODIES = [b"", b"hello", bytes(range(256)) * 1000]


def raw_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(body) + deflater.flush()


@pytest.mark.parametrize("body", BODIES, ids=len)
async def test_bodies_of_others_are_read(body: bytes) -> None:
    assert await inflate(gzip.compress(body), "gzip", LIMIT) == body
    assert await inflate(bytearray(zlib.compress(body)), "deflate", LIMIT) == body


@pytest.mark.parametrize("body", BODIES, ids=len)
async def test_others_read_our_bodies(body: bytes) -> None:
    parts: list[Buffer] = [body[:3], memoryview(body)[3:]]
    assert gzip.decompress(await deflate_aside(parts, "gzip")) == body
    assert zlib.decompress(await deflate_aside(parts, "deflate")) == body


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"hello", "gzip"),
        (b"", "gzip"),
        (gzip.compress(b"hello", mtime=0)[:-4], "gzip"),
        (gzip.compress(b"hello", mtime=0)[:-8] + b"\0" * 8, "gzip"),
        (gzip.compress(b"hello", mtime=0) + b"more", "gzip"),
        (raw_deflate(b"hello"), "deflate"),
        (zlib.compress(b"hello"), "gzip"),
        (zlib.compress(b"hello")[:-1], "deflate"),
    ],
)
async def test_t11_corrupt_body_says_that_it_is(body: bytes, encoding: Encoding) -> None:
    with pytest.raises(GeartrainError, match=f"the body is not valid {encoding}") as caught:
        await inflate(body, encoding, LIMIT)
    assert caught.value.code is Code.UNPARSABLE


async def test_what_may_become_large_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def spy(limit: int) -> GeartrainError:
        threads.append(threading.current_thread())
        return too_large(limit)

    monkeypatch.setattr(compression, "too_large", spy)
    for size in (10_000, 10_000_000):
        with pytest.raises(GeartrainError):
            await inflate(gzip.compress(bytes(size)), "gzip", 1)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


@pytest.mark.parametrize("size", [LIMIT + 1, 100 * LIMIT])
async def test_limit_counts_what_comes_out(size: int) -> None:
    with pytest.raises(GeartrainError, match="--max-body-size") as caught:
        await inflate(gzip.compress(bytes(size)), "gzip", LIMIT)
    assert caught.value.code is Code.TOO_LARGE
    assert len(await inflate(gzip.compress(bytes(LIMIT)), "gzip", LIMIT)) == LIMIT


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (b"", None),
        (b"identity", None),
        (b"gzip", "gzip"),
        (b" GZIP ", "gzip"),
        (b"x-gzip", "gzip"),
        (b"deflate", "deflate"),
    ],
)
def test_content_encoding(value: bytes, encoding: Encoding | None) -> None:
    assert content_encoding(value) == encoding


@pytest.mark.parametrize("value", [b"br", b"zstd", b"gzip, gzip", b"compress", b"\xff"])
def test_content_encoding_that_is_unknown(value: bytes) -> None:
    with pytest.raises(GeartrainError, match="Unsupported compression type") as caught:
        content_encoding(value)
    assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"deflate, gzip", "gzip"),
        (b"gzip;q=0.5, deflate;q=1", "gzip"),
        (b"GZIP;Q=1", "gzip"),
        (b"gzip;q=0", None),
        (b"gzip;q=0.0, deflate", "deflate"),
        (b"gzip;q=x", "gzip"),
        (b"br", None),
        (b"*", None),
        (b"identity", None),
        (b"", None),
        (b",;,", None),
    ],
)
def test_accept_encoding(value: bytes, encoding: Encoding | None) -> None:
    assert accepted_encoding(value) == encoding
