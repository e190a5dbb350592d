"""The signature of a runner: the typed inputs and the output of its `run()`.

Pure data, made in the worker from annotations and sent to the parent, where it is the one source of the OpenAPI
document, of input validation and of the command line's `-i`. Every value in it is plain JSON, so it crosses the
process border as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from geartrain.domain.tensors.nested_json import NestedArray

Kind = Literal[
    "string",
    "integer",
    "number",
    "boolean",
    "path",  # a file by URL; the runner gets a local path
    "file",  # a file by URL; the runner gets an open binary file
    "secret",
    "object",  # `dict` and `Any`: Cog's schema has no narrower type for either
    "array",  # `items`
    "union",  # `members`
    "record",  # TypedDict, BaseModel, dataclass, pydantic: `fields`
    "opaque",  # passed on unchecked, shown in the schema as any JSON value
    "tensor",  # `datatype`, `shape`: an array of numpy or torch; nested arrays in JSON
]

OutputMode = Literal["value", "iterator", "concatenate"]
Form = Literal["", "body", "response", "tensors", "any"]
Contract = Literal["", "request", "tensors", "any"]


FILE_KINDS: Final = frozenset({"path", "file"})
"""Kinds of values that are files."""


class TypeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One type of the signature's small language; a tree for arrays, unions and records."""

    kind: Kind
    nullable: bool = False
    items: TypeSpec | None = None
    members: tuple[TypeSpec, ...] = ()
    fields: tuple[RecordField, ...] = ()
    title: str = ""  # of a record
    choices: tuple[Any, ...] | None = None  # of a Literal or an Enum: the JSON values it admits
    closed: bool = False  # a record that admits no other fields
    datatype: str = ""  # of a tensor: one of `domain.tensors.tensor.DATATYPES`
    shape: tuple[int, ...] = ()  # of a tensor; -1 where any size will do
    variadic: bool = False  # a tensor with any number of dimensions at `variadic_at`
    variadic_at: int = 0  # of a variadic tensor: an index of `shape`
    names: tuple[str, ...] = ()  # of a tensor: where dimensions have to be equally long, a name for each or ""
    text: bool = False  # a tensor of BYTES whose elements are UTF-8
    anything: bool = False  # `Any` or `Opaque` in an output, shown as an object or a list: it may be any value
    values: TypeSpec | None = None  # of an object of an output: the type of its values, if its author tells it
    form: Form = ""  # a body (a tensor of one element of BYTES), a whole response (a record), or any tensors


class RecordField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a record type."""

    name: str
    type: TypeSpec
    required: bool = True


class InputField(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter of `run()`, in the order it is written.

    `has_default` tells an explicit `default` (which may be None) from none at all; a field that is neither
    `required` nor has a default is an Optional that arrives as None when it is left out.
    """

    name: str
    type: TypeSpec
    required: bool = True
    has_default: bool = False
    default: Any = None
    description: str | None = None
    ge: float | int | None = None
    le: float | int | None = None
    min_length: int | None = None
    max_length: int | None = None
    regex: str | None = None
    choices: tuple[Any, ...] | None = None
    deprecated: bool = False
    accept: str | None = None  # of a path or file: media types or extensions, for those who build a form


class OutputSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Output of `run()`: one value, or a stream of values of `type`."""

    type: TypeSpec
    mode: OutputMode = "value"


class OpenAIEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """An endpoint of OpenAI's API that the author has declared with `geartrain.openai.endpoint`.

    `names`: pairs of a parameter of the endpoint and the input that takes it.
    """

    name: str
    names: tuple[tuple[str, str], ...] = ()
    threshold: float = 0.5  # of moderations: the score from which on a text is flagged


class OpenAISettings(msgspec.Struct, frozen=True):
    """Settings of the endpoints of a model.

    Attributes:
        serve: the endpoints that are served; None for all that the signature fits.
        fields: the inputs that parameters fill, by the names of the parameters.
        aliases: other names of the model.
        refuses: True if parameters are refused that the model has no input for.
        chat_template: the file of its chat template, in its folder; empty for the one that the model has.
        matryoshka: True if the first numbers of a vector are a vector of their own, so that `dimensions` may cut it.
    """

    serve: frozenset[str] | None = None
    fields: Mapping[str, str] = {}
    aliases: tuple[str, ...] = ()
    refuses: bool = False
    chat_template: str = ""
    matryoshka: bool = False


USUAL_OPENAI: Final = OpenAISettings()


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inputs and the output of a runner."""

    inputs: tuple[InputField, ...]
    output: OutputSpec
    streaming: bool = False  # the author asked for server-sent events with `@streaming`
    description: str | None = None
    takes_any: bool = (
        False  # its one input, a tensor of numbers, may come under any name and as numbers of any datatype
    )
    openai: OpenAIEndpoint | None = None  # declared; other endpoints follow from the names and types
    contract: Contract = ""  # `run()` takes one request as it came, or its tensors: `inputs` are the parts of that
    open_inputs: tuple[DeclaredTensor, ...] = ()  # of a model that takes any tensors: those that it declares
    open_outputs: tuple[DeclaredTensor, ...] = ()

    @property
    def takes_request(self) -> bool:
        """True if `run()` takes a request as it came."""
        return self.contract in {"request", "any"}

    @property
    def takes_tensors(self) -> bool:
        """True if `run()` takes tensors of any names."""
        return self.contract in {"tensors", "any"}

    @property
    def gives_response(self) -> bool:
        """True if `run()` may return a whole response."""
        return self.output.type.form in {"response", "any"}

    @property
    def gives_tensors(self) -> bool:
        """True if `run()` may return tensors of any names."""
        return self.output.type.form in {"tensors", "any"}


BODY: Final = TypeSpec("tensor", nullable=True, datatype="BYTES", shape=(1,), form="body")
"""The body of a request: one element of BYTES, or any value in JSON."""

RESPONSE: Final = TypeSpec(
    "record",
    title="Response",
    form="response",
    fields=(
        RecordField("body", TypeSpec("tensor", datatype="BYTES", shape=(1,), form="body")),
        RecordField("status", TypeSpec("integer"), required=False),
        RecordField("content_type", TypeSpec("string"), required=False),
        RecordField("headers", TypeSpec("array", items=TypeSpec("opaque", nullable=True)), required=False),
    ),
)
"""A whole response. `headers` are pairs. Of the pieces of a stream, the first one alone has more than a body."""

ANY_TENSORS: Final = TypeSpec("object", form="tensors", anything=True)

ANY_ANSWER: Final = TypeSpec("object", form="any", anything=True)
"""A whole response to a whole request, or tensors to tensors."""


def nested_array(kind: TypeSpec) -> NestedArray:
    """Return the form of the nested arrays of a tensor of this type."""
    return NestedArray(kind.datatype, kind.shape, kind.variadic, kind.variadic_at, kind.names)


def takes_file(spec: TypeSpec) -> bool:
    """True if one file can be a value of this type."""
    return spec.kind in FILE_KINDS or any(takes_file(member) for member in spec.members)


def takes_files(spec: TypeSpec) -> bool:
    """True if a list of files can be a value of this type."""
    return spec.kind == "array" and spec.items is not None and takes_file(spec.items)


class DeclaredTensor(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A tensor as clients are to see it. `shape` has -1 where any size will do.

    `is_reshaped`: in the file it has the shape `inner`, with as many open sizes, in the same order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    is_reshaped: bool = False
    inner: tuple[int, ...] = ()

    @property
    def in_file(self) -> tuple[int, ...]:
        """The shape that the file has for it."""
        return self.inner if self.is_reshaped else self.shape


class Declared(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Declared tensors of a model; none where the file decides.

    `origin` is the name of the file that says so. `first` is the first dimension of all tensors: that of a batch, one
    like any other, or whatever the model's file makes it. `platform` is what metadata says, "" for what the backend
    calls it. `columns`: an output of one number for each row has the shape [rows, 1]. `takes_any`: the one input may be
    sent under any name, and as numbers of any datatype.
    """

    origin: str = ""
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    first: Literal["undecided", "batch", "plain"] = "undecided"
    platform: str = ""
    columns: bool = False
    takes_any: bool = False


NOTHING_DECLARED: Final = Declared()
