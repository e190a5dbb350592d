"""`devices` in a `geartrain.yaml`, and the option `--devices`: which devices the replicas of a model are put on."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

_NAME: Final = re.compile(r"(?:cuda:)?(\d{1,4})|((?:GPU|MIG)-[\w./-]+)", re.ASCII)


class Devices(msgspec.Struct, frozen=True):
    """`auto`: GPUs where there are any; `cpu`: none; `named`: these, in this order.

    A name is `cuda:N`, the Nth of the GPUs that the server sees, from 0 on; or a UUID, beginning with `GPU-` or `MIG-`.
    """

    kind: Literal["auto", "cpu", "named"] = "auto"
    names: tuple[str, ...] = ()


AUTO: Final = Devices()


def read_devices(value: object) -> Devices:
    """Parse a YAML value, or the text of an option; raise ValueError."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError
    names = tuple(map(_name, items))
    if names in {("auto",), ("cpu",)}:
        return Devices("cpu" if names == ("cpu",) else "auto")
    if len(set(names)) != len(names) or not {"auto", "cpu"}.isdisjoint(names):
        raise ValueError
    return Devices("named", names)


def _name(item: object) -> str:
    text = str(item).strip() if isinstance(item, str | int) and not isinstance(item, bool) else ""
    if text in {"auto", "cpu"}:
        return text
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValueError
    return found[2] or f"cuda:{int(found[1])}"
