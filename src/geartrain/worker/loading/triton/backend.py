"""Makes a runner of a class of Triton's Python backend."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from geartrain.authoring.batches import check_settings
from geartrain.authoring.devices import own_device
from geartrain.authoring.requests import Tensors
from geartrain.authoring.scope import batch_item, current_scope
from geartrain.domain.predictions.batching import Batching, policy_of
from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.signature.types import Signature
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.loading.load_errors import blame
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_target
from geartrain.worker.loading.open_signature import tensors_output, whole
from geartrain.worker.loading.triton import config as model_config
from geartrain.worker.loading.triton import utils
from geartrain.worker.loading.triton.values import (
    InferenceRequest,
    InferenceResponse,
    Responses,
    TritonModelException,
    error_of,
)

NAME: Final = "python"
_CLASS: Final = "TritonPythonModel"
_MARK: Final = "_geartrain_carries"  # of functions that carry the context
_AT_ONCE: Final = 32  # requests of a decoupled model that have not had their last response

Execute = Callable[[list[InferenceRequest]], Any]


def load_triton(choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    """Load a `model.py`, and complete its configuration; `initialize()` is its `setup()`. Raises `LoadError`."""
    path = Path(choice.path)
    root = path.parent
    utils.install()
    carry_context()
    parent = str(root.parent)
    if parent not in sys.path:
        sys.path.append(parent)
    target, where = load_target(f"{path.name}:{_CLASS}", root)
    options = choice.options
    config = model_config.whole_config(options.get("config", {}), options.get("model_name") or root.name)
    _complete(target, config, root, where=where)
    if not callable(getattr(target, "execute", None)):
        raise LoadError(f"{where}: the class {_CLASS} has no execute()")
    model = _make(target, root, where)
    runner = runner_of(model, config, where=where, batching=batching, arguments=_arguments(config, options, root))
    return runner._replace(signature=_described(runner.signature, target))


def runner_of(
    model: Any,
    config: Mapping[str, Any],
    *,
    where: str,
    batching: Mapping[str, Any] | None,
    arguments: dict[str, str],
) -> LoadedRunner:
    """Make a runner of a model with `execute()`; `arguments` are those of its `initialize()`. Raises `LoadError`.

    `where` is its file, and `config` its whole configuration.
    """
    try:
        inputs, outputs = (model_config.declared(config, kind) for kind in ("input", "output"))
        batches = _batching(config, batching)
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{where}: the configuration cannot be used: {error}") from error
    names = tuple(each.name for each in outputs)
    is_decoupled = model_config.is_decoupled(config)
    runner = Runner(model, names)
    run: Callable[..., Any] = runner.run if batches is None else runner.run_batch
    if is_decoupled:
        run = runner.run_decoupled
    output = tensors_output(streams=is_decoupled)
    opened = whole(run, "tensors", "requests", output=output, batching=batches, inputs=inputs, outputs=outputs)
    if batches is not None and batches.policy.cost:
        try:
            CostRule(batches.policy.cost, opened.signature)
        except ValueError as error:
            raise LoadError(f"{where}: `batching`: {error}") from error
    return LoadedRunner(
        instance=model,
        run=run,
        setup=lambda: runner.initialize(arguments),
        setup_takes=frozenset(),
        healthcheck=None,
        is_async=is_decoupled,
        is_generator=is_decoupled,
        signature=opened.signature,
        max_concurrency=_AT_ONCE if is_decoupled else None,
        parameters=opened.parameters,
        batching=batches,
        compose=opened.compose,
        platform=NAME,
    )


def _described(signature: Signature, target: type) -> Signature:
    text = inspect.getdoc(target)
    return msgspec.structs.replace(signature, description=text)


def _make(target: Any, root: Path, where: str) -> Any:
    try:
        return target()
    except (Exception, SystemExit) as error:
        raise blame(error, root, fallback=where) from error


def _complete(target: Any, config: dict[str, Any], root: Path, *, where: str) -> None:
    """Have the class complete the configuration. Raises `LoadError`."""
    complete = getattr(target, "auto_complete_config", None)
    if complete is None:
        return
    try:
        found = complete(model_config.ModelConfig(config))
    except (Exception, SystemExit) as error:
        raise blame(error, root, fallback=where) from error
    if isinstance(found, model_config.ModelConfig) and found.as_dict() is not config:
        config.update(found.as_dict())


def _batching(config: Mapping[str, Any], given: Mapping[str, Any] | None) -> Batching | None:
    """Return the batches of a model, whose requests stay apart; None for one that takes none. Raises `ValueError`."""
    largest = config["max_batch_size"]
    if largest <= 0:
        if given:
            raise ValueError("`batching` is set, and `max_batch_size` is 0; write the size of the largest batch")
        return None
    dynamic = config.get("dynamic_batching")
    gathers = dynamic is not None and not model_config.is_decoupled(config)
    settings: dict[str, Any] = {
        "max_size": largest,
        "refuse_larger": True,
        "preferred_sizes": tuple(sorted((dynamic or {}).get("preferred_batch_size", ()))),
        "max_delay": (dynamic or {}).get("max_queue_delay_microseconds", 0) / 1e6,
        **{key: value for key, value in (given or {}).items() if key != "gather"},
        "gather": gathers,
    }
    check_settings(settings)
    if settings.get("pad"):
        raise ValueError("`batching.pad` is set, and the tensors of requests are not joined for execute(); remove it")
    return Batching(policy_of(settings), by_rows=True, takes_singles=True, apart=True)


def _arguments(config: Mapping[str, Any], options: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Return the argument of `initialize()`."""
    kind, _, number = own_device().partition(":")
    name = config["name"]
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "GPU" if kind == "cuda" else "CPU",
        "model_instance_name": f"{name}_0_0",
        "model_instance_device_id": number or "0",
        "model_repository": options.get("model_repository") or str(root.parent),
        "model_version": options.get("model_version") or "1",
        "model_name": name,
    }


