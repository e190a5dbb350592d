"""Memory in which bodies are received: aligned, bounded, and free again when nobody looks at the body any more."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

from geartrain.domain.tensors.tensor import Buffer, Tensor, pack, unpack
from geartrain.ipc.memory import _MOST, LARGEST, LIMIT, BodyMemory, lease_of, place_head
from geartrain.ipc.messages import Handle
from geartrain.ipc.payload import PayloadReader
from geartrain.worker.channels.slot import OpenedMemory

SIZE = 100_000
JSON = 77  # bytes in front of the contents


@pytest.fixture
def memory() -> Iterator[BodyMemory]:
    memory = BodyMemory()
    yield memory
    memory.close()


def take(memory: BodyMemory, size: int = SIZE, contents_at: int = JSON) -> memoryview:
    view = memory.take(size, contents_at)
    assert view is not None
    return view


def head_of(contents: Buffer) -> bytes:
    return bytes(pack(b"{}", [Tensor("x", "UINT8", (len(contents),), contents)])[0])


def placed(contents: Buffer) -> Handle:
    payload = place_head(contents, head_of(contents))
    assert payload is not None
    return payload


def read(opened: OpenedMemory, contents: Buffer) -> Buffer:
    return PayloadReader(opened.open).read(placed(contents))


@pytest.mark.parametrize("contents_at", [0, 1, JSON, 64, 5000, SIZE])
def test_contents_are_aligned_where_they_begin(memory: BodyMemory, contents_at: int) -> None:
    view = take(memory, contents_at=contents_at)
    assert len(view) == SIZE
    assert (ctypes.addressof(ctypes.c_char.from_buffer(view)) + contents_at) % 64 == 0


def test_a_worker_reads_contents_where_they_were_place_head(memory: BodyMemory) -> None:
    opened = OpenedMemory()
    for number in range(3):
        view = take(memory)
        view[JSON:] = bytes([number]) * (SIZE - JSON)
        json, (tensor,) = unpack(read(opened, view[JSON:]))
        assert json == b"{}"
        assert bytes(tensor.data) == bytes([number]) * (SIZE - JSON)
        assert ctypes.addressof(ctypes.c_char.from_buffer(tensor.data)) % 64 == 0
        del view


def test_memory_is_another_body_s_when_the_last_view_is_gone(memory: BodyMemory) -> None:
    view = take(memory)
    path = placed(view[JSON:]).path
    contents = view[JSON:]
    del view
    other = take(memory)
    assert placed(other[JSON:]).path != path
    del contents
    again = take(memory)
    assert placed(again[JSON:]).path == path


def test_what_lies_elsewhere_is_left_there(memory: BodyMemory) -> None:
    view = take(memory)
    view[JSON - 1] = 7
    head = bytes(64)
    for contents in (b"abc", memoryview(b"abc"), memoryview(bytearray(100)), view[JSON + 64 :], view[: JSON - 1]):
        assert place_head(contents, head) is None
    assert place_head(view[JSON:], bytes(10_000)) is None  # there is no room for it
    assert lease_of(view[JSON:]) is not None
    assert lease_of(memoryview(b"abc")) is None
    assert view[JSON - 1] == 7


def test_it_grows_and_gives_back_what_is_not_used(memory: BodyMemory) -> None:
    opened = OpenedMemory()
    for size in (SIZE, 10 * SIZE, SIZE):
        view = take(memory, size)
        view[JSON:] = b"x" * (size - JSON)
        assert bytes(unpack(read(opened, view[JSON:]))[1][0].data) == b"x" * (size - JSON)
        del view
    memory.tidy()
    assert sum(region.size for region in memory._free) > 10 * SIZE
    memory.tidy()
    assert sum(region.size for region in memory._free) == 0
    view = take(memory)
    view[JSON:] = b"y" * (SIZE - JSON)
    assert bytes(unpack(read(opened, view[JSON:]))[1][0].data) == b"y" * (SIZE - JSON)


def test_there_is_room_for_so_many_bytes(memory: BodyMemory) -> None:
    held = []
    while (view := memory.take(LIMIT // 5, 0)) is not None:
        held.append(view)
    assert len(held) == 4  # each takes a little more than its body
    del view
    held.pop()
    assert memory.take(LIMIT // 5, 0) is not None
    held.clear()
    large = [memory.take(LARGEST - 5000, 0), memory.take(SIZE, 0)]  # in the place of others
    assert None not in large


def test_there_is_room_for_so_many_bodies(memory: BodyMemory) -> None:
    held = [take(memory) for _ in range(_MOST)]
    assert memory.take(SIZE, JSON) is None
    held.pop(5)
    assert memory.take(SIZE, JSON) is not None


@pytest.mark.parametrize(("size", "contents_at"), [(LARGEST, 0), (SIZE, SIZE + 1)])
def test_a_body_that_cannot_lie_there_has_no_place(memory: BodyMemory, size: int, contents_at: int) -> None:
    assert memory.take(size, contents_at) is None


def test_without_memory_there_is_no_place(memory: BodyMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    for _ in range(2 * _MOST):
        assert memory.take(SIZE, JSON) is None
    monkeypatch.undo()
    take(memory)


def test_memory_is_not_lost_while_it_is_lent(memory: BodyMemory) -> None:
    view = take(memory)
    gc.collect()
    del view
    assert memory.take(SIZE, JSON) is not None
    assert len(memory._lent) + len(memory._free) == 1  # it is the same


def test_a_body_stays_when_all_is_closed(memory: BodyMemory) -> None:
    view = take(memory)
    view[:] = b"x" * SIZE
    memory.close()
    assert bytes(view) == b"x" * SIZE
    assert memory.take(SIZE, JSON) is None
