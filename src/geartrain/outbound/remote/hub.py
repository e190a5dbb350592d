"""Repositories of the Hugging Face Hub: what is in them by huggingface_hub, the files themselves over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from geartrain.domain.remote.reference import RemoteReference
from geartrain.outbound.concurrency import beside
from geartrain.outbound.remote.source import (
    Listing,
    MissingExtraError,
    RemoteError,
    RemoteFile,
    UnreachableError,
    checked,
    without_secrets,
)
from geartrain.outbound.remote.web import WebFiles

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TIMEOUT: Final = 30.0  # seconds
_NOT_FOR_MODELS: Final = frozenset({".gitattributes", ".gitignore"})
_NOT_FOR_DATA: Final = _NOT_FOR_MODELS | {"README.md"}  # which would be a row where files are the rows


class HubSource:
    """The files of a repository at one commit, or those below a path in it. See `Source`."""

    def __init__(self, reference: RemoteReference) -> None:
        try:
            from huggingface_hub import HfApi, get_token
        except ImportError:
            raise MissingExtraError(reference.shown, "huggingface_hub") from None
        self._reference = reference
        self._api: HfApi = HfApi()
        token = get_token()
        self._files = WebFiles(reference.shown, {"authorization": f"Bearer {token}"} if token else {})

    async def look(self) -> Listing:
        entries = await beside(lambda _abandoned: self._entries())
        path = self._reference.path
        single = [entry for entry in entries if entry.path == path]
        below = [entry for entry in entries if not path or entry.path.startswith(f"{path}/")]
        if single:
            return Listing(files=(single[0].as_file(self._reference.file_name),), is_single=True)
        files = [entry.as_file(entry.path[len(path) :].lstrip("/")) for entry in below]
        if not files:
            raise RemoteError(f"{self._reference.shown}: there is no such file or folder in the repository")
        return Listing(files=checked(files, self._reference.shown))

    def read(self, file: RemoteFile, start: int, end: int) -> AsyncGenerator[bytes, None]:
        return self._files.read(file, start, end)

    async def close(self) -> None:
        await self._files.close()

    def _entries(self) -> list[_Entry]:
        """Return all files of the repository at the commit that the revision means now. Blocks."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError

        reference, kind = self._reference, "dataset" if self._reference.dataset else "model"
        repository = reference.dataset or reference.place
        look = self._api.dataset_info if reference.dataset else self._api.model_info
        others = _NOT_FOR_DATA if reference.dataset else _NOT_FOR_MODELS
        try:
            info = look(repository, revision=reference.revision or None, files_metadata=True, timeout=_TIMEOUT)
        except HfHubHTTPError as error:
            raise self._translated(error) from error
        except Exception as error:  # those of its HTTP client, which differs between releases
            raise UnreachableError(f"{reference.shown}: {without_secrets(str(error))}") from error
        commit, endpoint = str(info.sha), self._api.endpoint
        return [
            _Entry(each, hf_hub_url(repository, each.rfilename, repo_type=kind, revision=commit, endpoint=endpoint))
            for each in info.siblings or ()
            if each.rfilename not in others
        ]

    def _translated(self, error: Any) -> RemoteError:
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

        shown = self._reference.shown
        if isinstance(error, GatedRepoError):
            return RemoteError(f"{shown}: the repository is gated; ask for access on its page, and set HF_TOKEN")
        if isinstance(error, RepositoryNotFoundError):
            return RemoteError(
                f"{shown}: there is no such repository, or it is private; check the name, or set HF_TOKEN"
            )
        if isinstance(error, RevisionNotFoundError):
            return RemoteError(f"{shown}: the repository has no revision {self._reference.revision!r}")
        status = getattr(error.response, "status_code", 0)
        kind = UnreachableError if status in {408, 429} or status >= 500 else RemoteError  # noqa: PLR2004
        return kind(f"{shown}: {without_secrets(str(error))}")


class _Entry:
    """A file of a repository, as the hub tells it."""

    def __init__(self, sibling: Any, url: str) -> None:
        self.path: str = sibling.rfilename
        self._url = url
        self._size = int(sibling.size or 0)
        self._sha256 = sibling.lfs.sha256 if sibling.lfs else ""
        self._etag = self._sha256 or str(sibling.blob_id or "")

    def as_file(self, path: str) -> RemoteFile:
        return RemoteFile(path=path, address=self._url, size=self._size, etag=self._etag, sha256=self._sha256)