class AuthorLoop:
    """The event loop of a model whose `execute()` is a coroutine, in a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the context of the caller."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="geartrain-execute", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result; cancel it if the caller is interrupted."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class AuthorThread:
    """The thread of a decoupled model's `execute()`: one call after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._has_begun = False

    def start(self, call: Callable[[], None]) -> None:
        """Make a call in the context of the caller, after those before it."""
        if not self._has_begun:
            self._has_begun = True
            threading.Thread(target=self._run, name="geartrain-execute", daemon=True).start()
        self._calls.put(partial(contextvars.copy_context().run, call))

    def _run(self) -> None:
        while True:
            self._calls.get()()


class Runner:
    """A model with the interface of an author's `run()`."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        """`names` are those of the declared outputs, none where any name will do."""
        self._model = model
        self._names = tuple(names)
        self._declared = frozenset(names)
        self._execute: Execute = model.execute
        self._is_async = inspect.iscoroutinefunction(model.execute)
        self._loop = AuthorLoop()
        self._thread = AuthorThread()

    def initialize(self, arguments: dict[str, str]) -> None:
        """Have the model set itself up, and end at the end of the process."""
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            initialize(arguments)
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            atexit.register(finalize)

    def run(self, requests: Tensors) -> Any:
        """Execute one request, and return its tensors."""
        taken = [InferenceRequest(requests, self._names)]
        found = self._execute(taken)
        if self._is_async:
            found = self._loop.run(found)
        if type(found) is not list or len(found) != 1 or found[0] is None:
            found = _responses(found, taken)
        result = self._result(found[0], 0)
        if isinstance(result, BaseException):
            raise result
        return result

    def run_batch(self, requests: Tensors | list[Tensors]) -> Any:
        """Execute requests; return the tensors of each, or its error. One by itself comes as it is, and goes so."""
        if isinstance(requests, Tensors):
            return self.run(requests)
        taken = [InferenceRequest(each, self._names) for each in requests]
        found = self._execute(taken)
        if self._is_async:
            found = self._loop.run(found)
        return [self._result(response, index) for index, response in enumerate(_responses(found, taken))]

    async def run_decoupled(self, requests: Tensors | list[Tensors]) -> AsyncIterator[Any]:
        """Execute one request, and yield its responses, which may come after the end of `execute()`."""
        is_alone = isinstance(requests, Tensors)
        tensors = requests if isinstance(requests, Tensors) else requests[0]
        request = InferenceRequest(tensors, self._names, current_scope(), is_decoupled=True)
        begun = Begun(request)
        if self._is_async:
            self._loop.start(begun.execute_async(self._execute))
        else:
            self._thread.start(partial(begun.execute, self._execute))
        try:
            async for response in begun.responses():
                result = self._result(response, 0)
                if isinstance(result, BaseException):
                    raise result
                if result or not begun.is_over:  # an empty response with the last flag is none
                    yield result if is_alone else [result]
        finally:
            begun.end()

    def _result(self, response: Any, index: int) -> Any:
        """Return the tensors of a response by name, or its error."""
        if not isinstance(response, InferenceResponse):
            kind = "None" if response is None else type(response).__name__
            return TritonModelException(f"execute() has given {kind} in the place of an InferenceResponse")
        if response.fault is not None:
            return error_of(response.fault)
        if response.own_parameters:
            _record(response.own_parameters, index)
        declared = self._declared
        return {name: each.contents for each in response.tensors if (name := each.name()) in declared or not declared}


class Begun:
    """A request of a decoupled model that is executed."""

    def __init__(self, request: InferenceRequest) -> None:
        self._request = request
        self._responses = request.responses = Responses()

    @property
    def is_over(self) -> bool:
        """True after the last response."""
        return self._responses.is_over

    def execute(self, execute: Execute) -> None:
        """Call `execute()`; an exception is the end of the responses."""
        if self._responses.is_dropped:
            return
        try:
            self._check(execute([self._request]))
        except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, also SystemExit
            self._responses.fail(error)

    async def execute_async(self, execute: Execute) -> None:
        """Call an `execute()` that is a coroutine; as `execute`."""
        try:
            self._check(await execute([self._request]))
        except BaseException as error:  # noqa: BLE001 - as above
            self._responses.fail(error)

    async def responses(self) -> AsyncIterator[InferenceResponse]:
        """Give the responses up to the last one; raise what `execute()` has raised."""
        while (response := await self._responses.aget()) is not None:
            if isinstance(response, BaseException):
                raise response
            yield response

    def end(self) -> None:
        """Drop what has not been read."""
        self._request.canceled = not self._responses.is_over
        self._responses.drop()

    def _check(self, found: Any) -> None:
        if found is not None:
            text = f"a decoupled model sends its responses, and execute() has returned {type(found).__name__}"
            raise TritonModelException(text)
        if not self._request.has_given_sender:
            raise TritonModelException("execute() has sent no response, and has asked for no response sender")


def _responses(found: Any, taken: list[InferenceRequest]) -> list[Any]:
    """Return a response for each request: those that were returned, or sent. Raises `TritonModelException`."""
    if found is None:
        found = [None] * len(taken)
    if not isinstance(found, (list, tuple)):
        raise TritonModelException(f"execute() has to return a list of responses, not {type(found).__name__}")
    if len(found) != len(taken):
        raise TritonModelException(
            "Number of InferenceResponse objects do not match number of InferenceRequest objects: "
            f"{len(found)} responses for {len(taken)} requests"
        )
    if None not in found:
        return list(found)
    return [
        request.responses.get() if response is None and request.responses is not None else response
        for response, request in zip(found, taken, strict=True)
    ]


def _record(parameters: Mapping[str, Any], index: int) -> None:
    """Give the parameters of a response to its client."""
    with batch_item(index) as scope:
        for name, value in parameters.items():
            try:
                scope.record_metric(name, value)
            except (TypeError, ValueError) as error:
                sys.stderr.write(f"parameter {name!r} of a response is left out: {error}\n")


def carry_context() -> None:
    """Have each thread, and each call of a pool, run in the context that started it, in this process.

    So it belongs to the request that it was started for: to its logs, its trace, and its time.
    """
    if hasattr(threading.Thread.start, _MARK):
        return
    threading.Thread.start = _start_of(threading.Thread.start)  # type: ignore[assignment, method-assign]
    ThreadPoolExecutor.submit = _submit_of(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


def _start_of(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @wraps(start)
    def start_in_context(self: threading.Thread) -> None:
        context, run = contextvars.copy_context(), self.run

        def run_in_context() -> None:
            del self.run  # without it, thread and method are a cycle
            context.run(run)

        self.run = run_in_context  # type: ignore[method-assign]
        start(self)

    setattr(start_in_context, _MARK, True)
    return start_in_context


def _submit_of(submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @wraps(submit)
    def submit_in_context(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        return submit(self, contextvars.copy_context().run, fn, *args, **more)

    return submit_in_context
