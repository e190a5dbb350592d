"""Field blocks: heads of requests, and what is remembered of them; heads of answers."""

from __future__ import annotations

from collections.abc import Sequence

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.transport.http2.frames import ConnectionFaultError
from geartrain.transport.http2.headers import (
    HeadReader,
    HeadTooLargeError,
    MalformedError,
    encode,
    framed,
    head_frame,
)
from geartrain.transport.http2.interface import UNKNOWN_LENGTH, ErrorCode
from tests.support.http2_rows import Field, block, head

LIMIT = 1000


def reader(**limits: int) -> HeadReader:
    return HeadReader(**{"max_size": LIMIT, "max_fields": 20, "table_size": 4096, **limits})


def test_head() -> None:
    fields = [*head(b"POST", b"/a?b"), (b"te", b"trailers"), (b"content-length", b"12")]
    found = reader().read_request(block(fields), is_whole=False)
    assert (found.method, found.scheme, found.path, found.length) == ("POST", "http", b"/a?b", 12)
    assert found.fields == ((b"host", b"localhost"), (b"te", b"trailers"), (b"content-length", b"12"))
    assert all(type(field) is tuple for field in found.fields)


@pytest.mark.parametrize(
    ("more", "is_whole", "length"),
    [
        ([], True, 0),
        ([], False, UNKNOWN_LENGTH),
        ([(b"content-length", b"0")], True, 0),
        ([(b"content-length", b"007")], False, 7),
    ],
)
def test_length(more: Sequence[Field], is_whole: bool, length: int) -> None:
    assert reader().read_request(block([*head(), *more]), is_whole=is_whole).length == length


def test_host_is_told_once_and_first() -> None:
    found = reader().read_request(block([*head(), (b"a", b"b"), (b"host", b"LOCALHOST")]), is_whole=True)
    assert found.fields == ((b"host", b"localhost"), (b"a", b"b"))


def test_host_stands_for_the_authority() -> None:
    found = reader().read_request(block([*head()[:3], (b"a", b"b"), (b"host", b"[::1]:80")]), is_whole=True)
    assert found.fields == ((b"host", b"[::1]:80"), (b"a", b"b"))


def test_cookies_are_joined_where_the_first_stands() -> None:
    cookies = [(b"cookie", b"a=b"), (b"x", b"y"), (b"cookie", b"c=d"), (b"cookie", b"e")]
    found = reader().read_request(block([*head(), (b"v", b"w"), *cookies]), is_whole=True)
    assert found.fields[1:] == ((b"v", b"w"), (b"cookie", b"a=b; c=d; e"), (b"x", b"y"))


def test_empty_cookies_leave_nothing_behind() -> None:
    cookies = [(b"cookie", b""), (b"cookie", b"a=b"), (b"cookie", b"")]
    found = reader().read_request(block([*head(), *cookies]), is_whole=True)
    assert found.fields[1:] == ((b"cookie", b"a=b"),)


# what is remembered


def test_block_that_comes_again_is_the_same_object() -> None:
    heads = reader()
    sent = block(head())
    found = heads.read_request(sent, is_whole=False)
    assert heads.read_request(bytes(bytearray(sent)), is_whole=False) is found
    assert heads.read_request(sent, is_whole=True) is not found


def test_block_that_changes_the_table_is_not_remembered_and_ends_what_was() -> None:
    heads = reader()
    newest = block(head()) + b"\xbe"  # with the field that was added to the table last
    heads.decode(b"\x40\x01x\x011")
    known = heads.read_request(newest, is_whole=False)
    assert known.fields[1:] == ((b"x", b"1"),)
    assert heads.read_request(newest, is_whole=False) is known
    adding = block(head()) + b"\x40\x01x\x012"
    assert heads.read_request(adding, is_whole=False).fields[1:] == ((b"x", b"2"),)
    assert heads.read_request(newest, is_whole=False).fields[1:] == ((b"x", b"2"),)  # the same bytes mean another field
    assert heads.read_request(adding, is_whole=False) is not heads.read_request(adding, is_whole=False)


def test_size_of_the_table_ends_what_was_remembered() -> None:
    heads = reader()
    encoder = hpack.Encoder()
    heads.read_request(encoder.encode([*head(), (b"x", b"1")]), is_whole=False)
    known = encoder.encode([*head(), (b"x", b"1")])
    heads.read_request(known, is_whole=False)
    encoder.header_table_size = 0
    heads.read_request(encoder.encode([]) + block(head()), is_whole=False)
    with pytest.raises(ConnectionFaultError) as caught:
        heads.read_request(known, is_whole=False)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_few_blocks_are_remembered_and_no_large_ones() -> None:
    heads = reader(max_size=100_000)
    for number in range(1000):
        heads.read_request(block([*head(), (b"x", b"%d" % number)]), is_whole=False)
    assert sum(map(len, heads._known)) <= 64
    large = block([*head(), (b"x", b"v" * 3000)])
    assert heads.read_request(large, is_whole=False) is not heads.read_request(large, is_whole=False)


