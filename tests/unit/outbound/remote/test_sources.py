"""Each kind of service, by the library that geartrain asks it with."""

from __future__ import annotations

import os

import pytest

from geartrain.domain.remote.progress import UNKNOWN_SIZE
from geartrain.domain.remote.reference import read_reference
from geartrain.outbound.remote.buckets import BucketSource
from geartrain.outbound.remote.source import (
    ChangedError,
    Listing,
    MissingExtraError,
    RemoteError,
    RemoteFile,
    Source,
    UnreachableError,
    checked,
    without_secrets,
)
from geartrain.outbound.remote.web import WebSource
from tests.support.cloud import COMMIT, Cloud

pytest.importorskip("obstore", reason="the extra `remote` is not installed")
pytest.importorskip("huggingface_hub", reason="the extra `remote` is not installed")

SECRET = "TOPSECRET"


def environment(cloud: Cloud) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "GOOGLE_BASE_URL": cloud.url,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ENDPOINT": cloud.url,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_SKIP_SIGNATURE": "true",
        "HF_TOKEN": SECRET,
    }


def source_of(text: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Source:
    for name, value in environment(cloud).items():
        monkeypatch.setenv(name, value)
    reference = read_reference(text)
    if reference.scheme in {"s3", "gs", "az"}:
        return BucketSource(reference)
    if reference.scheme == "hf":
        from huggingface_hub import HfApi

        from geartrain.outbound.remote.hub import HubSource

        source = HubSource(reference)
        source._api = HfApi(endpoint=cloud.url)  # HF_ENDPOINT is read when the library is imported
        return source
    return WebSource(reference)


async def content(source: Source, file: RemoteFile, start: int = 0, end: int | None = None) -> bytes:
    pieces = [bytes(piece) async for piece in source.read(file, start, file.size if end is None else end)]
    return b"".join(pieces)


def paths(listing: Listing) -> dict[str, int]:
    return {file.path: file.size for file in listing.files}


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_bucket_has_a_folder(scheme: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {
        "bucket/m/cats/run.py": b"class Runner: ...",
        "bucket/m/cats/w/a.bin": bytes(range(256)) * 40,
        "bucket/m/cats/w/": b"",  # what some tools write for a folder
        "bucket/m/cats2/run.py": b"another model",
    }
    source = source_of(f"{scheme}://bucket/m/cats", cloud, monkeypatch)
    listing = await source.look()
    assert paths(listing) == {"run.py": 17, "w/a.bin": 10240}
    assert not listing.is_single
    assert listing.tells_changes
    whole = cloud.files["bucket/m/cats/w/a.bin"]
    assert await content(source, listing.files[1]) == whole
    assert await content(source, listing.files[1], 100, 300) == whole[100:300]
    await source.close()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_bucket_has_a_file(scheme: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {"bucket/m/cats.onnx": b"onnx"}
    listing = await source_of(f"{scheme}://bucket/m/cats.onnx", cloud, monkeypatch).look()
    assert (paths(listing), listing.is_single) == ({"cats.onnx": 4}, True)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
async def test_bucket_without_the_model(scheme: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RemoteError, match=f"{scheme}://bucket/none: there is no such object, and none below it"
    ) as caught:
        await source_of(f"{scheme}://bucket/none", cloud, monkeypatch).look()
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize(
    ("scheme", "hint"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APP"), ("az", "AZURE_STORAGE")]
)
async def test_bucket_that_may_not_be_read(
    scheme: str, hint: str, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.statuses = [403] * 4
    with pytest.raises(RemoteError, match=f"access is denied; set {hint}") as caught:
        await source_of(f"{scheme}://bucket/m", cloud, monkeypatch).look()
    assert SECRET not in caught.value.message


async def test_environment_without_credentials(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("s3://bucket/m", cloud, monkeypatch)
    assert isinstance(source, BucketSource)
    said = source._api.exceptions.GenericError(
        "error performing PUT http://169.254.169.254/latest/api/token: timed out"
    )
    translated = source._translated(said)
    assert str(translated).startswith("s3://bucket/m: there are no credentials; set AWS_ACCESS_KEY_ID and")
    assert not isinstance(translated, UnreachableError)


async def test_object_that_has_changed(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {"bucket/m": b"first"}
    source = source_of("s3://bucket/m", cloud, monkeypatch)
    file = (await source.look()).files[0]
    cloud.files = {"bucket/m": b"other"}
    with pytest.raises(ChangedError, match="has changed during the download"):
        await content(source, file)


async def test_service_that_cannot_be_reached(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("s3://bucket/m", cloud, monkeypatch)
    cloud.statuses = [503] * 20
    with pytest.raises(UnreachableError, match=r"s3://bucket/m: .*503"):
        await source.look()


async def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'geartrain\[remote\]'"):
        BucketSource(read_reference("s3://bucket/m"))


async def test_missing_hub_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from geartrain.outbound.remote.hub import HubSource

    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"huggingface_hub is not installed.*'geartrain\[remote\]'"):
        HubSource(read_reference("hf://org/name"))


# the hub


async def test_repository_of_the_hub(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {
        "org/cats/run.py": b"class Runner: ...",
        "org/cats/w/a.bin": b"weights",
        "org/cats/.gitattributes": b"x",
    }
    source = source_of("hf://org/cats@v1", cloud, monkeypatch)
    listing = await source.look()
    assert paths(listing) == {"run.py": 17, "w/a.bin": 7}
    assert listing.files[1].sha256
    assert await content(source, listing.files[1], 2, 5) == b"igh"
    await source.close()
    bodies = [each for each in cloud.asked if "/resolve/" in each.path]
    assert COMMIT in bodies[0].path, "the files are those of one commit"
    assert bodies[0].authorization == f"Bearer {SECRET}"


async def test_folder_and_file_of_a_repository(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {"org/cats/onnx/model.onnx": b"onnx", "org/cats/README.md": b"read"}
    folder = await source_of("hf://org/cats/onnx", cloud, monkeypatch).look()
    file = await source_of("hf://org/cats/onnx/model.onnx", cloud, monkeypatch).look()
    assert (paths(folder), folder.is_single) == ({"model.onnx": 4}, False)
    assert (paths(file), file.is_single) == ({"model.onnx": 4}, True)
    with pytest.raises(RemoteError, match="no such file or folder in the repository"):
        await source_of("hf://org/cats/none", cloud, monkeypatch).look()


async def test_repository_of_data(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"data/a.jsonl": b"{}", ".gitattributes": b"x", "README.md": b"read"}
    cloud.files = {f"datasets/org/cats/{name}": content for name, content in data.items()}
    cloud.files["org/cats/run.py"] = b"of the model with the same name"
    source = source_of("hf://datasets/org/cats", cloud, monkeypatch)
    listing = await source.look()
    assert paths(listing) == {"data/a.jsonl": 2}
    assert await content(source, listing.files[0], 0, 2) == b"{}"
    await source.close()
    assert paths(await source_of("hf://org/cats", cloud, monkeypatch).look()) == {"run.py": 31}
    with pytest.raises(RemoteError, match=r"^hf://datasets/org/dogs: there is no such repository"):
        await source_of("hf://datasets/org/dogs", cloud, monkeypatch).look()


async def test_repository_that_is_not_there(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteError, match="no such repository, or it is private; check the name, or set HF_TOKEN"):
        await source_of("hf://org/cats", cloud, monkeypatch).look()
    cloud.files = {"org/cats/run.py": b""}
    with pytest.raises(RemoteError, match="the repository has no revision 'v9'"):
        await source_of("hf://org/cats@v9", cloud, monkeypatch).look()


# a web server


async def test_file_of_a_web_server(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {"a/m.onnx": b"0123456789"}
    source = source_of(f"{cloud.url}/a/m.onnx", cloud, monkeypatch)
    listing = await source.look()
    file = listing.files[0]
    assert (file.path, file.size, file.can_resume, listing.is_single) == ("m.onnx", 10, True, True)
    assert await content(source, file) == b"0123456789"
    assert await content(source, file, 3, 6) == b"345"
    cloud.files = {"a/m.onnx": b"9876543210"}
    with pytest.raises(ChangedError):
        await content(source, file, 3, 6)
    await source.close()


async def test_web_server_without_ranges(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.files = {"m.onnx": b"0123456789"}
    cloud.has_ranges = False
    source = source_of(f"{cloud.url}/m.onnx", cloud, monkeypatch)
    file = (await source.look()).files[0]
    assert (file.size, file.can_resume, bool(file.etag)) == (10, False, True)
    cloud.has_lengths = False
    file = (await source.look()).files[0]
    assert (file.size, file.can_resume) == (UNKNOWN_SIZE, False)
    assert await content(source, file) == b"0123456789"
    await source.close()


async def test_empty_file_of_a_web_server(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(f"{cloud.url}/m.onnx", cloud, monkeypatch)
    cloud.statuses = [416]
    file = (await source.look()).files[0]
    assert (file.size, await content(source, file)) == (0, b"")
    await source.close()


@pytest.mark.parametrize(
    ("status", "message", "may_be_tried_again"),
    [
        (404, r"no such file \(404\)", False),
        (403, r"access is denied \(403\)", False),
        (429, "answers 429", True),
        (500, "answers 500", True),
        (400, "answers 400", False),
    ],
)
async def test_answers_of_a_web_server(
    status: int, message: str, may_be_tried_again: bool, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(cloud.url.replace("://", f"://me:{SECRET}@") + f"/m.onnx?sig={SECRET}", cloud, monkeypatch)
    cloud.statuses = [status]
    with pytest.raises(RemoteError, match=message) as caught:
        await source.look()
    assert isinstance(caught.value, UnreachableError) == may_be_tried_again
    assert SECRET not in caught.value.message
    await source.close()


def test_no_secret_of_a_library_is_told() -> None:
    said = f"error for https://me:{SECRET}@host/a?sig={SECRET}&x=1 in 3 ms\n\nDebug source:\n{SECRET}"
    assert without_secrets(said) == "error for https://host/a in 3 ms"


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/a", "a//b", "a/./b", "a\\b", "a\0b"])
def test_names_that_could_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(RemoteError, match="no path that could be written"):
        checked([RemoteFile(path=path, address=path, size=1)], "s3://bucket")


def test_file_that_is_a_folder_is_refused() -> None:
    files = [RemoteFile(path=path, address=path, size=1) for path in ("a", "a/b")]
    with pytest.raises(RemoteError, match="'a' is a file and a folder at once"):
        checked(files, "s3://bucket")


def test_environment_is_not_left_behind() -> None:
    assert os.environ.get("AWS_SECRET_ACCESS_KEY") != SECRET
