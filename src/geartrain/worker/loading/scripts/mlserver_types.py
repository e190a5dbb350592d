"""Requests, responses and errors of MLServer, where its package is not installed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from geartrain.domain.tensors.tensor import ARRAY_NAMES


class MLServerError(Exception):
    """An error with a status."""

    def __init__(self, msg: str, status_code: int = 400) -> None:
        super().__init__(msg)
        self.status_code = status_code


class InvalidModelURI(MLServerError):  # noqa: N818 - the name of MLServer
    """Files of a model that are not there."""

    def __init__(self, name: str, model_uri: str | None = None) -> None:
        super().__init__(f"Invalid URI specified for model {name}" + (f" ({model_uri})" if model_uri else ""), 422)


class ModelNotFound(MLServerError):  # noqa: N818 - the name of MLServer
    """A model that is not there."""

    def __init__(self, name: str, version: str | None = None) -> None:
        super().__init__(f"Model {name}{f' with version {version}' if version else ''} not found", 404)


class ModelNotReady(MLServerError):  # noqa: N818 - the name of MLServer
    """A model that is not loaded."""

    def __init__(self, name: str, version: str | None = None) -> None:
        super().__init__(f"Model {name}{f' with version {version}' if version else ''} is not ready yet.")


class ModelParametersMissing(MLServerError):  # noqa: N818 - the name of MLServer
    """Settings without parameters."""

    def __init__(self, model_name: str) -> None:
        super().__init__(f"Parameters missing for model {model_name}")


class RuntimeInferenceError(MLServerError):
    """An inference that failed; MLServer calls it `InferenceError`."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


class _Record:
    """A part of a request or a response."""

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """Return the parts as plain values."""
        found = {name: _plain(value, exclude_none) for name, value in vars(self).items() if not name.startswith("_")}
        return {name: value for name, value in found.items() if value is not None or not exclude_none}

    def model_dump_json(self, **options: Any) -> str:
        """Return the parts as JSON."""
        return json.dumps(self.model_dump(**options), default=lambda each: each.decode())

    dict = model_dump
    json = model_dump_json

    @classmethod
    def model_validate(cls, given: Any) -> Any:
        """Make it of a dict."""
        return given if isinstance(given, cls) else cls(**given)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({parts})"


_Record.dict = _Record.model_dump  # its name in older versions of pydantic


def _plain(value: Any, exclude_none: bool) -> Any:  # noqa: FBT001 - of `model_dump`
    if isinstance(value, _Record):
        return value.model_dump(exclude_none=exclude_none)
    if isinstance(value, TensorData):
        return value.root
    return [_plain(each, exclude_none) for each in value] if isinstance(value, list) else value


class Parameters(_Record):
    """Parameters of any names."""

    def __init__(self, /, content_type: str | None = None, headers: Any = None, **more: Any) -> None:
        self.content_type = content_type
        self.headers = headers
        if more:
            vars(self).update(more)


HELD: Final = frozenset(ARRAY_NAMES) - {"BF16"}
"""The datatypes of arrays that tensors hold until their list is read; an array of BF16 would need another package."""


class TensorData:
    """The elements of a tensor: a list, which is made of an array when it is read."""

    def __init__(self, root: Any, *, array: Any = None) -> None:
        """`array` has the elements where `root` is None."""
        self.array = array
        self._root = root

    @property
    def root(self) -> Any:
        """The list; the author may change it, so the array is let go of."""
        if self.array is not None:
            self._root, self.array = self.array.ravel().tolist(), None
        return self._root

    @root.setter
    def root(self, value: Any) -> None:
        self._root, self.array = value, None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.root)

    def __getitem__(self, place: Any) -> Any:
        return self.root[place]

    def __len__(self) -> int:
        return len(self.root)

    def __eq__(self, other: object) -> bool:
        return bool(self.root == (other.root if isinstance(other, TensorData) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorData({self.root!r})"


def _parameters(given: Any) -> Parameters | None:
    if given is None or type(given) is Parameters:
        return given  # before the check of an abstract class: 0.3 µs, four times in a request
    return Parameters(**given) if isinstance(given, Mapping) else given


class _Tensor(_Record):
    """A tensor."""

    def __init__(self, *, name: str, shape: Sequence[int], datatype: Any, data: Any, parameters: Any = None) -> None:
        self.name = name
        self.shape = list(shape)
        self.datatype = str(datatype)
        self.parameters = _parameters(parameters)
        self.data = data if isinstance(data, TensorData) else TensorData(data)


class RequestInput(_Tensor):
    """An input of a request."""


class ResponseOutput(_Tensor):
    """An output of a response."""


class RequestOutput(_Record):
    """An output that a client asks for."""

    def __init__(self, *, name: str, parameters: Any = None) -> None:
        self.name = name
        self.parameters = _parameters(parameters)


class MetadataTensor(_Record):
    """An input or an output in metadata."""

    def __init__(self, *, name: str, datatype: Any, shape: Sequence[int], parameters: Any = None, **_: Any) -> None:
        self.name = name
        self.datatype = str(datatype)
        self.shape = list(shape)
        self.parameters = _parameters(parameters)


class MetadataModelResponse(_Record):
    """The metadata of a model."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class InferenceRequest(_Record):
    """A request."""

    def __init__(
        self,
        *,
        inputs: Sequence[Any],
        id: str | None = None,  # noqa: A002 - the name of MLServer
        parameters: Any = None,
        outputs: Any = None,
    ) -> None:
        self.id = id
        self.parameters = _parameters(parameters)
        self.inputs = [RequestInput.model_validate(each) for each in inputs]
        self.outputs = None if outputs is None else [RequestOutput.model_validate(each) for each in outputs]


class InferenceResponse(_Record):
    """A response."""

    def __init__(
        self,
        *,
        model_name: str,
        outputs: Sequence[Any],
        model_version: str | None = None,
        id: str | None = None,  # noqa: A002 - the name of MLServer
        parameters: Any = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters = _parameters(parameters)
        self.outputs = [ResponseOutput.model_validate(each) for each in outputs]


def content_type_of(value: Any) -> str | None:
    """Return the content type in the parameters of something; None for none."""
    found: str | None = getattr(getattr(value, "parameters", None), "content_type", None)
    return found


TYPES: Final = {
    each.__name__: each
    for each in (
        InferenceRequest,
        InferenceResponse,
        MetadataModelResponse,
        MetadataTensor,
        Parameters,
        RequestInput,
        RequestOutput,
        ResponseOutput,
        TensorData,
    )
}
