"""Scripts for PyTriton: functions that `Triton().bind()` gives a name and tensors.

The package `pytriton` is used where it is installed. Its server takes the models, and does not start. They run as those
of Triton's Python backend, which PyTriton makes of them as well.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from geartrain.backends.interface import BackendError
from geartrain.backends.libraries import require
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.load_errors import blame
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_module
from geartrain.worker.loading.scripts.finder import after_import, stand_in
from geartrain.worker.loading.scripts.main_block import arguments_of, chosen, run_main_block
from geartrain.worker.loading.scripts.script import tell
from geartrain.worker.loading.scripts.servers import no_servers

NAME: Final = "pytriton"
_MODULE: Final = "pytriton.triton"


class Binding(NamedTuple):
    """The arguments of a `bind()`."""

    model_name: str
    infer_func: Callable[..., Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    config: Any


_BOUND: Final[dict[str, Binding]] = {}
"""The models that the script has bound, by name."""


class Triton:
    """A server that is none: `bind()` gives the models to geartrain."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the options of Triton, which have no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the models as they are."""

    def bind(  # noqa: PLR0917 - as PyTriton
        self,
        model_name: str,
        infer_func: Any,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        _model_version: int = 1,
        config: Any = None,
        **_: Any,
    ) -> None:
        """Take a model. Of several functions the first one is called: replicas are geartrain's."""
        if not callable(infer_func):
            tell(f"{model_name}: the first of {len(infer_func)} functions is called; `replicas` makes more of them")
            infer_func = infer_func[0]
        config = importlib.import_module("pytriton.model_config").ModelConfig() if config is None else config
        _BOUND[model_name] = Binding(model_name, infer_func, inputs, outputs, config)

    def serve(self, *_: Any, **__: Any) -> None:
        """Return at once: geartrain serves the models."""
        tell("Triton.serve() does not listen: geartrain serves this model")

    def run(self) -> None:
        """Return at once, as `serve()`."""
        self.serve()

    def connect(self) -> None:
        """Return at once: there is no other server."""

    def stop(self) -> bool:
        """Stop nothing."""
        return False

    def is_alive(self) -> bool:
        """Return False, so that loops that wait for the end of the server end."""
        return False

    def is_connected(self) -> bool:
        """Return False: there is no other server."""
        return False


def load_pytriton(choice: BackendChoice, batching: Mapping[str, Any] | None) -> LoadedRunner:
    """Run a script up to its `serve()`, and make a runner of the model that is served. Raises `LoadError`."""
    path = Path(choice.path)
    try:
        require("numpy", extra="triton")
    except BackendError as error:
        raise LoadError(f"{path.name}: {error}") from error
    from geartrain.worker.loading.triton import backend, config  # with numpy

    _prepare(path)
    arguments = arguments_of(choice.options)
    sys.argv = [str(path), *arguments]
    with no_servers():
        binding, where = _bound(path, arguments, choice.options)
    try:
        stated = _config(binding)
    except ValueError as error:
        raise LoadError(f"{where}: {error}") from error
    whole = config.whole_config(stated, binding.model_name)
    model = BoundModel(binding, stated)
    try:
        runner = backend.runner_of(model, whole, where=where, batching=batching, arguments={})
    except (AttributeError, TypeError) as error:
        raise LoadError(f"{where}: {describe_error(error)}") from error
    return runner._replace(platform=NAME)


def _bound(path: Path, arguments: Sequence[str], options: Mapping[str, Any]) -> tuple[Binding, str]:
    """Run a script; return the model that is served, and the name of the script for messages. Raises `LoadError`."""
    module, where = load_module(path.name, path.parent)
    try:
        if not _BOUND:
            run_main_block(module, arguments)
        if not _BOUND:
            raise ValueError("it has bound no model: call triton.bind() in the script, or below its __main__")
        binding: Binding = chosen(_BOUND, options)
    except ValueError as error:
        raise LoadError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise blame(error, path.parent, fallback=where) from error
    return binding, where


def _prepare(path: Path) -> None:
    """Put the package in place, and have its server take models."""
    sys.argv = [str(path)]
    from geartrain.worker.loading.scripts.pytriton_shim import MODULES

    if not stand_in({each: {**names, **(_SERVER if each == _MODULE else {})} for each, names in MODULES.items()}):
        after_import(_MODULE, _take_models)


_SERVER: Final = {"Triton": Triton, "RemoteTriton": Triton}


def _take_models(module: Any) -> None:
    """Have the server of the installed package take its models."""
    for name, each in _SERVER.items():
        setattr(module, name, each)


# configuration


