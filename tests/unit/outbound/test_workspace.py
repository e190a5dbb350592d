"""The server's temporary directory and the predictions' folders in it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geartrain.outbound.workspace import Workspace


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.folder()
    await folder.remove()
    await workspace.close()
    assert listed(tmp_path) == []


async def test_folder_is_private_and_the_same_each_time(tmp_path: Path) -> None:
    folder = Workspace(tmp_path).folder()
    path = folder.path()
    assert path.is_absolute()
    assert folder.path() == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.parent.parent == tmp_path


async def test_d10_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder, other = workspace.folder(), workspace.folder()
    path = folder.path()
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_text("x")
    kept = other.path()
    await folder.remove()
    assert not path.exists()
    assert kept.exists()
    await workspace.close()
    assert listed(tmp_path) == []


async def test_d22_d23_names_are_our_own(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    names = {workspace.folder().path().name for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) < 40 and name.startswith("prediction-") for name in names)


async def test_removing_twice_is_harmless(tmp_path: Path) -> None:
    folder = Workspace(tmp_path).folder()
    folder.path()
    await folder.remove()
    await folder.remove()


async def test_removing_what_is_gone_is_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Workspace(tmp_path).folder()
    folder.path().rmdir()
    await folder.remove()
    assert caplog.records == []


async def test_directories_without_permission_are_removed_as_well(tmp_path: Path) -> None:
    folder = Workspace(tmp_path).folder()
    locked = folder.path() / "outer" / "locked"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0)
    locked.parent.chmod(0o500)
    await folder.remove()
    assert listed(locked.parents[2]) == []


async def test_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    outside.chmod(0o500)
    folder = Workspace(tmp_path).folder()
    (folder.path() / "link").symlink_to(outside)
    locked = folder.path() / "locked"
    locked.mkdir()
    (locked / "link").symlink_to(outside)
    locked.chmod(0o500)
    await folder.remove()
    assert (outside / "precious").read_text() == "x"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
async def test_folder_that_cannot_be_removed_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Workspace(tmp_path).folder()
    root = folder.path().parent
    root.chmod(0o500)
    with caplog.at_level(logging.WARNING):
        await folder.remove()
    root.chmod(0o700)
    assert "cannot be removed" in caplog.text


async def test_root_that_was_tidied_away_is_made_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first = workspace.folder().path()
    first.rmdir()
    first.parent.rmdir()
    second = workspace.folder().path()
    assert second.exists()
    await workspace.close()
    assert listed(tmp_path) == []


async def test_closed_workspace_makes_no_more(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.folder()
    await workspace.close()
    await workspace.close()
    with pytest.raises(RuntimeError, match="closed"):
        folder.path()


async def test_threads_share_one_root_and_one_folder(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folders = [workspace.folder() for _ in range(20)]
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda number: folders[number % 20].path(), range(200)))
    assert len(set(paths)) == 20
    assert len({path.parent for path in paths}) == 1


def test_folder_is_removed_even_when_the_loop_has_no_threads_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        folder = Workspace(tmp_path).folder()
        path = folder.path()
        await asyncio.get_running_loop().shutdown_default_executor()
        await folder.remove()
        assert not path.exists()

    asyncio.run(main())
