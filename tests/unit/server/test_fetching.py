from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from geartrain.domain.remote.progress import Download
from geartrain.domain.remote.reference import read_reference
from geartrain.outbound.remote.source import RemoteError
from geartrain.project.setting_values import Weights
from geartrain.server.fetching import Fetcher, telling
from geartrain.server.options import CacheOptions, DownloadLines, Progress
from tests.support.cloud import running_cloud
from tests.support.servers import PATIENCE


async def place(folder: Path, dest: str, content: bytes = b"weights") -> tuple[Path, ...]:
    fetcher = Fetcher(CacheOptions(folder.parent / "cache"))
    with running_cloud() as cloud:
        cloud.files = {"a.bin": content}
        weights = Weights(read_reference(f"{cloud.url}/a.bin"), dest)
        try:
            return await fetcher.fetch_weights([weights], folder, Download())
        finally:
            fetcher.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


async def test_weights_are_put_into_the_folder(folder: Path) -> None:
    assert await place(folder, "w/a.bin") == ()
    assert (folder / "w/a.bin").read_bytes() == b"weights"
    assert await place(folder, "w/a.bin", b"other") == ()
    assert (folder / "w/a.bin").read_bytes() == b"other", "a link is replaced"
    assert [path.name for path in (folder / "w").iterdir()] == ["a.bin"]


async def test_weights_without_a_place_stay_in_the_cache(folder: Path) -> None:
    (path,) = await place(folder, "")
    assert path.read_bytes() == b"weights"
    assert path.is_relative_to(folder.parent / "cache")


async def test_file_of_the_author_is_not_replaced(folder: Path) -> None:
    (folder / "a.bin").write_text("mine")
    with pytest.raises(RemoteError, match=r"a\.bin is there already, and no link; remove it, or write another `dest`"):
        await place(folder, "a.bin")
    assert (folder / "a.bin").read_text() == "mine"


async def test_folder_that_cannot_be_written_is_said(folder: Path) -> None:
    (folder / "w").write_text("a file")
    with pytest.raises(RemoteError, match=r"w/a\.bin cannot be written: .*; leave `dest` out, and take the path as"):
        await place(folder, "w/a.bin")


async def test_download_is_told_of_while_it_goes_on() -> None:
    told: asyncio.Queue[Progress] = asyncio.Queue()
    download = Download()
    download.begin("s3://bucket/m")
    async with telling(download, told.put_nowait, model="cats"):
        first = await asyncio.wait_for(told.get(), PATIENCE)
        download.expect(10, 1)
        download.add(10)
    assert (first.stage, first.model, first.text) == ("downloading", "cats", "Looking at s3://bucket/m.")
    last = [told.get_nowait() for _ in range(told.qsize())][-1]
    assert (last.source, last.bytes, last.total_bytes) == ("s3://bucket/m", 10, 10)


def test_few_lines_tell_of_a_download() -> None:
    lines = DownloadLines()

    def is_due(done: int, total: int, source: str = "a", model: str = "cats") -> bool:
        return lines.is_due(Progress(stage="downloading", model=model, source=source, bytes=done, total_bytes=total))

    assert [is_due(done, 100) for done in (0, 3, 9, 10, 11, 55, 100, 100)] == [
        True,
        False,
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    assert is_due(0, 0, source="b")
    assert is_due(0, 0, source="b", model="dogs")
    assert lines.is_due(Progress(stage="ready", model="cats"))
    assert lines.is_due(Progress(stage="ready", model="cats"))
