"""A runtime of one's own for MLServer: a class `MLModel`, which `implementation` in `model-settings.json` names.

The package `mlserver` is used where it is installed.
"""

from __future__ import annotations

import asyncio
import atexit
import dis
import importlib
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from geartrain.authoring import metrics
from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import batch_item, current_scope
from geartrain.domain.errors import Code
from geartrain.worker.errors import AnswerError, ClientError
from geartrain.worker.loading.scripts.finder import after_import, stand_in
from geartrain.worker.loading.scripts.mlserver_types import HELD, TensorData
from geartrain.worker.loading.scripts.script import Place, Script, tell
from geartrain.worker.loading.scripts.shared_calls import SharedCalls, cut, finish, has_rows, join, key_of, rows_of

_SETTINGS: Final = "model-settings.json"
_AT_ONCE: Final = 32  # requests of a predict() that waits for others
_WAITS: Final = frozenset({"GET_AWAITABLE", "GET_ANEXT", "BEFORE_ASYNC_WITH"})  # instructions
_PACKAGES: Final = frozenset({"geartrain", "mlserver"})
_LOOPS: Final = re.compile(rb"\b(?:asyncio|anyio|aiohttp|trio|uvloop)\b")
_CODES: Final = {404: Code.NOT_FOUND, 501: Code.UNSUPPORTED, 503: Code.NOT_READY}
_OF_THE_CLIENT: Final = frozenset({400, 422})


class MlserverRuntime(Script):
    """A runtime and its settings."""

    @classmethod
    def find(cls, path: Path) -> Place:
        """Find the folder of the settings."""
        return Place(path, next((each for each in path.parents if (each / _SETTINGS).is_file()), path.parent))

    @classmethod
    def prepare(cls, place: Place) -> None:
        """Put the package in place, and have its metrics counted here."""
        from geartrain.worker.loading.scripts import mlserver_shim  # with numpy

        if str(place.folder) not in sys.path:
            sys.path.insert(0, str(place.folder))
        if not stand_in(mlserver_shim.modules(_register, _log)):
            after_import("mlserver", _take_metrics)

    def __init__(self, module: ModuleType, place: Place, options: Mapping[str, Any]) -> None:
        """`options` are the settings, and the name of the class. Raises `ValueError` for a class that is none."""
        super().__init__(module, place, options)
        self._types = importlib.import_module("mlserver.types")
        self._holds_arrays = self._types.TensorData is TensorData  # of the modules that stand in for the package
        codecs = importlib.import_module("geartrain.worker.loading.scripts.mlserver_codecs")  # with numpy
        self._array_of: Callable[[Any], Any] = codecs.array_of
        self._error = importlib.import_module("mlserver.errors").MLServerError
        base = importlib.import_module("mlserver.model").MLModel
        name = options["class"]
        found = getattr(module, name, None)
        if not isinstance(found, type) or not issubclass(found, base):
            raise ValueError(  # noqa: TRY004 - a fault of the file
                f"it has no class {name} that is derived from mlserver.MLModel, as {_SETTINGS} says"
            )
        self._class = cast("Any", found)
        self._model: Any = None
        self._shared = SharedCalls(key_of, self._run_async, self._many, fits=has_rows)
        streams = self._class.predict_stream is not base.predict_stream
        predicts = self._class.predict is not base.predict
        if streams and predicts:
            tell(f"{name}.predict_stream() is not called: the class has predict() as well")
        self._streams = streams and not predicts
        method = self._class.predict_stream if self._streams else self._class.predict
        self.max_concurrency = _AT_ONCE if _waits(method) else 1
        self._is_async = self._streams or not _ends_at_once(self._class, place.folder)
        self.run = self._run_stream if self._streams else self._run_async if self._is_async else self._run

    def share_calls(self) -> None:
        """Join the inputs of requests, as `max_batch_size` does there; not those of streams."""
        if self._streams:
            tell(f"requests do not share calls of {self._class.__name__}.predict_stream()")
            return
        self.run = self._run_batch_async if self._is_async else self._run_batch
        self.batching = {}

    async def setup(self) -> None:
        """Make the model, and load it."""
        kind = importlib.import_module("mlserver.settings").ModelSettings
        source = str(self.place.folder / _SETTINGS)
        settings = {"name": self.options["name"], **self.options["settings"], "_source": source}
        self._model = model = self._class(kind.model_validate(settings))
        if await model.load() is False:
            raise RuntimeError(f"{self._class.__name__}.load() has returned False: the model is not ready")
        model.ready = True
        atexit.register(lambda: asyncio.run(model.unload()))

    # requests

    def _run(self, tensors: Tensors) -> Tensors:
        return finish(self._run_async(tensors))  # type: ignore[no-any-return]

    async def _run_async(self, tensors: Tensors) -> Tensors:
        try:
            return self._tensors(await self._model.predict(self._request(tensors)))
        except self._error as error:
            raise _refusal(error) from error

    def _run_batch(self, requests: list[Tensors]) -> list[Tensors | Exception]:
        return finish(self._shared.answer(requests))  # type: ignore[no-any-return]

    async def _run_batch_async(self, requests: list[Tensors]) -> list[Tensors | Exception]:
        return await self._shared.answer(requests)

    async def _many(self, requests: Sequence[Tensors], places: Sequence[int]) -> list[Tensors]:
        response = await self._model.predict(self._request(join(requests), is_shared=True))
        found = cut(self._tensors(response, records=False), [rows_of(each) for each in requests])
        for place in places:
            with batch_item(place):
                _record_all(response)
        return found

    async def _run_stream(self, tensors: Tensors) -> AsyncIterator[Tensors]:
        async def payloads() -> AsyncIterator[Any]:
            yield self._request(tensors)

        try:
            async for response in self._model.predict_stream(payloads()):
                yield self._tensors(response, records=False)
        except self._error as error:
            raise _refusal(error) from error

    def _request(self, tensors: Tensors, *, is_shared: bool = False) -> Any:
        """Make the request of the runtime; one that is shared has no id, as there."""
        types = self._types
        inputs = []
        for name, array in tensors.items():
            kind = tensors.content_types.get(name)
            inputs.append(
                types.RequestInput(
                    name=name,
                    shape=list(array.shape),
                    datatype=tensors.datatypes[name],
                    data=self._data(array, tensors.datatypes[name]),
                    parameters=None if kind is None else types.Parameters(content_type=kind),
                )
            )
        wanted = tensors.requested
        return types.InferenceRequest(
            id=None if is_shared else tensors.id or current_scope().request_id or None,
            parameters=types.Parameters(**tensors.parameters),
            inputs=inputs,
            outputs=None if wanted is None else [types.RequestOutput(name=name) for name in wanted],
        )

    def _data(self, array: Any, datatype: str) -> Any:
        """Return the elements of an input: the array of numbers itself for the package's stand-in, and else a list."""
        if self._holds_arrays and datatype in HELD:
            return TensorData(None, array=array)
        return _elements(array)

    def _tensors(self, response: Any, *, records: bool = True) -> Tensors:
        """Return the outputs of a response. Raises `TypeError` for anything else."""
        if not isinstance(response, self._types.InferenceResponse):
            raise TypeError(f"predict() has returned {type(response).__name__}: return an InferenceResponse")
        if records:
            _record_all(response)
        found, datatypes = {}, {}
        for each in response.outputs:
            kind = each.datatype
            datatypes[each.name] = kind if type(kind) is str else str(getattr(kind, "value", kind))
            found[each.name] = self._array_of(each)
        return Tensors(found, datatypes=datatypes)


