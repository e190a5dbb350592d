"""The regular expressions of `Input(regex=…)`, searched in text that a client chose.

They run in the parent, on the loop that serves everybody, so no pattern may take exponential time:
`jsonschema_rs` (the dialect of JSON Schema, and Cog's engine) gives up after a fixed number of steps. Only what it
cannot read, such as Python's named groups, falls to `re`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A predicate: does `pattern` occur in the text (unanchored, section 7 of the observed API)?

    Raises `re.error` for what is no regular expression in either dialect.
    """
    import jsonschema_rs  # 60 ms that only models with a regex need

    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern}).is_valid
    except jsonschema_rs.ValidationError:
        search = re.compile(pattern).search
        return lambda text: search(text) is not None
