"""Header fields of TorchServe's sequences: the transport writes them, and handlers read them."""

from __future__ import annotations

import os
from typing import Literal

Part = Literal["id", "start", "end"]


def sequence_field(part: Part) -> str:
    """Return the name of a field, which the operator may have set in a variable."""
    return os.environ.get(f"TS_REQUEST_SEQUENCE_{part.upper()}", f"ts_request_sequence_{part}")
