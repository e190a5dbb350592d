"""Output of a prediction for a person, on stdout or in a file, as it comes.

Text comes out as it is, objects and lists as indented JSON, files as files. Spec: observed section 25.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import mimetypes
import pathlib
import re
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from geartrain.cli.logs import is_terminal
from geartrain.domain.signature.types import FILE_KINDS, OutputSpec, TypeSpec

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
    return spec.kind in FILE_KINDS or (spec.kind in _LOOSE_KINDS and ";base64" in value.partition(",")[0])


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


_LONGEST_NUMBERS: Final = 24  # numbers of a list that is shown whole on a terminal
_SHOWN_NUMBERS: Final = 4
_MARK: Final = "\ue000"  # of private use, beside the number of a folded list
_FOLDED: Final = re.compile(f'"{_MARK}(\\d+){_MARK}"')


class AnswerWriter:
    """Writes the output of one prediction; `target` is the `-o` of the command line.

    Each method may raise OutputFileError, and BrokenPipeError when stdout is closed.
    """

    def __init__(
        self,
        spec: OutputSpec,
        target: pathlib.Path | None,
        *,
        before_text: Callable[[], None] = lambda: None,
        file_first: bool = False,
    ) -> None:
        """`before_text` is called before anything is written to stdout.

        With `file_first` the one file in an object takes the name `target`, and the rest of the object goes to stdout.
        """
        self._spec = spec
        self._files = OutputFiles(target)
        self._before_text = before_text
        self._file_first = file_first
        name = "output.txt" if spec.type.kind == "string" else "output.json"
        self._text = _TextSink(target, name, before_text)
        self._chunks = 0
        self._is_empty = True

    def add_chunk(self, chunk: bytes) -> None:
        """Write one chunk (JSON text) of a model that streams; the one value of any other waits for `finish`."""
        if self._spec.mode == "value":
            return
        value = self._files.extract(arranged(json.loads(chunk), self._spec.type), self._spec.type, (str(self._chunks),))
        self._chunks += 1
        self._is_empty = False
        if isinstance(value, SavedFile):
            return
        text = value if isinstance(value, str) else self._shown(value)
        self._text.write(text if self._spec.mode == "concatenate" and isinstance(value, str) else f"{text}\n")

    def finish(self, output: bytes | None) -> None:
        """Write the whole output (JSON text, None for none) if it was not streamed, and say where it went."""
        if self._spec.mode == "value" and output is not None:
            self._add_value(arranged(json.loads(output), self._spec.type))
        self.close()
        if self._is_empty:
            print("No output generated", file=sys.stderr)

    def close(self) -> None:
        """End the text that was written, be it whole or not."""
        self._text.close()

    def _add_value(self, value: Any) -> None:
        if value is None:
            return
        self._is_empty = False
        spec = self._spec.type
        if self._file_first and isinstance(value, dict) and self._files.give_target_to_one(value, spec):
            self._text = _TextSink(None, "", self._before_text)
            whole = self._files.extract(value, spec)
            value = {name: item for name, item in whole.items() if not isinstance(item, SavedFile)}
            if not value:
                return
        else:
            value = self._files.extract(value, spec)
        if isinstance(value, str):
            if not isinstance(value, SavedFile):
                self._text.write(value)
        elif not (isinstance(value, list) and value and all(isinstance(item, SavedFile) for item in value)):
            self._text.write(f"{self._shown(value)}\n")

    def _shown(self, value: Any) -> str:
        """Return the text of a value: all of it, unless a person reads it on a terminal."""
        return folded(value) if self._text.is_terminal else _indented(value)


def arranged(value: Any, spec: TypeSpec | None) -> Any:
    """Return a value whose members are in the order of its type, which is the author's: a worker sends them sorted."""
    if spec is None:
        return value
    if isinstance(value, list) and spec.kind == "array":
        return [arranged(each, spec.items) for each in value]
    if not isinstance(value, dict) or spec.kind not in {"record", "object"}:
        return value
    types = {field.name: field.type for field in spec.fields}
    names = dict.fromkeys((*(name for name in types if name in value), *value))
    return {name: arranged(value[name], types.get(name, spec.values)) for name in names}


def write_json(answer: dict[str, Any], spec: OutputSpec, target: pathlib.Path | None) -> None:
    """Write a whole answer as one indented JSON object; raises as `AnswerWriter` does."""
    kind = spec.type if spec.mode == "value" else TypeSpec("array", items=spec.type)
    answer = {**answer, "output": arranged(answer["output"], kind)}
    sink = _TextSink(target, "output.json")
    sink.write(f"{_indented(answer)}\n")
    sink.close()


class _TextSink:
    """Text to `target`, created with the first text; without one to stdout, where it ends with a line end."""

    def __init__(
        self, target: pathlib.Path | None, name_in_folder: str, before_text: Callable[[], None] = lambda: None
    ) -> None:
        self._path = target / name_in_folder if target is not None and target.is_dir() else target
        self._stack = contextlib.ExitStack()
        self._stream = None if target is not None else sys.stdout
        self._before_text = before_text
        self._is_mid_line = False

    @property
    def is_terminal(self) -> bool:
        """True if the text is written to a terminal."""
        return self._path is None and is_terminal(sys.stdout)

    def write(self, text: str) -> None:
        if self._path is None:
            self._before_text()
        try:
            if self._stream is None and self._path is not None:
                self._stream = self._stack.enter_context(self._path.open("w", encoding="utf-8", newline=""))
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFileError(f"cannot write {self._path or 'to stdout'}: {error.strerror}") from None
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line

    def close(self) -> None:
        if self._path is None:
            if self._is_mid_line:
                self.write("\n")
        elif self._stream is not None:
            self._stack.close()
            print(f"Written output to: {self._path}", file=sys.stderr)


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def folded(value: Any) -> str:
    """Return a value as indented JSON in which long lists of numbers are their first values and their shape."""
    lines: list[str] = []

    def fold(part: Any) -> Any:
        shape = _shape(part)
        if shape and math.prod(shape) > _LONGEST_NUMBERS:
            lines.append(_first_numbers(part, shape))
            return f"{_MARK}{len(lines) - 1}{_MARK}"
        if isinstance(part, list):
            return [fold(each) for each in part]
        return {name: fold(each) for name, each in part.items()} if isinstance(part, dict) else part

    text = _indented(fold(value))
    return _FOLDED.sub(lambda found: lines[int(found[1])] if int(found[1]) < len(lines) else found[0], text)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a list of numbers, or of nested ones of the same length; empty for anything else."""
    if not isinstance(value, list) or not value:
        return ()
    if all(type(each) in {int, float} for each in value):
        return (len(value),)
    inner = _shape(value[0])
    return (len(value), *inner) if inner and all(_shape(each) == inner for each in value[1:]) else ()


def _first_numbers(value: Any, shape: tuple[int, ...]) -> str:
    numbers = value
    for _ in shape[1:]:
        numbers = numbers[0]
    first = ", ".join(json.dumps(each) for each in numbers[:_SHOWN_NUMBERS])
    size = f"{shape[0]} numbers" if len(shape) == 1 else f"shape {' x '.join(map(str, shape))}"
    return f"{'[' * len(shape)}{first}{', …]' * len(shape)} ({size})"
