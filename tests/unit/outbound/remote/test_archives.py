from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain.outbound.remote import archives
from geartrain.outbound.remote.archives import unpack
from geartrain.outbound.remote.source import MissingExtraError, RemoteError

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


def unpacked(path: Path, abandoned: threading.Event | None = None) -> Path:
    return unpack(path, path.parent / "out", shown="s3://b/m.tar", abandoned=abandoned or threading.Event())


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
    plain, packer = path.read_bytes(), zstandard.ZstdCompressor()
    path.write_bytes(packer.compress(plain[:700]) + packer.compress(plain[700:]))
    assert (unpacked(path) / "run.py").read_bytes() == b"code"


def test_archive_of_zstandard_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    (tmp_path / "archive").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(MissingExtraError, match=r"zstandard is not installed.*'geartrain\[remote\]'"):
        unpacked(tmp_path / "archive")


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


@pytest.mark.parametrize("further", [link("d/b", "a"), file("d/b"), link("d/b", "in/a", tarfile.LNKTYPE)])
def test_s3_nothing_is_made_behind_a_link(further: Add, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"lies behind the link 'd'|'d' is in the archive twice"):
        unpacked(archive_of(tmp_path, file("in/a"), link("d", "in"), further))
    assert [path.name for path in (tmp_path / "out" / "in").iterdir()] == ["a"]


MODES = ["w", "w:gz", "w:bz2", "w:xz", "zst"]
BOMB_HEADER = 20_000_000


def compressed(folder: Path, mode: str, *members: Add) -> Path:
    """An archive in one of the compressions that are read."""
    if mode != "zst":
        return archive_of(folder, *members, mode=mode)
    zstandard = pytest.importorskip("zstandard", reason="the extra `remote` is not installed")
    path = archive_of(folder, *members, mode="w")
    path.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    return path


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "members",
    [
        [file("in/a"), link("up", "in/.."), link("up/out", "../victim"), link("up/out/made", "../in")],
        [file("in/a"), link("x", "in/../in"), link("x/../victim/made", "a")],
        [file("a/b/c"), link("l", "a/b"), link("m", "l/../.."), link("n", "m/../victim")],
        [file("a"), link("d", "."), link("d/../d/made", "../victim"), file("d/made/evil")],
        [file("a"), link("x/y", ".."), link("z", "x/y/../victim")],
    ],
)
def test_s3_no_link_makes_anything_outside(members: list[Add], mode: str, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    path = compressed(tmp_path, mode, *members)
    with pytest.raises(RemoteError, match=r"would lie outside|behind the link|in the archive"):
        unpacked(path)
    assert {each.name for each in tmp_path.iterdir()} == {"archive", "out", "victim"}
    assert list((tmp_path / "victim").iterdir()) == []
    assert not [each for each in (tmp_path / "out").rglob("*") if each.is_symlink()], "a link was made before the check"


@pytest.mark.parametrize("mode", MODES)
def test_s3_modes_are_plain(mode: str, tmp_path: Path) -> None:
    folder = file("d", b"", type=tarfile.DIRTYPE, mode=0o7777)
    root = unpacked(compressed(tmp_path, mode, folder, file("d/su", mode=0o6777), file("d/all", mode=0o666)))
    assert [(root / name).stat().st_mode & 0o7022 for name in ("su", "all")] == [0, 0]
    assert not root.stat().st_mode & 0o7000


def test_s3_folders_that_only_paths_name_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 50)
    with pytest.raises(RemoteError, match="more than 50 files"):
        unpacked(archive_of(tmp_path, file("/".join("a" * 30) + "/x"), file("/".join("b" * 30) + "/x")))


