"""The list of models of Anthropic's API, in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from geartrain.apis.openai.errors import invalid
from geartrain.apis.timestamps import timestamp

_USUAL: Final = 20
_MOST: Final = 1000

_encode = msgspec.json.Encoder().encode


class Page(msgspec.Struct, frozen=True):
    """The part of a list that a client asks for: at most `limit` models after one, or before one."""

    limit: int = _USUAL
    after: str = ""
    before: str = ""


def read_page(query: Mapping[str, Sequence[str]]) -> Page:
    """Read the parameters of a URL. Raises `OpenAIError`."""
    given = query.get("limit", [str(_USUAL)])[-1]
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:6]) <= _MOST):
        raise invalid(f"'limit' has to be a number from 1 to {_MOST}", "limit")
    after, before = (query.get(name, [""])[-1] for name in ("after_id", "before_id"))
    if after and before:
        raise invalid("'after_id' and 'before_id' exclude each other: send one of them", "before_id")
    return Page(int(given), after, before)


def describe_model(name: str, loaded_at: float) -> dict[str, Any]:
    """Return a model; `loaded_at` in seconds since the epoch."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": timestamp(loaded_at),
        "lifecycle": "active",
    }


def encode_page(models: Sequence[dict[str, Any]], page: Page) -> bytes:
    """Return the body of an answer with a part of a list. Raises `OpenAIError`."""
    ids = [model["id"] for model in models]
    for name, cursor in (("after_id", page.after), ("before_id", page.before)):
        if cursor and cursor not in ids:
            raise invalid(f"'{name}' is no model of the list", name)
    if page.before:
        there = models[: ids.index(page.before)]
        part = there[-page.limit :]
    else:
        there = models[ids.index(page.after) + 1 :] if page.after else models
        part = there[: page.limit]
    ends = {"first_id": part[0]["id"], "last_id": part[-1]["id"]} if part else {"first_id": None, "last_id": None}
    return _encode({"data": part, "has_more": len(part) < len(there), **ends})


def encode_model(name: str, loaded_at: float) -> bytes:
    """Return the body of an answer with one model."""
    return _encode(describe_model(name, loaded_at))
