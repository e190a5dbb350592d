"""A class `kserve.Model`: bodies of version 1 as dicts, and tensors of version 2 as an `InferRequest`.

The package `kserve` is used where it is installed. Its server takes the models, and does not listen.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Hashable, Mapping, Sequence
from http import HTTPStatus
from types import ModuleType
from typing import Any, Final

from geartrain.authoring.requests import BINARY_TYPE, FRAMING, JSON_TYPE, Request, Response, Tensors
from geartrain.authoring.scope import current_scope
from geartrain.domain.errors import Code
from geartrain.worker.errors import AnswerError, ClientError
from geartrain.worker.loading.scripts.answers import plain
from geartrain.worker.loading.scripts.finder import after_import, stand_in
from geartrain.worker.loading.scripts.main_block import arguments_of, chosen, run_main_block
from geartrain.worker.loading.scripts.script import Place, Script, leaves, tell
from geartrain.worker.loading.scripts.shared_calls import (
    NotCutError,
    SharedCalls,
    cut,
    finish,
    has_rows,
    join,
    key_of,
    rows_of,
)

_STEPS: Final = ("__call__", "preprocess", "predict", "postprocess", "explain")
_EXPLAIN: Final = ":explain"
_JSON_TYPES: Final = frozenset({"", JSON_TYPE, "application/ld+json", BINARY_TYPE})
_AT_ONCE: Final = 32  # requests of a model whose steps are coroutines
_STATUSES: Final = {
    "InvalidInput": HTTPStatus.BAD_REQUEST,
    "ModelNotFound": HTTPStatus.NOT_FOUND,
    "ModelNotReady": HTTPStatus.SERVICE_UNAVAILABLE,
    "NotImplementedError": HTTPStatus.NOT_IMPLEMENTED,
    "UnsupportedProtocol": HTTPStatus.NOT_IMPLEMENTED,
}
_CODES: Final = {
    HTTPStatus.NOT_FOUND: Code.NOT_FOUND,
    HTTPStatus.SERVICE_UNAVAILABLE: Code.NOT_READY,
    HTTPStatus.NOT_IMPLEMENTED: Code.UNSUPPORTED,
}
_INSTANCES: Final = "instances"
_PREDICTIONS: Final = "predictions"
_STARTED: Final[list[Any]] = []
"""The models that the script has given to its server."""


class KServeScript(Script):
    """A script with a `kserve.Model`."""

    reads_arguments = True

    @classmethod
    def prepare(cls, place: Place) -> None:
        """Put the package in place, and have its server take models in the place of its start."""
        from geartrain.worker.loading.scripts import kserve_shim  # with numpy

        sys.argv = [str(place.file)]  # the package reads its arguments when it is imported
        is_shim = stand_in(kserve_shim.MODULES)
        after_import("kserve.model_server", _take_models)
        if "kserve.model_server" not in sys.modules:  # of the shim, or of the package that comes later
            _take_models(kserve_shim)
        for each in kserve_shim.MODULES if is_shim else ():
            importlib.import_module(each)  # `import kserve` gives its modules as well

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a script without a model."""
        super().__init__(module, place, options)
        self._kserve = importlib.import_module("kserve.model")
        self._types = importlib.import_module("kserve.protocol.infer_type")
        self._classes = [each for each in vars(module).values() if self._is_model(each)]
        if not self._classes and not _STARTED:
            raise ValueError("it has no class that is derived from kserve.Model")
        kinds = [*self._classes, *map(type, _STARTED)]
        self._is_async = any(self._has_coroutines(each) for each in kinds)
        self.run = self._run_async if self._is_async else self._run
        self.max_concurrency = _AT_ONCE if self._is_async else None
        self._model: Any = None
        self._shared = SharedCalls(_key_of, self._one, self._many, fits=_fits)

    def share_calls(self) -> None:
        """Join the `instances`, or the tensors, of requests, as KServe's batcher does in front of a model."""
        self.run = self._run_batch_async if self._is_async else self._run_batch
        self.batching = {}
        self.max_concurrency = 1  # the next call gathers while this one runs

    def setup(self) -> None:
        """Make the model: as the script does where it starts its server, otherwise of its class."""
        if not _STARTED:
            arguments = arguments_of(self.options)
            server: Any = importlib.import_module("kserve.model_server")
            if hasattr(server, "args"):  # the package has read those of its import, when there were none
                server.args, _ = server.parser.parse_known_args(arguments)
            run_main_block(self.module, arguments)
        models = list(dict.fromkeys(_STARTED)) or [self._made()]
        self._model = chosen({each.name: each for each in models}, self.options)
        if not isinstance(self._model, self._kserve.Model):
            raise TypeError(f"{type(self._model).__name__} is not derived from kserve.Model")
        if not self._is_async and self._has_coroutines(type(self._model)):
            raise ValueError(f"import {type(self._model).__name__} at the top of the file: its steps are coroutines")
        if not self._model.ready:
            self._model.load()
        self._model.start()

    # the class

    def _is_model(self, value: Any) -> bool:
        base = self._kserve.Model
        return (
            isinstance(value, type) and issubclass(value, base) and value is not base and not inspect.isabstract(value)
        )

    def _has_coroutines(self, kind: type) -> bool:
        """True if a step of the author's is a coroutine, or none of them predicts: a predictor elsewhere is asked."""
        if self._owner(kind, "predict") and self._owner(kind, "__call__"):
            return True
        steps = (getattr(kind, name) for name in _STEPS if not self._owner(kind, name))
        return any(inspect.iscoroutinefunction(step) or inspect.isasyncgenfunction(step) for step in steps)

    def _owner(self, kind: type, name: str) -> bool:
        """True if a step is that of the base class."""
        return getattr(kind, name) is getattr(self._kserve.Model, name)

    def _made(self) -> Any:
        own = [each for each in self._classes if each.__module__ == self.module.__name__] or self._classes
        own = leaves(own)
        if len(own) != 1:
            names = ", ".join(each.__name__ for each in own)
            raise ValueError(
                f"it has {len(own)} classes derived from kserve.Model ({names}), and starts none of them:"
                " end it with ModelServer().start([model])"
            )
        taken = inspect.signature(own[0]).parameters
        given = {name: value for name, value in self.options.items() if name in taken}
        if "name" in taken:
            given.setdefault("name", self.options.get("model_name", "model"))
        return own[0](**given)

    # requests

    def _run(self, request: Request | Tensors) -> Response | Tensors:
        coroutine = self._answer(request)
        try:
            coroutine.send(None)
        except StopIteration as end:
            found: Response | Tensors = end.value
            return found
        coroutine.close()
        raise RuntimeError("a step of the model waits for a coroutine: write it, and predict(), with `async def`")

    async def _run_async(self, request: Request | Tensors) -> Response | Tensors:
        return await self._answer(request)

    async def _answer(self, request: Request | Tensors) -> Response | Tensors:
        if isinstance(request, Request):
            try:
                return await self._answer_body(request)
            except Exception as error:  # noqa: BLE001 - those without a status are raised again
                return _refusal(error)
        return await self._answer_tensors(request)

    # requests that share calls

    def _run_batch(self, requests: list[Request | Tensors]) -> list[Response | Tensors | Exception]:
        return finish(self._answer_all(requests))  # type: ignore[no-any-return]

    async def _run_batch_async(self, requests: list[Request | Tensors]) -> list[Response | Tensors | Exception]:
        return await self._answer_all(requests)

    async def _answer_all(self, requests: Sequence[Request | Tensors]) -> list[Any]:
        found: list[Any] = []
        for request, answer in zip(requests, await self._shared.answer(requests), strict=True):
            refused = isinstance(answer, Exception) and isinstance(request, Request)
            found.append(_refusal_or_error(answer) if refused else answer)
        return found

    async def _one(self, request: Request | Tensors) -> Response | Tensors:
        if isinstance(request, Tensors):
            return await self._answer_tensors(request)
        return await _joined(await self._answer_body(request))

    async def _many(self, requests: Sequence[Any], _: Sequence[int]) -> list[Any]:
        if not isinstance(requests[0], Request):
            return cut(await self._answer_tensors(join(requests)), [rows_of(each) for each in requests])
        parts = [_payload(each) for each in requests]
        counts = [len(each[_INSTANCES]) for each in parts]
        instances = [instance for each in parts for instance in each[_INSTANCES]]
        result, given = await self._call({**parts[0], _INSTANCES: instances}, _headers_of(*requests))
        result = plain(result)
        if _count_of(result) != sum(counts):
            raise NotCutError(f"the answer has {_count_of(result)} predictions for {sum(counts)} instances")
        found, start = [], 0
        for count in counts:
            found.append(self._response({**result, _PREDICTIONS: result[_PREDICTIONS][start : start + count]}, given))
            start += count
        return found

    # answers

    async def _answer_tensors(self, tensors: Tensors) -> Tensors:
        headers = {"x-request-id": current_scope().request_id}
        try:
            found, _ = await self._call(self._infer_request(tensors), headers)
            return self._tensors(found)
        except Exception as error:
            status = _status_of(error)
            if status is None:
                raise
            if status == HTTPStatus.BAD_REQUEST:
                raise ClientError(str(error)) from error
            raise AnswerError(str(error), _CODES.get(status)) from error

    async def _answer_body(self, request: Request) -> Response:
        explains = request.path.endswith(_EXPLAIN)
        if explains and self._owner(type(self._model), "explain") and self._owner(type(self._model), "__call__"):
            raise NotImplementedError(f"{type(self._model).__name__} has no explain()")
        result, given = await self._call(_payload(request), _headers_of(request), explains=explains)
        return self._response(result, given)

    def _response(self, result: Any, given: Mapping[str, Any]) -> Response:
        """Make the answer to a body; `given` are header fields."""
        fields = {name.lower(): str(value) for name, value in given.items()}
        kind = fields.pop("content-type", None)
        fields = {name: value for name, value in fields.items() if name not in FRAMING}
        if isinstance(result, self._types.InferResponse):
            result = _rest(result)
        if isinstance(result, (bytes, str)):
            return Response(result, kind, headers=fields)
        if hasattr(result, "__next__") or hasattr(result, "__anext__"):
            return Response(result, kind or "", headers=fields)
        return Response(plain(result), kind or JSON_TYPE, headers=fields)

    async def _call(
        self, payload: Any, headers: dict[str, str], *, explains: bool = False
    ) -> tuple[Any, Mapping[str, Any]]:
        """Run the steps; return the result, and the header fields of the response. Raises `ModelNotReady`."""
        model = self._model
        if not await model.healthy():
            raise importlib.import_module("kserve.errors").ModelNotReady(model.name)
        verb = self._kserve.InferenceVerb
        found = model(payload, headers=headers, verb=verb.EXPLAIN if explains else verb.PREDICT)
        found = await found if inspect.isawaitable(found) else found
        # of a version from 0.14 on, a pair
        return found if isinstance(found, tuple) and len(found) == 2 else (found, {})  # noqa: PLR2004

    # tensors

    def _infer_request(self, tensors: Tensors) -> Any:
        kinds = self._types
        lazy = _lazy(kinds.InferInput)
        inputs = [lazy(name, array, tensors.datatypes[name]) for name, array in tensors.items()]
        wanted = getattr(kinds, "RequestedOutput", None)
        more = (
            {}
            if wanted is None or tensors.requested is None
            else {"request_outputs": list(map(wanted, tensors.requested))}
        )
        return kinds.InferRequest(
            model_name=self._model.name,
            infer_inputs=inputs,
            request_id=tensors.id or None,
            parameters=tensors.parameters,
            **more,
        )

    def _tensors(self, result: Any) -> Tensors:
        if isinstance(result, self._types.InferResponse):
            outputs = [(each.name, each.datatype, each.as_numpy()) for each in result.outputs]
        elif isinstance(result, Mapping) and isinstance(result.get("outputs"), list):
            outputs = list(map(self._output_of_dict, result["outputs"]))
        else:
            raise TypeError(
                f"predict() has returned {type(result).__name__} for an InferRequest: return an InferResponse"
            )
        return Tensors(
            {name: array for name, _, array in outputs},
            datatypes={name: datatype for name, datatype, _ in outputs},
        )

    def _output_of_dict(self, given: Mapping[str, Any]) -> tuple[str, str, Any]:
        contents = given.get("contents")  # the form of messages of gRPC
        data = next(iter(contents.values()), None) if contents else given.get("data")
        output = self._types.InferOutput(given["name"], given["shape"], given["datatype"], data)
        return given["name"], output.datatype, output.as_numpy()


