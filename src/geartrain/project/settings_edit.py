"""Changes of a `geartrain.yaml` that leave the rest of the file as it is, with its comments."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

_WIDTH: Final = 4096  # lines are not to be broken


def edit(text: str, changes: Mapping[str, Any], *, comments: Sequence[str] = (), mark: str = "") -> str:
    """Return a file with some keys changed, such as `replicas` or `batching.max_size`; None takes one out.

    `comments` are put at the end, each after `mark`. Lines that begin with the mark are of an earlier change, and go.
    """
    kept = [line for line in text.splitlines(keepends=True) if not (mark and line.startswith(f"# {mark}"))]
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, _WIDTH
    document = yaml.load("".join(kept)) or CommentedMap()
    for name, value in changes.items():
        _change(document, name.split("."), value)
    written = io.StringIO()
    if document:
        yaml.dump(document, written)
    elif "".join(kept).strip():
        written.write("".join(line for line in kept if line.lstrip().startswith("#")))
    end = "".join(f"# {mark}{line}\n" for line in comments)
    found = written.getvalue()
    return f"{found}{'' if found.endswith(chr(10)) or not found else chr(10)}{end}"


def _change(document: Any, keys: Sequence[str], value: Any) -> None:
    key, *rest = keys
    if rest:
        if not isinstance(document.get(key), dict):
            if value is None:
                return
            document[key] = CommentedMap()
        _change(document[key], rest, value)
        if not document[key]:
            del document[key]
    elif value is not None:
        document[key] = value
    elif key in document:
        del document[key]
