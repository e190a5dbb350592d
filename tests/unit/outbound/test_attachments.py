"""Files that come with a request, on their way to the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.outbound.files import name_from_file_name
from geartrain.outbound.workspace import AttachmentStore, Workspace


def store_in(folder: Path, *, max_bytes: int = 1000) -> AttachmentStore:
    return AttachmentStore(Workspace(folder).folder(), max_bytes)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("three.png", "three.png"),
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\me\\three.png", "three.png"),
        ("..", ".."),  # only ever the end of a name
        ("folder/", ""),
        ("", ""),
        ("a\x00b\nc\x7f.png", "a_b_c_.png"),
        ("ä" * 300 + ".png", "ä" * 97 + "~.png"),
    ],
)
def test_names(given: str, name: str) -> None:
    assert name_from_file_name(given) == name


def test_file_is_private_and_named_as_the_client_says(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert list(tmp_path.iterdir()) == []
    file = store.open("image", "../three.png")
    file.write(memoryview(b"ab"))
    file.write(memoryview(b"c"))
    file.close()
    path = Path(file.path)
    assert path.read_bytes() == b"abc"
    assert (path.parent, path.name[:3], path.name[-9:]) == (store.path(), "tmp", "three.png")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    asyncio.run(store.remove())
    assert not path.parent.exists()


def test_each_file_is_limited(tmp_path: Path) -> None:
    file = store_in(tmp_path).open("image", "x")
    file.write(memoryview(bytes(1000)))
    with pytest.raises(GeartrainError) as caught:
        file.write(memoryview(b"x"))
    file.close()
    assert caught.value.code is Code.TOO_LARGE
    assert caught.value.message == (
        'Cannot take the file for the input "image": the file is larger than the limit of 1000 bytes. '
        "The server's --max-download-size sets it."
    )
    assert Path(file.path).stat().st_size == 1000


def test_all_files_together_are_limited(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    files = [store.open("images", "x") for _ in range(11)]
    for file in files[:10]:
        file.write(memoryview(bytes(1000)))
    with pytest.raises(GeartrainError, match=r"together larger than the limit of 9\.77 KiB"):
        files[10].write(memoryview(b"x"))
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, Code.NO_STORAGE), (errno.EDQUOT, Code.NO_STORAGE), (errno.EIO, Code.INTERNAL)]
)
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: Code) -> None:
    class Full:
        def write(self, data: memoryview) -> int:
            raise OSError(number, os.strerror(number))

        def close(self) -> None:
            pass

    def open_full(descriptor: int, *_: object, **__: object) -> Full:
        os.close(descriptor)
        return Full()

    monkeypatch.setattr("os.fdopen", open_full)
    file = store_in(tmp_path).open("image", "x")
    with pytest.raises(GeartrainError) as caught:
        file.write(memoryview(b"x"))
    assert caught.value.code is code
    assert caught.value.message == f"Cannot store the files of the input: {os.strerror(number)}"


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    store = store_in(tmp_path / "missing")
    with pytest.raises(GeartrainError) as caught:
        store.open("image", "x")
    assert caught.value.code is Code.INTERNAL


def test_a_write_that_takes_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = bytearray()

    class Short:
        def write(self, data: memoryview) -> int:
            taken.extend(data[:3])
            return min(3, len(data))

    def open_short(descriptor: int, *_: object, **__: object) -> Short:
        os.close(descriptor)
        return Short()

    monkeypatch.setattr("os.fdopen", open_short)
    store_in(tmp_path).open("image", "x").write(memoryview(b"0123456789"))
    assert taken == b"0123456789"