def _take_models(module: Any) -> None:
    """Have `ModelServer` of a module take its models, and listen nowhere."""

    def start(server: Any, models: Any) -> None:
        registered = server.registered_models
        known = registered.get_models() if hasattr(registered, "get_models") else registered
        _STARTED.extend([*models, *known.values()])
        tell("ModelServer.start() does not listen: geartrain serves this model")

    module.ModelServer.start = start


async def _joined(response: Response) -> Response:
    """Join the pieces of a stream: the answers of a shared call are whole."""
    if not response.streams:
        return response
    content = response.content
    pieces = [each async for each in content] if hasattr(content, "__anext__") else list(content)
    response.content = b"".join(each.encode() if isinstance(each, str) else bytes(each) for each in pieces)
    return response


def _payload(request: Request) -> Any:
    """Decode a body for a model: JSON, or the bytes of any other type. Raises `InvalidInput`."""
    if request.media_type not in _JSON_TYPES:
        return request.body
    try:
        return request.json()
    except (ValueError, RecursionError) as error:
        invalid = importlib.import_module("kserve.errors").InvalidInput
        raise invalid(f"Unrecognized request format: {error}") from None


def _rest(result: Any) -> Any:
    """Return a response as version 2 has it in JSON; the real package may return the bytes, and their length."""
    found = result.to_rest()
    return found[0] if isinstance(found, tuple) else found


