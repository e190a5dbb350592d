"""References of models, weights and data sets elsewhere: `s3://bucket/prefix`, `hf://org/name@revision`. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import msgspec

BUCKETS: Final = ("s3", "gs", "az")
SCHEMES: Final = (*BUCKETS, "hf", "https", "http")
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHECKSUM: Final = re.compile(r"#sha256=([0-9A-Fa-f]{64})")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?")
_DATASETS: Final = "datasets/"  # before the name of a repository of data on the hub, as the hub itself writes it
_EXAMPLES: Final = (
    "s3://bucket/model, gs://bucket/model, az://container/model, hf://org/name or https://host/model.tar.gz"
)
# Parameters of a URL that prove a right and say nothing of the file: they differ each time that a URL is signed.
_SIGNING: Final = frozenset(
    {"awsaccesskeyid", "expires", "googleaccessid", "key-pair-id", "policy", "signature", "token"}
    | {"se", "sig", "skoid", "sks", "skt", "ske", "sktid", "skv", "sp", "spr", "sr", "st", "sv"}
)
_SIGNING_PREFIXES: Final = ("x-amz-", "x-goog-")


class RemoteReference(msgspec.Struct, frozen=True, kw_only=True):
    """A model, weights, a data set, or a single file that lies elsewhere.

    `place` is the bucket, the container, the repository on the hub, or the host of a URL. A repository of data has
    `datasets/` before its name. `path` is what follows it,
    without slashes at its ends. `url` is the whole URL of a web server, with what it is signed with: it must not be
    shown. `revision` is that of a repository on the hub. `sha256` is what a single file must have, "" for anything.
    """

    scheme: str
    place: str
    path: str = ""
    url: str = ""
    revision: str = ""
    sha256: str = ""

    @property
    def shown(self) -> str:
        """The reference for logs and errors, without user, password and query."""
        revision = f"@{self.revision}" if self.revision else ""
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{self.place}{revision}{path}"

    @property
    def file_name(self) -> str:
        """The last part of the path, or of the place where there is no path."""
        last = (self.path or self.place).rpartition("/")[2]
        last = unquote(last) if self.url else last
        return "model" if last in {"", ".", ".."} or "/" in last or not last.isprintable() else last

    @property
    def name(self) -> str:
        """The name of the model: the last part of the path, without the ending of an archive."""
        name = self.file_name
        suffix = archive_suffix(name)
        return name[: len(name) - len(suffix)] or "model"

    @property
    def dataset(self) -> str:
        """The repository of data on the hub, without `datasets/`; "" for anything else."""
        is_data = self.scheme == "hf" and self.place.startswith(_DATASETS)
        return self.place.removeprefix(_DATASETS) if is_data else ""

    @property
    def is_pinned(self) -> bool:
        """True if what it names never changes: a commit on the hub."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def key(self) -> str:
        """Name in a cache: the same for each signature of one URL. Letters and digits."""
        parts = (self.scheme, self.place, self.path, self.revision, _lasting_query(self.url))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def is_remote(text: str) -> bool:
    """True if a text is meant as the reference of something that lies elsewhere."""
    return _SCHEME.match(text) is not None


def archive_suffix(name: str) -> str:
    """Return the ending that makes a file an archive, as it is written; "" if it is none."""
    lower = name.lower()
    return next((name[-len(suffix) :] for suffix in ARCHIVES if lower.endswith(suffix)), "")


def read_reference(text: str) -> RemoteReference:
    """Read a reference; raises ValueError with a sentence that says what to write. The sentence has no secrets."""
    matched = _SCHEME.match(text)
    scheme = matched[1].lower() if matched else ""
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// cannot be fetched; write a reference such as {_EXAMPLES}")
    if not text.isprintable() or " " in text:
        raise ValueError(
            f"a {scheme}:// reference has a space or an unprintable character; write them as %20 and so on"
        )
    checksum = _CHECKSUM.search(text)
    if checksum is not None and checksum.end() == len(text):
        text = text[: checksum.start()]
    sha256 = "" if checksum is None else checksum[1].lower()
    if scheme in {"https", "http"}:
        return _read_url(text, scheme, sha256)
    place, _, path = text[len(scheme) + 3 :].partition("/")
    if scheme == "hf":
        return _read_hub(f"{place}/{path}", sha256)
    if not _BUCKET.fullmatch(place):
        raise ValueError(f"{scheme}://{place}: this is no name of a bucket; write {scheme}://bucket/path")
    return RemoteReference(scheme=scheme, place=place, path=_checked(path, f"{scheme}://{place}"), sha256=sha256)


def _read_url(text: str, scheme: str, sha256: str) -> RemoteReference:
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise ValueError(f"a {scheme}:// reference is no URL; write {scheme}://host/model.tar.gz") from None
    path = url.path.strip("/")
    if not host or not path:
        raise ValueError(f"{scheme}://{host}: a file is missing; write {scheme}://{host or 'host'}/model.tar.gz")
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    if scheme == "http" and not sha256 and not _is_loopback(host):
        raise ValueError(
            f"http://{place}/{path}: anybody on the way could change it; write https://, "
            "or add the checksum that it must have: #sha256=…"
        )
    return RemoteReference(scheme=scheme, place=place, path=path, url=_without_fragment(url), sha256=sha256)


def _without_fragment(url: SplitResult) -> str:
    return url._replace(fragment="").geturl()


def _is_loopback(host: str) -> bool:
    import ipaddress  # late: it is for plain HTTP alone

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_hub(text: str, sha256: str) -> RemoteReference:
    """Read `[datasets/]org/name[@revision][/path]`. A revision with a slash is written with %2F."""
    text = text.strip("/")
    kind = _DATASETS if text.startswith(_DATASETS) else ""
    repository, at, rest = text.removeprefix(kind).partition("@")
    revision, _, path = rest.partition("/")
    if not at:
        owner, _, others = repository.partition("/")
        name, _, path = others.partition("/")
        repository = f"{owner}/{name}" if name else owner
    revision = unquote(revision)
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or (at and not revision):
        raise ValueError(
            f"hf://{text}: this is no repository; write hf://{kind}org/name or hf://{kind}org/name@revision"
        )
    place = f"{kind}{repository}"
    path = _checked(path, f"hf://{place}")
    return RemoteReference(scheme="hf", place=place, path=path, revision=revision, sha256=sha256)


def _checked(path: str, place: str) -> str:
    path = path.strip("/")
    if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"{place}/{path}: a part of the path is empty, `.` or `..`; write the path without it")
    return path


def _lasting_query(url: str) -> str:
    """Return the query of a URL without what it is signed with."""
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    return urlencode([(name, value) for name, value in pairs if not _is_signing(name.lower())])


def _is_signing(name: str) -> bool:
    return name in _SIGNING or name.startswith(_SIGNING_PREFIXES)
