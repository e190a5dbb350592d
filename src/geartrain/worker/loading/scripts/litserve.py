"""A class for LitServe: `LitAPI` with `setup`, `decode_request`, `predict` and `encode_response`.

The real package is used where it is installed. The file runs as its own start would run it, with a `LitServer` that
notes its models and does not listen.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from geartrain.authoring.devices import own_device
from geartrain.authoring.litserve import USUAL_PATH, api_paths
from geartrain.authoring.requests import TEXT_TYPE, Request, Response, is_json
from geartrain.worker.errors import ClientError
from geartrain.worker.loading.scripts import litserve_names as names
from geartrain.worker.loading.scripts import web_names
from geartrain.worker.loading.scripts.answers import answers_errors, http_error, plain, response_of
from geartrain.worker.loading.scripts.finder import after_import, own_names, stand_in, stand_in_for_web
from geartrain.worker.loading.scripts.main_block import run_main_block
from geartrain.worker.loading.scripts.script import FormFile, Place, Script, leaves, read_fields, read_form, takes, tell

_ONE_OF: Final = "name one with `parameters: {api_path: ...}` in geartrain.yaml, and serve a folder for each"
_AT_ONCE: Final = 64  # requests of an async model
_CHAT: Final = "OpenAISpec"
_FORM: Final = "multipart/form-data"
_QUERY: Final = "application/x-www-form-urlencoded"
_PARTS: Final = ("", ".api", ".server", ".specs", ".specs.base", ".specs.openai", ".specs.openai_embedding")
"""The package, and its modules that scripts import."""
_OF_THE_API: Final = ("max_batch_size", "batch_timeout", "api_path", "stream", "enable_async", "spec")
"""Settings that older versions of LitServe take at the server."""
_SERVED: Final[list[Any]] = []
"""The models of the servers that this process has made."""


class UploadFile:
    """A file of a form, as FastAPI gives it."""

    def __init__(self, given: FormFile) -> None:
        self.filename = given.filename
        self.content_type = given.content_type
        self.size = len(given.body)
        self.file = io.BytesIO(given.body)

    async def read(self, size: int = -1) -> bytes:
        """Read bytes of the file."""
        return self.file.read(size)

    async def seek(self, offset: int) -> None:
        """Go to a place in the file."""
        self.file.seek(offset)

    async def close(self) -> None:
        """Close the file."""
        self.file.close()


class LitServeScript(Script):
    """A model of a script."""

    @classmethod
    def prepare(cls, _place: Place) -> None:
        """Have servers note their models, and listen nowhere."""
        stand_in_for_web()
        own = {**own_names(names.__name__), "Request": web_names.Request, "Response": web_names.Response}
        if stand_in({f"litserve{part}": own for part in _PARTS}):
            _note_models(names)
        else:
            after_import("litserve.server", _note_models)

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a file without a model, or with one that cannot be served."""
        super().__init__(module, place, options)
        run_main_block(module)
        self._models = [_Model(api) for api in _chosen(_SERVED or _of_classes(module), options)]
        written = {USUAL_PATH, *api_paths(place.file.read_text(errors="replace"))}
        for model in self._models:
            if model.path not in written and not model.is_chat:
                tell(f"api_path {model.path} is not written as a text in {place.file.name}: it is not served there")
        if len(self._models) > 1:
            self._serve_several()
        else:
            (only,) = self._models
            self.run, self.batching, self.max_concurrency = only.run, only.batching, only.max_concurrency
            self.health = only.health

    def setup(self) -> None:
        """Call `setup(device)`."""
        device = own_device()
        for model in self._models:
            model.api.device = device
            model.api.setup(device)

    def _serve_several(self) -> None:
        """Serve several models by their paths, one request at a time. Raises `ValueError` for those that cannot."""
        for model in self._models:
            if model.max_concurrency is not None or model.is_chat:
                raise ValueError(f"its model {model.path} is async, or has a spec: {_ONE_OF}")
            if model.batching is not None:
                tell(f"max_batch_size of {model.path} has no effect beside other models: {_ONE_OF}")
        self._by_path = {model.path: model for model in self._models}
        if len(self._by_path) < len(self._models):
            raise ValueError(f"it has several models with the same api_path ({', '.join(self._by_path)}): rename one")
        self.run = self._run_by_path
        checks = [model.health for model in self._models if model.health is not None]
        if checks:
            self.health = lambda: all(check() for check in checks)

    def _run_by_path(self, request: Request) -> Response:
        model = self._by_path.get(request.path)
        if model is None:
            paths = ", ".join(self._by_path)
            raise ClientError(f"the script has several models: ask one by its path ({paths}), or give that as `path`")
        return model.run_alone(request)