def _headers_of(*requests: Request) -> dict[str, str]:
    """Return the header fields of a request, or those that all requests of a shared call have in common."""
    first, *others = ({**each.headers, **{n: v for n, v in _named_apart(each) if v}} for each in requests)
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}


def _key_of(request: Request | Tensors) -> Hashable | None:
    """Return the key of requests that may share a call; None for those without `instances`, and of explanations."""
    if isinstance(request, Tensors):
        return key_of(request)
    if request.path.endswith(_EXPLAIN) or request.media_type not in _JSON_TYPES:
        return None
    try:
        body = request.json()
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get(_INSTANCES), list) or not body[_INSTANCES]:
        return None
    rest = {name: value for name, value in body.items() if name != _INSTANCES}
    return request.path, json.dumps(rest, sort_keys=True)


def _fits(request: Request | Tensors, answer: Response | Tensors) -> bool:
    """True if an answer has the rows of its request."""
    if isinstance(request, Tensors):
        return isinstance(answer, Tensors) and has_rows(request, answer)
    return isinstance(answer, Response) and _count_of(answer.content) == len(request.json()[_INSTANCES])


def _count_of(result: Any) -> int:
    """Return the number of predictions; -1 for a result without a list of them."""
    predictions = result.get(_PREDICTIONS) if isinstance(result, Mapping) else None
    return len(predictions) if isinstance(predictions, list) else -1


