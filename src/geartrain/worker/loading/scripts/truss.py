"""A Truss of Baseten: `config.yaml`, and `model/model.py` with a class that has `load` and `predict`.

Without the package `truss`, which a class need not import.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

from geartrain.authoring.requests import BINARY_TYPE, Request, Response
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.scripts import web_names
from geartrain.worker.loading.scripts.answers import answers_errors, response_of
from geartrain.worker.loading.scripts.finder import stand_in_for_web
from geartrain.worker.loading.scripts.script import Place, Script, takes

CONFIG: Final = "config.yaml"
_SECRETS: Final = Path("/secrets")
_VARIABLE: Final = "TRUSS_SECRET_"
_STEPS: Final = ("preprocess", "predict", "postprocess")
_NOT_SERVED: Final = ("websocket", "chat_completions", "completions", "embeddings", "messages", "responses")
_MOST_ARGUMENTS: Final = 2
_END: Final = object()


class Secrets(Mapping[str, str]):
    """Secrets by name: each is in a variable, in a file, or in the configuration."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._declared = declared

    def __getitem__(self, name: str) -> str:
        """Look a secret up. Raises `KeyError` that says where it is looked for."""
        if name not in self._declared:
            raise KeyError(f"the secret {name!r} is not declared: write it below `secrets` in {CONFIG}")
        file = _SECRETS / name
        given = file.read_text() if file.is_file() else os.environ.get(_VARIABLE + name, self._declared[name])
        if not given:
            raise KeyError(f"the secret {name!r} is not there: set the variable {_VARIABLE}{name}, or write {file}")
        return str(given)

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


class _Step:
    """A method of the class."""

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        """Raises `ValueError` for one with other parameters than the inputs and the request."""
        self.method = method
        self.is_predict = name == "predict"
        self.takes_inputs = _takes_inputs(method)
        self._count = len(inspect.signature(method).parameters)
        if self._count > _MOST_ARGUMENTS:
            raise ValueError(f"{name}() takes the inputs, and the request behind them")
        self.is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        self.in_thread = not (self.is_async or inspect.isgeneratorfunction(method))

    def arguments(self, value: Any, web: _WebRequest) -> tuple[Any, ...]:
        """Return the arguments of a call: none, the inputs, the request, or both."""
        if self._count == 1:
            return (value,) if self.takes_inputs else (web,)
        return (value, web)[: self._count]


class TrussModel(Script):
    """A class of a Truss."""

    @classmethod
    def find(cls, path: Path) -> Place:
        """Find the class's file, which the configuration may name. Raises `ValueError`."""
        config = _read_config(path)
        file = path / str(config.get("model_module_dir", "model")) / str(config.get("model_class_filename", "model.py"))
        if not file.is_file():
            raise ValueError(f"there is no {file.relative_to(path)}, which {CONFIG} names")
        return Place(file, path)

    @classmethod
    def prepare(cls, place: Place) -> None:
        """Set the variables of the configuration, and have its packages imported."""
        config = _read_config(place.folder)
        for name, value in (config.get("environment_variables") or {}).items():
            os.environ.setdefault(str(name), str(value))
        packages = [config.get("bundled_packages_dir", "packages"), *(config.get("external_package_dirs") or ())]
        sys.path += [str(found) for each in packages if (found := (place.folder / str(each)).resolve()).is_dir()]
        stand_in_for_web()

    @classmethod
    def reference(cls, place: Place) -> tuple[str, Path]:
        """Return the module of the class: its folder is a package, as there."""
        parts = place.file.relative_to(place.folder).with_suffix("").parts
        return ".".join(parts), place.folder

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a class that cannot be served."""
        super().__init__(module, place, options)
        self._config = config = _read_config(place.folder)
        name = str(config.get("model_class_name", "Model"))
        made = getattr(module, name, None)
        if not isinstance(made, type):
            raise ValueError(f"there is no class {name}, which {CONFIG} names")  # noqa: TRY004 - of the file
        if not callable(getattr(made, "predict", None)):
            others = [each for each in _NOT_SERVED if hasattr(made, each)]
            reason = f"{others[0]}() is not served: " if others else ""
            raise ValueError(f"{reason}the class {name} has a method predict()")  # noqa: TRY004 - of the file
        self._model = made(**self._arguments(made))
        self._steps = [_Step(each, getattr(self._model, each)) for each in _STEPS if hasattr(self._model, each)]
        self._input_type = _input_type(self._steps[0].method)
        concurrency = (config.get("runtime") or {}).get("predict_concurrency", 1)
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError(f"{CONFIG}: `predict_concurrency` is {concurrency!r}; it is a whole number from 1 on")
        if concurrency > 1 or any(step.is_async for step in self._steps):
            self.run = self._run_async
            self.max_concurrency = concurrency
        else:
            self.run = self._run
        self.health = getattr(self._model, "is_healthy", None)

    def setup(self) -> Any:
        """Call `load()`; return its coroutine, if it is one, for the loop that the requests run in."""
        load = getattr(self._model, "load", None)
        return None if load is None else load()

    def _arguments(self, made: type) -> dict[str, Any]:
        given = {
            "config": self._config,
            "data_dir": self.place.folder / str(self._config.get("data_dir", "data")),
            "secrets": Secrets(self._config.get("secrets") or {}),
            "environment": None,
            "lazy_data_resolver": None,
        }
        parameters = inspect.signature(made).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return given
        return {name: value for name, value in given.items() if takes(made, name)}

    @answers_errors
    def _run(self, request: Request) -> Response:
        value = self._inputs(request)
        web = _WebRequest(request)
        for step in self._steps:
            value = step.method(*step.arguments(value, web))
            if step.is_predict and _is_last(value):
                break
        return _answer(value, request)

    @answers_errors
    async def _run_async(self, request: Request) -> Response:
        value = self._inputs(request)
        web = _WebRequest(request)
        for step in self._steps:
            arguments = step.arguments(value, web)
            if step.in_thread:
                value = await asyncio.to_thread(step.method, *arguments)
            else:
                value = step.method(*arguments)
                value = await value if inspect.iscoroutine(value) else value
            if step.is_predict and _is_last(value):
                break
        if inspect.isgenerator(value):
            value = _in_threads(value)
        if inspect.isasyncgen(value) and _wants_whole(request):
            value = _joined([_piece(piece) async for piece in value])
        return _answer(value, request)

    def _inputs(self, request: Request) -> Any:
        """Read the JSON, or a model of pydantic; None for a first step without inputs. Raises `ClientError`."""
        if self._input_type is None and not self._steps[0].takes_inputs:
            return None
        if request.media_type == BINARY_TYPE:
            raise ClientError(f"content-type {BINARY_TYPE}: msgpack is not taken; send JSON")
        try:
            value = request.json()
        except ValueError as error:
            raise ClientError(f"the body is no JSON: {error}") from None
        if self._input_type is None:
            return value
        try:
            return self._input_type.model_validate(value)
        except ValueError as error:
            raise ClientError(str(error)) from None


class _WebRequest:
    """A request with the names that Starlette gives to its parts."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.method = request.method
        self.headers = {**request.headers, "content-type": request.content_type, "accept": request.accept}
        self.query_params = request.parameters

    async def body(self) -> bytes:
        """Return the body."""
        return bytes(self._request.body)

    async def json(self) -> Any:
        """Return the decoded body."""
        return self._request.json()

    async def is_disconnected(self) -> bool:
        """False: a run whose client has left is canceled."""
        return False