class _Model:
    """A `LitAPI`, and how its requests run."""

    batching: Mapping[str, Any] | None = None
    max_concurrency: int | None = None
    health: Callable[[], Any] | None = None

    def __init__(self, api: Any) -> None:
        """Raises `ValueError` for one that cannot be served."""
        self.api = api
        self.path: str = api.api_path
        spec = getattr(api, "spec", None)
        self.is_chat = spec is not None
        if spec is not None and type(spec).__name__ != _CHAT:
            raise ValueError(
                f"its spec={type(spec).__name__}() is not served: take it out, and annotate the inputs of a Runner as"
                " docs/openai.md shows, for OpenAI's API"
            )
        prepare = getattr(api, "pre_setup", None)
        if prepare is not None:  # of the real package: it decides how `unbatch` works
            prepare()
        self._steps = [_with_context(getattr(api, name)) for name in ("decode_request", "predict", "encode_response")]
        self._request_type = _request_type(api.decode_request)
        base = importlib.import_module("litserve").LitAPI
        if type(api).health is not base.health:
            self.health = api.health
        self.run: Callable[..., Any]
        if spec is not None:
            from geartrain.worker.loading.scripts.litserve_chat import Chat

            chat = Chat(api, base, _with_context)
            self.run = chat.run_async if api.enable_async else chat.run
            self.max_concurrency = _AT_ONCE if api.enable_async else None
        elif api.enable_async:
            self.run = self._run_async
            self.max_concurrency = _AT_ONCE
        elif api.stream:
            self.run = self._run_stream
        elif api.max_batch_size > 1:
            self.run = self._run_batch
            self.batching = {"max_size": api.max_batch_size, "max_delay": float(api.batch_timeout)}
        else:
            self.run = self._run_one

    def run_alone(self, request: Request) -> Response:
        """Answer one request, whose model may take batches."""
        if self.batching is None:
            found: Response = self.run(request)
            return found
        (answer,) = self._run_batch([request])
        if isinstance(answer, Exception):
            raise answer
        return answer

    @answers_errors
    def _run_one(self, request: Request) -> Response:
        context: dict[str, Any] = {}
        value = self._payload(request)
        for step in self._steps:
            value = step(context, value)
        return response_of(value)

    @answers_errors
    def _run_stream(self, request: Request) -> Response:
        context: dict[str, Any] = {}
        decode, predict, encode = self._steps
        taken = decode(context, self._payload(request))
        if self.api.max_batch_size > 1:
            steps = self.api.unbatch(predict([context], self.api.batch([taken])))
            output = encode([context], steps)
            return Response(self._pieces(step[0] for step in output), TEXT_TYPE)
        return Response(self._pieces(encode(context, predict(context, taken))), TEXT_TYPE)

    @answers_errors
    async def _run_async(self, request: Request) -> Response:
        context: dict[str, Any] = {}
        decode, predict, encode = self._steps
        taken = await _awaited(decode, context, self._payload(request))
        made = predict(context, taken)
        if self.api.stream:
            return Response(self._pieces_async(encode(context, made)), TEXT_TYPE)
        made = await made if inspect.isawaitable(made) else made
        return response_of(await _awaited(encode, context, made))

    def _run_batch(self, requests: list[Request]) -> list[Response | Exception]:
        results: list[Any] = [None] * len(requests)
        taken: list[tuple[int, dict[str, Any], Any]] = []
        decode, predict, encode = self._steps
        for place, request in enumerate(requests):
            context: dict[str, Any] = {}
            try:
                taken.append((place, context, decode(context, self._payload(request))))
            except Exception as error:  # noqa: BLE001 - it is that of one request
                results[place] = http_error(error) or error
        if not taken:
            return results
        contexts = [context for _, context, _ in taken]
        try:
            outputs = list(self.api.unbatch(predict(contexts, self.api.batch([value for _, _, value in taken]))))
            if len(outputs) != len(taken):
                raise ValueError(f"unbatch() has returned {len(outputs)} outputs of {len(taken)} requests")
        except Exception as error:
            refused = http_error(error)
            if refused is None:
                raise
            outputs = []
            for place, _, _ in taken:
                results[place] = refused
        for (place, context, _), output in zip(taken, outputs, strict=False):
            try:
                results[place] = response_of(encode(context, output))
            except Exception as error:  # noqa: BLE001 - as above
                results[place] = http_error(error) or error
        return results

    def _payload(self, request: Request) -> Any:
        """Read the argument of `decode_request`. Raises `ClientError`."""
        if request.media_type == _QUERY:
            return read_fields(request)
        if request.media_type == _FORM:
            parts = read_form(request)
            return {
                key: UploadFile(each) if isinstance(each, FormFile) else each.decode("utf-8", "replace")
                for key, each in parts.items()
            }
        if request.content_type and not is_json(request.content_type):
            raise ClientError(f"content-type {request.media_type}: send JSON, or a form")
        try:
            value = request.json()
        except ValueError as error:
            raise ClientError(f"the body is no JSON: {error}") from None
        return value if self._request_type is None else _validated(self._request_type, value)

    def _pieces(self, output: Any) -> Iterator[str | bytes]:
        for piece in output:
            yield _piece(self.api.format_encoded_response(piece))

    async def _pieces_async(self, output: Any) -> AsyncIterator[str | bytes]:
        if hasattr(output, "__aiter__"):
            async for piece in output:
                yield _piece(self.api.format_encoded_response(piece))
        else:
            for piece in self._pieces(output):
                yield piece