def test_short_block_of_large_fields_is_not_remembered() -> None:
    """Each field of a byte stands for one of the table: a connection could hold 4 MiB with a few kB sent."""
    heads, encoder = reader(max_size=32_768, max_fields=100), hpack.Encoder()
    cookie = (b"cookie", b"c" * 3000)
    heads.read_request(encoder.encode([*head(), cookie]), is_whole=True)
    for count, is_remembered in ((1, True), (10, False)):
        short = encoder.encode([*head(), *[cookie] * count])
        assert len(short) < 50
        first = heads.read_request(short, is_whole=True)
        assert sum(len(value) for _, value in first.fields) > 3000 * count
        assert (heads.read_request(short, is_whole=True) is first) == is_remembered


FIELDS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"x-long-name"]), st.sampled_from([b"", b"1", b"2", b"v" * 60])), max_size=4
)


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=12))
def test_memory_never_changes_a_head(requests: list[tuple[list[Field], bool]]) -> None:
    encoder = hpack.Encoder()
    heads = reader()
    for fields, is_whole in requests:
        found = heads.read_request(encoder.encode([*head(), *fields]), is_whole=is_whole)
        assert found.fields == ((b"host", b"localhost"), *fields)


# limits


def test_size_is_counted_with_32_bytes_a_field() -> None:
    used = sum(len(name) + len(value) + 32 for name, value in head())
    fits = b"v" * (LIMIT - used - 33)
    reader().read_request(block([*head(), (b"x", fits)]), is_whole=True)
    with pytest.raises(HeadTooLargeError):
        reader().read_request(block([*head(), (b"x", fits + b"v")]), is_whole=True)


def test_fields_are_counted() -> None:
    with pytest.raises(HeadTooLargeError):
        reader(max_fields=5).read_request(block([*head(), (b"a", b""), (b"b", b"")]), is_whole=True)


def test_table_is_kept_when_a_head_is_too_large() -> None:
    heads = reader()
    with pytest.raises(HeadTooLargeError):
        heads.read_request(b"\x40\x01x\x01y" + block([(b"a", b"v" * LIMIT)]), is_whole=True)
    assert heads.decode(b"\xbe") == [(b"x", b"y")]


def test_bomb_of_references_ends_the_connection() -> None:
    heads = reader()
    heads.decode(b"\x40\x01x" + b"\x7f\xd1\x0e" + b"v" * 2000)
    with pytest.raises(ConnectionFaultError) as caught:
        heads.read_request(block(head()) + b"\xbe" * 1000, is_whole=True)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_third_change_of_the_table_in_a_block_is_refused() -> None:
    reader().decode(b"\x20\x3f\xe1\x1f" + block(head()))
    with pytest.raises(ConnectionFaultError) as caught:
        reader().decode(b"\x20\x3f\xe1\x1f\x20" + block(head()))
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_smaller_table_is_enforced_once_it_is_acknowledged() -> None:
    heads = reader(table_size=100)
    heads.decode(block(head()))
    heads.limit_table(100)
    with pytest.raises(ConnectionFaultError):
        heads.decode(block(head()))


def test_larger_table_may_be_used_at_once() -> None:
    assert reader(table_size=8192).decode(b"\x3f\xe1\x3f" + block(head())) == head()


# trailers


def test_trailers() -> None:
    reader().read_trailers(block([(b"grpc-status", b"0")]))
    for bad in ([(b":path", b"/")], [(b"A", b"")], [(b"connection", b"close")], [(b"a", b"\r")]):
        with pytest.raises(MalformedError):
            reader().read_trailers(block(bad))
    with pytest.raises(HeadTooLargeError):
        reader().read_trailers(block([(b"a", b"v" * LIMIT)]))


def test_any_field_is_decided_upon() -> None:
    """No name or value makes the check of all fields together take one field for two, or two for one."""
    for name, value in [(b"a\nb", b"x"), (b"a", b"x\ny"), (b"a\n", b""), (b"\na", b""), (b"", b"\n"), (b"a", b"\n")]:
        with pytest.raises(MalformedError):
            reader().read_trailers(block([(b"x", b""), (name, value), (b"y", b"z")]))


# what is sent

NAMES = st.sampled_from([b"content-type", b"grpc-status", b"x", b"content-length", b"cache-control", b"v" * 200])
VALUES = st.binary(max_size=300)


@given(st.sampled_from([0, 200, 204, 404, 431, 503]), st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_fields_come_back_and_leave_the_table_alone(status: int, fields: list[Field]) -> None:
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    found = [(bytes(name), bytes(value)) for name, value in decoder.decode(encode(status, fields), raw=True)]
    assert found == [*([(b":status", b"%d" % status)] if status else []), *fields]
    assert not decoder.header_table.dynamic_entries


def test_frame_of_a_head_is_in_two_pieces() -> None:
    prefix, rest = head_frame(200, ((b"a", b"b"),), False)
    assert prefix + b"\0\0\0\x07" + rest == b"\0\0\x06\x01\x04\0\0\0\x07\x88\x00\x01a\x01b"
    assert head_frame(200, ((b"a", b"b"),), True)[0] == b"\0\0\x06\x01\x05"
    assert framed(b"\x88", is_last=True) == (b"\0\0\x01\x01\x05", b"\x88")


def test_same_head_is_encoded_once() -> None:
    fields = ((b"only-here", b"1"),)
    assert head_frame(200, fields, False)[1] is head_frame(200, ((b"only-here", b"1"),), False)[1]
