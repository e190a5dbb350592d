"""Inputs with files that need no network: what is refused, where files are found, `data:` URLs."""

from __future__ import annotations

import asyncio
import base64
import copy
import errno
import stat
from pathlib import Path
from typing import Any

import pytest

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec
from geartrain.outbound.files import DownloadError, size_text
from geartrain.outbound.inputs import InputFiles
from geartrain.outbound.policy import UrlPolicy

TEXT = TypeSpec("string")
PATH = TypeSpec("path")
FILE = TypeSpec("file")
PNG = "data:image/png;base64,iVBORw=="
ALL_SMALL = 1 << 20


def signature(**types: TypeSpec) -> Signature:
    return Signature(tuple(InputField(name, spec) for name, spec in types.items()), OutputSpec(TypeSpec("opaque")))


def input_files(*, max_bytes: int = ALL_SMALL, **types: TypeSpec) -> InputFiles:
    return InputFiles(signature(**types), policy=UrlPolicy(), max_bytes=max_bytes, timeout=40)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def array(items: TypeSpec) -> TypeSpec:
    return TypeSpec("array", items=items)


def union(*members: TypeSpec, nullable: bool = False) -> TypeSpec:
    return TypeSpec("union", members=members, nullable=nullable)


def record(**fields: TypeSpec) -> TypeSpec:
    return TypeSpec("record", fields=tuple(RecordField(name, spec) for name, spec in fields.items()))


# what is refused before it is fetched


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "relative/path.png",
        "../../x",
        "",
        " https://host/x",
        "//host/x",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "s3://bucket/key",
        "ftp://host/x",
        "gs://bucket/key",
        "javascript:1",
        "C:\\x.png",
        "http://",
        "http:host/x",
        "https://:443/x",
        "http://host:port/x",
        "http://host:99999/x",
        "http://[::1/x",
        "http://host/a\nb",
        "data:bad",
        "data:image/png;base64,A",
    ],
)
async def test_d11_local_paths_and_other_schemes_are_refused(value: str, tmp_path: Path) -> None:
    files = input_files(image=PATH)
    (error,) = files.check({"image": value})
    assert error.loc == ("body", "input", "image")
    assert error.type == "value_error.url"
    with pytest.raises(GeartrainError) as caught:
        await files.fetch({"image": value}, lambda: tmp_path)
    assert caught.value.code is Code.INVALID_INPUT
    assert caught.value.fields == (error,)
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/etc/passwd", '"/etc/passwd" is not a URL; send an http:, https: or data: URL'),
        ("", '"" is not a URL; send an http:, https: or data: URL'),
        (
            "file:///etc/passwd",
            '"file:///etc/passwd" is a file: URL, which is not accepted; send an http:, https: or data: URL',
        ),
        ("http://:80/", '"http://:80/" is a malformed URL'),
        ("data:;base64,A", "the data: URL holds malformed base64"),
        ("data:x", "the data: URL is malformed: a data: URL is data:[<media type>][;base64],<data>"),
    ],
)
def test_refusal_is_a_sentence(value: str, message: str) -> None:
    (error,) = input_files(image=PATH).check({"image": value})
    assert error.msg == message


def test_refusal_does_not_repeat_a_long_value() -> None:
    (error,) = input_files(image=PATH).check({"image": "x" * 10_000})
    assert len(error.msg) < 200


@pytest.mark.parametrize(
    "value",
    ["http://host/x", "HTTP://HOST/x", "https://host:8443/x?y#z", "http://é.example/ü", "http://[::1]:80/", PNG],
)
def test_urls_are_accepted(value: str) -> None:
    assert input_files(image=PATH).check({"image": value}) == ()


def test_every_fault_is_reported_at_once() -> None:
    files = input_files(a=PATH, b=array(FILE), c=TEXT, d=record(inner=array(PATH)))
    errors = files.check({"a": "x", "b": [PNG, "y", "data:z"], "c": "/not/a/file", "d": {"inner": ["w"]}})
    assert [error.loc[-1] for error in errors] == ["a", "b/1", "b/2", "d/inner/0"]
    assert all(error.loc[:2] == ("body", "input") for error in errors)


def test_too_many_files_are_refused() -> None:
    (error,) = input_files(many=array(PATH)).check({"many": ["data:,"] * 10_001})
    assert error == FieldError(
        ("body", "input", "many/10000"), "a prediction takes at most 10000 files", "value_error.url"
    )


# where files are found


