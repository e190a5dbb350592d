"""Output files of `geartrain run`: `data:` URLs in an output become files, named after their place in it."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import pathlib
import re
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from geartrain.domain.signature.types import TypeSpec

_FILE_KINDS: Final = frozenset({"path", "file"})
# Types whose inside the signature does not tell: a data URL with base64 in it is taken for a file there.
_LOOSE_KINDS: Final = frozenset({"object", "opaque", "union"})
_LOOSE: Final = TypeSpec("opaque")
_PLAIN: Final = TypeSpec("string")
_EXTENSIONS: Final = {  # `mimetypes` has none for these, or an odd one
    "application/gzip": ".gz",
    "application/octet-stream": ".bin",
    "audio/wav": ".wav",
    "image/webp": ".webp",
    "text/markdown": ".md",
    "text/plain": ".txt",
}
_UNSAFE: Final = re.compile(r"[^\w-]+")


class OutputFileError(Exception):
    """An output could not be written to its file; the message names it."""


class SavedFile(str):
    """The name of a file that took the place of its URL in an output."""

    __slots__ = ()


class OutputFiles:
    """Saves the files of one prediction's output.

    The first file of a plain Path output is `target`, or `output.<ext>` in the current or the `target` folder. Files
    inside a list or an object are told apart by their place: `output.0.png`, `output.mask.png`.
    """

    def __init__(self, target: pathlib.Path | None) -> None:
        self._target = target
        self._used: set[pathlib.Path] = set()
        self._is_for_one = False

    def extract(self, value: Any, spec: TypeSpec, place: tuple[str, ...] = ()) -> Any:
        """Save every file in `value`, which is of type `spec`; return it with a `SavedFile` where each URL was.

        Raises OutputFileError when a file cannot be written.
        """
        return _replace_files(value, spec, place, save=self._save)

    def give_target_to_one(self, value: Any, spec: TypeSpec) -> bool:
        """If there is exactly one file in `value`, wherever, and `target` names a file, let it be that one."""
        places: list[tuple[str, ...]] = []
        _replace_files(value, spec, (), save=lambda _, place: places.append(place))
        self._is_for_one = len(places) == 1 and self._target is not None and not self._target.is_dir()
        return self._is_for_one

    def _save(self, url: str, place: tuple[str, ...]) -> SavedFile:
        media_type, content = _parse_data_url(url)
        path = self._path(media_type, place)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise OutputFileError(f"cannot write {path}: {error.strerror}") from None
        print(f"Written output to: {path}", file=sys.stderr)
        return SavedFile(path)

    def _path(self, media_type: str, place: tuple[str, ...]) -> pathlib.Path:
        if self._is_for_one and self._target is not None:
            return self._target
        extension = _EXTENSIONS.get(media_type) or mimetypes.guess_extension(media_type) or ".bin"
        number = "".join(f".{_UNSAFE.sub('_', part)}" for part in place)
        if self._target is None:
            path = pathlib.Path(f"output{number}{extension}")
        elif self._target.is_dir():
            path = self._target / f"output{number}{extension}"
        elif number:
            path = self._target.with_name(f"{self._target.stem}{number}{self._target.suffix or extension}")
        else:
            path = self._target
        while path in self._used:  # two names of an object that differ only in unsafe characters
            path = path.with_name(f"{path.stem}_{path.suffix}")
        self._used.add(path)
        return path


def _replace_files(
    value: Any, spec: TypeSpec, place: tuple[str, ...], *, save: Callable[[str, tuple[str, ...]], object]
) -> Any:
    """Return `value` with what `save(url, place)` gives in the place of every file's URL."""
    match value:
        case str() if _is_file(value, spec):
            return save(value, place)
        case list():
            items = spec.items or _LOOSE if spec.kind == "array" else _inside(spec)
            return [_replace_files(item, items, (*place, str(index)), save=save) for index, item in enumerate(value)]
        case dict():
            types = {field.name: field.type for field in spec.fields}
            return {
                name: _replace_files(item, types.get(name, _inside(spec)), (*place, name), save=save)
                for name, item in value.items()
            }
    return value


def _is_file(value: str, spec: TypeSpec) -> bool:
    if not value.startswith("data:"):
        return False
    return spec.kind in _FILE_KINDS or (spec.kind in _LOOSE_KINDS and ";base64" in value.partition(",")[0])


def _inside(spec: TypeSpec) -> TypeSpec:
    return _LOOSE if spec.kind in _LOOSE_KINDS else _PLAIN


def _parse_data_url(url: str) -> tuple[str, bytes]:
    header, _, payload = url.removeprefix("data:").partition(",")
    media_type = header.partition(";")[0].lower() or "text/plain"
    if not header.endswith(";base64"):
        return media_type, urllib.parse.unquote_to_bytes(payload)
    try:
        return media_type, base64.b64decode(payload, validate=True)
    except binascii.Error:
        raise OutputFileError(f"the model's {media_type} file came as broken base64") from None
