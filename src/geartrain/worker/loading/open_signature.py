"""Signatures of a `run()` that takes whole requests, as bytes or as any tensors, or returns whole responses."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.authoring.decorators import BATCHED_ATTRIBUTE
from geartrain.authoring.requests import JSON_TYPE, TEXT_TYPE, Request, Response, Tensors
from geartrain.authoring.scope import current_scope
from geartrain.domain.data_urls import media_type_of, read_data_url
from geartrain.domain.predictions.batching import Batching
from geartrain.domain.signature.types import (
    ANY_ANSWER,
    ANY_TENSORS,
    BODY,
    RESPONSE,
    Contract,
    DeclaredTensor,
    InputField,
    OutputSpec,
    Signature,
    TypeSpec,
)
from geartrain.domain.tensors.tensor import DATATYPES, Tensor
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.batched_signature import part_of, read_policy
from geartrain.worker.loading.callables import decorator_value, is_async, is_generator
from geartrain.worker.loading.descriptions import Compose, strip
from geartrain.worker.loading.signature import (
    Parameter,
    UnsupportedAnnotationError,
    make_signature,
    output_mode,
    read_output,
    read_parameters,
    return_annotation,
    written_parameters,
)

_TEXT: Final = TypeSpec("string", nullable=True)
_PREFIX: Final = 4  # bytes of the length of an element of BYTES

REQUEST_INPUTS: Final = (
    InputField("body", BODY, required=False, description="The body: text, a data: URL, or any other value as JSON"),
    InputField(
        "file", TypeSpec("path", nullable=True), required=False, description="A file whose contents are the body"
    ),
    InputField("content_type", _TEXT, required=False, description="The type of the body"),
    InputField("accept", _TEXT, required=False, description="The types that the client takes"),
    InputField("headers", TypeSpec("object", nullable=True), required=False, description="Other header fields"),
    InputField("query", _TEXT, required=False, description="What follows the ? of the path"),
    InputField("method", _TEXT, required=False, description="Such as POST"),
    InputField("path", _TEXT, required=False, description="The path of the request"),
)
TENSOR_INPUTS: Final = (
    InputField(
        "tensors",
        TypeSpec("object", nullable=True, form="tensors"),
        required=False,
        description="Tensors by name: nested lists, or objects of datatype, shape and data",
    ),
    InputField("parameters", TypeSpec("object", nullable=True), required=False, description="Parameters by name"),
    InputField(
        "outputs",
        TypeSpec("array", nullable=True, items=TypeSpec("string")),
        required=False,
        description="The names of the wanted outputs; all without it",
    ),
    InputField("id", _TEXT, required=False, description="The id of the request"),
    InputField(
        "content_types",
        TypeSpec("object", nullable=True),
        required=False,
        description="The content types of inputs, by name, for models that decode these by themselves",
    ),
)


_FIELDS: Final[Mapping[Contract, Sequence[InputField]]] = {
    "request": REQUEST_INPUTS,
    "tensors": TENSOR_INPUTS,
    "any": (*(field for field in REQUEST_INPUTS if field.name != "file"), *TENSOR_INPUTS),
}
_REQUEST_NAMES: Final = tuple(field.name for field in REQUEST_INPUTS)


class OpenSignature(NamedTuple):
    """A `run()` that takes or returns something whole. `compose`: None where its inputs are as usual."""

    parameters: tuple[Parameter, ...]
    signature: Signature
    batching: Batching | None
    compose: Compose | None


def read_open(run: Callable[..., Any], *, owner_name: str, settings: Mapping[str, Any] | None) -> OpenSignature | None:
    """Read the signature of a bound `run()`; None if nothing in it is whole.

    `settings` are those of batches, None for a `run()` that is not batched. Raises `UnsupportedAnnotationError`.
    """
    is_batched = settings is not None
    written = written_parameters(run, owner_name=owner_name)
    kinds = {each.name: _contract(each.annotation, is_batched=is_batched) for each in written}
    contracts = [kind for kind in kinds.values() if kind]
    contract: Contract = contracts[0] if contracts else ""
    output = _read_output(run, owner_name, contract, is_batched=is_batched)
    if not contracts:
        if output is None or is_batched:
            return None
        parameters = read_parameters(run, owner_name=owner_name)
        return OpenSignature(parameters, make_signature(run, parameters, output), None, None)
    if len(kinds) > 1:
        name = "Tensors" if contract == "tensors" else "Request"
        raise UnsupportedAnnotationError(
            f"{owner_name} takes a geartrain.{name} and other inputs: a whole request is the only parameter of run()"
        )
    batching = None
    if settings is not None:
        policy = read_policy(decorator_value(run, BATCHED_ATTRIBUTE), settings, owner_name)
        if policy.cost:
            raise UnsupportedAnnotationError(
                f"the batching of {owner_name}: cost={policy.cost!r} needs inputs with names, and this one takes whole"
                " requests: take it out, or annotate the inputs"
            )
        batching = Batching(policy, apart=True)
    if output is None:
        of_one = part_of(owner_name) if is_batched else None
        output = read_output(run, owner_name=owner_name, of_one=of_one)
    (name,) = kinds
    return whole(run, contract, name, output=output, batching=batching)


def whole(
    run: Callable[..., Any],
    contract: Contract,
    name: str,
    *,
    output: OutputSpec,
    batching: Batching | None = None,
    inputs: Sequence[DeclaredTensor] = (),
    outputs: Sequence[DeclaredTensor] = (),
) -> OpenSignature:
    """Make the signature of a `run()` whose one parameter `name` is a whole request, or a list of them in a batch.

    `inputs` and `outputs` are declared tensors, which are checked and shown: for models of other servers. With
    `Batching.by_rows` the first dimension of each is that of the batch, and has the size -1.
    """
    fields = _FIELDS[contract]
    parameters = tuple(Parameter(field, None, Path if field.type.kind == "path" else None) for field in fields)
    made = make_signature(run, parameters, output)
    signature = Signature(
        inputs=made.inputs,
        output=output,
        streaming=made.streaming,
        description=made.description,
        contract=contract,
        open_inputs=tuple(inputs),
        open_outputs=tuple(outputs),
    )
    return OpenSignature(parameters, signature, batching, _compose(contract, name, inputs))


def _compose(contract: Contract, name: str, inputs: Sequence[DeclaredTensor]) -> Compose:
    if contract == "request":
        return lambda values, _: {name: _request_of(values)}
    return EitherOf(name, inputs) if contract == "any" else TensorsOf(name, inputs)


def response_output(*, streams: bool = False) -> OutputSpec:
    """Return the output of a model that returns, or yields, whole responses."""
    return OutputSpec(RESPONSE, "iterator" if streams else "value")


def any_output(*, streams: bool = False) -> OutputSpec:
    """Return the output of a model that answers requests with responses, and tensors with tensors."""
    return OutputSpec(ANY_ANSWER, "iterator" if streams else "value")


def tensors_output(*, streams: bool = False) -> OutputSpec:
    """Return the output of a model that returns, or yields, any tensors."""
    return OutputSpec(ANY_TENSORS, "iterator" if streams else "value")


def _contract(annotation: Any, *, is_batched: bool) -> Contract:
    members = [each for each in _members(annotation, is_batched=is_batched) if isinstance(each, type)]
    takes_requests, takes_tensors = (any(issubclass(each, kind) for each in members) for kind in (Request, Tensors))
    if takes_requests:
        return "any" if takes_tensors else "request"
    return "tensors" if takes_tensors else ""


def _read_output(run: Callable[..., Any], owner: str, contract: Contract, *, is_batched: bool) -> OutputSpec | None:
    """Return the output of a `run()` that returns responses or tensors; None for any other."""
    annotation = return_annotation(run, owner)
    generates = is_generator(run)
    takes_requests = contract in {"request", "any"}
    if contract == "any":
        return any_output(streams=generates)
    if annotation is inspect.Signature.empty:
        return response_output(streams=generates) if takes_requests else None
    mode, element = output_mode(annotation, owner)
    streams = mode != "value" or generates
    members = _members(element, is_batched=is_batched)
    if any(isinstance(each, type) and issubclass(each, Tensors) for each in members):
        return tensors_output(streams=streams)
    wholes = (Response, bytes) if takes_requests else (Response,)
    if any(isinstance(each, type) and issubclass(each, wholes) for each in members):
        return response_output(streams=streams)
    return response_output(streams=streams) if takes_requests and (element is None or element is Any) else None


def _members(annotation: Any, *, is_batched: bool) -> list[Any]:
    """The types of a union, or of the elements of the list that a batched `run()` returns."""
    bare, _ = strip(annotation)
    if is_batched and typing.get_origin(bare) is list:
        bare, _ = strip(typing.get_args(bare)[0])
    members = typing.get_args(bare) if typing.get_origin(bare) in _UNIONS else (bare,)
    return [strip(each)[0] for each in members]


_UNIONS: Final = frozenset({typing.Union, type(int | str)})


# inputs


def _request_of(values: dict[str, Any]) -> Request:
    """Make a request of its parts. Raises `ClientError`."""
    content_type = values.get("content_type") or ""
    body, file = values.get("body"), values.get("file")
    if isinstance(body, Tensor):
        content = bytes(body.data[_PREFIX:])
    elif file is not None:
        content = Path(file).read_bytes()
        if not content_type:
            content_type = media_type_of(Path(file).name)
    elif isinstance(body, str) and body[:5].lower() == "data:":
        try:
            content, given_type = read_data_url(body)
        except ValueError as error:
            raise ClientError(f"body: {error}") from None
        content_type = content_type or given_type
    elif isinstance(body, str):
        content, content_type = body.encode(), content_type or TEXT_TYPE
    elif body is None:
        content = b""
    else:
        content, content_type = json.dumps(body).encode(), content_type or JSON_TYPE
    headers = values.get("headers") or {}
    if not all(isinstance(value, str) for value in headers.values()):
        raise ClientError("headers: its values are strings")
    return Request(
        content,
        content_type,
        accept=values.get("accept") or "",
        headers=headers,
        query=values.get("query") or "",
        method=values.get("method") or "POST",
        path=values.get("path") or "/invoke",
    )


class TensorsOf:
    """Makes the arguments of a `run()` that takes any tensors."""

    def __init__(self, name: str, declared: Iterable[DeclaredTensor] = ()) -> None:
        """`name` is that of its parameter; lists become arrays of the datatypes of the `declared` tensors."""
        self._name = name
        self._datatypes = {each.name: each.datatype for each in declared}

    def declaring(self, declared: Iterable[DeclaredTensor]) -> TensorsOf:
        """Return the same for other tensors."""
        return type(self)(self._name, declared)

    def __call__(self, values: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a request by its parts. Raises `ClientError`."""
        return {self._name: _tensors_of(values, parameters, self._datatypes)}

    def direct(self, tensors: Iterable[Tensor], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a request that has no other parts: nearly all. Raises `ClientError`."""
        found: dict[str, Any] = {}
        datatypes: dict[str, str] = {}
        for tensor in tensors:
            found[tensor.name] = _array_of(tensor)
            datatypes[tensor.name] = tensor.datatype
        return {self._name: Tensors(found, parameters=parameters, datatypes=datatypes)}


class EitherOf(TensorsOf):
    """Makes the argument of a `run()` that takes whole requests, and any tensors."""

    def __call__(self, values: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request if one of its own parts is there, and otherwise tensors. Raises `ClientError`."""
        given = (values.get(name) for name in _REQUEST_NAMES)
        if any(value is not None and not isinstance(value, Tensor) for value in given):
            return {self._name: _request_of(values)}
        return super().__call__(values, parameters)


def _array_of(tensor: Tensor) -> Any:
    from geartrain.worker import arrays

    if tensor.datatype == "BYTES":
        return _strings(arrays.strings_of(tensor), tensor.shape)
    return arrays.numbers_of(tensor)


def _tensors_of(values: dict[str, Any], parameters: Mapping[str, Any], declared: Mapping[str, str]) -> Tensors:
    """Make the tensors of a request; `declared` are datatypes by name. Raises `ClientError`."""
    given = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    found: dict[str, Any] = {}
    datatypes: dict[str, str] = {}
    for name, value in (values.get("tensors") or {}).items() if not given else ():
        datatypes[name], found[name] = _array_of_json(name, value, declared.get(name, ""))
    for name, tensor in given.items():
        datatypes[name] = tensor.datatype
        found[name] = _array_of(tensor)
    own = values.get("parameters")
    requested = values.get("outputs")
    known = {**parameters, **own} if isinstance(own, dict) else parameters
    names = requested if isinstance(requested, list) else None
    kinds = values.get("content_types") or {}
    if not all(isinstance(kind, str) for kind in kinds.values()):
        raise ClientError("content_types: its values are strings")
    own_id = values.get("id") or ""
    return Tensors(found, parameters=known, requested=names, datatypes=datatypes, content_types=kinds, id=own_id)


_LISTED: Final = {"f": "fiub", "i": "iu", "u": "iu", "b": "b"}
"""The kinds of numbers in lists that an array of a kind takes."""


def _array_of_json(name: str, value: Any, datatype: str) -> tuple[str, Any]:
    """Return the datatype and the array of nested lists, or of an object of `datatype`, `shape` and `data`.

    `datatype` is that of lists; empty for the one of their elements.
    """
    import numpy as np

    from geartrain.worker import arrays

    shape = None
    if isinstance(value, dict):
        datatype, shape, value = value.get("datatype", ""), value.get("shape"), value.get("data")
        if datatype not in DATATYPES:
            raise ClientError(f"tensors.{name}.datatype: {datatype!r} is none of {', '.join(sorted(DATATYPES))}")
    try:
        plain = None if datatype == "BYTES" else np.array(value)
        if plain is not None and not datatype:
            datatype = "BYTES" if plain.dtype.kind in "USO" else arrays.NAMES.get(plain.dtype.name, "")
        if plain is None or datatype == "BYTES":
            found, elements = arrays.bytes_of(value)
            array = _strings(elements, found)
        else:
            wanted = np.dtype(np.float32 if datatype == arrays.BFLOAT else arrays.numpy_type(datatype))
            is_known = not plain.size or plain.dtype.kind in _LISTED[wanted.kind]
            if not is_known and (wanted.kind == "b" or not _are_integers(value)):
                raise ValueError(f"its elements are no {datatype}")
            array = np.array(value, wanted)
            array = arrays.bits_of_bfloat(array) if datatype == arrays.BFLOAT else array
        return datatype, array if shape is None else array.reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ClientError(f"tensors.{name}: it is no tensor: {error}") from None


def _are_integers(value: Any) -> bool:
    """True for nested lists of integers alone. Those from 2^63 on make numpy take all of a list for floats."""
    import numpy as np

    return all(type(each) is int for each in np.array(value, object).flat)


def _strings(elements: list[bytes], shape: Sequence[int]) -> Any:
    import numpy as np

    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


# streamed responses


def in_pieces(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a `run()` so that the iterator in its response is yielded, where the client reads pieces."""
    if is_generator(run):
        return run
    if is_async(run):

        @wraps(run)
        async def run_async(**arguments: Any) -> Any:
            found = await run(**arguments)
            if not (isinstance(found, Response) and found.streams):
                return found
            if current_scope().takes_pieces:
                return _pieces_async(found)
            if hasattr(found.content, "__anext__"):
                found.content = b"".join([_piece(piece) async for piece in found.content])
            return found

        return run_async

    @wraps(run)
    def run_sync(**arguments: Any) -> Any:
        found = run(**arguments)
        if isinstance(found, Response) and found.streams and current_scope().takes_pieces:
            return _pieces(found)
        return found

    return run_sync


def _piece(piece: Any) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)


def _head(response: Response) -> Response:
    return Response(b"", response.content_type, status=response.status, headers=response.headers)


def _pieces(response: Response) -> Iterator[Any]:
    yield _head(response)
    yield from response.content


async def _pieces_async(response: Response) -> AsyncIterator[Any]:
    yield _head(response)
    if hasattr(response.content, "__anext__"):
        async for piece in response.content:
            yield piece
    else:
        for piece in response.content:
            yield piece
