"""The files of a prediction's input: from URLs to local files, in a folder of the prediction's own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from geartrain.domain.errors import Code, FieldError, GeartrainError
from geartrain.outbound.concurrency import for_each, off_loop
from geartrain.outbound.data_urls import DataUrlError, split_data_url
from geartrain.outbound.files import Allowance, DownloadError, clip_text, name_from_url, shown_url
from geartrain.outbound.policy import http_fault
from geartrain.outbound.references import FilePlace, FileReferences

if TYPE_CHECKING:
    import httpx

    from geartrain.domain.signature.types import Signature
    from geartrain.outbound.policy import UrlPolicy

__all__ = ["DownloadError", "InputFiles"]

_AT_ONCE = 8  # downloads of one prediction
_MOST_FILES = 10_000  # of one prediction: a body of empty data: URLs must not use up the file system's inodes
_SMALL = 1 << 18  # characters of a data: URL decoded and written within a fraction of a millisecond
_LONGEST_SHOWN = 100  # characters of a value in a sentence
_MAX_DIGESTED = 1 << 30  # bytes of the files of one prediction: about a second in a thread
_DIGESTED_AT_ONCE = 2  # predictions of a model, so that other work finds a thread
_BLOCK = 1 << 20  # bytes read at a time
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_WANTED = "send an http:, https: or data: URL"


class InputFiles:
    """Replaces the values of path and file parameters, which are URLs, by paths of local files.

    One object serves all predictions of a signature. `max_bytes` limits every file after decoding, and ten times that
    all files of one prediction; `timeout` is the longest silence of a server in seconds. `on_bytes` is told, for each
    download, the place of its value in the input, the bytes that have come, and of how many, if that is known.

    With `root`, for inputs that are the operator's own, a value that is no URL is the path of a file, relative to that
    folder; the model gets the file itself.
    """

    def __init__(
        self,
        signature: Signature,
        *,
        policy: UrlPolicy,
        max_bytes: int,
        timeout: float,
        user_agent: str | None = None,
        on_bytes: Callable[[str, int, int | None], None] | None = None,
        root: Path | None = None,
    ) -> None:
        self._root = root
        self._references = FileReferences(signature)
        self._policy = policy
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._user_agent = user_agent or "geartrain"
        self._on_bytes = on_bytes
        self._tls: ssl.SSLContext | None = None
        self._gate = asyncio.Semaphore(_DIGESTED_AT_ONCE)

    def needed(self, values: dict[str, Any]) -> bool:
        """True if an input may hold files; a look-up or two."""
        return self._references.any_in(values)

    def check(self, values: dict[str, Any]) -> tuple[FieldError, ...]:
        """Everything that is wrong with the URLs of an input and can be told without fetching them.

        A path or file value must be an http:, https: or data: URL: a bare path would let a client read the server's
        files. Takes 0.15 ms for each MiB of base64; that of a file which is too large is left to `fetch`, which refuses
        it by its length.
        """
        local, places = self._split(self._references.find(values)[1])
        missing = [_field_error(place, f"there is no file {path}") for place, path in local if not path.is_file()]
        return (*missing, *field_errors(places, largest=self._max_bytes))

    async def fetch(self, values: dict[str, Any], folder: Callable[[], Path]) -> dict[str, Any]:
        """The input with every file decoded or downloaded, and its value replaced by the file's absolute path.

        `folder` is called when the first file is made. If anything fails, or the caller is cancelled, the downloads
        have stopped and no file of this call is left when it raises.

        Raises GeartrainError: INVALID_INPUT: what `check` reports.
        Raises DownloadError: a URL that is well-formed could not be fetched, or is refused, or too large.
        """
        copied, found = self._references.find(values)
        local, places = self._split(found)
        for place, own in local:
            place.put(str(own))
        errors = field_errors(places)
        if errors:
            raise _invalid(errors)
        job = _Fetch(folder, Allowance(self._max_bytes), self._on_bytes)
        try:
            for place in places:
                if _scheme(place.url) == "data":
                    await job.decode(place)
            remote = [place for place in places if _scheme(place.url) != "data"]
            if remote:
                async with await self._client() as client:
                    await for_each(remote, lambda place: job.download(place, client), at_once=_AT_ONCE)
        except OSError as error:
            await off_loop(job.remove)
            raise DownloadError(f"Cannot store the files of the input: {error.strerror or error}") from error
        except BaseException:
            await off_loop(job.remove)
            raise
        for place, path in job.done:
            place.put(path)
        return copied

    async def digests(self, folder: Path) -> dict[str, str] | None:
        """Return extension and digest of each file in `folder` by its path.

        None if they have more than 1 GiB together, or cannot be read.
        """
        async with self._gate:
            try:
                return await off_loop(_digests, folder)
            except OSError:
                return None

    def _split(self, places: list[FilePlace]) -> tuple[list[tuple[FilePlace, Path]], list[FilePlace]]:
        """Tell the operator's own files, which are paths below `root`, from those that have to be fetched."""
        if self._root is None:
            return [], places
        local = [(place, self._root / place.url) for place in places if not _scheme(place.url)]
        return local, [place for place in places if _scheme(place.url)]

    async def _client(self) -> httpx.AsyncClient:
        if self._tls is None:
            self._tls = await off_loop(_tls_context)
        from geartrain.outbound.network import open_download_client  # late: it imports httpx, as do the next two

        return open_download_client(self._policy, tls=self._tls, timeout=self._timeout, user_agent=self._user_agent)