@pytest.mark.parametrize(
    ("spec", "value", "found"),
    [
        (PATH, "x", ["f"]),
        (FILE, "x", ["f"]),
        (TEXT, "x", []),
        (TypeSpec("secret"), "x", []),
        (TypeSpec("opaque"), "x", []),
        (TypeSpec("path", nullable=True), None, []),
        (array(PATH), ["x", "y"], ["f/0", "f/1"]),
        (array(array(PATH)), [["x"], [], ["y"]], ["f/0/0", "f/2/0"]),
        (array(TEXT), ["x"], []),
        (record(a=PATH, b=TEXT, c=array(PATH)), {"a": "x", "b": "y", "c": ["z"]}, ["f/a", "f/c/0"]),
        (array(record(a=PATH)), [{"a": "x"}, {"a": "y"}], ["f/0/a", "f/1/a"]),
        (record(a=PATH), {}, []),
        (union(PATH, array(PATH)), "x", ["f"]),
        (union(PATH, array(PATH)), ["x"], ["f/0"]),
        (union(PATH, TypeSpec("integer")), 3, []),
        (union(PATH, TypeSpec("integer")), "x", ["f"]),
        (union(PATH, TEXT), "x", []),
        (union(TEXT, PATH), "http://host/x", ["f"]),
        (union(PATH, TEXT), "DATA:,x", ["f"]),
        (union(PATH, TypeSpec("string", choices=("auto",))), "auto", []),
        (union(PATH, TypeSpec("string", choices=("auto",))), "x", ["f"]),
        (union(union(PATH, TypeSpec("number")), TypeSpec("boolean")), "x", ["f"]),
        (union(PATH, nullable=True), None, []),
        (union(PATH, TypeSpec("boolean")), None, []),
        (union(array(union(PATH, TypeSpec("integer"))), TypeSpec("object")), [1, "x"], ["f/1"]),
        (union(record(kind=TypeSpec("string", choices=("t",)), v=TEXT), record(v=PATH)), {"kind": "t", "v": "x"}, []),
        (union(record(kind=TypeSpec("string", choices=("t",)), v=TEXT), record(v=PATH)), {"v": "x"}, ["f/v"]),
        (union(array(TypeSpec("integer")), array(PATH)), [1, 2], []),
        (union(array(TypeSpec("boolean")), array(PATH)), ["x"], ["f/0"]),
        (union(TypeSpec("object"), array(union(PATH, TypeSpec("opaque", nullable=True)))), [None], []),
        # of another shape than declared: the validation's affair
        (PATH, 3, []),
        (array(PATH), "x", []),
        (record(a=PATH), ["x"], []),
    ],
)
def test_files_are_found_at_any_depth(spec: TypeSpec, value: Any, found: list[str]) -> None:
    files = input_files(f=spec, unrelated=PATH)
    places = files._references.find({"f": value})[1]
    assert [place.place for place in places] == found


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({}, False),
        ({"text": "http://host/x"}, False),
        ({"image": PNG}, True),
        ({"image": None}, False),
        ({"b": []}, True),
    ],
)
def test_needed_looks_at_file_parameters_alone(values: dict[str, Any], needed: bool) -> None:
    assert input_files(text=TEXT, image=PATH, b=array(record(a=FILE))).needed(values) is needed


def test_signature_without_files_needs_nothing() -> None:
    assert not input_files(text=TEXT, l=array(TEXT)).needed({"text": PNG, "l": [PNG]})


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1536, "1.5 KiB"), (100 << 20, "100 MiB"), (5 << 30, "5 GiB")]
)
def test_sizes_are_written_for_a_person(size: int, text: str) -> None:
    assert size_text(size) == text


# URLs that hold their data


async def test_data_url_becomes_a_file(tmp_path: Path) -> None:
    values = {"image": PNG, "text": PNG}
    fetched = await input_files(image=PATH, text=TEXT).fetch(values, lambda: tmp_path)
    path = Path(fetched["image"])
    assert path.is_absolute()
    assert path.parent == tmp_path
    assert path.name.startswith("tmp")
    assert path.name.endswith("file.png")
    assert content(fetched["image"]) == b"\x89PNG"
    assert mode(fetched["image"]) == 0o600
    assert fetched["text"] == PNG
    assert values["image"] == PNG


async def test_callers_input_is_left_as_it_is(tmp_path: Path) -> None:
    values = {"l": [{"a": PNG}, {"a": PNG, "b": 1}]}
    before = copy.deepcopy(values)
    fetched = await input_files(l=array(record(a=PATH))).fetch(values, lambda: tmp_path)
    assert values == before
    assert [content(item["a"]) for item in fetched["l"]] == [b"\x89PNG"] * 2
    assert fetched["l"][1]["b"] == 1


async def test_large_data_url_becomes_a_file(tmp_path: Path) -> None:
    large = bytes(range(256)) * 8_000
    url = "data:;base64," + base64.b64encode(large).decode()
    fetched = await input_files(max_bytes=len(large), f=PATH).fetch({"f": url}, lambda: tmp_path)
    assert content(fetched["f"]) == large