def _elements(array: Any) -> list[Any]:
    """Return the elements of an array in one list; those of BYTES as texts, unless one of them is none."""
    elements: list[Any] = array.ravel().tolist()
    if array.dtype != object:
        return elements
    try:
        return [each.decode() for each in elements]
    except UnicodeDecodeError:
        return elements


def _waits(method: Callable[..., Any]) -> bool:
    """True if a coroutine waits for others, so that several may run at once."""
    return _has_waits(inspect.unwrap(method))


def _has_waits(method: Callable[..., Any]) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and any(each.opname in _WAITS for each in dis.get_instructions(code))


def _ends_at_once(kind: Any, folder: Path) -> bool:
    """True if predict() waits for nothing, and neither its file nor one in `folder` has to do with an event loop.

    Such a coroutine runs like a function: without a loop, a short call takes half of the time.
    """
    layer = kind.predict
    while layer is not None:
        package = getattr(layer, "__globals__", {"__name__": ""})["__name__"].partition(".")[0]
        if not inspect.iscoroutinefunction(layer) or (package not in _PACKAGES and _has_waits(layer)):
            return False
        layer = getattr(layer, "__wrapped__", None)
    own = {each.__module__ for each in kind.__mro__ if each.__module__.partition(".")[0] not in _PACKAGES}
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        is_beside = folder in file.parents and "site-packages" not in file.parts
        if (name in own or is_beside) and name != "builtins" and _has_a_loop(file):
            return False
    return True


def _has_a_loop(file: Path) -> bool:
    """True for a file that names a package of event loops, or cannot be read as text."""
    try:
        return file.suffix != ".py" or _LOOPS.search(file.read_bytes()) is not None
    except OSError:
        return True


def _refusal(error: Any) -> Exception:
    """Return the exception for an error with a status."""
    status = error.status_code
    if status in _OF_THE_CLIENT:
        return ClientError(str(error))
    return AnswerError(str(error), _CODES.get(status))


def _record_all(response: Any) -> None:
    """Give the parameters of a response to its client."""
    if response.parameters is None:
        return
    parameters: Mapping[str, Any] = response.parameters.model_dump(exclude_none=True)
    scope = current_scope()
    for name, value in parameters.items():
        try:
            scope.record_metric(name, value)
        except (TypeError, ValueError) as error:
            tell(f"parameter {name!r} of a response is left out: {error}")


# metrics


def _register(name: str, description: str) -> Any:
    """Define a metric, as `mlserver.register()`."""
    return metrics.raw_metric(name, "histogram", description, bounds=tuple(metrics.DEFAULT_BUCKETS))


def _log(**values: float) -> None:
    """Observe values of metrics, as `mlserver.log()`; one that is not known is defined."""
    for name, value in values.items():
        known = metrics.registry.known(name)
        metric = known if isinstance(known, metrics.Histogram) else _register(name, name)
        metric.observe(value)


def _take_metrics(mlserver: ModuleType) -> None:
    mlserver.register = _register  # type: ignore[attr-defined]
    mlserver.log = _log  # type: ignore[attr-defined]
