"""Files in an output: section 16 of the observed API, and defect D5."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import pytest

from geartrain import BaseModel, Path
from geartrain.domain.predictions.calls import FileRef
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.worker.values.output_files import mime_type_of
from geartrain.worker.values.outputs import OutputEncoder, OutputError


class Encoding:
    """Encodes values, and keeps their files in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.asked = 0
        self._encoder = OutputEncoder(OutputSpec(TypeSpec("opaque")))

    def _new_folder(self) -> pathlib.Path:
        self.asked += 1
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def __call__(self, value: Any) -> tuple[Any, tuple[FileRef, ...]]:
        encoded = self._encoder.encode(value, self._new_folder)
        return json.loads(encoded.json), encoded.files

    def only(self, value: Any) -> FileRef:
        output, (file,) = self(value)
        assert output == file.token
        return file

    def fault(self, value: Any) -> str:
        with pytest.raises(OutputError) as raised:
            self(value)
        return str(raised.value)


@pytest.fixture
def encode(tmp_path: pathlib.Path) -> Encoding:
    folder = tmp_path / "spill"
    folder.mkdir()
    return Encoding(folder)


@pytest.fixture
def picture(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "a b#é?.png"
    path.write_bytes(b"picture")
    return path


class Result(BaseModel):
    picture: Path
    count: int


@pytest.mark.parametrize("kind", [Path, pathlib.Path])
def test_a_path(encode: Encoding, picture: pathlib.Path, kind: type[pathlib.Path]) -> None:
    file = encode.only(kind(picture))
    assert re.fullmatch(r"geartrain-file-[0-9a-f]{32}", file.token)
    assert file.mime_type == "image/png"
    copy = pathlib.Path(file.filename)
    assert copy.is_absolute()
    assert copy.name == picture.name
    assert copy.is_relative_to(encode.folder)
    assert copy.read_bytes() == b"picture"
    assert picture.exists()


def test_paths_at_any_depth(encode: Encoding, picture: pathlib.Path) -> None:
    output, files = encode({"result": Result(Path(picture), 1), "more": [(picture,), "text"]})
    by_name = {file.token: file for file in files}
    assert len(by_name) == 2
    assert by_name.keys() == {output["result"]["picture"], output["more"][0][0]}
    assert encode.asked == 2


def test_a_path_is_copied_before_the_model_writes_to_it_again(encode: Encoding, picture: pathlib.Path) -> None:
    first = encode.only(picture)
    picture.write_bytes(b"another")
    second = encode.only(picture)
    assert pathlib.Path(first.filename).read_bytes() == b"picture"
    assert pathlib.Path(second.filename).read_bytes() == b"another"


def test_a_name_that_is_no_text(encode: Encoding, tmp_path: pathlib.Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    pathlib.Path(path).write_bytes(b"picture")
    file = encode.only(pathlib.Path(path))
    assert (pathlib.Path(file.filename).name, file.mime_type) == ("caf\ufffd.png", "image/png")
    assert pathlib.Path(file.filename).read_bytes() == b"picture"


def test_a_relative_path(encode: Encoding, picture: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(picture.parent)
    assert pathlib.Path(encode.only(Path(picture.name)).filename).read_bytes() == b"picture"


def test_a_link_is_followed_and_keeps_its_name(encode: Encoding, picture: pathlib.Path) -> None:
    link = picture.with_name("link.jpg")
    link.symlink_to(picture)
    file = encode.only(link)
    assert pathlib.Path(file.filename).name == "link.jpg"
    assert not pathlib.Path(file.filename).is_symlink()
    assert file.mime_type == "image/jpeg"


def test_what_has_a_path_of_its_own(encode: Encoding, picture: pathlib.Path) -> None:
    (entry,) = [entry for entry in os.scandir(picture.parent) if entry.is_file()]
    assert pathlib.Path(encode.only(entry).filename).name == picture.name


# D5: a file that is not there is a failure


def test_d5_a_missing_file(encode: Encoding, tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "out.png"
    assert encode.fault({"a": [missing]}) == f"output.a[0] is the path {missing}, and there is no such file"


def test_a_folder(encode: Encoding, tmp_path: pathlib.Path) -> None:
    assert encode.fault(tmp_path) == (
        f"output is the path {tmp_path}, which is a folder; return its files, or an archive of it"
    )


def test_a_pipe(encode: Encoding, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert encode.fault(tmp_path / "pipe").endswith("which is no regular file")


def test_a_dangling_link(encode: Encoding, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert encode.fault(link).endswith("which is no regular file")


def test_a_copy_that_fails(encode: Encoding, picture: pathlib.Path) -> None:
    encode.folder.rmdir()
    encode.folder.write_text("no folder any more")
    with pytest.raises(NotADirectoryError):
        encode(picture)


# Open files


@pytest.mark.parametrize("at_its_end", [True, False])
def test_bytes_in_memory(encode: Encoding, at_its_end: bool) -> None:
    stream = io.BytesIO(b"data")
    stream.seek(0, io.SEEK_END if at_its_end else io.SEEK_SET)
    file = encode.only(stream)
    assert pathlib.Path(file.filename).name == "output.bin"
    assert pathlib.Path(file.filename).read_bytes() == b"data"
    assert file.mime_type == "application/octet-stream"


def test_bytes_in_memory_with_a_name(encode: Encoding) -> None:
    stream = io.BytesIO(b"data")
    stream.name = "folder/sound.wav"
    file = encode.only(stream)
    assert pathlib.Path(file.filename).name == "sound.wav"
    assert file.mime_type == "audio/wav"


def test_text_in_memory(encode: Encoding) -> None:
    assert pathlib.Path(encode.only(io.StringIO("ü")).filename).read_bytes() == "ü".encode()


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_an_opened_file(encode: Encoding, picture: pathlib.Path, mode: str) -> None:
    with picture.open(mode) as opened:
        opened.read(3)
        file = encode.only(opened)
    assert pathlib.Path(file.filename).read_bytes() == b"picture"
    assert pathlib.Path(file.filename).name == picture.name


def test_a_file_opened_for_writing(encode: Encoding, picture: pathlib.Path) -> None:
    with picture.open("wb") as opened:
        opened.write(b"new")
        file = encode.only(opened)
    assert pathlib.Path(file.filename).read_bytes() == b"new"


def test_a_closed_file(encode: Encoding, picture: pathlib.Path) -> None:
    with picture.open("rb") as opened:
        pass
    assert pathlib.Path(encode.only(opened).filename).read_bytes() == b"picture"


def test_a_closed_file_without_a_name(encode: Encoding) -> None:
    stream = io.BytesIO(b"data")
    stream.close()
    assert encode.fault([stream]) == "output[0] is a file that is closed"


def test_a_pipe_for_writing_only(encode: Encoding) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as opened:
        assert encode.fault(opened) == "output is a file that is open for writing only"


def test_a_stream_that_cannot_be_rewound(encode: Encoding) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as opened:
        opened.write(b"data")
    with os.fdopen(reading, "rb") as opened:
        assert pathlib.Path(encode.only(opened).filename).read_bytes() == b"data"


def test_temporary_files(encode: Encoding) -> None:
    with tempfile.NamedTemporaryFile(suffix=".json") as named, tempfile.TemporaryFile() as nameless:
        named.write(b"{}")
        nameless.write(b"x")
        _, files = encode([named, nameless])
    assert [pathlib.Path(file.filename).read_bytes() for file in files] == [b"{}", b"x"]
    assert [file.mime_type for file in files] == ["application/json", "application/octet-stream"]


def test_what_only_reads(encode: Encoding) -> None:
    class Reader:
        def __init__(self) -> None:
            self.blocks = [b"a", b"b", b""]

        def read(self, _size: int) -> bytes:
            return self.blocks.pop(0)

        def close(self) -> None: ...

    assert pathlib.Path(encode.only(Reader()).filename).read_bytes() == b"ab"


# Media types


@pytest.mark.parametrize(
    ("name", "mime_type"),
    [
        ("a.txt", "text/plain"),
        ("a.png", "image/png"),
        ("a.jpg", "image/jpeg"),
        ("a.json", "application/json"),
        ("a.mp4", "video/mp4"),
        ("a.csv", "text/csv"),
        ("a.md", "text/markdown"),
        ("a.wav", "audio/wav"),
        ("a.tar.gz", "application/gzip"),
        ("a.svg", "image/svg+xml"),
        ("A.PNG", "image/png"),
        ("a.webp", "image/webp"),
        ("a.rtf", "application/rtf"),
        ("a.safetensors", "application/octet-stream"),
        ("a", "application/octet-stream"),
        ("", "application/octet-stream"),
        (".png", "image/png"),
    ],
)
def test_media_types(name: str, mime_type: str) -> None:
    assert mime_type_of(name) == mime_type