def test_s3_path_that_is_too_deep(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="more than 100 folders deep"):
        unpacked(archive_of(tmp_path, file("/".join("a" * 1000))))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([file("a"), file("a/b")], "'a/b' cannot be unpacked: Not a directory"),
        ([file("a/b"), file("a")], "'a' cannot be unpacked: Is a directory"),
        ([file("n" * 300)], "cannot be unpacked: File name too long"),
        ([file("caf\udce9")], "it is no valid archive"),
        ([file("a"), link("l", "none/../a")], "'l' links to 'none/../a', which is not in the archive"),
        ([file("a"), link("l", "")], "'l' links to '', which is not in the archive"),
        ([file("a"), link("a/l", "../a")], "'a/l' cannot be unpacked: Not a directory"),
        ([file("s", b"", type=tarfile.GNUTYPE_SPARSE)], "sparse file; make the archive without --sparse"),
    ],
)
def test_s3_member_that_cannot_be_written_is_the_fault_of_the_archive(
    members: list[Add], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(RemoteError, match=reason):
        unpacked(archive_of(tmp_path, *members))


def long_header(kind: bytes) -> Add:
    """A header of pax or GNU tar that has a name of many bytes."""
    text = b"x" * BOMB_HEADER
    if kind not in {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}:
        record = b" path=" + text + b"\n"
        text = str(len(record) + 8).encode() + record
    return file("././@LongLink", text, type=kind)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind",
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK],
)
def test_s6_long_header_is_refused_before_it_is_read(kind: bytes, mode: str, tmp_path: Path) -> None:
    path = compressed(tmp_path, mode, long_header(kind), file("a"))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError, match="a header in the archive has more than 16 KiB"):
            unpacked(path)
        assert tracemalloc.get_traced_memory()[1] < BOMB_HEADER * 0.8
    finally:
        tracemalloc.stop()


def test_s6_many_headers_of_one_member_are_refused(tmp_path: Path) -> None:
    headers = [file("././@LongLink", b"x" * 400, type=tarfile.GNUTYPE_LONGNAME) for _ in range(400)]
    with pytest.raises(RemoteError, match="a header in the archive has more than 16 KiB"):
        unpacked(archive_of(tmp_path, *headers, file("a")))


def test_s6_length_beyond_any_integer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="it is no valid archive"):
        unpacked(archive_of(tmp_path, file("pax", b"1" * 60 + b" path=x\n", type=tarfile.XHDTYPE), file("a")))


def test_s6_global_records_are_bounded(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w", pax_headers={f"key{number}": "x" for number in range(200)}) as packed:
        file("a")(packed)
    with pytest.raises(RemoteError, match="more than 100 global pax records"):
        unpacked(tmp_path / "archive")


@pytest.mark.parametrize("mode", MODES)
def test_s6_long_names_within_the_limit_are_read(mode: str, tmp_path: Path) -> None:
    name = "/".join(["n" * 200] * 10)
    root = unpacked(compressed(tmp_path, mode, file(f"top/{name}", b"content"), link("top/l", name), file("top/z")))
    assert (root / "l").read_bytes() == b"content"


@pytest.mark.parametrize("mode", MODES)
def test_s6_decompressed_bytes_are_bounded(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS", 1000)
    monkeypatch.setattr(archives, "_LARGEST_RATIO", 0.5)
    with pytest.raises(RemoteError, match="it unpacks to more than"):
        unpacked(compressed(tmp_path, mode, file("zeros", bytes(1_000_000))))


def test_s6_xz_with_a_huge_dictionary_is_refused(tmp_path: Path) -> None:
    path = archive_of(tmp_path, file("a"), mode="w")
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    packer = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=[{**filters[0], "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}])
    path.write_bytes(packer.compress(path.read_bytes()) + packer.flush())
    with pytest.raises(RemoteError, match="it is no valid archive: Memory usage limit"):
        unpacked(path)


def test_xz_of_two_streams_with_zeros_between(tmp_path: Path) -> None:
    path = archive_of(tmp_path, file("a", b"first" * 5000), mode="w")
    plain = path.read_bytes()
    path.write_bytes(lzma.compress(plain[:9000]) + bytes(8) + lzma.compress(plain[9000:]) + bytes(4))
    assert (unpacked(path) / "a").read_bytes() == b"first" * 5000


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