async def test_author_default_that_is_a_url_becomes_a_file(tmp_path: Path) -> None:
    fields = (
        InputField("image", PATH, required=False, has_default=True, default=PNG),
        InputField("local", PATH, required=False, has_default=True, default="/models/default.png"),
    )
    files = InputFiles(Signature(fields, OutputSpec(TEXT)), policy=UrlPolicy(), max_bytes=ALL_SMALL, timeout=40)
    assert files.needed({})
    assert files.check({}) == ()
    fetched = await files.fetch({}, lambda: tmp_path)
    assert content(fetched.pop("image")) == b"\x89PNG"
    assert fetched == {}  # the author's own file is the worker's affair


async def test_author_default_may_be_a_list_of_urls_and_own_files(tmp_path: Path) -> None:
    default = [PNG, "/models/default.png"]
    fields = (InputField("images", array(PATH), required=False, has_default=True, default=default),)
    files = InputFiles(Signature(fields, OutputSpec(TEXT)), policy=UrlPolicy(), max_bytes=ALL_SMALL, timeout=40)
    for _ in range(2):
        first, second = (await files.fetch({}, lambda: tmp_path))["images"]
        assert (content(first), second) == (b"\x89PNG", "/models/default.png")
    assert default == [PNG, "/models/default.png"]
    errors = files.check({"images": ["/etc/passwd"]})  # what an author may, a client may not
    assert [error.loc for error in errors] == [("body", "input", "images/0")]


async def test_folder_is_not_made_without_a_file() -> None:
    def folder() -> Path:
        raise AssertionError("no file, no folder")

    assert await input_files(f=TypeSpec("path", nullable=True)).fetch({"f": None}, folder) == {"f": None}


@pytest.mark.parametrize("size", [100, 1_000_000], ids=["on the loop", "in a thread"])
async def test_d12_nothing_is_left_when_one_file_is_malformed(tmp_path: Path, size: int) -> None:
    good = "data:;base64," + "AAAA" * size
    with pytest.raises(GeartrainError) as caught:
        await input_files(max_bytes=1 << 30, l=array(PATH)).fetch({"l": [good, good[:-1] + "!"]}, lambda: tmp_path)
    assert caught.value.fields[0].loc == ("body", "input", "l/1")
    assert listed(tmp_path) == []


async def test_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    files = input_files(max_bytes=1024, f=PATH)
    fetched = await files.fetch({"f": "data:," + "x" * 1024}, lambda: tmp_path)
    assert content(fetched["f"]) == b"x" * 1024
    with pytest.raises(DownloadError, match="larger than the limit of 1 KiB"):
        await files.fetch({"f": "data:," + "x" * 1025}, lambda: tmp_path)


async def test_files_together_above_ten_times_the_limit_are_refused(tmp_path: Path) -> None:
    files = input_files(max_bytes=1024, l=array(PATH))
    url = "data:," + "x" * 1000
    with pytest.raises(DownloadError, match=r'input "l/10": the files .* together larger than the limit of 10 KiB'):
        await files.fetch({"l": [url] * 11}, lambda: tmp_path)
    assert listed(tmp_path) == []


async def test_disk_that_takes_no_file_fails_the_prediction(tmp_path: Path) -> None:
    def folder() -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match="Cannot store the files of the input: No space left on device"):
        await input_files(f=PATH).fetch({"f": PNG}, folder)
    with pytest.raises(DownloadError, match="No such file or directory"):
        await input_files(f=PATH).fetch({"f": PNG}, lambda: tmp_path / "absent")


async def test_d12_cancel_while_decoding_leaves_nothing(tmp_path: Path) -> None:
    url = "data:;base64," + "AAAA" * 2_000_000
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def folder() -> Path:  # called in the thread that decodes
        loop.call_soon_threadsafe(begun.set)
        return tmp_path

    fetching = asyncio.create_task(input_files(max_bytes=1 << 30, f=PATH).fetch({"f": url}, folder))
    await begun.wait()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert listed(tmp_path) == []


@pytest.mark.parametrize("url", ["data:;base64," + "QUJD" * 1000, "data:," + "%41" * 3000])
async def test_data_url_beyond_the_limit_makes_no_file(url: str, tmp_path: Path) -> None:
    files = input_files(max_bytes=2000, f=PATH)
    made: list[Path] = []

    def folder() -> Path:
        made.append(tmp_path)
        return tmp_path

    with pytest.raises(DownloadError, match="larger than the limit"):
        await files.fetch({"f": url}, folder)
    assert (made, listed(tmp_path)) == ([], [])
