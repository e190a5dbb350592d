from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain.outbound.remote import archives
from geartrain.outbound.remote.archives import unpack
from geartrain.outbound.remote.errors import MissingExtraError, RemoteError

Add = Callable[[tarfile.TarFile], None]


def file(name: str, content: bytes = b"x", **fields: object) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        for field, value in fields.items():
            setattr(member, field, value)
        archive.addfile(member, io.BytesIO(content))

    return add


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Add:
    return file(name, b"", type=kind, linkname=target)


def archive_of(folder: Path, *members: Add, mode: str = "w:gz") -> Path:
    path = folder / "archive"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for add in members:
            add(archive)
    return path


def unpacked(path: Path, suffix: str = ".tar.gz", abandoned: threading.Event | None = None) -> Path:
    return unpack(
        path, path.parent / "out", shown="s3://b/m.tar", suffix=suffix, abandoned=abandoned or threading.Event()
    )


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archive_is_unpacked(mode: str, tmp_path: Path) -> None:
    path = archive_of(
        tmp_path,
        file("run.py", b"code"),
        file("bin/tool", b"tool", mode=0o755),
        file("w/a.bin", b"weights"),
        link("w/latest.bin", "a.bin"),
        link("copy.py", "run.py", tarfile.LNKTYPE),
        mode=mode,
    )
    root = unpacked(path)
    assert root == tmp_path / "out"
    assert (root / "run.py").read_bytes() == (root / "copy.py").read_bytes() == b"code"
    assert (root / "w/latest.bin").read_bytes() == b"weights"
    assert os.access(root / "bin/tool", os.X_OK)
    assert not os.access(root / "run.py", os.X_OK)


def test_only_folder_of_an_archive_is_the_model(tmp_path: Path) -> None:
    root = unpacked(archive_of(tmp_path, file("cats-1.0/run.py"), file("cats-1.0/w/a.bin")))
    assert root == tmp_path / "out" / "cats-1.0"


def test_archive_of_zstandard(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra `remote` is not installed")
    path = archive_of(tmp_path, file("run.py", b"code"), file("again", b"y"), mode="w")
    path.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    assert (unpacked(path, ".tar.zst") / "run.py").read_bytes() == b"code"


def test_archive_of_zstandard_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"zstandard is not installed.*'geartrain\[remote\]'"):
        unpacked(archive_of(tmp_path, file("run.py")), ".tar.zst")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([file("../evil")], "'../evil' would lie outside"),
        ([file("/etc/evil")], "'/etc/evil' would lie outside"),
        ([file("a/../../evil")], "would lie outside"),
        ([link("out", "/etc")], "'out' would lie outside"),
        ([link("out", "../..")], "'out' would lie outside"),
        ([link("a/out", "../../etc")], "'a/out' would lie outside"),
        ([link("out", "a/../../etc")], "'out' would lie outside"),
        ([link("hard", "../../etc/passwd", tarfile.LNKTYPE)], "'hard' would lie outside"),
        ([link("hard", "none", tarfile.LNKTYPE)], "'hard' links to 'none', which is not in it"),
        ([link("soft", "none"), file("a")], "'soft' links to 'none', which is not in the archive"),
        ([link("soft", "soft"), file("a")], "'soft' links to 'soft', which is not in the archive"),
        ([file("a"), link("a", "b")], "'a' is in the archive twice"),
        ([file("fifo", b"", type=tarfile.FIFOTYPE)], "'fifo' is neither a file nor a folder"),
        ([file("null", b"", type=tarfile.CHRTYPE)], "'null' is neither a file nor a folder"),
        ([], "the archive is empty"),
    ],
)
def test_what_leads_outside_is_refused(members: list[Add], message: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=message):
        unpacked(archive_of(tmp_path, *members))
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "out"}


def test_link_behind_a_link_stays_inside(tmp_path: Path) -> None:
    root = unpacked(archive_of(tmp_path, file("in/a"), link("d", "in"), link("d/b", "a")))
    assert sorted(path.name for path in (root / "in").iterdir()) == ["a", "b"]


def test_file_behind_a_link_is_not_written_through_it(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    path = archive_of(tmp_path, link("d", "../victim"), file("d/evil"))
    with pytest.raises(RemoteError):
        unpacked(path)
    assert list((tmp_path / "victim").iterdir()) == []


def test_chain_of_links_does_not_lead_outside(tmp_path: Path) -> None:
    path = archive_of(tmp_path, file("a/b/c/x"), link("l", "a/b/c"), link("l2", "l/../../../.."))
    with pytest.raises(RemoteError, match="would lie outside"):
        unpacked(path)


def test_archive_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS", 1000)
    path = archive_of(tmp_path, file("zeros", bytes(10_000_000)))
    with pytest.raises(RemoteError, match="it unpacks to more than 50 times its size; it is refused"):
        unpacked(path)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 3)
    with pytest.raises(RemoteError, match="more than 3 files"):
        unpacked(archive_of(tmp_path, *(file(str(number)) for number in range(5))))


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"no archive", mtime=0)])
def test_what_is_no_archive_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(RemoteError, match="it is no valid archive"):
        unpacked(tmp_path / "archive")


def test_archive_that_is_cut(tmp_path: Path) -> None:
    path = archive_of(tmp_path, file("a", os.urandom(100_000)))
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(RemoteError, match="it is no valid archive"):
        unpacked(path)


def test_unpacking_can_be_given_up(tmp_path: Path) -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(InterruptedError):
        unpacked(archive_of(tmp_path, file("a")), abandoned=abandoned)
