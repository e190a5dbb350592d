"""What backends share: processors, dimensions, tensors that somebody declares, and what a file is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geartrain.backends.arrays import Dimension, are_rows
from geartrain.backends.cpus import usable_cpus
from geartrain.backends.foreign import what_is

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, HERE),
        ({"cpu.max": "max 100000\n"}, HERE),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000000 100000\n"}, HERE),
        ({"cpu.max": "nonsense\n"}, HERE),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, HERE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_processors_are_those_that_the_container_may_use(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert usable_cpus(tmp_path) == expected


Shapes = list[list[Dimension]]


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([["batch", 3]], [["batch"]], True),
        ([[None, 3]], [[None], ["batch", 2]], True),
        ([["batch"], ["batch", 2]], [["batch"]], True),
        ([["a"], ["b"]], [["a"]], False),
        ([["a", 3]], [["b", 3]], False),
        ([["a", 3]], [["2*a", 3]], False),
        ([["a", 3]], [["a", "a"]], False),
        ([["sequence_length", 3]], [["sequence_length"]], False),
        ([["num_frames", 3]], [["num_frames"]], False),
        ([[1, 3]], [["a"]], False),
        ([["a", 3]], [[]], False),
        ([[]], [["a"]], False),
        ([], [["a"]], False),
    ],
)
def test_which_first_dimensions_are_rows(inputs: Shapes, outputs: Shapes, *, expected: bool) -> None:
    assert are_rows(inputs, outputs) is expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04abc", "is a zip archive"),
        (b"\x80\x04\x95", "is a pickle of Python"),
        (b'\x10\x00\x00\x00\x00\x00\x00\x00{"a":{}}', "is a safetensors file: weights alone, without the model"),
        (b"<!DOCTYPE html>", "is a web page: perhaps it was downloaded from a page about the file"),
        (b'{"a": 1}', "is JSON text"),
        (b"plain\n", "is text"),
        (b"\x08\x07\x12\x00", ""),
    ],
)
def test_what_a_file_is(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert what_is(path) == expected


def test_what_is_no_file(tmp_path: Path) -> None:
    assert what_is(tmp_path) == "is a folder"
    assert what_is(tmp_path / "none") == "cannot be read: No such file or directory"
