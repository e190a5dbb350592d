"""Makes a runner of a model that is a file: a backend with the interface of an author's `run()`."""

from __future__ import annotations

import atexit
import contextlib
import difflib
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from geartrain.authoring import values
from geartrain.authoring.batches import check_settings
from geartrain.authoring.inputs import MISSING, Input
from geartrain.authoring.scope import current_scope
from geartrain.authoring.values import AsyncConcatenateIterator
from geartrain.backends.interface import Backend, BackendError, TensorSpec
from geartrain.backends.libraries import require
from geartrain.backends.registry import backend_class
from geartrain.backends.text import (
    Dictation,
    Heard,
    Piece,
    PromptError,
    RankBackend,
    Sampling,
    SpeechBackend,
    TextBackend,
)
from geartrain.domain.predictions.batching import Batching, BatchPolicy, policy_of
from geartrain.domain.predictions.costs import CostRule
from geartrain.domain.signature.types import (
    NOTHING_DECLARED,
    Declared,
    DeclaredTensor,
    InputField,
    OutputSpec,
    RecordField,
    Signature,
    TypeSpec,
)
from geartrain.domain.tensors.tensor import DATATYPES, VARIABLE, describe_shape
from geartrain.ipc.messages import BackendChoice
from geartrain.worker.errors import ClientError, describe_error
from geartrain.worker.loading.descriptions import UnsupportedTypeError
from geartrain.worker.loading.loader import LoadedRunner, LoadError, load_instance
from geartrain.worker.loading.signature import Parameter
from geartrain.worker.loading.tensor_types import array_maker

if TYPE_CHECKING:
    import numpy as np

MOST_LOGPROBS: Final = 20
_FORM: Final = "response_format"  # the input that only a backend has which constrains texts
_TASKS: Final = ["transcribe", "translate"]


class TextRunner:
    """The model of a text backend. Its inputs have the names of OpenAI's API, or those that other servers know."""

    def __init__(self, backend: TextBackend) -> None:
        self._backend = backend
        self.tokenizer = backend  # it has the chat template

    async def run(  # noqa: PLR0913 - the parameters of clients
        self,
        prompt: str = Input(description="The beginning of the text"),
        *,
        max_tokens: int | None = Input(default=None, description="The most tokens to make", ge=1),
        temperature: float | None = Input(default=None, description="0 takes the likeliest token", ge=0, le=2),
        top_p: float | None = Input(default=None, description="Of the likeliest tokens, so much of all", ge=0, le=1),
        top_k: int | None = Input(default=None, description="So many of the likeliest tokens; 0 for all", ge=-1),
        min_p: float | None = Input(
            default=None, description="Tokens at least so likely, next to the likeliest", ge=0, le=1
        ),
        repetition_penalty: float | None = Input(
            default=None, description="Makes tokens of the prompt and the text less likely", ge=0.01
        ),
        presence_penalty: float = Input(default=0.0, description="Makes tokens of the text less likely", ge=-2, le=2),
        frequency_penalty: float = Input(
            default=0.0, description="Likewise, for each time that they are there", ge=-2, le=2
        ),
        seed: int | None = Input(default=None, description="The same seed and inputs give the same text"),
        logprobs: bool = Input(default=False, description="Tell how likely each token is, to clients of OpenAI's API"),
        top_logprobs: int = Input(
            default=0, description="So many of the likeliest tokens in its place", ge=0, le=MOST_LOGPROBS
        ),
        ignore_eos: bool = Input(default=False, description="Go on after the end of the text"),
        response_format: dict[str, Any] | None = Input(  # noqa: B008 - an input's description
            default=None, description="The form of the text, as OpenAI's API has it"
        ),
    ) -> AsyncConcatenateIterator[str]:
        """Go on with a text."""
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            seed=seed,
            logprobs=top_logprobs if logprobs else None,
            ignore_eos=ignore_eos,
            schema=_schema_of(response_format),
        )
        scope = current_scope()
        pieces = cast("AsyncGenerator[Piece]", self._backend.generate(prompt, sampling))
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    _record(scope, piece)
                    if piece.text:
                        yield piece.text
        except PromptError as error:
            raise ClientError(str(error)) from None


