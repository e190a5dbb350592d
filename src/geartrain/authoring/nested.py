"""Other models of the same server, as an author's code calls them.

    class Runner(geartrain.BaseRunner):
        detector: geartrain.Model

        def run(self, image: Path) -> list[str]:
            return [each["label"] for each in self.detector(image=image)]

In an `async` model a call is awaited. Outside of a server there are no other models, unless a test brings them.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

M = TypeVar("M")
MAX_NAME: Final = 1024  # characters


class ModelError(Exception):
    """The prediction of another model that was called did not succeed.

    Attributes:
        model: the name of the model that failed; in a chain of calls the one where it began.
        code: such as `run_failed`, `run_canceled`, `timed_out`, `not_found`, `not_ready`, `invalid_input`.
        message: a sentence.
    """

    def __init__(self, model: str, code: str, message: str) -> None:
        super().__init__(f"{model}: {message}")
        self.model = model
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[ModelError], tuple[str, str, str]]:
        """Pickle with its three parts."""
        return ModelError, (self.model, self.code, self.message)


class Record(dict[str, Any]):
    """An output with named fields: `record.scores` is `record["scores"]`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Return a field; one that is an object is a record too."""
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"the output has no {name!r}; it has: {', '.join(self) or 'nothing'}") from None
        if type(value) is dict:
            value = self[name] = Record(value)
        return value


class PendingCall(abc.ABC):
    """A call of another model that has begun."""

    @abc.abstractmethod
    def result(self) -> Any:
        """Wait for the end and return the output. Blocks. Raises `ModelError`."""

    @abc.abstractmethod
    async def wait(self) -> Any:
        """Wait for the end and return the output. Raises `ModelError`."""

    @abc.abstractmethod
    def next(self) -> Any:
        """Wait for the next output of a stream; raise `StopIteration` at its end. Blocks. Raises `ModelError`."""

    @abc.abstractmethod
    async def anext(self) -> Any:
        """Wait for the next output of a stream; raise `StopAsyncIteration` at its end. Raises `ModelError`."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Cancel it, unless it has ended."""


class Transport(abc.ABC):
    """The way of calls to other models: that of a worker, or of a test."""

    @abc.abstractmethod
    def begin(self, model: str, version: str, inputs: dict[str, Any]) -> PendingCall:
        """Begin a call. Raises `TypeError` or `ValueError` for inputs that cannot be sent."""

    @abc.abstractmethod
    def is_async(self) -> bool:
        """True if the caller runs on an event loop, and has to await."""


_provided: Transport | None = None
_own: ContextVar[Transport | None] = ContextVar("geartrain_models", default=None)


def provide(transport: Transport | None) -> Transport | None:
    """Set the transport of this process, and return the one before."""
    global _provided
    before, _provided = _provided, transport
    return before


@contextmanager
def use_transport(transport: Transport) -> Iterator[None]:
    """Use another transport inside a `with` block, in this context."""
    token = _own.set(transport)
    try:
        yield
    finally:
        _own.reset(token)


def current_transport() -> Transport:
    """Return the way of calls to other models. Raises `RuntimeError` where there are none."""
    transport = _own.get() or _provided
    if transport is None:
        raise RuntimeError(
            "there are no other models here: they are called inside `geartrain serve`, or in a test with "
            "`geartrain.testing.call(..., models={...})`"
        )
    return transport


