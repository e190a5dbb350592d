from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.domain.remote.progress import Download, DownloadStep
from geartrain.domain.remote.reference import RemoteReference, read_reference
from geartrain.outbound.remote import cache, transfer
from geartrain.outbound.remote.cache import Cache, CacheSettings, open_source
from geartrain.outbound.remote.source import Listing, RemoteError, RemoteFile, UnreachableError
from tests.support.cloud import Cloud
from tests.support.disks import fill, make_read_only, small_disk
from tests.support.servers import PATIENCE

S3 = read_reference("s3://bucket/cats")


class Bucket:
    """A source in memory."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.read_bytes = 0
        self.looks = 0
        self.breaks: list[int] = []  # after so many bytes a stream breaks off
        self.is_reachable = True
        self.before_read: Callable[[], None] = lambda: None
        self.is_single = False
        self.sha256: dict[str, str] = {}
        self.going = asyncio.Event()
        self.going.set()
        self.reached = asyncio.Event()

    def __call__(self, _reference: RemoteReference) -> Bucket:
        return self

    async def look(self) -> Listing:
        self.looks += 1
        if not self.is_reachable:
            raise UnreachableError("s3://bucket/cats: no answer")
        files = [
            RemoteFile(path=path, address=path, size=len(content), etag=etag(content), sha256=self.sha256.get(path, ""))
            for path, content in sorted(self.files.items())
        ]
        return Listing(files=tuple(files), is_single=self.is_single)

    async def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        self.before_read()
        content = self.files[file.address][start:end]
        limit = self.breaks.pop(0) if self.breaks else len(content)
        for at in range(0, len(content), 100):
            piece = content[at : min(at + 100, limit)]
            self.read_bytes += len(piece)
            yield piece
            self.reached.set()
            await self.going.wait()
            if at + 100 >= limit < len(content):
                raise UnreachableError("s3://bucket/cats: broken off")

    async def close(self) -> None:
        """There is nothing to close."""


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_RETRIES", msgspec.structs.replace(transfer._RETRIES, longest_pause=0.001))
    monkeypatch.setattr(cache, "_RETRIES", msgspec.structs.replace(cache._RETRIES, longest_pause=0.001))
    monkeypatch.setattr(transfer, "PART", 1000)


async def fetch(
    bucket: Any,
    folder: Path,
    reference: RemoteReference = S3,
    *,
    download: Download | None = None,
    verify: bool = False,
) -> Path:
    with contextlib.closing(Cache(CacheSettings(folder, verify), bucket)) as cache:
        return await cache.fetch(reference, download or Download())


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


async def test_folder_is_fetched_once(tmp_path: Path) -> None:
    files = {"run.py": b"code", "w/a.bin": os.urandom(2500), "empty": b""}
    bucket, download = Bucket(**files), Download()
    root = await fetch(bucket, tmp_path, download=download)
    assert root.name == "cats"
    assert tree(root) == files
    assert (download.bytes, download.total_bytes, download.files, download.total_files) == (2504, 2504, 3, 3)
    assert (download.received_bytes, download.received_files, download.failures) == (2504, 2, 0)
    again = Download()
    assert await fetch(bucket, tmp_path, download=again) == root
    assert (bucket.read_bytes, again.received_bytes) == (2504, 0)


async def test_only_what_has_changed_is_fetched_again(tmp_path: Path) -> None:
    bucket = Bucket(same=b"s" * 700, other=b"first")
    first = await fetch(bucket, tmp_path)
    bucket.files = {"same": b"s" * 700, "other": b"second", "moved": b"s" * 700}
    second = await fetch(bucket, tmp_path)
    assert tree(second) == bucket.files
    assert bucket.read_bytes == 700 + 5 + 6
    assert not first.exists(), "nobody uses it"


async def test_version_in_use_is_kept(tmp_path: Path) -> None:
    bucket = Bucket(a=b"first")
    with contextlib.closing(Cache(CacheSettings(tmp_path), bucket)) as cache:
        first = await cache.fetch(S3, Download())
        bucket.files = {"a": b"second"}
        second = await cache.fetch(S3, Download())
        assert (tree(first), tree(second)) == ({"a": b"first"}, {"a": b"second"})
    bucket.files = {"a": b"third"}
    third = await fetch(bucket, tmp_path)
    assert (first.exists(), second.exists(), third.exists()) == (False, False, True)


async def test_broken_download_goes_on(tmp_path: Path) -> None:
    content = os.urandom(2500)
    bucket = Bucket(a=content)
    bucket.breaks = [300, 0, 100, 250]
    assert tree(await fetch(bucket, tmp_path)) == {"a": content}
    assert bucket.read_bytes == 2500


async def test_download_goes_on_in_another_process(tmp_path: Path) -> None:
    content = os.urandom(2500)
    bucket = Bucket(a=content)
    bucket.breaks = [600] + [0] * 100
    with pytest.raises(RemoteError, match="broken off"):
        await fetch(bucket, tmp_path)
    had = bucket.read_bytes
    assert had == 600
    bucket.breaks = []
    download = Download()
    assert tree(await fetch(bucket, tmp_path, download=download)) == {"a": content}
    assert bucket.read_bytes == 2500
    assert (download.bytes, download.received_bytes) == (2500, 2500 - had)


async def test_partial_file_of_something_else_is_not_used(tmp_path: Path) -> None:
    bucket = Bucket(a=b"x" * 2500)
    bucket.breaks = [600] + [0] * 100
    with pytest.raises(RemoteError):
        await fetch(bucket, tmp_path)
    bucket.breaks, bucket.files = [], {"a": b"y" * 2500}
    assert tree(await fetch(bucket, tmp_path)) == {"a": b"y" * 2500}


async def test_journal_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    content = os.urandom(2500)
    bucket = Bucket(a=content)
    bucket.breaks = [600] + [0] * 100
    with pytest.raises(RemoteError):
        await fetch(bucket, tmp_path)
    (data,) = found(tmp_path, "*.data")
    data.write_bytes(data.read_bytes()[:10])  # the journal says more
    bucket.breaks = []
    assert tree(await fetch(bucket, tmp_path)) == {"a": content}


async def test_canceled_download_goes_on_later(tmp_path: Path) -> None:
    content = os.urandom(2500)
    bucket = Bucket(a=content)
    bucket.going.clear()
    fetching = asyncio.ensure_future(fetch(bucket, tmp_path))
    await asyncio.wait_for(bucket.reached.wait(), PATIENCE)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert bucket.read_bytes > 0
    bucket.going.set()
    assert tree(await fetch(bucket, tmp_path)) == {"a": content}
    assert bucket.read_bytes == 2500


async def test_change_during_the_download_begins_anew(tmp_path: Path) -> None:
    bucket = Bucket(a=b"x" * 2500)

    def change() -> None:
        from geartrain.outbound.remote.source import ChangedError

        bucket.before_read = lambda: None
        bucket.files = {"a": b"y" * 2600}
        raise ChangedError("s3://bucket/cats: it has changed during the download")

    bucket.before_read = change
    assert tree(await fetch(bucket, tmp_path)) == {"a": b"y" * 2600}
    assert bucket.looks == 2


# checksums


async def test_checksum_is_compared(tmp_path: Path) -> None:
    good, bad = hashlib.sha256(b"model").hexdigest(), "0" * 64
    bucket = Bucket(**{"m.onnx": b"model"})
    bucket.is_single = True
    with pytest.raises(RemoteError, match=f"m.onnx has the SHA-256 {good}, and it should have {bad}; it is not used"):
        await fetch(bucket, tmp_path, read_reference(f"s3://bucket/m.onnx#sha256={bad}"))
    assert not found(tmp_path, "*.data"), "it would be of no use"
    assert not found(tmp_path, "m.onnx")
    path = await fetch(bucket, tmp_path, read_reference(f"s3://bucket/m.onnx#sha256={good}"))
    assert path.read_bytes() == b"model"
    looks = bucket.looks
    await fetch(bucket, tmp_path, read_reference(f"s3://bucket/m.onnx#sha256={good}"))
    assert bucket.looks == looks, "what has its checksum cannot have changed"
    with pytest.raises(RemoteError, match="it should have"):
        await fetch(bucket, tmp_path, read_reference(f"s3://bucket/m.onnx#sha256={bad}"))


async def test_checksum_that_the_service_tells_is_compared(tmp_path: Path) -> None:
    bucket = Bucket(a=b"model")
    bucket.sha256 = {"a": "1" * 64}
    with pytest.raises(RemoteError, match=f"it should have {'1' * 64}"):
        await fetch(bucket, tmp_path)
    bucket.is_single = True
    with pytest.raises(RemoteError, match=f"it has the SHA-256 {'1' * 64}, and it should have {'2' * 64}"):
        await fetch(bucket, tmp_path, read_reference(f"s3://bucket/a#sha256={'2' * 64}"))


async def test_checksum_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="a checksum is for one file, and this is a folder"):
        await fetch(Bucket(a=b"", b=b""), tmp_path, read_reference(f"s3://bucket/cats#sha256={'0' * 64}"))


async def test_missing_or_short_file_is_fetched_again(tmp_path: Path) -> None:
    bucket = Bucket(a=b"a" * 10, b=b"b" * 10)
    root = await fetch(bucket, tmp_path)
    (root / "a").unlink()
    assert tree(await fetch(bucket, tmp_path)) == bucket.files
    (root / "b").write_bytes(b"b")
    assert tree(await fetch(bucket, tmp_path)) == bucket.files


async def test_damaged_file_is_found_when_it_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket(a=b"a" * 10)
    root = await fetch(bucket, tmp_path)
    (root / "a").write_bytes(b"x" * 10)
    assert tree(await fetch(bucket, tmp_path)) == {"a": b"x" * 10}, "its size is right"
    assert tree(await fetch(bucket, tmp_path, verify=True)) == {"a": b"a" * 10}
    assert "content/cats/a is damaged in the cache; it is fetched again" in caplog.text
    reads = bucket.read_bytes
    await fetch(bucket, tmp_path, verify=True)
    assert bucket.read_bytes == reads


# without the service


async def test_what_was_fetched_before_is_used_without_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket(a=b"a")
    bucket.is_reachable = False
    with pytest.raises(UnreachableError, match="no answer"):
        await fetch(bucket, tmp_path)
    bucket.is_reachable = True
    root = await fetch(bucket, tmp_path)
    bucket.is_reachable = False
    assert await fetch(bucket, tmp_path) == root
    assert "no answer; what was fetched before is used" in caplog.text


async def test_commit_needs_no_service(tmp_path: Path) -> None:
    commit = read_reference(f"hf://org/cats@{'a' * 40}")
    bucket = Bucket(a=b"a")
    root = await fetch(bucket, tmp_path, commit)
    assert await fetch(bucket, tmp_path, commit) == root
    assert bucket.looks == 1


# several processes


async def test_second_process_waits_for_the_first(tmp_path: Path) -> None:
    bucket = Bucket(a=b"a" * 2500)
    bucket.going.clear()
    first = asyncio.ensure_future(fetch(bucket, tmp_path))
    await asyncio.wait_for(bucket.reached.wait(), PATIENCE)
    waiting = Download()
    second = asyncio.ensure_future(fetch(bucket, tmp_path, download=waiting))
    async with asyncio.timeout(PATIENCE):
        while waiting.step is not DownloadStep.WAITING:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert waiting.describe() == "Another process downloads s3://bucket/cats; waiting for it."
    bucket.going.set()
    assert await first == await second
    assert bucket.read_bytes == 2500


async def test_lock_is_that_of_processes(tmp_path: Path) -> None:
    bucket = Bucket(a=b"a")
    entry = tmp_path / S3.key
    entry.mkdir()
    descriptor = os.open(entry / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    fetching = asyncio.ensure_future(fetch(bucket, tmp_path))
    await asyncio.wait((fetching,), timeout=0.05)
    assert bucket.looks == 0
    os.close(descriptor)
    await asyncio.wait_for(fetching, PATIENCE)


# the disk


async def test_what_cannot_fit_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(a=b"a" * 2500)
    bucket.breaks = [600] + [0] * 100
    with pytest.raises(RemoteError, match="broken off"):
        await fetch(bucket, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(RemoteError) as caught:
        await fetch(bucket, tmp_path)
    assert caught.value.message == (
        "s3://bucket/cats: 1900 bytes (1,900 bytes) are needed, and 1000 (1,000 bytes) are free in "
        f"{tmp_path}; make room, or choose another folder with --cache-dir or GEARTRAIN_CACHE"
    )
    assert found(tmp_path, "*.data"), "what has come is of use when there is room"
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000, total=2000))
    with pytest.raises(RemoteError, match="are needed"):
        await fetch(bucket, tmp_path)
    assert not found(tmp_path, "*.data"), "it could never be complete on this disk"


async def test_disk_that_becomes_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(a=b"a" * 2500)
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset >= 500:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    download = Download()
    with pytest.raises(RemoteError, match=r"No space left on device: \d+ bytes .* are still needed in .*; make room"):
        await fetch(bucket, tmp_path, download=download)
    assert download.failures == 1
    monkeypatch.undo()
    assert tree(await fetch(bucket, tmp_path)) == bucket.files


async def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="file cannot be used as the cache: Not a directory; choose another"):
        await fetch(Bucket(a=b""), tmp_path / "file")


async def test_full_disk_does_not_matter_for_what_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        bucket = Bucket(a=b"a" * 2500)
        with contextlib.closing(Cache(CacheSettings(disk), bucket)) as cache:
            root = await cache.fetch(S3, Download())
        filler = fill(disk)
        assert await fetch(bucket, disk) == root
        bucket.is_reachable = False
        assert await fetch(bucket, disk) == root
        bucket.is_reachable = True
        bucket.files = {"a": b"b" * 250_000}
        with pytest.raises(RemoteError, match=r"are needed, and 0 .* are free in"):
            await fetch(bucket, disk)
        filler.unlink()
        assert tree(await fetch(bucket, disk)) == bucket.files


async def test_read_only_cache_gives_what_it_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        bucket = Bucket(a=b"a" * 2500)
        root = await fetch(bucket, disk)
        make_read_only(disk)
        assert await fetch(bucket, disk, verify=True) == root
        bucket.is_reachable = False
        assert await fetch(bucket, disk) == root
        bucket.is_reachable = True
        bucket.files = {"a": b"other"}
        with pytest.raises(RemoteError, match="disk cannot be used as the cache: Read-only file system; choose"):
            await fetch(bucket, disk)
        with pytest.raises(RemoteError, match="disk cannot be used as the cache: Read-only file system; choose"):
            await fetch(bucket, disk, read_reference("s3://bucket/dogs"))


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"[[" * 100_000, b'{"files":[]}', b"\xff\0"])
async def test_entry_whose_notes_are_damaged_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    bucket = Bucket(a=b"a" * 2500)
    await fetch(bucket, tmp_path)
    for pattern in ("manifest.json", "current"):
        [path] = found(tmp_path, pattern)
        path.write_bytes(damage)
        assert tree(await fetch(bucket, tmp_path)) == bucket.files
    for path in (*found(tmp_path, "manifest.json"), *found(tmp_path, "current")):
        path.write_bytes(damage)
    assert tree(await fetch(bucket, tmp_path)) == bucket.files


# archives and single files, of a web server


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


async def test_archive_of_a_web_server(cloud: Cloud, tmp_path: Path) -> None:
    weights = os.urandom(5000)
    cloud.files = {"m/cats.tar.gz": archive(**{"run.py": b"code", "w/a.bin": weights})}
    cloud.cuts = {"m/cats.tar.gz": [300, 200]}
    reference = read_reference(f"{cloud.url}/m/cats.tar.gz?sig=1")
    root = await fetch(open_source, tmp_path, reference)
    assert (root.name, tree(root)) == ("cats", {"run.py": b"code", "w/a.bin": weights})
    bodies = len(cloud.bodies())
    assert await fetch(open_source, tmp_path, read_reference(f"{cloud.url}/m/cats.tar.gz?sig=2")) == root
    assert len([each for each in cloud.asked if each.range != "bytes=0-0"]) == len(
        [each for each in cloud.asked if each.range != "bytes=0-0" and "sig=1" in each.path]
    )
    assert bodies == len(cloud.bodies())
    (root / "w/a.bin").write_bytes(bytes(5000))
    assert tree(await fetch(open_source, tmp_path, reference, verify=True)) == {"run.py": b"code", "w/a.bin": weights}


def files_of(folder: Path) -> list[Path]:
    """All that lies below the folders in a cache."""
    return [path for entry in folder.iterdir() for path in entry.rglob("*")]


async def test_s3_failed_fetch_leaves_nothing(cloud: Cloud, tmp_path: Path) -> None:
    """A refused archive leaves neither what was unpacked of it, nor itself."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, target in [("in/a", ""), ("up", "in/.."), ("up/out", "../../victim"), ("up/out/made", "../in")]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (tarfile.SYMTYPE if target else tarfile.REGTYPE), target
            packed.addfile(member)
    cloud.files = {"m/cats.tar.gz": buffer.getvalue()}
    with pytest.raises(RemoteError, match="would lie outside"):
        await fetch(open_source, tmp_path, read_reference(f"{cloud.url}/m/cats.tar.gz"))
    assert [path.name for path in files_of(tmp_path)] == ["lock"]


async def test_file_of_unknown_size(cloud: Cloud, tmp_path: Path) -> None:
    cloud.files = {"m.onnx": os.urandom(5000)}
    cloud.has_ranges = cloud.has_lengths = False
    reference = read_reference(f"{cloud.url}/m.onnx")
    path = await fetch(open_source, tmp_path, reference)
    assert (path.name, path.read_bytes()) == ("m.onnx", cloud.files["m.onnx"])
    cloud.has_validators = False
    await fetch(open_source, tmp_path, reference)
    count = len(cloud.asked)
    await fetch(open_source, tmp_path, reference)
    assert len(cloud.asked) == count + 2, "what says nothing of itself is fetched each time"


async def test_server_without_ranges_begins_anew(cloud: Cloud, tmp_path: Path) -> None:
    cloud.files = {"m.onnx": os.urandom(5000)}
    cloud.has_ranges = False
    cloud.cuts = {"m.onnx": [0, 3000]}  # the first look does not read the body
    download = Download()
    path = await fetch(open_source, tmp_path, read_reference(f"{cloud.url}/m.onnx"), download=download)
    assert path.read_bytes() == cloud.files["m.onnx"]
    assert download.bytes == 5000
