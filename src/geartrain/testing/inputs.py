"""Checks and converts the inputs of a run as a server does it with a request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.authoring.values import Secret
from geartrain.domain.data_urls import data_url_of, media_type_of
from geartrain.domain.errors import FieldError, GeartrainError
from geartrain.domain.predictions.batching import BatchItems
from geartrain.domain.predictions.calls import ItemInput
from geartrain.domain.signature.constraints import holds
from geartrain.domain.signature.tensor_view import TensorView
from geartrain.domain.signature.types import InputField
from geartrain.domain.signature.validation import InputValidator
from geartrain.domain.tensors.tensor import Tensor, check
from geartrain.outbound.files import DownloadError
from geartrain.outbound.inputs import InputFiles
from geartrain.outbound.policy import UrlPolicy
from geartrain.testing.errors import InvalidInputError
from geartrain.worker.loading.loader import LoadedRunner
from geartrain.worker.values.faults import OutputError
from geartrain.worker.values.objects import simplifier_of

_NO_LIMIT: Final = 1 << 62  # bytes
_SILENCE: Final = 60.0  # seconds
_PLAIN: Final = (str, int, float, bool, type(None))


class InputReader:
    """Makes the items of calls of one model."""

    def __init__(self, runner: LoadedRunner, folder: Callable[[], Path]) -> None:
        """`folder` makes a folder for the files of one request."""
        self._signature = runner.signature
        self._fields = {field.name: field for field in runner.signature.inputs}
        self._specs = {spec.name: spec for spec in TensorView(runner.signature).inputs}
        self._files = InputFiles(
            runner.signature, policy=UrlPolicy(allow_private=True), max_bytes=_NO_LIMIT, timeout=_SILENCE
        )
        self._items = BatchItems(runner.signature, runner.batching) if runner.batching is not None else None
        self._folder = folder

    async def read(self, given: Mapping[str, Any]) -> ItemInput:
        """Return the item of a request with these inputs. Raises `InvalidInputError`."""
        tensors = [self._tensor(name, value) for name, value in given.items() if self._is_tensor(name, value)]
        names = {tensor.name for tensor in tensors}
        values = {name: self._json(name, value) for name, value in given.items() if name not in names}
        validator = InputValidator(self._without(names))
        try:
            raw = msgspec.json.encode(values)
            errors = validator.check(raw) or self._files.check(values)
            if errors:
                raise InvalidInputError(map(msgspec.to_builtins, errors))
            if self._files.needed(values):
                raw = msgspec.json.encode(await self._files.fetch(values, self._folder))
            packed = tuple(tensors) if tensors else None
            rows = 1 if self._items is None else self._items.measure(raw, packed)[1]
        except GeartrainError as error:
            raise InvalidInputError(map(msgspec.to_builtins, error.fields or _of_all(str(error)))) from error
        except DownloadError as error:
            raise InvalidInputError(map(msgspec.to_builtins, _of_all(str(error)))) from error
        return ItemInput("test", raw, rows, tensors=packed)

    def check_together(self, items: Iterable[ItemInput]) -> None:
        """Raise `ValueError` for requests that a server would not put into one batch."""
        if self._items is not None and len({self._items.measure(item.input, item.tensors)[0] for item in items}) > 1:
            raise ValueError(
                "these requests do not share a batch: the rows of their tensors have different shapes, or shared inputs"
                " have different values"
            )

    def _without(self, names: set[str]) -> Any:
        fields = tuple(field for field in self._signature.inputs if field.name not in names)
        return msgspec.structs.replace(self._signature, inputs=fields)

    def _is_tensor(self, name: str, value: Any) -> bool:
        """Tell whether a value is an array for a tensor. A nested list is checked as JSON."""
        field = self._fields.get(name)
        return field is not None and field.type.kind == "tensor" and hasattr(value, "__array__")

    def _tensor(self, name: str, value: Any) -> Tensor:
        from geartrain.worker.arrays import WrongArrayError, tensor_of  # it imports numpy

        try:
            tensor = tensor_of(name, self._fields[name].type.datatype, value)
            check(self._specs[name], tensor)
        except WrongArrayError as error:
            raise _invalid(name, str(error)) from None
        except GeartrainError as error:
            raise _invalid(name, str(error)) from None
        return tensor

    def _json(self, name: str, value: Any) -> Any:
        field = self._fields.get(name)
        try:
            return _Plain(field).of(value)
        except (OSError, OutputError) as error:
            what = f"cannot read {error.filename}: {error.strerror}" if isinstance(error, OSError) else error.args[0]
            raise _invalid(name, what) from None


class _Plain:
    """Turns one input into JSON, as a client would have to."""

    def __init__(self, field: InputField | None) -> None:
        self._takes_files = field is not None and holds(field.type, "path", "file")

    def of(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Secret):
            return value.get_secret_value()
        if isinstance(value, Mapping):
            return {str(key): self.of(each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(each) for each in value]
        if self._takes_files:
            if isinstance(value, os.PathLike):
                path = Path(value)
                return data_url_of(path.read_bytes(), media_type_of(path))
            if isinstance(value, bytes | bytearray | memoryview):
                return data_url_of(bytes(value))
            if hasattr(value, "read"):
                content = value.read()
                return data_url_of(content.encode() if isinstance(content, str) else content)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        return self.of(simplifier_of(type(value))(value))


def _invalid(name: str, what: str) -> InvalidInputError:
    return InvalidInputError([{"loc": ("body", "input", name), "msg": what, "type": "value_error"}])


def _of_all(message: str) -> tuple[FieldError, ...]:
    return (FieldError(("body", "input"), message, "value_error"),)
