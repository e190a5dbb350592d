from __future__ import annotations

import pytest

from geartrain.domain.remote.reference import RemoteReference, archive_suffix, is_remote, read_reference

SUM = "ab" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", RemoteReference(scheme="s3", place="bucket")),
        ("s3://bucket/models/cats/", RemoteReference(scheme="s3", place="bucket", path="models/cats")),
        ("S3://bucket/a b".replace(" ", "_"), RemoteReference(scheme="s3", place="bucket", path="a_b")),
        ("gs://my.bucket/m", RemoteReference(scheme="gs", place="my.bucket", path="m")),
        ("az://container/m", RemoteReference(scheme="az", place="container", path="m")),
        ("hf://org/name", RemoteReference(scheme="hf", place="org/name")),
        (
            "hf://datasets/org/name@v1/a/b.parquet",
            RemoteReference(scheme="hf", place="datasets/org/name", revision="v1", path="a/b.parquet"),
        ),
        ("hf://datasets/org/name/a", RemoteReference(scheme="hf", place="datasets/org/name", path="a")),
        ("hf://gpt2", RemoteReference(scheme="hf", place="gpt2")),
        ("hf://org/name@v1", RemoteReference(scheme="hf", place="org/name", revision="v1")),
        (
            "hf://org/name@refs%2Fpr%2F1/sub",
            RemoteReference(scheme="hf", place="org/name", revision="refs/pr/1", path="sub"),
        ),
        ("hf://org/name/onnx/model.onnx", RemoteReference(scheme="hf", place="org/name", path="onnx/model.onnx")),
        (f"s3://bucket/m.tar#sha256={SUM}", RemoteReference(scheme="s3", place="bucket", path="m.tar", sha256=SUM)),
        (
            "https://me:secret@host:8443/a/m.tar.gz?sig=x#top",
            RemoteReference(
                scheme="https",
                place="host:8443",
                path="a/m.tar.gz",
                url="https://me:secret@host:8443/a/m.tar.gz?sig=x",
            ),
        ),
        (
            "http://127.0.0.1:1/m.onnx",
            RemoteReference(scheme="http", place="127.0.0.1:1", path="m.onnx", url="http://127.0.0.1:1/m.onnx"),
        ),
    ],
)
def test_reference_is_read(text: str, expected: RemoteReference) -> None:
    assert is_remote(text)
    assert read_reference(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oci://host/model", r"oci:// cannot be fetched; write a reference such as s3://"),
        ("file:///etc/passwd", r"file:// cannot be fetched"),
        ("s3://", r"no name of a bucket; write s3://bucket/path"),
        ("s3://bucket/a/../b", r"a part of the path is empty, `\.` or `\.\.`"),
        ("s3://bucket/a b", r"a space or an unprintable character"),
        ("s3://me:secret@bucket/a", r"no name of a bucket"),
        ("hf://org", ""),
        ("hf://org/name@", r"no repository; write hf://org/name"),
        ("hf://org/na$me", r"no repository"),
        ("hf://datasets/org/name@", r"no repository; write hf://datasets/org/name or hf://datasets/org/name@revision"),
        ("hf://../name", r"no repository"),
        ("https://host", r"a file is missing; write https://host/model\.tar\.gz"),
        ("https://host:port/x", r"is no URL"),
        ("http://example.com/m.tar", r"anybody on the way could change it; write https://"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    if not message:
        assert read_reference(text).place == "org"
        return
    with pytest.raises(ValueError, match=message) as caught:
        read_reference(text)
    assert "secret" not in str(caught.value).replace("me:secret@bucket", "")


def test_plain_http_is_read_with_a_checksum() -> None:
    assert read_reference(f"http://example.com/m.tar#sha256={SUM.upper()}").sha256 == SUM


@pytest.mark.parametrize("text", ["model", "run.py:Runner", "./s3:/x", "/models/a", "C:model", "package.module:name"])
def test_what_is_here_is_not_elsewhere(text: str) -> None:
    assert not is_remote(text)


@pytest.mark.parametrize(
    ("text", "name", "shown"),
    [
        ("s3://bucket", "bucket", "s3://bucket"),
        ("s3://bucket/a/cats.tar.gz", "cats", "s3://bucket/a/cats.tar.gz"),
        ("hf://org/cats@v1/sub", "sub", "hf://org/cats@v1/sub"),
        ("hf://org/cats", "cats", "hf://org/cats"),
        ("https://me:secret@host/a/cats%20b.TGZ?token=secret", "cats b", "https://host/a/cats%20b.TGZ"),
        ("https://host/.tar", "model", "https://host/.tar"),
        ("https://host/a%2F..%2Fb", "model", "https://host/a%2F..%2Fb"),
    ],
)
def test_name_and_what_is_shown(text: str, name: str, shown: str) -> None:
    reference = read_reference(text)
    assert (reference.name, reference.shown) == (name, shown)


def test_key_is_the_same_for_each_signature_of_a_url() -> None:
    first, second, other = (
        read_reference(f"https://host/m.tar?{query}").key
        for query in ("X-Amz-Signature=1&file=a&X-Amz-Date=2", "X-Amz-Signature=3&file=a", "file=b")
    )
    assert first == second != other


def test_only_a_commit_is_pinned() -> None:
    assert read_reference(f"hf://org/name@{COMMIT}").is_pinned
    assert not read_reference("hf://org/name@main").is_pinned


def test_endings_of_archives() -> None:
    names = ("m.tar", "m.TAR.GZ", "m.tgz", "m.tar.zst", "m.zip", "tar")
    assert [archive_suffix(name) for name in names] == [".tar", ".TAR.GZ", ".tgz", ".tar.zst", "", ""]