def _schema_of(response_format: dict[str, Any] | None) -> str:
    """Return the schema that a text has to fit, as JSON; empty for any text. Raises `ClientError`."""
    kind = (response_format or {}).get("type", "text")
    if response_format is None or kind == "text":
        return ""
    if kind == "json_object":
        return '{"type":"object"}'
    form = response_format.get("json_schema")
    schema = form.get("schema") if isinstance(form, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        msg = "'response_format' has to be of the type text, json_object, or json_schema with a 'json_schema.schema'"
        raise ClientError(msg)
    return msgspec.json.encode(schema).decode()


class RankRunner:
    """The model of a backend that scores documents."""

    def __init__(self, backend: RankBackend) -> None:
        self._backend = backend

    def run(
        self,
        query: str = Input(description="The words that documents are held against"),
        documents: list[str] = Input(description="Texts, each of which gets a score"),  # noqa: B008 - never changed
    ) -> list[float]:
        """Score documents: the higher, the better they fit the query."""
        return self._backend.rank(query, documents)


class SpeechRunner:
    """The model of a backend that writes down speech. Its inputs have the names of OpenAI's API."""

    def __init__(self, backend: SpeechBackend) -> None:
        self._backend = backend

    def run(
        self,
        audio: values.Path = Input(description="A recording: WAV, FLAC, Ogg or MP3", accept="audio/*"),  # noqa: B008 - never changed
        *,
        language: str = Input(default="", description="The spoken language, such as en; empty: the model finds out"),
        prompt: str = Input(default="", description="Text that might stand before it, such as names that occur"),
        temperature: float = Input(default=0.0, description="0 takes the likeliest tokens", ge=0, le=1),
        task: str = Input(
            default="transcribe", description="The language of the text: the spoken one, or English", choices=_TASKS
        ),
    ) -> Iterator[Heard]:
        """Write down what is spoken, in segments."""
        dictation = Dictation(language, prompt, temperature, translates=task == _TASKS[1])
        try:
            yield from self._backend.transcribe(audio, dictation)
        except PromptError as error:
            raise ClientError(str(error)) from None


def _record(scope: Any, piece: Piece) -> None:
    """Record what the answer tells besides the text."""
    if piece.tokens <= 1:
        scope.record_metric("tokens.prompt", piece.prompt_tokens)
    scope.record_metric("tokens.completion", piece.tokens)
    for each in piece.logprobs:
        scope.record_metric("logprobs", dict(each))
    if piece.finish_reason:
        scope.record_metric("finish_reason", piece.finish_reason)


_VECTOR: Final = 1  # dimensions


class _Reshaping(NamedTuple):
    """The same elements in another shape. The open sizes of the two are equal, one by one."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, arrays: dict[str, np.ndarray]) -> None:
        """Reshape the array of this name, if it is there; raise `ValueError` if it is none of that shape."""
        array = arrays.get(self.name)
        if array is not None:
            if len(array.shape) != len(self.before):
                raise ValueError(f"tensor '{self.name}' has the shape {list(array.shape)}, not {list(self.before)}")
            sizes = (size for size, declared in zip(array.shape, self.before, strict=True) if declared == VARIABLE)
            arrays[self.name] = array.reshape([next(sizes) if each == VARIABLE else each for each in self.after])


class DeclaredBackend(Backend):
    """Another backend, with the inputs and outputs that are declared; those of the file where none are."""

    def __init__(self, inner: Backend, declared: Declared) -> None:
        super().__init__(inner.path, inner.given)
        self._inner = inner
        self._inner.declared = self._declared = declared

    def load(self) -> None:
        """Raises `BackendError` where the file is not what is declared of it, naming the tensor and both shapes."""
        inner, declared = self._inner, self._declared
        inner.load()
        self.platform = declared.platform or inner.platform
        self.description, self.most_rows = inner.description, inner.most_rows
        self.inputs = self._seen("input", declared.inputs, inner.inputs)
        self.outputs = self._seen("output", declared.outputs, inner.outputs)
        names = {spec.name for spec in self.inputs}
        for spec in inner.inputs:
            if spec.name not in names and not spec.optional:
                raise BackendError(f"{declared.origin} declares no input '{spec.name}', which the file needs; add it")
        if declared.columns:
            self.outputs = tuple(map(_as_column, self.outputs))
        self._before = [_Reshaping(each.name, each.shape, each.inner) for each in declared.inputs if each.is_reshaped]
        self._after = [_Reshaping(each.name, each.inner, each.shape) for each in declared.outputs if each.is_reshaped]

    @property
    def batches(self) -> bool:
        """True if the first dimension is that of a batch: as declared, or as the file says."""
        return self._inner.batches if self._declared.first == "undecided" else self._declared.first == "batch"

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for reshaping in self._before:
            reshaping.apply(inputs)
        found = self._inner.run(inputs)
        for reshaping in self._after:
            reshaping.apply(found)
        if self._declared.columns:
            return {
                name: array.reshape(len(array), 1) if array.ndim == _VECTOR else array for name, array in found.items()
            }
        return found

    def close(self) -> None:
        self._inner.close()

    # declared tensors, and those of the file

    def _seen(self, what: str, declared: Sequence[DeclaredTensor], own: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the inputs or outputs that clients see."""
        known = {spec.name: spec for spec in own}
        for tensor in declared:
            if tensor.name not in known:
                raise BackendError(
                    f"{self._declared.origin} declares an {what} '{tensor.name}', which the file does not have; "
                    f"it has {', '.join(known)}"
                )
            self._check(what, tensor, known[tensor.name])
        if self._declared.first == "batch":
            chosen = [known[tensor.name] for tensor in declared] or own
            for spec in chosen:
                self._check_batch(what, spec)
        return tuple(
            TensorSpec(tensor.name, tensor.datatype, tensor.shape, optional=tensor.optional) for tensor in declared
        ) or tuple(own)

    def _check(self, what: str, tensor: DeclaredTensor, own: TensorSpec) -> None:
        where = f"{self._declared.origin}: {what} '{tensor.name}'"
        if tensor.datatype != own.datatype:
            raise BackendError(f"{where} is declared as {tensor.datatype}, and is {own.datatype} in the file")
        shape = tensor.in_file
        fits = own.variadic or (
            len(shape) == len(own.shape)
            and all(size in {VARIABLE, wanted} for size, wanted in zip(own.shape, shape, strict=True))
        )
        if not fits:
            wanted = describe_shape(TensorSpec(tensor.name, tensor.datatype, shape))
            hint = ", the first of them that of the batch" if self._declared.first == "batch" else ""
            raise BackendError(
                f"{where} is declared with the dimensions {wanted}{hint}, and has {describe_shape(own)} in the file"
            )

    def _check_batch(self, what: str, spec: TensorSpec) -> None:
        if not spec.variadic and spec.shape[:1] != (VARIABLE,):
            raise BackendError(
                f"{self._declared.origin}: `max_batch_size` is above 0, and the first dimension of {what} "
                f"'{spec.name}' is fixed in the file, which has {describe_shape(spec)}; write 0"
            )


def _as_column(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, (*spec.shape, 1)) if len(spec.shape) == _VECTOR else spec


DEFAULT_POLICY: Final = BatchPolicy(max_size=128, retry_singly=True, refuse_larger=False)
"""A file computes each row by itself, so any number of rows will do, and one that fails can be run again alone."""


TRITON_PYTHON: Final = "python"
"""The backend of a `model.py` that was written for Triton's Python backend."""


SCRIPTS: Final[Mapping[str, str]] = {
    "sagemaker": "sagemaker:SageMakerScript",
    "huggingface": "hugging_face:HuggingFaceHandler",
    "azureml": "azure:AzureScript",
    "litserve": "litserve:LitServeScript",
    "torchserve": "torchserve:TorchServeHandler",
    "truss": "truss:TrussModel",
    "kserve": "kserve:KServeScript",
    "mlserver": "mlserver:MlserverRuntime",
}
"""The backends of scripts that were written for other servers, each with its module and class in `scripts`."""


PYTRITON: Final = "pytriton"
"""The backend of scripts that bind models to PyTriton's server."""
MLFLOW: Final = "mlflow"
"""The backend of folders that MLflow has saved."""


def load_backend(choice: BackendChoice, batching: Mapping[str, Any] | None = None) -> LoadedRunner:
    """Load a file with its backend; `batching` has fields of `BatchPolicy` that come before the default ones.

    Raises `LoadError` whose message names the file, or the option, and the fix.
    """
    if choice.name == TRITON_PYTHON:
        try:
            require("numpy", extra="triton")
        except BackendError as error:
            raise LoadError(f"{Path(choice.path).name}: {error}") from error
        from geartrain.worker.loading.triton.backend import load_triton  # few models need it

        return load_triton(choice, batching)
    if choice.name in SCRIPTS:
        from geartrain.worker.loading.scripts.backend import load_script  # few models need it

        return load_script(choice, batching, kind=SCRIPTS[choice.name])
    if choice.name == PYTRITON:
        from geartrain.worker.loading.scripts.pytriton import load_pytriton  # few models need it

        return load_pytriton(choice, batching)
    if choice.name == MLFLOW:
        from geartrain.worker.loading.scripts.mlflow import load_mlflow  # few models need it

        return load_mlflow(choice, batching)
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
    if isinstance(backend, TextBackend) and not backend.constrains:
        known = tuple(field for field in signature.inputs if field.name != _FORM)
        signature = msgspec.structs.replace(signature, inputs=known)  # `run()` gets its default
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
        if settings["pad"]:
            raise ValueError("pad is for classes, as the outputs of a model file do not say how they are to be cut")
        policy = policy_of(settings)
        if policy.cost:
            CostRule(policy.cost, _signature(backend, file, takes_any=False))
    except (TypeError, ValueError) as error:
        raise LoadError(f"{file}: `batching` in {origin}: {error}") from None
    if backend.most_rows is not None and backend.most_rows <= policy.max_size:
        policy = msgspec.structs.replace(policy, max_size=backend.most_rows, refuse_larger=True)
    return Batching(policy, by_rows=True, takes_singles=not policy.pad_to)
