"""Reads the signature of a `run()` from its annotations, at load time in the worker."""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from geartrain.authoring.decorators import OPENAI_ATTRIBUTE, STREAMING_ATTRIBUTE
from geartrain.authoring.inputs import MISSING, FieldInfo
from geartrain.authoring.values import AsyncConcatenateIterator, ConcatenateIterator
from geartrain.domain.signature.types import (
    InputField,
    OpenAIEndpoint,
    OutputMode,
    OutputSpec,
    Signature,
    TypeSpec,
)
from geartrain.worker.loading.annotations import AnnotationReader
from geartrain.worker.loading.callables import (
    SeveralFunctionsError,
    closure_of,
    decorator_value,
    is_generator,
    layers,
    signature_of,
)
from geartrain.worker.loading.constraints import (
    ConstraintError,
    check_default,
    check_settings,
    json_choices,
    json_default,
)
from geartrain.worker.loading.descriptions import (
    Converter,
    Described,
    UnsupportedTypeError,
    strip,
    type_name,
)

_ITERATORS = frozenset(
    {abc.Iterator, abc.Iterable, abc.Generator, abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator}
)
_CONCATENATED: frozenset[Any] = frozenset({ConcatenateIterator, AsyncConcatenateIterator})
_OPAQUE = TypeSpec("opaque")
_FOREIGN = frozenset({"annotated_types", "fastapi", "msgspec", "pydantic"})  # libraries with metadata about limits
_FOREIGN_DEFAULTS = frozenset({"fastapi.params", "pydantic.fields"})  # the modules of Query(), Field() and the like
_WRITE_INPUT = (
    "which is not checked here: write geartrain.Input(), with ge, le, min_length, max_length, regex or choices"
)


class UnsupportedAnnotationError(TypeError):
    """`run()` is written in a way that no signature can be made of: one sentence with the parameter and the remedy."""


class Parameter(NamedTuple):
    """A parameter of `run()`: its field in the signature, its default, and the converter of its values.

    The default is the one that is written; for plain JSON values it is that of the field.
    """

    field: InputField
    default: Any
    convert: Converter | None


class Written(NamedTuple):
    """A parameter as its author has written it; `where` begins what errors say of it."""

    name: str
    where: str
    annotation: Any
    info: FieldInfo

    def describe(self) -> Described:
        """Read the annotation. Raises `UnsupportedAnnotationError`."""
        try:
            return AnnotationReader().read(self.annotation)
        except UnsupportedTypeError as error:
            message = f"{self.where} is annotated {_explain(self.annotation, error)}"
            raise UnsupportedAnnotationError(message) from error

    def read(self) -> Parameter:
        """Read what is written. Raises `UnsupportedAnnotationError`."""
        described = self.describe()
        try:
            field = _field(self.name, described, self.info, admits_none=self.annotation is Any)
        except ConstraintError as error:
            raise UnsupportedAnnotationError(f"{self.where}: {error}") from error
        return Parameter(field, self.info.default if described.makes else field.default, described.convert)


OfOne = Callable[[TypeSpec, Any], TypeSpec]
"""From the type that is written, and its annotation, to the type that one client gets."""


def read_signature(run: Callable[..., Any], *, owner_name: str) -> Signature:
    """Read the signature of a bound `run()`, `predict()` or function.

    `owner_name` is what errors call it, such as `Runner.run()`. Raises `UnsupportedAnnotationError`.
    """
    return make_signature(run, read_parameters(run, owner_name=owner_name), read_output(run, owner_name=owner_name))


def make_signature(run: Callable[..., Any], parameters: Sequence[Parameter], output: OutputSpec) -> Signature:
    """The signature with these parameters and this output, and with what else is known of `run`.

    Raises `UnsupportedAnnotationError` for a declared endpoint of OpenAI's API that they do not fit.
    """
    declared = decorator_value(run, OPENAI_ATTRIBUTE)
    signature = Signature(
        inputs=tuple(parameter.field for parameter in parameters),
        output=output,
        streaming=bool(decorator_value(run, STREAMING_ATTRIBUTE)),
        description="\n\n".join(_documentation(run)) or None,
        openai=None if declared is None else _endpoint(**declared),
    )
    if signature.openai is not None:
        from geartrain.domain.signature.openai_media import MisfitError, media_view  # late: few models declare one

        try:
            media_view(signature)
        except MisfitError as error:
            raise UnsupportedAnnotationError(f'@endpoint("{signature.openai.name}"): {error}') from None
    return signature


def _endpoint(name: str, names: dict[str, str], threshold: float) -> OpenAIEndpoint:
    return OpenAIEndpoint(name, tuple(names.items()), threshold)


