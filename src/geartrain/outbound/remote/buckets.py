"""Amazon S3, Google Cloud Storage and Azure Blob Storage, and what speaks as they do, by obstore."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from geartrain.domain.remote.reference import RemoteReference
from geartrain.outbound.remote.source import (
    MAX_FILES,
    ChangedError,
    Listing,
    MissingExtraError,
    RemoteError,
    RemoteFile,
    UnreachableError,
    checked,
    without_secrets,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CHUNK: Final = 1024**2  # bytes of a piece, at least
_STALLED: Final = timedelta(seconds=60)  # without a byte
_CONNECT: Final = timedelta(seconds=10)
_WHOLE: Final = timedelta(days=1)  # a part of a file over a slow line; obstore's own limit is 30 s

# The endpoints that the services' own tools read: one in clear text is only taken where the operator has written it.
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_STATUS: Final = re.compile(r"status code: (\d{3})")
_METADATA: Final = ("//169.254.169.254", "//metadata.google.internal")  # asked where the environment says nothing
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public one",
}


class BucketSource:
    """The objects of a bucket below a prefix. See `Source`."""

    def __init__(self, reference: RemoteReference, environ: Mapping[str, str] = os.environ) -> None:
        """`environ` has the credentials, under the names that the service's own tools read. Raises RemoteError."""
        try:
            import obstore
        except ImportError:
            raise MissingExtraError(reference.shown, "obstore") from None
        self._api = obstore
        self._reference = reference
        try:
            self._store = _open(reference, environ)
        except Exception as error:
            raise RemoteError(f"{reference.shown}: {without_secrets(str(error))}") from error

    async def look(self) -> Listing:
        reference, prefix = self._reference, self._reference.path
        found: list[RemoteFile] = []
        try:
            async for batch in self._api.list(self._store, prefix=prefix or None):
                found += [_file(meta, prefix) for meta in batch if not meta["path"].endswith("/")]
                if len(found) > MAX_FILES:
                    break
            found = [each for each in found if each.path]
            if found or not prefix:
                files = checked(found, reference.shown)
            else:
                meta: Mapping[str, Any] = await self._api.head_async(self._store, prefix)
                return Listing(files=(_file(meta, prefix, name=reference.file_name),), is_single=True)
        except Exception as error:
            raise self._translated(error) from error
        if not files:
            raise RemoteError(f"{reference.shown}: there is nothing in the bucket")
        return Listing(files=files)

    async def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if start >= end:
            return  # an empty file has no ranges
        try:
            options = {"range": (start, end), **({"if_match": file.etag} if file.etag else {})}
            result = await self._api.get_async(self._store, file.address, options=options)  # type: ignore[arg-type]
            async for piece in result.stream(min_chunk_size=_CHUNK):
                yield piece
        except Exception as error:
            raise self._translated(error) from error

    async def close(self) -> None:
        """Nothing is to be closed."""

    def _translated(self, error: Exception) -> Exception:
        """Return an error of obstore as one of ours."""
        if isinstance(error, RemoteError):
            return error
        kinds = self._api.exceptions
        shown, said = self._reference.shown, without_secrets(str(error))
        if isinstance(error, FileNotFoundError):
            return RemoteError(f"{shown}: there is no such object, and none below it; check the name")
        found = _STATUS.search(said)  # the errors of a listing have no class of their own
        status = int(found[1]) if found else 0
        hint = _CREDENTIALS[self._reference.scheme]
        if any(address in said for address in _METADATA):
            return RemoteError(f"{shown}: there are no credentials; set {hint}")
        is_denied = isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError)
        if is_denied or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return RemoteError(f"{shown}: access is denied; set {hint} ({said})")
        if isinstance(error, kinds.PreconditionError):
            return ChangedError(f"{shown}: it has changed during the download")
        if status == HTTPStatus.NOT_FOUND:
            return RemoteError(f"{shown}: there is no bucket {self._reference.place!r}; check the name and the region")
        if not status or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            return UnreachableError(f"{shown}: {said}")
        return RemoteError(f"{shown}: {said}")


def _file(meta: Mapping[str, Any], prefix: str, *, name: str = "") -> RemoteFile:
    """Return an object as a file below a prefix; `name`: the object is the reference itself."""
    key: str = meta["path"]
    path = name or key.removeprefix(prefix).lstrip("/")
    return RemoteFile(path=path, address=key, size=meta["size"], etag=meta["e_tag"] or "")


def _open(reference: RemoteReference, environ: Mapping[str, str]) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    endpoint = _endpoint(reference.scheme, environ)
    emulated = environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in {"1", "true"}
    options: dict[str, Any] = {
        "client_options": {
            "allow_http": endpoint.startswith("http://") or emulated,
            "connect_timeout": _CONNECT,
            "read_timeout": _STALLED,
            "timeout": _WHOLE,
        },
        # Tries of our own follow, which go on where a download has been broken off.
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
    }
    if reference.scheme == "s3":
        return S3Store(reference.place, config={"endpoint": endpoint} if endpoint else None, **options)
    if reference.scheme == "gs":
        return GCSStore(reference.place, config={"base_url": endpoint} if endpoint else None, **options)
    return AzureStore(reference.place, config={"endpoint": endpoint} if endpoint else None, **options)


def _endpoint(scheme: str, environ: Mapping[str, str]) -> str:
    found = next((environ[name].strip() for name in _ENDPOINTS[scheme] if environ.get(name, "").strip()), "")
    return found if not found or "://" in found else f"http://{found}"  # see STORAGE_EMULATOR_HOST