def _refusal_or_error(error: Exception) -> Response | Exception:
    """Return the answer to a request whose error has a status; any other error as it is."""
    try:
        return _refusal(error)
    except Exception as raised:  # noqa: BLE001 - it is that of one request
        return raised


def _named_apart(request: Request) -> tuple[tuple[str, str], ...]:
    return ("content-type", request.content_type), ("accept", request.accept)


def _status_of(error: BaseException) -> HTTPStatus | None:
    """Return the status of an error by the name of its class, or of a class above it; None for a failed run."""
    return next((found for kind in type(error).__mro__ if (found := _STATUSES.get(kind.__name__)) is not None), None)


def _refusal(error: Exception) -> Response:
    """Return the answer to a request whose error has a status; raise any other one."""
    status = _status_of(error)
    own = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if status is None and isinstance(own, int) and own in range(400, 600):  # of FastAPI, or of a predictor elsewhere
        return Response({"error": str(getattr(error, "detail", error))}, status=own)
    if status is None:
        raise error
    return Response({"error": str(error)}, status=status)


@functools.cache
def _lazy(kind: Any) -> Any:
    """Derive a class of inputs that hold an array, and make a list of it when that is asked for."""

    class Input(kind):  # type: ignore[misc]
        """An input. Elements of BYTES are texts in `data`, and bytes in `as_numpy()`."""

        def __init__(self, name: str, array: Any, datatype: str) -> None:
            self._array = array
            self._list: Any = None
            super().__init__(name, list(array.shape), datatype)

        @property
        def data(self) -> Any:
            if self._list is None and self._array is not None:
                self._list = _texts(self._array.tolist()) if self.datatype == "BYTES" else self._array.tolist()
            return self._list

        @data.setter
        def data(self, value: Any) -> None:
            self._list, self._array = value, None if value is not None else self._array

        def as_numpy(self) -> Any:
            return super().as_numpy() if self._array is None else self._array

        def as_string(self) -> list[Any]:
            texts: list[Any] = super().as_string() if self._array is None else _texts(self._array.ravel().tolist())
            return texts

        def set_data_from_numpy(self, *arguments: Any, **options: Any) -> None:
            self._array = None
            super().set_data_from_numpy(*arguments, **options)

    Input.__name__ = Input.__qualname__ = "InferInput"
    return Input


def _texts(elements: Any) -> Any:
    """Return nested lists of bytes as texts; those that are no UTF-8 stay bytes."""
    if isinstance(elements, list):
        return [_texts(each) for each in elements]
    try:
        return elements.decode() if isinstance(elements, bytes) else elements
    except UnicodeDecodeError:
        return elements
