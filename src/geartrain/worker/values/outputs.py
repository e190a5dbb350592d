"""From what `run()` gives to JSON text, and to the files that the text refers to.

What is plain JSON already goes straight to msgspec; only the rest is walked. A fault is told with its place, such as
`output.scores[3]`. Source of the table: observed Cog, section 9; numpy's float32 is widened to a double, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from geartrain.domain.predictions.calls import FileRef
from geartrain.domain.signature.types import OutputSpec, TypeSpec
from geartrain.domain.tensors.tensor import Tensor
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.objects import Simplifier, key_text, simplifier_of
from geartrain.worker.values.output_check import Check, Contract, StreamCheck, compile_check
from geartrain.worker.values.output_files import FileCollector, is_file
from geartrain.worker.values.tensor_outputs import TensorOutputs, tensor_outputs

if TYPE_CHECKING:
    from geartrain.worker.values.open_outputs import AnyOutputs, OpenOutputs, ResponseOutputs

__all__ = ["Encoded", "OutputEncoder", "OutputError"]

_encode = msgspec.json.Encoder(order="sorted").encode

NO_MORE: Final = b"{}"
"""The JSON beside the tensors of a value that has nothing else."""

MAX_TYPES: Final = 256  # types of outputs that are remembered; a model may make a class for each call

_SAFE = frozenset({str, int, bool, type(None)})  # JSON as they are, whatever the value
_SCALARS = _SAFE | {float}
_NESTED = frozenset({list, dict})
_TEXT = frozenset({str})
_LEVELS = 6  # of what is looked through at once, and
_MANY = 65536  # values on each of them: lists that contain themselves have an end there, too


class Encoded(NamedTuple):
    """JSON text in UTF-8 with sorted keys, and the files whose tokens stand in it in place of their URLs."""

    json: bytes
    files: tuple[FileRef, ...] = ()
    tensors: tuple[Tensor, ...] | None = None  # beside the JSON, if they were to be taken out


class OutputEncoder:
    """Encodes the outputs of one runner."""

    def __init__(self, spec: OutputSpec, contract: Contract | None = None) -> None:
        """`contract`: what the outputs are held to; by default they may be of any type."""
        self._wrap = spec.mode == "value" and spec.type.kind == "array"
        self._tensors = _apart_of(spec)
        self._simplifiers: dict[type, Simplifier | None] = {}
        self._spec = spec
        self._verb = "returned" if spec.mode == "value" else "yielded"
        self._contract = contract
        self._hold_to(None if contract is None else compile_check(spec.type))

    def _hold_to(self, check: Check | None) -> None:
        self._check = check
        is_direct = self._tensors is None and not self._wrap
        # All values of these types are JSON as they are, and of the annotated type.
        self._quick = frozenset(_SAFE if check is None else _SAFE & check.exact) if is_direct else frozenset()

    @cached_property
    def chunks(self) -> OutputEncoder:
        """Return the encoder of a stream's values; where one value is declared, only a list may come as a stream."""
        spec, contract = self._spec, self._contract
        if spec.mode != "value" or contract is None or contract.warn is not None or self._check is None:
            return self
        if spec.type.kind == "array":
            return OutputEncoder(OutputSpec(spec.type.items or TypeSpec("opaque"), "iterator"), contract)
        encoder = OutputEncoder(spec, contract)
        encoder._hold_to(StreamCheck(spec.type))
        return encoder

    def encode_plain(self, value: object) -> bytes | None:
        """Encode a value that is JSON and as annotated as it is; None if it takes more. Raises `OutputError`."""
        kind = type(value)
        if kind in self._quick:
            return to_json(value)
        if self._tensors is not None or (self._wrap and kind is not list) or not _is_json((value,)):
            return None
        check = self._check
        return to_json(value) if check is None or kind in check.exact or check.find(value) is None else None

    def encode_all_plain(self, values: Sequence[Any]) -> list[bytes] | None:
        """Encode values that are all JSON and as annotated; None if one needs a closer look."""
        check = self._check
        if not self._quick.issuperset(map(type, values)):
            if self._tensors is not None or (self._wrap and not {list}.issuperset(map(type, values))):
                return None
            if not _is_json(values) or (check is not None and any(map(check.find, values))):
                return None
        try:
            return list(map(_encode, values))
        except UnicodeEncodeError:
            return None

    def encode(
        self,
        value: Any,
        new_folder: Callable[[], Path],
        temporary_files_of: Callable[[Path], tuple[str, ...]] = lambda _: (),
        *,
        apart: bool = False,
    ) -> Encoded:
        """Encode a returned or yielded value. Raises `OutputError`, whose message names the place.

        Where a list is declared, any other value is wrapped in one, unless that is against the contract. Files are
        copied, since the model may go on to overwrite its own: each into a folder that `new_folder` has made, where it
        keeps its name. `temporary_files_of` tells what of a path that was copied is to be deleted when the run is over.
        `apart`: tensors are not to stand in the JSON; it is then that of the rest. Large contents are the model's own
        memory.
        """
        tensors = None
        if self._tensors is not None:
            if apart:
                value, tensors = self._tensors.split(value)
            else:
                value = self._tensors.plain(value)
        if tensors is not None and not value:
            if tensors:  # else it is None, as it may be
                self._hold(value)
            return Encoded(NO_MORE, (), tuple(tensors))
        files = FileCollector(new_folder, temporary_files_of)
        try:
            plain = Walk(self._simplifiers, files).convert(value)
            self._hold(value)
            if self._wrap and plain is not None and type(plain) is not list:
                plain = [plain]
            return Encoded(to_json(plain), files.files(), None if tensors is None else tuple(tensors))
        except BaseException as error:
            files.discard()
            if isinstance(error, RecursionError):
                raise OutputError("is nested too deeply, or contains itself") from None
            raise

    def _hold(self, value: Any) -> None:
        """Raise `OutputError` for a value that is not as annotated; or warn, once, where the contract says so."""
        contract = self._contract
        if self._check is None or contract is None:
            return
        found = self._check.find(value)
        if found is None:
            return
        if contract.warn is None:
            raise found.error(contract, self._verb)
        self._hold_to(None)
        contract.warn(str(found.error(contract, self._verb, shown=False)))


