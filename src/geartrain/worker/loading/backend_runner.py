"""Makes a runner of a model that is a file: a backend with the interface of an author's `run()`."""

from __future__ import annotations

import atexit
import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from geartrain.authoring.batches import check_settings
from geartrain.authoring.inputs import MISSING
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.registry import backend_class
from geartrain.backends.text import RankBackend, SpeechBackend, TextBackend
from geartrain.domain.predictions.batching import Batching, BatchPolicy
from geartrain.domain.signature.declared import NOTHING_DECLARED, Declared
from geartrain.domain.signature.types import InputField, OutputSpec, RecordField, Signature, TypeSpec
from geartrain.domain.tensors.tensor import DATATYPES
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import describe_error
from geartrain.worker.loading.declared_backend import DeclaredBackend
from geartrain.worker.loading.descriptions import UnsupportedTypeError
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.loading.tensor_types import array_maker
from geartrain.worker.loading.text_runner import RankRunner, SpeechRunner, TextRunner

DEFAULT_POLICY: Final = BatchPolicy(max_size=128, retry_singly=True, refuse_larger=False)
"""A file computes each row by itself, so any number of rows will do, and one that fails can be run again alone."""


def load_backend(choice: BackendChoice, batching: Mapping[str, Any] | None = None) -> LoadedRunner:
    """Load a file with its backend; `batching` has fields of `BatchPolicy` that come before the default ones.

    Raises `LoadError` whose message names the file, or the option, and the fix.
    """
    path = Path(choice.path)
    try:
        found = backend_class(choice.name)
        _check_options(choice, found.options)
        if issubclass(found, (TextBackend, RankBackend, SpeechBackend)):
            return _load_text(found(path, choice.options), choice, batching)
        backend = _declared(found(path, choice.options), choice.declared)
        backend.load()
        _check_specs(choice.name, backend)
    except BackendError as error:
        raise LoadError(f"{path.name}: {error}") from error
    except Exception as error:
        raise LoadError(f"{path.name}: the backend {choice.name!r} cannot load it: {describe_error(error)}") from error
    atexit.register(backend.close)
    return LoadedRunner(
        instance=backend,
        run=_Run(backend),
        setup=None,
        setup_takes=frozenset(),
        healthcheck=None,
        is_async=False,
        is_generator=False,
        signature=_signature(backend, path.name, takes_any=choice.declared.takes_any),
        max_concurrency=None,
        parameters=tuple(_parameter(spec, path.name) for spec in backend.inputs),
        batching=_batching(backend, path.name, batching, origin=choice.declared.origin or "geartrain.yaml"),
        platform=backend.platform,
    )


def _load_text(
    backend: TextBackend | RankBackend | SpeechBackend, choice: BackendChoice, batching: Mapping[str, Any] | None
) -> LoadedRunner:
    if choice.declared != NOTHING_DECLARED:
        raise BackendError(f"take the declared tensors out of its configuration: {choice.name!r} takes none")
    if batching:
        raise BackendError(f"take `batching` out of geartrain.yaml: {choice.name!r} makes its own batches")
    backend.load()
    atexit.register(backend.close)
    model: TextRunner | RankRunner | SpeechRunner
    if isinstance(backend, TextBackend):
        model = TextRunner(backend)
    else:
        model = RankRunner(backend) if isinstance(backend, RankBackend) else SpeechRunner(backend)
    runner = load_instance(model, model.run, backend.path, owner=f"the backend {choice.name!r}")
    signature = msgspec.structs.replace(runner.signature, description=backend.description)
    slots = backend.slots if isinstance(backend, TextBackend) else None
    return runner._replace(signature=signature, max_concurrency=slots, platform=backend.platform)


def _declared(backend: Backend, declared: Declared) -> Backend:
    return backend if declared == NOTHING_DECLARED else DeclaredBackend(backend, declared)


class _Run:
    """The `run()` of a file: inputs that a client left out are not passed on, and undeclared outputs are dropped."""

    def __init__(self, backend: Backend) -> None:
        self._run = backend.run
        self._outputs = tuple(spec.name for spec in backend.outputs)

    def __call__(self, /, **inputs: Any) -> dict[str, Any]:
        given = {name: value for name, value in inputs.items() if value is not None}
        found = self._run(given)
        return {name: found[name] for name in self._outputs}


def _check_options(choice: BackendChoice, known: Collection[str]) -> None:
    for name in choice.options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            offer = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(sorted(known)) or 'none'}"
            raise BackendError(f"there is no parameter `{name}` of the backend {choice.name!r}; {offer}")


def _check_specs(name: str, backend: Backend) -> None:
    """Check that a backend does as it promises: its errors would otherwise appear far from their cause."""
    for specs, what in ((backend.inputs, "input"), (backend.outputs, "output")):
        names = [spec.name for spec in specs]
        for spec in specs:
            if spec.datatype not in DATATYPES:
                raise BackendError(f"the backend {name!r} says that {what} '{spec.name}' is {spec.datatype}")
            if not spec.name or names.count(spec.name) > 1:
                raise BackendError(f"the backend {name!r} gives several {what}s the name '{spec.name}'")
    if not backend.outputs:
        raise BackendError(f"the backend {name!r} has no outputs")


# the signature


def _signature(backend: Backend, file: str, *, takes_any: bool) -> Signature:
    outputs = tuple(RecordField(spec.name, _type(spec), required=not spec.optional) for spec in backend.outputs)
    return Signature(
        inputs=tuple(_field(spec) for spec in backend.inputs),
        output=OutputSpec(TypeSpec("record", fields=outputs, title="Outputs")),
        description=backend.description or f"The model in {file}.",
        takes_any=takes_any and len(backend.inputs) == 1 and backend.inputs[0].datatype != "BYTES",
    )


def _type(spec: TensorSpec) -> TypeSpec:
    return TypeSpec(
        "tensor",
        datatype=spec.datatype,
        shape=spec.shape,
        variadic=spec.variadic,
        variadic_at=spec.variadic_at,
        names=spec.names,
        nullable=spec.optional,
    )


def _field(spec: TensorSpec) -> InputField:
    return InputField(spec.name, _type(spec), required=not spec.optional)


def _parameter(spec: TensorSpec, file: str) -> Parameter:
    try:
        return Parameter(_field(spec), MISSING, array_maker(_type(spec)))
    except UnsupportedTypeError:
        raise LoadError(f"{file}: input '{spec.name}' is BF16, which needs the package ml_dtypes") from None


# batches


def _batching(backend: Backend, file: str, given: Mapping[str, Any] | None, *, origin: str) -> Batching | None:
    if given is not None and given.get("max_size") == 1 and not given.get("refuse_larger", False):
        return None
    if not (backend.inputs and backend.batches):
        if given:
            what = "the first dimension of its tensors is not that of a batch"
            raise LoadError(f"{file}: `batching` is set in {origin}, and {what}; remove it, or write `off`")
        return None
    try:
        settings = {**msgspec.structs.asdict(DEFAULT_POLICY), **(given or {})}
        check_settings(settings)
        policy = msgspec.convert(settings, BatchPolicy)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{file}: `batching` in {origin}: {error}") from None
    if backend.most_rows is not None and backend.most_rows <= policy.max_size:
        policy = msgspec.structs.replace(policy, max_size=backend.most_rows, refuse_larger=True)
    return Batching(policy, by_rows=True, takes_singles=not policy.pad_to)
