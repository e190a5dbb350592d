"""Which requests have a line in the access log, and who writes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import msgspec

from geartrain.transport.access_lines import RequestWriter, by_logging

Mode = Literal["on", "sampled", "errors", "off"]

_MODE: Final = re.compile(r"on|errors|off|sampled:([1-9][0-9]{0,8})")


class AccessLogOptions(msgspec.Struct, frozen=True):
    """Which requests have a line.

    Attributes:
        mode: all of them (`on`), one in `each` and those that failed (`sampled`), those that failed (`errors`), or none
            (`off`).
        each: as above; 1 for any other mode.
        new_writer: makes what writes the lines.
    """

    mode: Mode = "on"
    each: int = 1
    new_writer: Callable[[], RequestWriter[Any]] = by_logging


def read_access_log(text: str) -> AccessLogOptions:
    """Parse the value of `--access-log`; raise ValueError with a sentence."""
    match = _MODE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is none of on, errors, off, and sampled:N, such as sampled:100 for one in 100 requests"
        )
    if match[1] is None:
        return AccessLogOptions(cast("Mode", text))
    return AccessLogOptions("sampled", int(match[1]))
