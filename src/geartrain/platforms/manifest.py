"""Objects of Kubernetes as YAML with comments, which PyYAML alone cannot write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

_WIDTH: Final = 100  # of a mapping or a list in one line


class Noted(NamedTuple):
    """A value, and what is said above it: lines of a comment."""

    value: Any
    comment: tuple[str, ...]


def noted(value: Any, *comment: str) -> Noted:
    """Return a value, a key or an item of a list, with a comment above it."""
    return Noted(value, comment)


def write_yaml(documents: Iterable[Noted]) -> str:
    """Return documents, each with its comment, as YAML."""
    return "---\n".join("".join(f"{line}\n" for line in _document(each)) for each in documents)


def plain(value: Any) -> Any:
    """Return a value without its comments."""
    if isinstance(value, Noted):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _document(document: Noted) -> Iterator[str]:
    yield from _comment(document.comment, "")
    yield from _mapping(document.value, "")


def _comment(lines: Iterable[str], indent: str) -> Iterator[str]:
    return (f"{indent}# {line}" for line in lines)


def _mapping(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, found in mapping.items():
        value, comment = found if isinstance(found, Noted) else (found, ())
        yield from _comment(comment, indent)
        head = f"{indent}{_one_line(key)}:"
        if _fits(value, head):
            yield f"{head} {_one_line(value)}"
        else:
            yield head
            yield from (_mapping if isinstance(value, Mapping) else _list)(value, f"{indent}  ")


def _list(items: Iterable[Any], indent: str) -> Iterator[str]:
    for found in items:
        item, comment = found if isinstance(found, Noted) else (found, ())
        yield from _comment(comment, indent)
        if _fits(item, indent):
            yield f"{indent}- {_one_line(item)}"
            continue
        first, *rest = _mapping(item, f"{indent}  ")
        if first.lstrip().startswith("#"):
            yield f"{indent}-"
            yield first
        else:
            yield f"{indent}- {first.lstrip()}"
        yield from rest


def _fits(value: Any, head: str) -> bool:
    """True if a value stands in one line: a scalar always, and what holds nothing but scalars if it is short."""
    if not isinstance(value, Mapping | list):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    if any(isinstance(each, Mapping | list | Noted) for each in inner):
        return False
    return len(head) + len(_one_line(value)) < _WIDTH


def _one_line(value: Any) -> str:
    text = _dump(value, "")
    return _dump(value, '"') if "\n" in text else text  # in quotes, the ends of lines are escaped


def _dump(value: Any, style: str) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, sort_keys=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
