"""Requests of a model for other models of the server: business logic scripting, as Triton calls it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from geartrain.authoring import nested
from geartrain.authoring.nested import ModelError, PendingCall
from geartrain.authoring.requests import Tensors
from geartrain.domain.errors import Code
from geartrain.worker.loading.triton.values import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    error_from,
    text_of,
)

_OUTPUT: Final = "output"  # the name of an output without one


class NestedRequest(InferenceRequest):
    """A request for another model: `exec()` makes it, and returns the response."""

    __slots__ = ("_correlation_id", "_model_name", "_model_version", "_requested")

    def __init__(  # noqa: PLR0913, PLR0917 - the parameters are Triton's
        self,
        request_id: str = "",
        correlation_id: Any = 0,
        inputs: Iterable[Tensor] = (),
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,  # noqa: ARG002 - the limit is what is left of the request at hand
        preferred_memory: PreferredMemory | None = None,  # noqa: ARG002 - outputs are in the memory of the processor
        trace: InferenceTrace | None = None,  # noqa: ARG002 - the span of the run is the parent
        parameters: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Make a request. Raises `TritonModelException` for a model without a name."""
        if not model_name:
            raise TritonModelException("InferenceRequest: model_name is missing")
        names = tuple(text_of(each, "the name of a requested output") for each in requested_output_names)
        given = json.loads(parameters) if isinstance(parameters, str) else parameters
        super().__init__(Tensors(parameters=given, requested=names, id=request_id), names)
        self._inputs = list(inputs)
        self._requested = names
        self._model_name = text_of(model_name, "model_name")
        self._model_version = model_version
        self._correlation_id = correlation_id
        if flags:
            self.set_flags(flags)

    def model_name(self) -> str:
        """Return the name of the model."""
        return self._model_name

    def correlation_id(self) -> Any:
        """Return the id of the sequence."""
        return self._correlation_id

    def exec(self, decoupled: bool = False) -> Any:  # noqa: FBT001, FBT002 - as in Triton
        """Make the request, and return the response; with `decoupled` an iterator over responses. Blocks.

        What goes wrong is the error of a response.
        """
        call = self._begin()
        if decoupled:
            return NestedResponses(call, self._requested)
        return self._response(call)

    async def async_exec(self, decoupled: bool = False) -> Any:  # noqa: FBT001, FBT002 - as in Triton
        """Make the request as `exec()` does; awaited."""
        call = self._begin()
        if decoupled:
            return NestedResponses(call, self._requested)
        if isinstance(call, InferenceResponse):
            return call
        try:
            value = await call.wait()
        except ModelError as error:
            return InferenceResponse(error=error_from(error.code, error.message))
        return _single(value, self._requested, self._model_name)

    def _begin(self) -> PendingCall | InferenceResponse:
        values: dict[str, Any] = {each.name(): each.contents for each in self._inputs or ()}
        if self._tensors.parameters:
            values["parameters"] = self._tensors.parameters
        version = str(self._model_version) if self._model_version > 0 else ""
        try:
            return nested.current_transport().begin(self._model_name, version, values)
        except (TypeError, ValueError) as error:
            return InferenceResponse(error=TritonError(str(error), TritonError.INVALID_ARG))

    def _response(self, call: PendingCall | InferenceResponse) -> InferenceResponse:
        if isinstance(call, InferenceResponse):
            return call
        try:
            value = call.result()
        except ModelError as error:
            return InferenceResponse(error=error_from(error.code, error.message))
        return _single(value, self._requested, self._model_name)


class NestedResponses:
    """The responses of a decoupled model, one by one: for `for`, and for `async for`."""

    def __init__(self, call: PendingCall | InferenceResponse, requested: tuple[str, ...]) -> None:
        self._call: PendingCall | None = None if isinstance(call, InferenceResponse) else call
        self._first = call if isinstance(call, InferenceResponse) else None
        self._requested = requested

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        self._check()
        if self._call is None:
            return self._refused()
        try:
            return _response(self._call.next(), self._requested)
        except ModelError as error:
            return self._failed(error)

    def __aiter__(self) -> NestedResponses:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._call is None and self._first is None:
            raise StopAsyncIteration
        if self._call is None:
            return self._refused()
        try:
            return _response(await self._call.anext(), self._requested)
        except ModelError as error:
            return self._failed(error)

    def cancel(self) -> None:
        """Cancel the request, unless it has ended."""
        if self._call is not None:
            self._call.cancel()

    def _check(self) -> None:
        if self._call is None and self._first is None:
            raise StopIteration

    def _refused(self) -> InferenceResponse:
        found, self._first = self._first, None
        return found or InferenceResponse()

    def _failed(self, error: ModelError) -> InferenceResponse:
        self._call = None
        return InferenceResponse(error=error_from(error.code, error.message))


def _single(value: Any, requested: tuple[str, ...], model: str) -> InferenceResponse:
    """Return the one response of a model; an error if it has sent several."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        if len(value) > 1:
            text = f"Model {model} sends several responses; call exec(decoupled=True)"
            return InferenceResponse(error=TritonError(text, TritonError.UNSUPPORTED))
        (value,) = value
    return _response(value, requested)


def _response(value: Any, requested: tuple[str, ...]) -> InferenceResponse:
    """Return the outputs of a model as a response, the requested ones or all."""
    found = dict(value) if isinstance(value, Mapping) else {} if value is None else {_OUTPUT: value}
    for name in requested:
        if name not in found:
            text = f"unexpected inference output '{name}'; the outputs are: {', '.join(found) or 'none'}"
            return InferenceResponse(error=error_from(Code.INVALID_TENSOR, text))
    return InferenceResponse([Tensor(name, _array(found[name])) for name in requested or found])


def _array(value: Any) -> Any:
    """Return the array of an output. Texts are bytes, as in Triton."""
    array = value if isinstance(value, np.ndarray) else np.atleast_1d(np.asarray(value))
    if array.dtype.kind not in "UO":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [each.encode() if isinstance(each, str) else _bytes(each) for each in array.ravel().tolist()]
    return texts.reshape(array.shape)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()
