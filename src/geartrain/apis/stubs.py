"""Typed handles of models as a Python module: for editors and type checkers, of those who call the models.

The classes that a type checker sees are protocols with the inputs and outputs of each model. At run time they are
classes of `geartrain.Model` that know the model's name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from geartrain.domain.signature.types import FILE_KINDS, InputField, RecordField, Signature, TypeSpec
from geartrain.domain.tensors.tensor import ARRAY_NAMES

_PLAIN: Final[Mapping[str, str]] = {
    "string": "str",
    "secret": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict[str, Any]",
    "opaque": "Any",
}
_NARROW: Final = (str, int, bool, type(None))  # of these `Literal` takes values
_HEAD: Final = '''"""Models as their callers see them. Made by `{command}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import geartrain

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Generator, Iterator
    from pathlib import Path
    from typing import Any, Literal, NotRequired, Protocol, TypedDict, TypeVar

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    T_co = TypeVar("T_co", covariant=True)

    class Job(Protocol[T_co]):
        """A call that runs beside its caller."""

        def result(self) -> T_co: ...
        def cancel(self) -> None: ...

    class AsyncJob(Protocol[T_co]):
        """A call of an async model that runs beside its caller."""

        def __await__(self) -> Generator[Any, None, T_co]: ...
        def cancel(self) -> None: ...
'''


def render(models: Iterable[tuple[str, Signature]], *, command: str) -> str:
    """Return the text of the module with the handles of some models; `command` is the one that makes it."""
    parts = [_HEAD.format(command=command)]
    classes: list[str] = []
    for name, signature in models:
        stub = _Stub(name, signature)
        parts.append("\n".join(stub.typed()))
        classes += [stub.plain(""), stub.plain("Async")]
    parts.append("else:\n" + "\n\n".join(classes))
    return "\n".join(parts) + "\n"


def class_name(name: str) -> str:
    """Return the name of a class for that of a model: `my-detector` is MyDetector."""
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"\W+|_", name) if word)
    return words if words.isidentifier() else f"Model{words}"


class _Stub:
    """The handle of one model."""

    def __init__(self, name: str, signature: Signature) -> None:
        self.name = name
        self._signature = signature
        self._class = class_name(name)
        self._records: list[str] = []  # classes of records, each before its first use

    def typed(self) -> Iterator[str]:
        """Give the lines for type checkers."""
        parameters = self._parameters()
        output = self._signature.output
        item = self._type(output.type, f"{self._class}Output", is_input=False)
        whole = {"value": item, "iterator": f"list[{item}]", "concatenate": "str"}[output.mode]
        yield from self._records
        for prefix in ("", "Async"):
            is_async = bool(prefix)
            yield f"\n    class {prefix}{self._class}(Protocol):"
            yield f'        """The model {self.name}{", for async models" if is_async else ""}."""\n'
            start = "async def" if is_async else "def"
            yield f"        {start} __call__(self{parameters}) -> {whole}: ..."
            yield f"        def start(self{parameters}) -> {prefix}Job[{whole}]: ..."
            yield f"        def stream(self{parameters}) -> {prefix}Iterator[{item}]: ..."

    def plain(self, prefix: str) -> str:
        """Return the class for run time."""
        return f"\n    class {prefix}{self._class}(geartrain.Model):\n        model_name = {self.name!r}"

    def _parameters(self) -> str:
        fields = self._signature.inputs
        named = [self._parameter(field) for field in fields if _is_name(field.name)]
        if len(named) < len(fields):  # such as input.1, of a model file
            named.append("**inputs: Any")
        if not named:
            return ""
        star = "" if named[0].startswith("**") else ", *"
        return f"{star}, {', '.join(named)}"

    def _parameter(self, field: InputField) -> str:
        kind = field.type
        if field.choices is not None:
            text = _literal(field.choices) or self._type(kind, self._class + _title(field.name), is_input=True)
        else:
            text = self._type(kind, self._class + _title(field.name), is_input=True)
        if field.required:
            return f"{field.name}: {text}"
        is_none = not field.has_default and not kind.nullable
        return f"{field.name}: {text}{' | None' if is_none else ''} = ..."

    def _type(self, kind: TypeSpec, name: str, *, is_input: bool) -> str:
        """Return the annotation of a type; a record becomes a class of that name."""
        text = self._bare_type(kind, name, is_input=is_input)
        return f"{text} | None" if kind.nullable and text != "Any" else text

    def _bare_type(self, kind: TypeSpec, name: str, *, is_input: bool) -> str:
        if kind.anything:
            return "Any"
        if kind.choices is not None:
            return _literal(kind.choices) or _PLAIN.get(kind.kind, "Any")
        if kind.kind in FILE_KINDS:
            return "str | os.PathLike[str]" if is_input else "Path"
        if kind.kind == "tensor":
            return "ArrayLike" if is_input else f"NDArray[{_element(kind.datatype)}]"
        if kind.kind == "array":
            inner = "Any" if kind.items is None else self._type(kind.items, name, is_input=is_input)
            return f"list[{inner}]"
        if kind.kind == "union":
            members = [self._type(each, f"{name}{at}", is_input=is_input) for at, each in enumerate(kind.members)]
            return " | ".join(dict.fromkeys(members)) or "Any"
        if kind.kind == "record" and kind.fields:
            return self._record(kind.fields, name, is_input=is_input)
        return _PLAIN.get(kind.kind, "Any")

    def _record(self, fields: Sequence[RecordField], name: str, *, is_input: bool) -> str:
        """Make the class of a record: of an input one of keys, of an output one of attributes."""
        lines = [f"\n    class {name}({'TypedDict' if is_input else 'dict[str, Any]'}):"]
        for field in fields:
            if not _is_name(field.name):
                continue
            text = self._type(field.type, name + _title(field.name), is_input=is_input)
            if not field.required:
                text = f"NotRequired[{text}]" if is_input else text if text.endswith("| None") else f"{text} | None"
            lines.append(f"        {field.name}: {text}")
        if len(lines) == 1:
            lines.append("        pass")
        self._records.append("\n".join(lines))
        return name


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _title(name: str) -> str:
    return class_name(name)


def _literal(choices: Sequence[Any]) -> str:
    """Return the values of a choice, "" for those that no annotation can name."""
    if not choices or not all(type(choice) in _NARROW for choice in choices):
        return ""
    return f"Literal[{', '.join(map(repr, choices))}]"


def _element(datatype: str) -> str:
    if datatype == "BYTES":
        return "np.object_"
    if datatype == "BF16":  # which numpy does not have
        return "Any"
    name = ARRAY_NAMES[datatype]
    return f"np.{'bool_' if name == 'bool' else name}"
