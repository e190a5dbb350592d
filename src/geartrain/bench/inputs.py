"""The inputs that are sent: those of a file, or what the model's schema has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from geartrain.bench.work import InputsError

MOST: Final = 100_000
"""Inputs of a file."""


def read_many(content: bytes, name: str) -> list[dict[str, Any]]:
    """Read a JSON array of objects, or an object on each line. `name` is that of the file. Raises `InputsError`."""
    text = content.strip()
    if not text:
        raise InputsError(f"{name} is empty; write one JSON object on each line")
    is_array = text.startswith(b"[")
    if is_array:
        found = [("", text)]
    else:
        lines = enumerate(text.splitlines(), start=1)
        found = [(f", line {number}", line) for number, line in lines if line.strip()]
    if len(found) > MOST:
        raise InputsError(f"{name} has {len(found)} inputs; at most {MOST} are taken")
    inputs: list[dict[str, Any]] = []
    for place, part in found:
        try:
            value = msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputsError(f"{name}{place} is not JSON: {error}") from None
        for each in value if is_array else [value]:
            if not isinstance(each, dict):
                raise InputsError(f'{name}{place}: an input is a JSON object such as {{"name": 1}}')
            inputs.append(each)
    if not 0 < len(inputs) <= MOST:
        raise InputsError(f"{name} has {len(inputs)} inputs; it needs one at least and {MOST} at most")
    return inputs


def default_input(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input that an OpenAPI document gives by itself: examples, and for the rest the model's own defaults.

    Raises `InputsError`, which names the inputs that have neither.
    """
    schema = document.get("components", {}).get("schemas", {}).get("Input", {})
    required = schema.get("required", ())
    values: dict[str, Any] = {}
    missing: list[str] = []
    for name, described in schema.get("properties", {}).items():
        examples = described.get("examples")
        if "example" in described:
            values[name] = described["example"]
        elif isinstance(examples, list) and examples:
            values[name] = examples[0]
        elif name in required:
            missing.append(name)
    if missing:
        given = " ".join(f"-i {name}=…" for name in missing)
        raise InputsError(f"the model has no default for {', '.join(missing)}; give {given}, or --json, or --inputs")
    return values
