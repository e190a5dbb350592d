"""The parameters of a request: those of the server, those that are inputs of the model, and the others.

A parameter that neither the server nor the model knows is passed over, and named in the answer; one that would change
the answer is refused. A null is as good as none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from geartrain.apis.openai.errors import invalid, unsupported
from geartrain.domain.rendering import clip

T = TypeVar("T")
Members = dict[str, msgspec.Raw]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
TokenIds = list[TokenId]
TEXTS_OR_IDS: Final[Any] = str | list[str | TokenId | TokenIds]

_AS_THEY_ARE: Final[Mapping[str, str]] = {}
_NULL: Final = msgspec.Raw(b"null")
_NO_INPUT: Final = "the model has no input of this name"

# Parameters that would change the answer: a test of values that ask for nothing, and why others are refused.
_REFUSED: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "logprobs": (lambda value: value is False, _NO_INPUT),
    "top_logprobs": (lambda value: value == 0, _NO_INPUT),
    "tools": (lambda value: value == [], _NO_INPUT),
    "tool_choice": (lambda value: value in ("none", "auto"), _NO_INPUT),
    "functions": (lambda value: value == [], "send 'tools'"),
    "function_call": (lambda value: value in ("none", "auto"), "send 'tool_choice'"),
    "response_format": (lambda value: value == {"type": "text"}, _NO_INPUT),
    "modalities": (lambda value: value == ["text"], "the model gives text"),
    "audio": (lambda _: False, "the model gives text"),
    "web_search_options": (lambda _: False, "this server searches nothing"),
    "suffix": (lambda value: value == "", _NO_INPUT),
}


class Parameters:
    """The members of one body, which are taken one after the other."""

    def __init__(self, members: Members, names: Mapping[str, str] = _AS_THEY_ARE) -> None:
        """`names`: the client's names of members that it calls otherwise."""
        self._left = {name: value for name, value in members.items() if value != _NULL}
        self.names = names

    def name_of(self, name: str) -> str:
        """Return the client's name of a member."""
        return self.names.get(name, name)

    def take(self, name: str, kind: type[T], default: T) -> T:
        """Take a parameter of the server; raise `OpenAIError` for a value of another kind."""
        value = self._left.pop(name, None)
        return default if value is None else decoded(self.name_of(name), value, kind)

    def take_any(self, name: str, kinds: Any) -> Any:
        """Take a parameter that may be of several kinds; None if it is not there."""
        value = self._left.pop(name, None)
        return None if value is None else decoded(self.name_of(name), value, kinds)

    def raw(self, name: str) -> msgspec.Raw | None:
        """Return a parameter as it came, None if it is not there."""
        return self._left.pop(name, None)

    def put(self, name: str, value: msgspec.Raw) -> None:
        """Give a parameter another value."""
        self._left[name] = value

    def text(self, name: str) -> str:
        """Return a parameter that stays for the model; empty for one that is not there or no text."""
        value = self._left.get(name)
        found = None if value is None else decoded(name, value, Any)
        return found if isinstance(found, str) else ""

    def place(
        self, names: Mapping[str, str], inputs: frozenset[str]
    ) -> tuple[Members, tuple[str, ...], dict[str, str]]:
        """Sort the others as `sort` does, after those in `names` have the names of their inputs.

        Return these, those that are passed over, and the parameters that have filled inputs of another name, by these.
        """
        filled: dict[str, str] = {}
        for name, other in names.items():
            if name in self._left:
                self._left[other] = self._left.pop(name)
                filled[other] = name
        given, ignored = self.sort(inputs)
        return given, ignored, filled

    def sort(self, inputs: frozenset[str]) -> tuple[Members, tuple[str, ...]]:
        """Sort the others: return the values of `inputs`, and the names of those that are passed over.

        Raises `OpenAIError` for what must not be passed over.
        """
        given = {name: value for name, value in self._left.items() if name in inputs}
        return given, tuple(self._passed_over(inputs))

    def _passed_over(self, inputs: frozenset[str]) -> Iterator[str]:
        for name, value in self._left.items():
            if name in inputs:
                continue
            told = self.name_of(name)
            asks_nothing, why = _REFUSED.get(name, (None, ""))
            if asks_nothing is None:
                yield told
            elif not asks_nothing(decoded(told, value, Any)):
                raise unsupported(told, why)


def sort_texts(name: str, given: str | list[Any]) -> tuple[list[str], list[TokenIds]]:
    """Return the texts of a parameter of the type `TEXTS_OR_IDS`, or their token ids. Raises `OpenAIError`."""
    listed: list[Any] = [given] if isinstance(given, str) else given
    texts = [each for each in listed if isinstance(each, str)]
    if len(texts) == len(listed):
        return texts, []
    ids = [listed] if all(isinstance(each, int) for each in listed) else listed
    if not all(isinstance(each, list) for each in ids):
        raise invalid(f"'{name}' mixes texts, token ids and lists of them: send one kind alone", name)
    if [] in ids:
        raise invalid(f"'{name}' has an empty list of token ids", name)
    return [], ids


def decoded(name: str, value: msgspec.Raw, kind: Any) -> Any:
    """Return the value of a parameter; raise `OpenAIError` for one of another kind, or a number beyond its range."""
    try:
        return msgspec.json.decode(value, type=kind)
    except ValueError as error:
        raise invalid(f"'{clip(name)}' is not valid: {error}", name) from None
