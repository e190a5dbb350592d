"""A script that was written for another server: a model that takes whole requests."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl

from geartrain.authoring.requests import Request
from geartrain.domain import multipart
from geartrain.domain.errors import GeartrainError
from geartrain.worker.errors import ClientError


class Place(NamedTuple):
    """The place of a script.

    Attributes:
        file: the script itself.
        folder: that of the model, which the script loads.
    """

    file: Path
    folder: Path


class Script:
    """A script of one contract; it is made when its module is imported, and its model is loaded by `setup()`."""

    file_name: ClassVar[str] = ""
    """The name of its file in the folder of a model."""
    reads_arguments: ClassVar[bool] = False
    """True if its options are arguments of the command line, which it may read when it is imported."""
    batching: Mapping[str, Any] | None = None
    """Settings of `@batched`, for one whose `run()` takes a list of requests."""
    max_concurrency: int | None = None
    """The number of requests that an async `run()` has at once."""

    health: Callable[[], Any] | None = None
    """The author's own check of health, which returns whether the model is well."""

    run: Callable[..., Any]
    """Answers one request, or a list of them."""

    @classmethod
    def find(cls, path: Path) -> Place:
        """Find the script in a folder, or beside its model; `path` is what the operator serves."""
        if path.is_dir():
            file = next(each for each in (path / "code" / cls.file_name, path / cls.file_name) if each.is_file())
            return Place(file, path)
        return Place(path, path.parent.parent if path.parent.name == "code" else path.parent)

    @classmethod
    def prepare(cls, _place: Place) -> None:
        """Set variables, and put modules in place, before the script is imported."""

    @classmethod
    def reference(cls, place: Place) -> tuple[str, Path]:
        """Return the file or the module to import, and the folder that comes first on `sys.path`."""
        return place.file.name, place.file.parent

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """`options` are the `parameters` of geartrain.yaml. Raises `ValueError` for a script that cannot be served."""
        self.module = module
        self.place = place
        self.options = options

    def share_calls(self) -> None:
        """Let requests share calls, as the configuration asks. Raises `ValueError` where this contract cannot."""
        if self.batching is None:
            raise ValueError("its requests do not share calls")

    def setup(self) -> Any:
        """Load the model; return an awaitable, if there is something to wait for."""


class FormFile:
    """A file in a form.

    Attributes:
        filename: as the client gave it.
        content_type: such as `image/png`; empty without one.
        body: its bytes.
    """

    def __init__(self, filename: str, content_type: str, body: bytes) -> None:
        self.filename = filename
        self.content_type = content_type
        self.body = body


def read_form(request: Request) -> dict[str, bytes | FormFile]:
    """Read the fields and the files of a `multipart/form-data`, the last of each name. Raises `ClientError`."""
    return dict(read_parts(request))


def read_parts(request: Request) -> list[tuple[str, bytes | FormFile]]:
    """Read the fields and the files of a `multipart/form-data` in their order. Raises `ClientError`."""
    try:
        found = multipart.read_parts(bytes(request.body), request.content_type)
    except GeartrainError as error:
        raise ClientError(str(error)) from None
    return [
        (head.name, FormFile(head.file_name, head.media_type, data) if head.is_file else data) for head, data in found
    ]


def read_fields(request: Request) -> dict[str, str]:
    """Read the fields of a form that is written like a query; of a name that comes several times, the last value."""
    return dict(parse_qsl(bytes(request.body).decode("utf-8", "replace"), keep_blank_values=True))


def leaves(classes: Iterable[type]) -> list[type]:
    """Return the classes that no other one of them is derived from."""
    found = list(dict.fromkeys(classes))
    bases = {base for each in found for base in each.__mro__[1:]}
    return [each for each in found if each not in bases]


def takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function has a parameter of this name."""
    return name in inspect.signature(function).parameters


def tell(text: str) -> None:
    """Write a line into the log of the model, or of its request."""
    sys.stderr.write(f"{text}\n")