def _config(binding: Binding) -> dict[str, Any]:
    """Return the configuration of a model as Triton writes it. Raises `ValueError`."""
    given = binding.config
    stated: dict[str, Any] = {
        "max_batch_size": int(given.max_batch_size) if given.batching else 0,
        "input": list(_tensors(binding.inputs, "INPUT")),
        "output": list(_tensors(binding.outputs, "OUTPUT")),
    }
    batcher = given.batcher
    if given.batching and batcher is not None:
        stated["dynamic_batching"] = {
            "preferred_batch_size": list(batcher.preferred_batch_size or ()),
            "max_queue_delay_microseconds": int(batcher.max_queue_delay_microseconds),
        }
    if given.decoupled:
        stated["model_transaction_policy"] = {"decoupled": True}
    return stated


def _tensors(given: Sequence[Any], unnamed: str) -> Iterator[dict[str, Any]]:
    """The tensors of a `bind()`; those without a name are called by their place. Raises `ValueError`."""
    for number, each in enumerate(given, 1):
        name = each.name or f"{unnamed}_{number}"
        found = {"name": name, "data_type": _data_type(name, each.dtype), "dims": list(map(int, each.shape))}
        yield {**found, "optional": True} if each.optional else found


def _data_type(name: str, dtype: Any) -> str:
    import numpy as np

    from geartrain.worker import arrays

    kind = np.dtype(dtype)
    datatype = "STRING" if kind.kind in "OSU" else arrays.datatype_of(kind)
    if not datatype:
        raise ValueError(
            f"tensor {name!r} has the type {kind}, which no tensor of Triton has; write one such as float32"
        )
    return f"TYPE_{datatype}"


# calls


class BoundModel:
    """A function that has been bound, with the interface of a model of Triton's Python backend."""

    def __init__(self, binding: Binding, stated: Mapping[str, Any]) -> None:
        """`stated` is the configuration of the model."""
        self._name = binding.model_name
        self._is_decoupled = bool(binding.config.decoupled)
        self._request = importlib.import_module("pytriton.proxy.types").Request
        self._call: Callable[[list[Any]], Any] = binding.infer_func
        self._set_context(binding, stated)

    def _set_context(self, binding: Binding, stated: Mapping[str, Any]) -> None:
        """Give the function the configuration that its decorators look at."""
        function = binding.infer_func
        decorators = importlib.import_module("pytriton.decorators")
        kinds = importlib.import_module("pytriton.model_config.triton_model_config")
        specs = {
            key: [
                kinds.TensorSpec(name=each["name"], dtype=given.dtype, shape=given.shape, optional=given.optional)
                for each, given in zip(stated[kind], declared, strict=True)
            ]
            for key, kind, declared in (("inputs", "input", binding.inputs), ("outputs", "output", binding.outputs))
        }
        known = kinds.TritonModelConfig(
            model_name=self._name,
            batching=binding.config.batching,
            batcher=binding.config.batcher,
            max_batch_size=binding.config.max_batch_size,
            decoupled=binding.config.decoupled,
            **specs,
        )
        context = decorators.TritonContext()
        context.model_configs[function] = known
        owner: Any = getattr(function, "__self__", function)
        owner.__triton_context__ = context

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Call the function; return a response for each request, or send those of a stream."""
        from geartrain.worker.loading.triton.values import TritonModelException

        taken = [
            self._request({each.name(): each.as_numpy() for each in request.inputs()}, json.loads(request.parameters()))
            for request in requests
        ]
        found = self._call(taken)
        if self._is_decoupled:
            self._send(found, requests)
            return None
        if not isinstance(found, (list, tuple)) or len(found) != len(requests):
            count = f"{len(found)} of them" if isinstance(found, (list, tuple)) else type(found).__name__
            raise TritonModelException(
                f"{self._name}: a list with a dict of arrays for each of {len(requests)} requests is expected, "
                f"and the function has returned {count}"
            )
        return list(map(self._response, found))

    def _send(self, found: Any, requests: Sequence[Any]) -> None:
        """Send the results of a generator, each with a dict for every request, until the client leaves."""
        senders = [request.get_response_sender() for request in requests]
        for results in found if inspect.isgenerator(found) else [found]:
            for sender, result in zip(senders, results, strict=True):
                sender.send(self._response(result))
            if all(sender.is_cancelled() for sender in senders):
                break
        for sender in senders:
            sender.send(flags=1)

    def _response(self, result: Any) -> Any:
        from geartrain.worker.loading.triton.values import InferenceResponse, Tensor, TritonModelException

        if not hasattr(result, "items"):
            raise TritonModelException(f"{self._name}: a dict of arrays is expected, and not {type(result).__name__}")
        return InferenceResponse([Tensor(name, _plain(name, array)) for name, array in result.items()])


def _plain(name: str, array: Any) -> Any:
    """Return an array that a tensor can have: texts become bytes. Raises `TritonModelException`."""
    import numpy as np

    from geartrain.worker.loading.triton.values import TritonModelException

    if not isinstance(array, np.ndarray):
        raise TritonModelException(f"output {name!r} is of {type(array).__name__}: return an array of numpy")
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array