class Job:
    """A call that runs beside the caller: `result()`, or `await` in an `async` model."""

    __slots__ = ("_call", "_is_async")

    def __init__(self, call: PendingCall, *, is_async: bool) -> None:
        self._call = call
        self._is_async = is_async

    def result(self) -> Any:
        """Return the output, or in an `async` model what is awaited for it. Raises `ModelError`."""
        return self._call.wait() if self._is_async else self._call.result()

    def cancel(self) -> None:
        """Cancel the prediction, unless it has ended."""
        self._call.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the output. Raises `ModelError`."""
        return self._call.wait().__await__()


class Stream:
    """The outputs of a call, one by one: for `for`, or `async for` in an `async` model.

    A stream that is not read to its end is canceled by `close()`, and at the end of the caller's prediction.
    """

    __slots__ = ("_call",)

    def __init__(self, call: PendingCall) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._call.next()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._call.anext()

    def close(self) -> None:
        """Cancel the prediction, unless it has ended."""
        self._call.cancel()


class Model(Generic[M]):
    """Another model of the server: called like `run()` of that model, with its inputs by name.

    As the annotation of an attribute it declares the model of the attribute's name; `model()` gives another name, or a
    version. The type in brackets is for editors.
    """

    def __init__(self, name: str = "", *, version: str = "") -> None:
        """`name`: by default that of the attribute. `version`: by default the one that clients get."""
        self.name = _checked(name, "name")
        self.version = _checked(version, "version")

    def __set_name__(self, _owner: type, attribute: str) -> None:
        """Take the name of the attribute, unless there is another one."""
        self.name = self.name or attribute

    def __call__(self, **inputs: Any) -> Any:
        """Make a prediction and return its output; in an `async` model, what is awaited for it. Raises `ModelError`."""
        transport = current_transport()
        call = transport.begin(self.name, self.version, inputs)
        return call.wait() if transport.is_async() else call.result()

    def start(self, **inputs: Any) -> Job:
        """Begin a prediction that runs beside the caller."""
        transport = current_transport()
        return Job(transport.begin(self.name, self.version, inputs), is_async=transport.is_async())

    def stream(self, **inputs: Any) -> Stream:
        """Make a prediction and give its outputs as they come."""
        return Stream(current_transport().begin(self.name, self.version, inputs))

    def __repr__(self) -> str:
        return f"Model({self.name!r}{f', version={self.version!r}' if self.version else ''})"


def model(name: str = "", *, version: str = "") -> Any:
    """Declare another model as an attribute of a runner: `reader = geartrain.model("ocr", version="2")`."""
    return Model[Any](name, version=version)


class Models:
    """All models of the server, by name: `geartrain.models["reader"]`, `geartrain.models["reader@2"]`."""

    def __getitem__(self, name: str) -> Model[Any]:
        name, _, version = _checked(name, "name").partition("@")
        if not name:
            raise ValueError("the name of a model is empty")
        return Model(name, version=version)


models: Final = Models()


def _checked(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} of a model is a string, not {type(value).__name__}")
    if len(value) > MAX_NAME:
        raise ValueError(f"the {what} of a model has at most {MAX_NAME} characters")
    return value


def declared_models(owner: type) -> dict[str, Model[Any]]:
    """Return the models that a class declares, by attribute: those of its annotations, and those that are set."""
    found: dict[str, Model[Any]] = {}
    for base in reversed(owner.__mro__):
        for attribute, annotation in vars(base).get("__annotations__", {}).items():
            kind = _kind_of(annotation, base)
            if kind is not None and not isinstance(vars(base).get(attribute), Model):
                found[attribute] = kind(getattr(kind, "model_name", "") or attribute)
        found |= {attribute: value for attribute, value in vars(base).items() if isinstance(value, Model)}
    return found


def bind_models(owner: type) -> None:
    """Set the attributes of a class that are declared by their annotation alone."""
    for attribute, value in declared_models(owner).items():
        if not isinstance(getattr(owner, attribute, None), Model):
            setattr(owner, attribute, value)


def _kind_of(annotation: object, owner: type) -> type[Model[Any]] | None:
    """Return the class of handles that an annotation, or the text of one, names; None for any other annotation."""
    if isinstance(annotation, str):
        names = vars(sys.modules.get(owner.__module__, sys))
        found: Any = names.get(annotation.partition("[")[0].partition(".")[0])
        for part in annotation.partition("[")[0].split(".")[1:]:
            found = getattr(found, part, None)
        annotation = found
    kind = getattr(annotation, "__origin__", annotation)
    return kind if isinstance(kind, type) and issubclass(kind, Model) else None
