"""Memory of other workers: the region that lies there, whatever was known by its path before, and few kept open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geartrain.ipc.memory import OtherRegions, Region
from geartrain.ipc.messages import Handle


def region_with(contents: bytes) -> Region:
    region = Region.create()
    region.write([contents])
    return region


def test_a_descriptor_that_is_given_again_is_another_region() -> None:
    others = OtherRegions()
    first, second = region_with(b"first"), region_with(b"other")
    path = first.path
    assert bytes(others.view(Handle(path, 0, 5))) == b"first"
    os.dup2(int(second.path.rpartition("/")[2]), int(path.rpartition("/")[2]))
    assert bytes(others.view(Handle(path, 0, 5))) == b"other"
    first.close()
    second.close()


def test_a_duplicate_outlives_the_region() -> None:
    region = region_with(b"contents")
    duplicate = region.duplicate()
    region.close()
    assert bytes(OtherRegions().view(Handle(duplicate.path, 3, 5))) == b"tents"
    duplicate.close()
    with pytest.raises(OSError, match="descriptor"):
        region.duplicate()


def test_few_regions_stay_open() -> None:
    others = OtherRegions()
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(30):
        region = region_with(b"x")
        others.view(Handle(region.path, 0, 1)).release()
        region.close()
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 2 * 8  # a map has a descriptor too