class _Fetch:
    """The files of one call of `fetch`."""

    def __init__(
        self, folder: Callable[[], Path], allowance: Allowance, on_bytes: Callable[[str, int, int | None], None] | None
    ) -> None:
        self._folder = folder
        self._allowance = allowance
        self._on_bytes = on_bytes
        self._made: list[str] = []
        self.done: list[tuple[FilePlace, str]] = []

    async def decode(self, place: FilePlace) -> None:
        try:
            if len(place.url) <= _SMALL:
                self._decode(place)
            else:
                await off_loop(self._decode, place)
        except DataUrlError as error:
            raise _invalid((_field_error(place, f"the data: URL {error}"),)) from error
        except DownloadError as error:
            raise DownloadError(f'Cannot use the data: URL of the input "{place.place}": {error}') from error

    async def download(self, place: FilePlace, client: httpx.AsyncClient) -> None:
        from geartrain.outbound.downloads import download

        on_bytes = None if self._on_bytes is None else partial(self._on_bytes, place.place)
        with self._new_file(place, name_from_url(place.url)) as file:
            try:
                await download(client, place.url, file, allowance=self._allowance, on_bytes=on_bytes)
            except DownloadError as error:
                what = f'{shown_url(place.url)} for the input "{place.place}"'
                raise DownloadError(f"Cannot fetch {what}: {error}") from error

    def remove(self) -> None:
        for path in self._made:
            with suppress(OSError):
                Path(path).unlink()

    def _decode(self, place: FilePlace) -> None:
        url = split_data_url(place.url)
        if url.exceeds(self._allowance.each):
            raise self._allowance.too_large()
        url = url.checked()
        size = 0
        with self._new_file(place, url.name) as file:
            for piece in url.pieces():
                size = self._allowance.take(size, len(piece))
                file.write(piece)

    def _new_file(self, place: FilePlace, name: str) -> BinaryIO:
        """A new file that only this user may read, named `tmp<random><name>`."""
        descriptor, path = tempfile.mkstemp(suffix=name, dir=self._folder().absolute())
        self._made.append(path)
        self.done.append((place, path))
        return os.fdopen(descriptor, "wb")


def _digests(folder: Path) -> dict[str, str] | None:
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries]
    if sum(Path(path).stat().st_size for path in paths) > _MAX_DIGESTED:
        return None
    return {path: _digest(path) for path in paths}


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with Path(path).open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{digest.hexdigest()}{Path(path).suffix}"


def _tls_context() -> ssl.SSLContext:
    from geartrain.outbound.connection import tls_context

    return tls_context()


def field_errors(places: list[FilePlace], *, largest: int = 0) -> tuple[FieldError, ...]:
    """Faults in the URLs of files that can be told without fetching them; see `InputFiles.check`.

    The payloads of `data:` URLs are looked at up to `largest` bytes.
    """
    if len(places) > _MOST_FILES:
        return (_field_error(places[_MOST_FILES], f"a prediction takes at most {_MOST_FILES} files"),)
    found = ((place, _fault(place.url, largest=largest)) for place in places)
    return tuple(_field_error(place, fault) for place, fault in found if fault is not None)


def _field_error(place: FilePlace, message: str) -> FieldError:
    return FieldError(("body", "input", place.place), message, "value_error.url")


def _invalid(errors: tuple[FieldError, ...]) -> GeartrainError:
    sentences = "; ".join(f"{error.loc[-1]}: {error.msg}" for error in errors)
    return GeartrainError(Code.INVALID_INPUT, sentences, fields=errors)


def _fault(url: str, *, largest: int) -> str | None:
    """Return the fault of a URL's text, None if it is good."""
    scheme = _scheme(url)
    if scheme == "data":
        try:
            data_url = split_data_url(url)
            if largest and not data_url.exceeds(largest):
                data_url.checked()
        except DataUrlError as error:
            return f"the data: URL {error}"
        return None
    if scheme in {"http", "https"}:
        return http_fault(url)
    shown = clip_text(url, _LONGEST_SHOWN)
    if scheme:
        return f'"{shown}" is a {scheme}: URL, which is not accepted; {_WANTED}'
    return f'"{shown}" is not a URL; {_WANTED}'


def _scheme(url: str) -> str:
    """The scheme in lower case; empty if the text has none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""
