"""Hypothesis strategies: signatures, and inputs that mostly, but not always, suit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from hypothesis import strategies as st

from geartrain.domain.signature.types import InputField, Kind, OutputSpec, RecordField, Signature, TypeSpec
from geartrain.domain.tensors.nested_json import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCALARS: tuple[Kind, ...] = ("string", "integer", "number", "boolean", "path", "file", "secret", "object", "opaque")
JSON_SCHEMA_PATTERNS = ("^[a-z]+$", r"\d", "a|b$", r"^\w{2,}")
PATTERNS = (*JSON_SCHEMA_PATTERNS, r"(?P<name>x)", "(?i)yes")
_BOUNDS = st.one_of(
    st.integers(-3, 3),
    st.floats(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
)

_texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=4) | st.sampled_from(
    ["ab", "b\n", "é1", "😀", "x", "Yes"]
)
_integers = st.integers(-4, 4) | st.integers(-(2**70), 2**70)
_numbers = _integers | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-4, 4).map(float)
_leaves = st.none() | st.booleans() | _numbers | _texts
_junk = (
    _leaves
    | st.lists(_leaves, max_size=3)
    | st.dictionaries(_texts, _leaves | st.lists(_leaves, max_size=2), max_size=3)
)
_names = st.sampled_from(["a", "b", "c", "class", "größe", "x y", "a/b", "~", "f0", "Input"])

assert set(_SCALARS) | {"array", "union", "record", "tensor"} == set(get_args(Kind))


def _choices(kind: Kind) -> st.SearchStrategy[tuple[Any, ...] | None]:
    """Values of a `Literal` or an `Enum`, sometimes of types that do not go together."""
    of_kind: dict[Kind, st.SearchStrategy[Any]] = {
        "string": _texts,
        "integer": _integers,
        "number": _numbers,
        "boolean": st.booleans(),
        "opaque": st.booleans() | _numbers | _texts,
    }
    if kind not in of_kind:
        return st.none()
    return st.none() | st.lists(of_kind[kind], min_size=1, max_size=3).map(tuple)


@st.composite
def _scalar_types(draw: st.DrawFn) -> TypeSpec:
    kind = draw(st.sampled_from(("string", "integer", "number", *_SCALARS)))  # these three have limits
    return TypeSpec(kind, nullable=draw(st.booleans()), choices=draw(_choices(kind)))


@st.composite
def _records(draw: st.DrawFn, inner: st.SearchStrategy[TypeSpec]) -> TypeSpec:
    names = draw(st.lists(_names, max_size=3, unique=True))
    fields = tuple(RecordField(name, draw(inner), required=draw(st.booleans())) for name in names)
    return TypeSpec("record", title="Record", fields=fields, closed=draw(st.booleans()), nullable=draw(st.booleans()))


_SHAPES = st.lists(st.sampled_from([-1, -1, 0, 1, 2]), max_size=3).map(tuple)
_tensor_types = st.builds(
    TypeSpec,
    st.just("tensor"),
    nullable=st.booleans(),
    datatype=st.sampled_from(sorted(ELEMENTS)),
    shape=_SHAPES,
    variadic=st.booleans(),
)


@st.composite
def _rows(draw: st.DrawFn, sizes: Sequence[int], leaf: st.SearchStrategy[Any]) -> Any:
    """Nested lists of these sizes, or now and then ragged ones."""
    if not sizes:
        return draw(leaf)
    count = sizes[0] if draw(st.integers(0, 7)) else draw(st.integers(0, 2))
    return [draw(_rows(sizes[1:], leaf)) for _ in range(count)]


@st.composite
def _nested_lists(draw: st.DrawFn, spec: TypeSpec) -> Any:
    leaf: st.SearchStrategy[Any] = {"number": _numbers, "integer": _numbers, "boolean": st.booleans()}.get(
        ELEMENTS[spec.datatype], _texts
    )
    shape = draw(_SHAPES) if spec.variadic else spec.shape
    sizes = [draw(st.integers(0, 2)) if size < 0 else size for size in shape]
    small = st.sampled_from([0, 1, 7.0]) if ELEMENTS[spec.datatype] in {"number", "integer"} else leaf
    return draw(_rows(sizes, small if draw(st.booleans()) else leaf))


def _nested_types(inner: st.SearchStrategy[TypeSpec]) -> st.SearchStrategy[TypeSpec]:
    arrays = st.builds(TypeSpec, st.just("array"), nullable=st.booleans(), items=inner)
    members = st.lists(inner, min_size=2, max_size=3).map(tuple)
    unions = st.builds(TypeSpec, st.just("union"), nullable=st.booleans(), members=members)
    return arrays | unions | _records(inner)


_shallow = _scalar_types() | _nested_types(_scalar_types())
types = st.one_of(_scalar_types(), _scalar_types(), _nested_types(_shallow))
types_with_tensors = st.one_of(_tensor_types, types, _nested_types(_tensor_types))


@st.composite
def _inputs(draw: st.DrawFn, name: str, patterns: Sequence[str], kinds: st.SearchStrategy[TypeSpec]) -> InputField:
    spec = draw(kinds)
    if spec.kind == "tensor":  # limits are for scalars
        return InputField(name, spec, required=draw(st.booleans()))
    lengths = st.none() | st.integers(0, 3)
    return InputField(
        name,
        spec,
        required=draw(st.booleans()),
        ge=draw(st.none() | _BOUNDS),
        le=draw(st.none() | _BOUNDS),
        min_length=draw(lengths),
        max_length=draw(lengths),
        regex=draw(st.none() | st.sampled_from(patterns)) if spec.kind == "string" else None,
        choices=draw(_choices(spec.kind)) if spec.choices is None else None,
    )


@st.composite
def signatures(
    draw: st.DrawFn, patterns: Sequence[str] = PATTERNS, kinds: st.SearchStrategy[TypeSpec] = types_with_tensors
) -> Signature:
    """Any signature, also such as introspection would refuse (limits on the wrong types)."""
    names = draw(st.lists(_names, max_size=3, unique=True))
    return Signature(tuple(draw(_inputs(name, patterns, kinds)) for name in names), OutputSpec(draw(kinds)))


def _values(spec: TypeSpec) -> st.SearchStrategy[Any]:
    """Values that suit a type, but for choices and null."""
    if spec.kind == "tensor":
        return _nested_lists(spec)
    if spec.kind == "array" and spec.items is not None:
        return st.lists(_near(spec.items), max_size=3)
    if spec.kind == "union":
        return st.one_of([_near(member) for member in spec.members])
    if spec.kind == "record":
        required = {field.name: _near(field.type) for field in spec.fields if field.required}
        optional = {field.name: _near(field.type) for field in spec.fields if not field.required}
        return st.fixed_dictionaries(required, optional=optional)
    scalars: dict[Kind, st.SearchStrategy[Any]] = {
        "integer": _numbers,
        "number": _numbers,
        "boolean": st.booleans(),
        "object": st.dictionaries(_texts, _junk, max_size=2),
        "opaque": _junk,
    }
    return scalars.get(spec.kind, _texts)


@st.composite
def _near(draw: st.DrawFn, spec: TypeSpec, choices: tuple[Any, ...] | None = None) -> Any:
    """A value of a type, or now and then one that only looks like it."""
    chosen = choices if choices is not None else spec.choices
    die = draw(st.integers(0, 15))
    if die == 0:
        return draw(_junk)
    if die == 1 and spec.nullable:
        return None
    if chosen is not None and die > 3:
        return draw(st.sampled_from(chosen))
    return draw(_values(spec))


@st.composite
def inputs_for(draw: st.DrawFn, signature: Signature) -> dict[str, Any]:
    """An input object, near to what the signature asks for."""
    given: dict[str, Any] = {}
    for field in signature.inputs:
        if draw(st.integers(0, 7)):
            given[field.name] = draw(_near(field.type, field.choices))
    if not draw(st.integers(0, 7)):
        given[draw(_names | _texts)] = draw(_junk)
    return given