def _piece(piece: Any) -> str | bytes:
    return piece if isinstance(piece, (str, bytes)) else json.dumps(plain(piece))


async def _awaited(step: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    found = step(context, value)
    return await found if inspect.isawaitable(found) else found


def _with_context(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a function of the context and a value: it gets the former if it has a parameter `context`."""
    if takes(function, "context"):
        return lambda context, value: function(value, context=context)
    return lambda _context, value: function(value)


def _request_type(decode: Callable[..., Any]) -> Any:
    """Return the model of pydantic that `decode_request` takes; None if it takes the JSON as it is."""
    try:
        signature = inspect.signature(decode, eval_str=True)
    except (NameError, TypeError):
        signature = inspect.signature(decode)
    found = next(iter(signature.parameters.values())).annotation
    return found if hasattr(found, "model_validate") else None


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:
        errors: Any = getattr(error, "errors", None)
        if errors is None:
            raise
        found = errors(include_url=False, include_context=False)
        detail = [{**each, "loc": ["body", *each["loc"]]} for each in found]
        raise web_names.HTTPException(422, json.loads(json.dumps(detail, default=str))) from None


# the models of a file


class _UnusedApp:
    """Stands for the application of a server: routes and middlewares of its own have no effect."""

    def __getattr__(self, name: str) -> Any:
        tell(f"LitServer.app.{name} has no effect: geartrain serves this model")
        return lambda *_, **__: lambda function: function


def _note_models(litserve: ModuleType) -> None:
    """Have `LitServer` of a module note its models, and listen nowhere."""

    def noted(self: Any, lit_api: Any, *_: Any, **settings: Any) -> None:
        apis = list(lit_api) if isinstance(lit_api, Sequence) else [lit_api]
        for api in apis:
            for name in _OF_THE_API:
                if settings.get(name) is not None:
                    setattr(api, name, settings[name])
        workers = settings.get("workers_per_device", 1)
        if workers != 1:
            tell(f"workers_per_device={workers} has no effect: write `replicas` into geartrain.yaml")
        for name in ("callbacks", "loggers", "middlewares"):
            if settings.get(name):
                tell(f"{name} of LitServer have no effect: geartrain serves this model")
        self.app = _UnusedApp()
        self.lit_api = lit_api
        _SERVED.extend(apis)

    def told(_self: Any, *_: Any, **__: Any) -> None:
        tell("LitServer.run() does not listen: geartrain serves this model")

    litserve.LitServer.__init__ = noted
    litserve.LitServer.run = told


def _of_classes(module: ModuleType) -> list[Any]:
    """Make the models of a file that makes no server."""
    base = importlib.import_module("litserve").LitAPI
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return [each() for each in leaves(each for each in classes if each.__module__ == module.__name__)]


def _chosen(apis: list[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the models to serve. Raises `ValueError`."""
    wanted = options.get("api_path")
    found = [api for api in apis if wanted is None or api.api_path == wanted]
    if not apis:
        raise ValueError("it has no class that is derived from LitAPI")
    if not found:
        paths = ", ".join(api.api_path for api in apis)
        raise ValueError(f"there is no LitAPI with the api_path {wanted!r}; there are {paths}")
    return found