def _takes_inputs(method: Callable[..., Any]) -> bool:
    """False for a method whose only parameter is a request of the web."""
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    module = "" if isinstance(annotation, str) else str(getattr(annotation, "__module__", ""))
    is_web = module.startswith(("starlette", "fastapi", web_names.__name__)) or isinstance(annotation, str)
    return not (is_web and name.rpartition(".")[2] == "Request")


def _input_type(method: Callable[..., Any]) -> Any:
    """Return the model of pydantic that a step takes; None for one that takes the JSON as it is."""
    try:
        parameters = list(inspect.signature(method, eval_str=True).parameters.values())
    except (NameError, TypeError):
        return None
    found = parameters[0].annotation if parameters else None
    return found if hasattr(found, "model_validate") else None


def _is_last(value: Any) -> bool:
    """True for an output that `postprocess` does not get: a stream, or a response."""
    return inspect.isgenerator(value) or inspect.isasyncgen(value) or hasattr(value, "status_code")


def _wants_whole(request: Request) -> bool:
    """True if the pieces of a stream are to be joined, as there."""
    return request.accept == "application/json" and "openai" not in request.headers.get("user-agent", "").lower()


def _answer(value: Any, request: Request) -> Response:
    if inspect.isgenerator(value):
        if _wants_whole(request):
            return response_of(_joined(map(_piece, value)))
        return Response(map(_piece, value), BINARY_TYPE)
    if inspect.isasyncgen(value):
        return Response(_pieces(value), BINARY_TYPE)
    return response_of(value)


def _piece(piece: Any) -> bytes:
    return bytes(piece) if isinstance(piece, (bytes, bytearray)) else str(piece).encode()


def _joined(pieces: Iterable[bytes]) -> str:
    """Return the text of all pieces: a character may lie in two of them."""
    return b"".join(pieces).decode("utf-8", "replace")


async def _pieces(value: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for piece in value:
        yield _piece(piece)


async def _in_threads(value: Iterator[Any]) -> AsyncIterator[Any]:
    """Yield the pieces of a generator; a thread makes each."""
    while (piece := await asyncio.to_thread(next, value, _END)) is not _END:
        yield piece


def _read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration. Raises `ValueError`."""
    try:
        found = yaml.safe_load((folder / CONFIG).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{CONFIG}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{CONFIG}: it is an object")  # noqa: TRY004 - of the file
    return found
