"""What a person gets of a prediction: its output on stdout or in a file, as it comes.

Text comes out as it is, objects and lists as indented JSON, files as files. Spec: observed section 25.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from geartrain.cli.files import OutputFileError, OutputFiles, SavedFile
from geartrain.domain.signature.types import OutputSpec


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
        value = self._files.extract(json.loads(chunk), self._spec.type, (str(self._chunks),))
        self._chunks += 1
        self._is_empty = False
        if isinstance(value, SavedFile):
            return
        text = value if isinstance(value, str) else _indented(value)
        self._text.write(text if self._spec.mode == "concatenate" and isinstance(value, str) else f"{text}\n")

    def finish(self, output: bytes | None) -> None:
        """Write the whole output (JSON text, None for none) if it was not streamed, and say where it went."""
        if self._spec.mode == "value" and output is not None:
            self._add_value(json.loads(output))
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
            self._text.write(f"{_indented(value)}\n")


def write_json(answer: dict[str, Any], target: pathlib.Path | None) -> None:
    """Write a whole answer as one indented JSON object; raises as `AnswerWriter` does."""
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
