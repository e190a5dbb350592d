"""A slot of the worker: the memory that it shares with the parent, and the copies of its calls' files."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.ipc.memory import Region
from geartrain.ipc.messages import Handle, Inline
from geartrain.worker.channels.channel import Channel
from geartrain.worker.channels.slot import OpenedMemory, Slot, can_share
from geartrain.worker.values.call_files import CallFiles


@pytest.fixture
def opened() -> Iterator[OpenedMemory]:
    opened = OpenedMemory()
    yield opened
    opened.close()
    opened.close()


@pytest.fixture
def slot(opened: OpenedMemory) -> Iterator[Slot]:
    ours, theirs = socket.socketpair()
    yield Slot(Channel(ours), CallFiles(), opened)
    ours.close()
    theirs.close()


@pytest.fixture
def parents() -> Iterator[tuple[Region, Region]]:
    down, up = Region.create(), Region.create()
    yield down, up
    down.close()
    up.close()


def test_memory_is_opened_once_and_kept(slot: Slot, opened: OpenedMemory, parents: tuple[Region, Region]) -> None:
    down, up = parents
    slot.regions = (up.path,)
    assert opened.open(down.path) is opened.open(down.path)
    down.write([b"x" * 100_000])
    assert bytes(slot.reader.read(Handle(down.path, 0, 100_000))) == b"x" * 100_000
    assert slot.writer.place([b"y" * 100_000], may_share=True) == Handle(up.path, 0, 100_000)
    assert up.view(100_000) == b"y" * 100_000
    up.free()
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names
    assert slot.writer.place([b"z" * 100_000], may_share=True) == Handle(up.path, 0, 100_000)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - names


def test_path_of_another_region_by_now_is_opened_anew(opened: OpenedMemory) -> None:
    """The number of a descriptor is given again when the memory of a worker that has ended is closed."""
    first = Region.create()
    first.write([b"first"])
    path = first.path
    assert bytes(opened.open(path).view(5)) == b"first"
    first.close()
    second = Region.create()
    assert second.path == path
    second.write([b"other"])
    assert bytes(opened.open(path).view(5)) == b"other"
    second.close()


def test_without_memory_outputs_travel_in_messages(slot: Slot) -> None:
    assert slot.writer.place([b"y" * 100_000], may_share=True) == Inline(b"y" * 100_000)


def test_memory_that_cannot_be_opened_is_no_error(slot: Slot) -> None:
    slot.regions = ("/proc/self/fd/99999",)
    assert slot.writer.place([b"y" * 100_000], may_share=True) == Inline(b"y" * 100_000)


def test_probe(parents: tuple[Region, Region]) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names
    assert can_share(parents[0].path)
    assert not can_share("/proc/self/fd/99999")
    assert not can_share(None)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - names


def test_copies_go_into_folders_of_their_own_and_are_removed_unless_handed_over(tmp_path: Path) -> None:
    files = CallFiles()
    files.folder = str(tmp_path)
    first, second = files.new_file(), files.new_file()
    for path in (first, second):
        path.write_text("output")
    assert first.parent.parent == second.parent.parent == tmp_path
    assert first.parent != second.parent
    files.hand_over([str(first)])
    files.close()
    files.close()
    assert first.exists()
    assert not second.parent.exists()


def test_without_a_folder_copies_go_where_temporary_files_are_made() -> None:
    files = CallFiles()
    assert files.folder is None
    path = files.new_file()
    assert path.parent.is_dir()
    files.close()
    assert not path.parent.exists()