def _documentation(run: Callable[..., Any]) -> Iterator[str]:
    """Give the docstring of the class of a bound method, then that of the method. Dataclasses make one of their own."""
    owner = type(getattr(run, "__self__", None))
    written = vars(owner).get("__doc__")
    if inspect.ismethod(run) and isinstance(written, str) and not written.startswith(f"{owner.__name__}("):
        yield inspect.cleandoc(written)
    written = getattr(layers(run)[-1], "__doc__", None)
    if isinstance(written, str):
        yield inspect.cleandoc(written)


def read_parameters(run: Callable[..., Any], *, owner_name: str) -> tuple[Parameter, ...]:
    """Read the parameters of `run()` in their order. Raises `UnsupportedAnnotationError`."""
    return tuple(written.read() for written in written_parameters(run, owner_name=owner_name))


def written_parameters(run: Callable[..., Any], *, owner_name: str) -> tuple[Written, ...]:
    """The parameters of `run()` in their order. Raises `UnsupportedAnnotationError`."""
    parameters = _signature(run, owner_name).parameters.values()
    return tuple(_written(parameter, run, owner_name) for parameter in parameters)


def _signature(run: Callable[..., Any], owner: str) -> inspect.Signature:
    try:
        return signature_of(run)
    except SeveralFunctionsError as error:
        raise UnsupportedAnnotationError(f"{owner}: {error}") from error
    except Exception as error:
        raise UnsupportedAnnotationError(f"the signature of {owner} cannot be read: {error}") from error


def _written(parameter: inspect.Parameter, run: Callable[..., Any], owner: str) -> Written:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise UnsupportedAnnotationError(
            f"{owner} takes {stars}{parameter.name}: write every input as a parameter of its own"
        )
    where = f"{owner}: the parameter {parameter.name!r}"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise UnsupportedAnnotationError(f"{where} is positional-only, and inputs are given by name: remove the '/'")
    if parameter.annotation is parameter.empty:
        raise UnsupportedAnnotationError(f"{where} has no annotation: give it a type, such as {parameter.name}: str")
    annotation, info = _split(resolve(parameter.annotation, run, where), parameter.default, where)
    return Written(parameter.name, where, annotation, info)


def _split(annotation: Any, default: Any, where: str) -> tuple[Any, FieldInfo]:
    """Tell the type from what `Input()` says, which is the default, or stands in `Annotated` beside a plain one."""
    if type(default).__module__ in _FOREIGN_DEFAULTS:
        raise UnsupportedAnnotationError(f"{where} has {type(default).__name__}() as its default, {_WRITE_INPUT}")
    infos = []
    if typing.get_origin(annotation) is Annotated:
        infos = [each for each in annotation.__metadata__ if isinstance(each, FieldInfo)]
        rest = [each for each in annotation.__metadata__ if not isinstance(each, FieldInfo)]
        annotation = annotation.__origin__
        if rest:
            annotation = Annotated[annotation, *rest]
    if isinstance(default, FieldInfo):
        infos.append(default)
        default = MISSING
    if len(infos) > 1:
        raise UnsupportedAnnotationError(f"{where} has more than one Input(): keep one")
    info = infos[0] if infos else FieldInfo(default=MISSING)
    if default is inspect.Parameter.empty or default is MISSING:
        return annotation, info
    if info.default is not MISSING:
        raise UnsupportedAnnotationError(f"{where} has two defaults, one in Input() and one after '=': keep one")
    settings = {name: getattr(info, name) for name in FieldInfo.__slots__}
    return annotation, FieldInfo(**{**settings, "default": default})


