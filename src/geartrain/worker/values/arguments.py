"""Makes the keyword arguments of `run()` from the JSON of an input that the parent has already checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from geartrain.authoring.scope import current_scope
from geartrain.domain.signature.types import TypeSpec
from geartrain.domain.tensors.tensor import Buffer, Tensor
from geartrain.worker.errors import ClientError, ReportedError
from geartrain.worker.loading.descriptions import Compose, Converter
from geartrain.worker.loading.signature import Parameter

_IMMUTABLE = (str, int, float, bool, type(None))
_NUMBERS = frozenset({int, float})
NO_PARTS = b"{}"
"""Parts of a request that has nothing but tensors."""
DirectCompose = Callable[[Iterable[Tensor], Mapping[str, Any]], dict[str, Any]]
"""Makes the arguments of `run()` of the tensors of a request."""


class ArgumentError(ReportedError):
    """A value that the check admits and the author's own class refuses: the message names the input."""


class ArgumentBinder:
    """Binds one input after the other to the parameters of one `run()`. What can be prepared, is, once."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._converters: tuple[tuple[str, Converter], ...] = tuple(
            (parameter.field.name, parameter.convert) for parameter in parameters if parameter.convert is not None
        )
        self._constants: dict[str, Any] = {}
        self._makers: list[tuple[str, Callable[[], Any]]] = []
        for parameter in parameters:
            if not parameter.field.required:
                self._prepare_default(parameter)
        self._files = tuple(each.field.name for each in parameters if holds_file(each.field.type))

    @property
    def takes_as_given(self) -> bool:
        """True if `bind_values` gives its values back as they are."""
        return not (self._converters or self._makers or self._constants)

    def _prepare_default(self, parameter: Parameter) -> None:
        """Keep an immutable default as it is; of any other, every prediction gets a copy of its own."""
        name, convert = parameter.field.name, parameter.convert
        default = parameter.field.default if convert is None else parameter.default
        if not parameter.field.has_default or default is None:
            self._constants[name] = None
        elif convert is None and isinstance(default, _IMMUTABLE):
            self._constants[name] = default
        elif convert is None:
            self._makers.append((name, lambda: deepcopy(default)))
        elif type(default) in _NUMBERS and type(convert(default)) in _NUMBERS:
            self._constants[name] = convert(default)
        else:
            self._makers.append((name, lambda: convert(deepcopy(default))))

    def bind(self, raw: Buffer, tensors: Iterable[Tensor] = ()) -> dict[str, Any]:
        """Return the keyword arguments for the JSON object `raw`, and the `tensors` that are not in it.

        7.0 for an `int` becomes 7, and 7 for a `float` becomes 7.0. The paths in it are local ones. Raises
        `ArgumentError`. The contents of tensors are copied. Give the result to `release` when the prediction is over.
        """
        given = self._decode(raw)
        for tensor in tensors:
            given[tensor.name] = tensor
        return self.bind_values(given)

    def bind_values(self, given: dict[str, Any]) -> dict[str, Any]:
        """Bind decoded values and tensors by name. The dict is used up."""
        if self._converters:
            self._convert(given)
        for name, make in self._makers:
            if name not in given:
                given[name] = make()
        return {**self._constants, **given} if self._constants else given

    def _convert(self, given: dict[str, Any]) -> None:
        for name, convert in self._converters:
            value = given.get(name)
            if value is None:
                continue
            try:
                given[name] = convert(value)
            except ClientError:
                self.release(given)
                raise
            except Exception as error:
                self.release(given)
                raise ArgumentError(f"input.{name}: {type(error).__name__}: {error}") from error

    def release(self, arguments: dict[str, Any]) -> None:
        """Close the files that `bind` has opened."""
        for name in self._files:
            _close(arguments.get(name))


class ComposingBinder(ArgumentBinder):
    """Binds the parts of a request to the one parameter of a `run()` that takes it as a whole."""

    def __init__(self, parameters: Sequence[Parameter], compose: Compose) -> None:
        super().__init__(parameters)
        self._compose = compose
        self._direct: DirectCompose | None = getattr(compose, "direct", None)

    def bind(self, raw: Buffer, tensors: Iterable[Tensor] = ()) -> dict[str, Any]:
        """Return the keyword arguments. Raises `ClientError`, `ArgumentError`."""
        if self._direct is not None and tensors and raw == NO_PARTS:
            return self._direct(tensors, current_scope().parameters)
        return self._compose(super().bind(raw, tensors), current_scope().parameters)


def holds_file(spec: TypeSpec) -> bool:
    """True if a value of this type has files to close."""
    return spec.kind == "file" or (spec.items is not None and holds_file(spec.items))


def _close(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _close(item)
    elif hasattr(value, "close"):
        value.close()
