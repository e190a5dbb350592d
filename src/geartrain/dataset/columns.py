"""Columns of a data set as the inputs of a model, and those that pass through to the output."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.dataset.arrow_types import nesting_of
from geartrain.dataset.errors import DatasetError
from geartrain.dataset.records import MAX_ROW, NO_COLUMNS, Record
from geartrain.dataset.sources import Source
from geartrain.domain.data_urls import data_url_of, media_type_of
from geartrain.domain.signature.text_values import MismatchError, TextReader
from geartrain.domain.signature.types import InputField, Signature, takes_file, takes_files

OWN_COLUMNS: Final = ("row", "output", "error")
"""Columns that every output has, if they are not empty."""

_URL: Final = re.compile(r"(?:data|https?|s3|gs|az|hf):", re.IGNORECASE)
_NULL: Final = b"null"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row that is ready for the model.

    Attributes:
        number: its place in the data set, from 0 on.
        input: the JSON object that the model takes.
        fault: why it cannot be given to the model; empty for a good one.
        kept: the columns that pass through.
    """

    number: int
    input: bytes
    fault: str = ""
    kept: Mapping[str, Any] = NO_COLUMNS


class _RowFaultError(Exception):
    """A value that cannot be an input; the message says why."""


class Columns:
    """Makes rows of records: by the signature of the model, and by the names of the columns."""

    def __init__(
        self, signature: Signature, source: Source, *, mapped: Mapping[str, str], kept: Mapping[str, str]
    ) -> None:
        """`mapped`: the columns of inputs that have another name. `kept`: columns that pass through, by new names.

        Raises `DatasetError` for names that are not there.
        """
        fields = {field.name: field for field in signature.inputs}
        _check_names(fields, source.columns, mapped=mapped, kept=kept)
        columns = {name: mapped.get(name, name) for name in fields}
        if source.is_files and "file" not in columns.values():
            columns |= _input_for_files(signature, mapped)
        if source.columns is not None:
            missing = [name for name, field in fields.items() if field.required and columns[name] not in source.columns]
            if missing:
                raise DatasetError(_missing(missing, source.columns))
            columns = {name: column for name, column in columns.items() if column in source.columns}
        self._inputs = [(column, name, _converter(fields[name], column, source)) for name, column in columns.items()]
        self._kept = dict(kept)

    def row(self, number: int, record: Record) -> Row:
        """Make the row of a record. Reads the files that it names; blocks."""
        if record.fault:
            return Row(number, b"", record.fault)
        values = record.columns
        kept = {name: values.get(column) for name, column in self._kept.items()} if self._kept else NO_COLUMNS
        members: dict[str, Any] = {}
        name = ""
        try:
            for column, name, convert in self._inputs:
                value = values.get(column)
                if value is None:
                    continue
                if convert is not None:
                    value = convert(value)
                elif _is_null(value):
                    continue
                if value is not None:
                    members[name] = value
            encoded = _encode(members)
        except _RowFaultError as fault:
            return Row(number, b"", f"{name}: {fault}", kept)
        except (TypeError, ValueError, RecursionError) as fault:
            return Row(number, b"", f"the row cannot be written as JSON: {fault}", kept)
        if len(encoded) > 2 * MAX_ROW:
            return Row(number, b"", f"the row has more than {2 * MAX_ROW // 1024**2} MiB", kept)
        return Row(number, encoded, "", kept)


def read_pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read `input=column`, or names with commas between them. Raises `DatasetError`."""
    pairs: dict[str, str] = {}
    for text in (each for given in texts for each in given.split(",")):
        name, separator, column = text.strip().partition("=")
        if not name or (separator and not column):
            raise DatasetError(f"{option} {text!r}: write names of columns with commas between, or name=column")
        if name in pairs:
            raise DatasetError(f"{option} names {name!r} twice")
        pairs[name] = column or name
    return pairs


def _check_names(
    fields: Mapping[str, InputField],
    columns: Sequence[str] | None,
    *,
    mapped: Mapping[str, str],
    kept: Mapping[str, str],
) -> None:
    for name in mapped:
        if name not in fields:
            raise DatasetError(f"--map {name}: the model takes {', '.join(fields) or 'no inputs'}")
    for name in kept:
        if name in OWN_COLUMNS:
            raise DatasetError(f"--keep {name}: the output has a column of that name; write --keep other={kept[name]}")
    if columns is None:
        return
    for option, names in (("--map", mapped), ("--keep", kept)):
        for column in names.values():
            if column not in columns:
                raise DatasetError(f"{option} {column}: the data set has the columns {', '.join(columns)}")


def _missing(names: Sequence[str], columns: Sequence[str]) -> str:
    text = "no column is called" if len(names) == 1 else "no columns are called"
    return (
        f"{text} {', '.join(names)}, which the model needs; the data set has {', '.join(columns)}. "
        f"Say which one it is: --map {names[0]}={columns[0] if columns else 'column'}"
    )


def _input_for_files(signature: Signature, mapped: Mapping[str, str]) -> dict[str, str]:
    """Return the input that takes the files of a folder: the only one that takes a file."""
    names = [field.name for field in signature.inputs if takes_file(field.type) and field.name not in mapped]
    if len(names) == 1:
        return {names[0]: "file"}
    found = ", ".join(names) or "none"
    raise DatasetError(f"which input takes the files? Those of the model that take one: {found}. Write --map name=file")


# values


def _converter(field: InputField, column: str, source: Source) -> Callable[[Any], Any] | None:
    """Return a function from the value of a column to that of an input; None where they are the same."""
    base = source.base
    if source.is_text:
        reader = TextReader(read=lambda text: text, read_file=lambda text: _url_of(text, base))
        keeps_empty = field.type.kind == "string" and not field.type.nullable

        def of_text(text: str) -> Any:
            if not text and not keeps_empty:
                return None
            try:
                return reader.value(field, (text,))
            except MismatchError as mismatch:
                raise _RowFaultError(mismatch.problem) from None

        return of_text
    if takes_file(field.type):
        return lambda value: _file(value, base)
    if takes_files(field.type):
        return lambda value: _files(value, base)
    schema = source.schema()
    return None if schema is None else nesting_of(schema.field(column).type)


def _is_null(value: Any) -> bool:
    return type(value) is msgspec.Raw and len(value) == len(_NULL) and bytes(value) == _NULL


def _file(value: Any, base: Path) -> Any:
    """Return the URL of a file: of one by its path, or of its bytes."""
    if isinstance(value, msgspec.Raw):
        value = _decode(value)
    if isinstance(value, bytes):
        return data_url_of(value)
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:  # images and sounds of `datasets`
        content, path = value["bytes"], value["path"]
        if not isinstance(content, bytes):
            return _file(path, base) if content is None and path else None if content is None else value
        return data_url_of(content, media_type_of(path)) if path else data_url_of(content)
    return _url_of(value, base) if isinstance(value, str) else value


def _files(value: Any, base: Path) -> Any:
    if isinstance(value, msgspec.Raw):
        value = _decode(value)
    return [_file(each, base) for each in value] if isinstance(value, list) else value


def _url_of(text: str, base: Path) -> str:
    """Return a URL as it is, and a file of this machine as a `data:` URL."""
    if _URL.match(text):
        return text
    try:
        path = base / Path(text.removeprefix("file://")).expanduser()
        if path.stat().st_size > MAX_ROW:
            raise _RowFaultError(f"{path} has more than {MAX_ROW // 1024**2} MiB")
        return data_url_of(path.read_bytes(), media_type_of(path))
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _RowFaultError(f"cannot read {text}: {reason}") from None
