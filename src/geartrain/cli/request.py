"""One prediction on the command line, before there is a model."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from geartrain.cli import values
from geartrain.cli.failure import fail


class Request(NamedTuple):
    """One prediction on the command line: inputs as `texts` by name, or as one JSON `document`."""

    texts: dict[str, list[str]]
    document: dict[str, Any] | None
    output: pathlib.Path | None


def read_request(inputs: list[str] | None, json_input: str | None, output: pathlib.Path | None) -> Request:
    """Look at all that can be looked at before there is a model. Raises `values.InputError`."""
    if inputs and json_input is not None:
        fail("--json is the whole input; leave -i out")
    if output is not None and not output.parent.is_dir():
        fail(f"cannot write {output}: there is no folder {output.parent}")
    texts = values.split_pairs(inputs or ())
    values.check_files(texts)
    return Request(texts, None if json_input is None else values.parse_json_input(_whole(json_input)), output)


def _whole(text: str) -> str:
    return values.read_argument("@-" if text == "-" else text)
