"""Makes `server/asgi_options.py`: the type of the options of `geartrain.asgi`, of the table of options.

python -m tools.make_options             # writes it
"""

from __future__ import annotations

import pathlib
from typing import Final

from geartrain.server.option_table import TABLE

PATH: Final = pathlib.Path(__file__).resolve().parents[1] / "src" / "geartrain" / "server" / "asgi_options.py"

_HEAD: Final = '''\
"""Options of `geartrain.asgi`. Made by `tools/make_options.py` of `server/option_table.py`: change that one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypedDict


class AsgiOptions(TypedDict, total=False):
    """The options of `geartrain serve` that mean something inside another server, all of them optional.

    Sizes are in bytes, times in seconds; where the command line takes 0 for no limit, so do these. docs/asgi.md lists
    the defaults.

    Attributes:
        wait_ready: whether the start lasts until the models are ready. It then fails if a model that is served alone
            cannot become so. Otherwise requests get 503 until their model is ready.
    """

    wait_ready: bool
'''


def text() -> str:
    """Return the text of the module."""
    return _HEAD + "".join(f"    {option.name}: {option.kind.annotation}\n" for option in TABLE if option.is_hosted)


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
