"""The types of inputs and outputs beside those of Python: files, secrets, structured values, iterators of text.

`URLFile` and `URLPath` fetch what a URL names when it is first needed: Cog has them, so a model may make them.
geartrain itself makes none: the server has fetched what a client sends before `run()` begins, and guards the addresses.
What a model fetches here is fetched by the model, wherever it leads.
"""

from __future__ import annotations

import io
import os
import pathlib
import posixpath
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, dataclass_transform, final

_SECONDS = 10.0  # of silence
_LONGEST_NAME = 200  # bytes
_BLOCK = 1 << 20


class Path(pathlib.PosixPath):
    """A file. As an input: the local path of what the client sent by URL. As an output: a file to send back."""

    __slots__ = ()

    @classmethod
    def validate(cls, value: Any) -> pathlib.Path:
        """Make a path of a text; a URL is fetched when `convert` of the result is called, as in Cog."""
        if isinstance(value, pathlib.Path):
            return value
        if value[:6].lower().startswith(("http:", "https:", "data:")):
            return url_path(value)
        return cls(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Let pydantic models have fields of this type: checked like any path, and made one of these."""
        make = {"type": "no-info", "function": cls}
        return {"type": "function-after", "function": make, "schema": handler(pathlib.Path)}


class File(io.IOBase):
    """The older form of `Path`, for annotations only: the runner gets a binary file, open for reading."""

    @classmethod
    def validate(cls, value: Any) -> io.IOBase:
        """Make an open file of a URL, as Cog does; an open file is returned. Raises ValueError."""
        if isinstance(value, io.IOBase):
            return value
        return open_url(value)


class URLFile(File):
    """A binary file behind an http(s) URL: requested with the first look into it. May be pickled."""

    def __init__(self, url: str, filename: str | None = None) -> None:
        """Take `url`; `filename` is the file's `name`, that of the URL if left out. Raises ValueError."""
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise ValueError(f"URLFile is for http: and https: URLs, and this is none: {url[:100]!r}")
        self.name = filename or posixpath.basename(parts.path)
        self._url = url
        self._response: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all that are left. Raises OSError: the URL cannot be fetched."""
        content: bytes = self._opened().read() if size < 0 else self._opened().read(size)
        return content

    def readline(self, size: int | None = -1) -> bytes:
        """Return one line."""
        line: bytes = self._opened().readline(-1 if size is None else size)
        return line

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._opened())

    def close(self) -> None:
        """Close the connection, if one has been made."""
        if self._response is not None:
            self._response.close()
        super().close()

    def __reduce__(self) -> tuple[type[URLFile], tuple[str, str]]:
        return type(self), (self._url, self.name)

    def __repr__(self) -> str:
        return f"<URLFile of {self._url!r}>"

    def _opened(self) -> Any:
        if self._response is None:
            from urllib.request import Request, urlopen

            agent = os.environ.get("COG_USER_AGENT")
            request = Request(self._url, headers={"User-Agent": agent} if agent else {})  # noqa: S310 - http(s), as checked
            self._response = urlopen(request, timeout=_SECONDS)  # noqa: S310 - as above
        return self._response


class URLPath(Path):
    """A path that stands for a URL until `convert` has fetched it; its text is the URL."""

    source: str
    filename: str
    fileobj: io.IOBase
    _local: Path | None

    def __new__(cls, *, source: str, filename: str, fileobj: io.IOBase) -> Self:  # noqa: ARG004, D102
        return super().__new__(cls, filename)

    def __init__(self, *, source: str, filename: str, fileobj: io.IOBase) -> None:
        """Take a URL, the name that the file shall end with, and what reads it."""
        if sys.version_info >= (3, 12):
            super().__init__(filename)
        self.source = source
        self.filename = filename
        self.fileobj = fileobj
        self._local = None

    def convert(self) -> Path:
        """Return the path of a temporary file with the content; it is fetched once. Raises OSError."""
        if self._local is None:
            import tempfile  # late: `import geartrain` stays cheap

            descriptor, name = tempfile.mkstemp(suffix=self.filename)
            with os.fdopen(descriptor, "wb") as file:
                while block := self.fileobj.read(_BLOCK):
                    file.write(block)
            self._local = Path(name)
        return self._local

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as of pathlib
        """Delete the temporary file, if there is one."""
        if self._local is not None:
            self._local.unlink(missing_ok=missing_ok)

    def with_segments(self, *segments: str | os.PathLike[str]) -> Path:
        """Make a plain path of what is derived from this one."""
        return Path(*segments)

    def __str__(self) -> str:
        return getattr(self, "source", None) or super().__str__()


def open_url(url: str) -> io.IOBase:
    """The content of a data: URL, or a `URLFile`. Raises ValueError for any other URL."""
    scheme = url.partition(":")[0].lower()
    if scheme == "data":
        from urllib.request import urlopen

        with urlopen(url) as content:  # noqa: S310 - its scheme has been looked at
            return io.BytesIO(content.read())
    if scheme in {"http", "https"}:
        return URLFile(url)
    raise ValueError(f"{url[:100]!r} is no http:, https: or data: URL")


def url_path(url: str) -> pathlib.Path:
    """The path that stands for an http:, https: or data: URL."""
    return URLPath(source=url, filename=get_filename(url), fileobj=open_url(url))


def get_filename(url: str) -> str:
    """The file name at the end of a URL, decoded; of a data: URL `file` with the extension of its media type."""
    from mimetypes import guess_extension
    from urllib.parse import unquote_plus, urlsplit

    if url[:5].lower() == "data:":
        media_type = url[5:].partition(",")[0].partition(";")[0] or "text/plain"
        return "file" + (guess_extension(media_type) or "")
    name = unquote_plus(posixpath.basename(urlsplit(url).path)).replace("/", "_").replace("\0", "_")
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    stem, extension = posixpath.splitext(name)
    kept = stem.encode()[: max(0, _LONGEST_NAME - len(extension.encode()) - 1)].decode(errors="ignore")
    return f"{kept}~{extension}"


MASK = "**********"


@final
class Secret:
    """A secret input. `str`, `repr` and formatting show a mask; `get_secret_value()` gives the text."""

    __slots__ = ("_value",)

    def __init__(self, secret_value: str | None = None) -> None:
        self._value = secret_value

    @property
    def secret_value(self) -> str | None:
        """The secret text."""
        return self._value

    def get_secret_value(self) -> str | None:
        """Return the secret text."""
        return self._value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Let pydantic models have fields of this type, made of a string."""
        make = {"type": "no-info", "function": cls}
        made = {"type": "function-after", "function": make, "schema": handler(str)}
        return {"type": "union", "choices": [{"type": "is-instance", "cls": cls}, made]}

    def __str__(self) -> str:
        return "" if self._value is None else MASK

    def __repr__(self) -> str:
        return f"Secret({self})"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._value))


@dataclass_transform()
class BaseModel:
    """Base of structured outputs and inputs. A subclass becomes a dataclass, its fields the fields of a JSON object.

    `class Result(BaseModel, auto_dataclass=False)` leaves the class alone, for an author who writes `@dataclass` or
    `__init__` by hand. Every other class keyword is one of `dataclasses.dataclass`.
    """

    __slots__ = ()

    def __init_subclass__(cls, *, auto_dataclass: bool = True, **settings: Any) -> None:
        super().__init_subclass__()
        if not auto_dataclass:
            if settings:
                raise TypeError(f"{cls.__name__}: {', '.join(settings)} only means something with auto_dataclass")
            return
        from dataclasses import dataclass

        dataclass(**settings)(cls)


if TYPE_CHECKING:
    ConcatenateIterator = Iterator
    AsyncConcatenateIterator = AsyncIterator
else:
    Item = TypeVar("Item")

    class ConcatenateIterator(Iterator[Item], Generic[Item]):
        """An iterator of strings whose reader joins them: tokens of a text, for example."""

    class AsyncConcatenateIterator(AsyncIterator[Item], Generic[Item]):
        """`ConcatenateIterator` for an async generator."""