def refuse_foreign_limits(run: Callable[..., Any], *, owner_name: str) -> None:
    """Raise `UnsupportedAnnotationError` if an annotation has limits of another library, which nothing would check."""
    for written in written_parameters(run, owner_name=owner_name):
        for found in _metadata(written.annotation):
            if type(found).__module__.partition(".")[0] in _FOREIGN:
                raise UnsupportedAnnotationError(f"{written.where} has {found!r} in its annotation, {_WRITE_INPUT}")


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yield what `Annotated` has beside types anywhere in an annotation."""
    yield from getattr(annotation, "__metadata__", ())
    for part in typing.get_args(annotation):
        if typing.get_origin(part) is not None:
            yield from _metadata(part)


def _field(name: str, described: Described, info: FieldInfo, *, admits_none: bool) -> InputField:
    """Make the field of the signature. Raises `ConstraintError`."""
    spec = described.spec
    check_settings(info, spec)
    has_default = info.default is not MISSING
    default = json_default(info.default, spec) if has_default else None
    if default is None and has_default and not (admits_none or spec.nullable or spec.kind in {"secret", "opaque"}):
        has_default = False  # same as Cog: None is no value of this type
    check_default(info, spec, default)
    return InputField(
        name=name,
        type=spec,
        required=not (has_default or spec.nullable),
        has_default=has_default,
        default=default,
        description=info.description,
        ge=info.ge,
        le=info.le,
        min_length=info.min_length,
        max_length=info.max_length,
        regex=info.regex,
        choices=None if info.choices is None else json_choices(info.choices),
        deprecated=bool(info.deprecated),
        accept=info.accept,
    )


def read_output(run: Callable[..., Any], *, owner_name: str, of_one: OfOne | None = None) -> OutputSpec:
    """Read what `run()` returns, or yields; with `of_one`, of a batched one. Raises `UnsupportedAnnotationError`."""
    annotation = return_annotation(run, owner_name)
    generates = is_generator(run)
    if annotation is inspect.Signature.empty:
        return OutputSpec(_OPAQUE, "iterator" if generates else "value")
    mode, annotation = output_mode(annotation, owner_name)
    if annotation is None:
        return OutputSpec(TypeSpec("string") if mode == "concatenate" else _OPAQUE, mode)
    try:
        spec = AnnotationReader(output=True, batched=of_one is not None).read(annotation).spec
    except UnsupportedTypeError as error:
        message = f"{owner_name}: what it returns is annotated {_explain(annotation, error)}"
        raise UnsupportedAnnotationError(message) from error
    if generates and mode == "value":  # the author annotated what the reader sees in the end
        mode, spec = "iterator", spec.items if spec.kind == "array" and spec.items is not None else spec
    if of_one is not None:
        spec = of_one(spec, annotation)
    if mode == "concatenate" and spec.kind != "string":
        raise UnsupportedAnnotationError(
            f"{owner_name} returns ConcatenateIterator[{type_name(annotation)}], and only text can be concatenated:"
            " use ConcatenateIterator[str], or Iterator"
        )
    return OutputSpec(spec, mode)


def return_text(run: Callable[..., Any], *, owner_name: str) -> str:
    """Return the annotated return type of `run()` in its author's words; empty if it has none."""
    annotation = return_annotation(run, owner_name)
    return "" if annotation is inspect.Signature.empty else type_name(annotation)


def return_annotation(run: Callable[..., Any], owner: str) -> Any:
    """Return the evaluated annotation of what `run()` returns. Raises `UnsupportedAnnotationError`."""
    annotation = _signature(run, owner).return_annotation
    if annotation is inspect.Signature.empty:
        return annotation
    annotation = resolve(annotation, run, f"{owner}: what it returns")
    return type(None) if annotation is None else annotation


def output_mode(annotation: Any, owner: str) -> tuple[OutputMode, Any]:
    """Tell a stream from a value, and the type of its elements; None where the author left that open."""
    bare, is_opaque = strip(annotation)
    origin = typing.get_origin(bare) or bare
    if is_opaque or not isinstance(origin, abc.Hashable) or origin not in _ITERATORS | _CONCATENATED:
        return "value", annotation
    mode: OutputMode = "concatenate" if origin in _CONCATENATED else "iterator"
    element = next(iter(typing.get_args(bare)), None)
    if element is None or element is Any or isinstance(element, typing.TypeVar):
        return mode, None
    if (typing.get_origin(element) or element) in _ITERATORS | _CONCATENATED:
        message = f"{owner} returns an iterator of iterators: use Iterator[list[...]]"
        raise UnsupportedAnnotationError(message)
    return mode, element


def resolve(annotation: Any, run: Callable[..., Any], where: str) -> Any:
    """Evaluate what is a string in an annotation (`from __future__ import annotations`), where it was written.

    `where` begins the message. Raises `UnsupportedAnnotationError`.
    """
    function = layers(run)[-1]
    function = getattr(function, "__func__", function)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(
            holder, globalns=getattr(function, "__globals__", {}), localns=closure_of(function), include_extras=True
        )["it"]
    except Exception as error:
        text = annotation if isinstance(annotation, str) else type_name(annotation)
        raise UnsupportedAnnotationError(
            f"{where} is annotated {text}, which cannot be evaluated ({type(error).__name__}: {error}):"
            " import what it names at the top of the file, not under TYPE_CHECKING"
        ) from error


def class_hints(cls: Any, what: str) -> dict[str, Any]:
    """Return the annotations of a class, evaluated. `what` begins the message of `UnsupportedAnnotationError`."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise UnsupportedAnnotationError(f"{what} cannot be read: {error}") from error


def _explain(annotation: Any, error: UnsupportedTypeError) -> str:
    name = type_name(annotation)
    if error.place or error.name != name:
        return f"{name}; {error}"
    return f"{name}, which is not supported: {error.advice}"