def _apart_of(spec: OutputSpec) -> TensorOutputs | ResponseOutputs | OpenOutputs | AnyOutputs | None:
    """Create the extractor of an output's tensors; None if it has none."""
    if not spec.type.form:
        return tensor_outputs(spec)
    from geartrain.worker.values.open_outputs import open_outputs  # few models need it

    return open_outputs(spec.type, encode_any)


def encode_any(value: Any) -> bytes:
    """Encode a value that holds no file as JSON. Raises `OutputError`."""
    return OutputEncoder(OutputSpec(TypeSpec("opaque"))).encode(value, _no_folder).json


def _no_folder() -> Path:
    raise OutputError("holds a file, which a response cannot: let the file be its content")


class Walk:
    """One pass over a value."""

    __slots__ = ("_files", "_simplifiers")

    def __init__(self, simplifiers: dict[type, Simplifier | None], files: FileCollector) -> None:
        """`files` takes what is a file, and returns the text that stands for it."""
        self._simplifiers = simplifiers
        self._files = files

    def convert(self, value: Any) -> Any:
        """Return the value as plain JSON: itself, where it is that already."""
        kind = type(value)
        if kind in _SAFE:
            return value
        if kind is float:
            return value if isfinite(value) else _refuse_float(value)
        if kind is list:
            return value if _is_plain(value) else self._list(value)
        if kind is dict:
            return self._dict(value)
        if kind not in self._simplifiers:
            if len(self._simplifiers) >= MAX_TYPES:
                self._simplifiers.clear()
            self._simplifiers[kind] = None if is_file(value) else simplifier_of(kind)
        simplify = self._simplifiers[kind]
        return self._files.add(value) if simplify is None else self.convert(simplify(value))

    def _list(self, values: list[Any]) -> list[Any]:
        converted: list[Any] = []
        add = converted.append
        try:
            for value in values:
                add(self.convert(value))
        except OutputError as error:
            raise error.inside(len(converted)) from None
        return converted

    def _dict(self, values: dict[Any, Any]) -> dict[str, Any]:
        if _TEXT.issuperset(map(type, values)):
            if _is_plain(values.values()):
                return values
            keys: Iterable[str] = values
        else:
            keys = [key_text(key) for key in values]
        converted: dict[str, Any] = {}
        for key, value in zip(keys, values.values(), strict=True):
            if key in converted:
                raise OutputError(f"has two keys that both become {key!r} in JSON")
            try:
                converted[key] = self.convert(value)
            except OutputError as error:
                raise error.inside(key) from None
        return converted


def _is_json(values: Sequence[Any]) -> bool:
    """Tell whether all of these, and all within them, are plain JSON, without a step in Python for each.

    False also for what is nested deeply, and for very much of it: a walk takes as long there, and less memory.
    """
    for _ in range(_LEVELS):
        kinds = set(map(type, values))
        if kinds <= _SCALARS:
            return float not in kinds or _is_plain(values)
        if not kinds <= _SCALARS | _NESTED:
            return False
        dicts = [value for value in values if type(value) is dict] if dict in kinds else []
        lists = [value for value in values if type(value) is list] if list in kinds else []
        if sum(map(len, dicts)) + sum(map(len, lists)) > _MANY or not _TEXT.issuperset(map(type, chain(*dicts))):
            return False
        if float in kinds and not all(map(isfinite, [value for value in values if type(value) is float])):
            return False
        values = [*chain(*map(dict.values, dicts)), *chain(*lists)]
    return False


def _is_plain(values: Iterable[Any]) -> bool:
    """Tell whether all of these are plain JSON scalars, without a step in Python for each."""
    kinds = set(map(type, values))
    if float not in kinds:
        return kinds <= _SAFE
    if len(kinds) == 1:
        return all(map(isfinite, values))
    return kinds - {float} <= _SAFE and all(map(isfinite, [value for value in values if type(value) is float]))


def _refuse_float(value: float) -> Any:
    name = "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise OutputError(f"is {name}, which JSON cannot carry; return None or a string instead")


def to_json(plain: Any) -> bytes:
    """Return the JSON text of plain values, with sorted keys. Raises `OutputError` for half a character."""
    try:
        return _encode(plain)
    except UnicodeEncodeError:
        error = OutputError("holds half a character (a lone surrogate), which UTF-8 cannot carry")
        for segment in reversed(_broken_text(plain)):
            error.inside(segment)
        raise error from None


def _broken_text(plain: Any) -> list[str | int]:
    """The place of the first string that has no UTF-8 form."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(plain, dict):
        items = plain.items()
    elif isinstance(plain, list):
        items = enumerate(plain)
    for segment, value in items:
        if _is_broken(segment) or _is_broken(value):
            return [segment]
        place = _broken_text(value)
        if place:
            return [segment, *place]
    return []


def _is_broken(text: Any) -> bool:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            return True
    return False
