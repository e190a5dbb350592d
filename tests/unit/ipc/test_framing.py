"""Frames: whatever the pieces, the same frames come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.ipc.framing import HEADER_SIZE, MAX_FRAME, FrameError, FrameReader, frame

PAYLOADS = [b"", b"a", b"x" * 300, b"\x00\x00\x00\x05hello"]


def test_a_stream_cut_at_every_byte_gives_the_same_frames() -> None:
    stream = b"".join(frame(payload) for payload in PAYLOADS)
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == PAYLOADS
        assert reader.pending == 0


def test_bytes_one_at_a_time() -> None:
    reader = FrameReader()
    stream = b"".join(frame(payload) for payload in PAYLOADS)
    frames = [found for i in range(len(stream)) for found in reader.feed(stream[i : i + 1])]
    assert frames == PAYLOADS


@given(st.lists(st.binary(max_size=64), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_any_cutting(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    frames = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        frames += reader.feed(stream[position : position + size])
        position += size
        turn += 1
    assert frames == payloads


def test_an_unfinished_frame_is_kept() -> None:
    reader = FrameReader()
    assert reader.feed(frame(b"hello")[:7]) == []
    assert reader.pending == 7


def test_a_frame_at_the_limit_passes_and_one_beyond_does_not() -> None:
    payload = bytes(MAX_FRAME)
    assert FrameReader().feed(frame(payload)) == [payload]
    with pytest.raises(FrameError, match="larger than the limit"):
        frame(bytes(MAX_FRAME + 1))


@pytest.mark.parametrize("tail", [b"", b"some bytes"])
def test_an_announced_size_beyond_the_limit_is_refused_at_once(tail: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed((MAX_FRAME + 1).to_bytes(HEADER_SIZE, "big") + tail)
