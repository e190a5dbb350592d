"""Output files inline: from placeholders in the worker's JSON to `data:` URLs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from geartrain.domain.predictions.calls import FileRef
from geartrain.outbound.files import OutputFileError
from geartrain.outbound.outputs import InlineSink, OutputFiles


def token(number: int) -> str:
    return f"geartrain-file-{number:032x}"


@pytest.fixture
def png(tmp_path: Path) -> FileRef:
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    return FileRef(token(1), str(path), "image/png")


PNG_URL = "data:image/png;base64,iVBORw=="


async def test_file_alone(png: FileRef) -> None:
    assert await OutputFiles().deliver(f'"{token(1)}"'.encode(), [png]) == f'"{PNG_URL}"'.encode()


async def test_files_in_a_tree_and_twice(png: FileRef) -> None:
    tree = {"a": [token(1), 1, "text"], "b": {"c": token(1)}, token(1)[:-1]: "x" + token(1)}
    delivered = await OutputFiles().deliver(json.dumps(tree).encode(), [png])
    assert json.loads(delivered) == {"a": [PNG_URL, 1, "text"], "b": {"c": PNG_URL}, token(1)[:-1]: "x" + token(1)}


async def test_output_without_files_is_left_as_it_is() -> None:
    output = b'{"a":"geartrain-file-1"}'
    assert await OutputFiles().deliver(output, []) is output


async def test_text_that_looks_like_a_token_is_left_as_it_is(png: FileRef) -> None:
    numbers = "," * len(token(1))  # between two strings, just as long as a token
    output = f'["{token(2)}","\\"{token(1)}","{token(1)}\\"","x"{numbers}"{token(1)}"]'.encode()
    delivered = await OutputFiles().deliver(output, [png])
    assert delivered == output.replace(f',"{token(1)}"]'.encode(), f',"{PNG_URL}"]'.encode())


async def test_d7_order_is_the_models(tmp_path: Path) -> None:
    files = []
    for number in range(200):
        path = tmp_path / f"{number}.txt"
        path.write_text(str(number))
        files.append(FileRef(token(number), str(path), "text/plain"))
    output = json.dumps([file.token for file in files]).encode()
    urls = json.loads(await OutputFiles().deliver(output, files[::-1]))
    assert [base64.b64decode(url.partition(",")[2]) for url in urls] == [str(n).encode() for n in range(200)]


@pytest.mark.parametrize("size", [0, 1, 2, 3, (3 << 18) - 1, 3 << 18, (3 << 18) + 1, 5_000_000])
async def test_content_comes_back_whatever_its_size(tmp_path: Path, size: int) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    path = tmp_path / "f"
    path.write_bytes(content)
    url = await InlineSink().deliver(FileRef(token(1), str(path), "application/x-thing"))
    head, _, payload = url.partition(b",")
    assert head == b"data:application/x-thing;base64"
    assert base64.b64decode(payload, validate=True) == content


@pytest.mark.parametrize("media_type", ["", "png", 'a/b"', "a/b,c", "text/plain\n", "text/html; a b"])
async def test_what_is_no_media_type_is_unknown(tmp_path: Path, media_type: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    url = await InlineSink().deliver(FileRef(token(1), str(path), media_type))
    assert url == b"data:application/octet-stream;base64,"


async def test_d5_missing_file_is_an_error(png: FileRef, tmp_path: Path) -> None:
    missing = FileRef(token(2), str(tmp_path / "nope.png"), "image/png")
    with pytest.raises(OutputFileError, match=r"^The model returned the file '.*/nope\.png', which does not exist\.$"):
        await OutputFiles().deliver(f'["{token(1)}","{token(2)}"]'.encode(), [png, missing])


async def test_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="cannot be read: Is a directory"):
        await InlineSink().deliver(FileRef(token(1), str(tmp_path), "image/png"))


async def test_named_pipe_is_an_error_and_holds_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OutputFileError, match="not a regular file"):
        await InlineSink().deliver(FileRef(token(1), str(path), "image/png"))


async def test_file_is_read_off_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100_000_000)
    turns = 0
    delivering = asyncio.create_task(InlineSink().deliver(FileRef(token(1), str(path), "image/png")))
    while not delivering.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10


async def test_large_file_takes_little_memory(tmp_path: Path) -> None:
    size = 32 << 20
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(size)
    ref = FileRef(token(1), str(path), "image/png")
    tracemalloc.start()
    try:
        output = await OutputFiles().deliver(f'{{"f":"{token(1)}"}}'.encode(), [ref])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(output) > size * 4 // 3
    assert peak < 2.9 * size


async def test_cancelled_delivery_ends_with_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 20_000_000)
    delivering = asyncio.create_task(InlineSink().deliver(FileRef(token(1), str(path), "image/png")))
    await asyncio.sleep(0)
    delivering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivering
    # ResourceWarning is an error here: the file was closed by its thread, which has ended.
    assert threading.active_count() < 50
