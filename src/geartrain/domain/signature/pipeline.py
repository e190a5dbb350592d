"""Pipelines: models whose run is a run of other models, and the values that pass from one of these to the next.

A pipeline is read from a file before any model is loaded. `make_plan` combines it with the signatures of its models:
it finds the source of each input, the order of the steps, and the signature of the pipeline itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from geartrain.domain.signature.tensor_view import OUTPUT, TensorView, view_of
from geartrain.domain.signature.types import (
    FILE_KINDS,
    NOTHING_DECLARED,
    Declared,
    DeclaredTensor,
    InputField,
    OutputSpec,
    RecordField,
    Signature,
    TypeSpec,
)
from geartrain.domain.tensors.tensor import VARIABLE, TensorSpec, describe_shape

NodeT = TypeVar("NodeT")

PLATFORM: Final = "ensemble"
"""The platform of a pipeline, in the terms of the Open Inference Protocol."""


class PipelineError(Exception):
    """A pipeline cannot run: a sentence that names the step, the map and the field."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of a pipeline.

    Attributes:
        model: its name.
        version: the number of its version, "" for its default one.
        inputs: the values that its inputs take, by input; None leaves an input out.
        outputs: the names of its outputs as values, by output.
        output: the name of its only output as a value, in place of `outputs`.
    """

    model: str
    version: str = ""
    inputs: Mapping[str, str | None] = {}
    outputs: Mapping[str, str] = {}
    output: str = ""


class Pipeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps of a model that has no code of its own.

    Attributes:
        steps: in the order of the file.
        outputs: the values that it gives; none for those of its last step.
        declared: its inputs and outputs, of an ensemble of Triton.
        place: the key of the steps in the file, for errors.
        maps: the keys of the inputs and outputs of a step, for errors.
        is_ensemble: true if the maps are complete, and the steps run in the order of their values. Otherwise inputs and
            outputs keep the names that no map changes, and a step takes values of earlier steps alone.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...] = ()
    declared: Declared = NOTHING_DECLARED
    place: str = "pipeline"
    maps: tuple[str, str] = ("inputs", "outputs")
    is_ensemble: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """The models of its steps, each once."""
        return tuple(dict.fromkeys(step.model for step in self.steps))

    def describe(self, index: int) -> str:
        """Return the name of a step in errors: `pipeline[1]` (reader)."""
        return f"`{self.place}[{index}]` ({self.steps[index].model})"


INPUT: Final = -1
"""The source of a value that comes with the request."""


class Value(NamedTuple):
    """A value: the index of the step that gives it or `INPUT`, and the name of that step's output, or of the input."""

    source: int
    name: str


class PlannedStep(msgspec.Struct, frozen=True):
    """A step with the sources of its inputs.

    Attributes:
        inputs: by the name of the model's input.
        after: the steps that it waits for.
        needed: its outputs that something takes.
        converted: those of them that are no tensors, and that an input or output takes as one.
    """

    inputs: tuple[tuple[str, Value], ...]
    after: frozenset[int]
    needed: frozenset[str] = frozenset()
    converted: frozenset[str] = frozenset()


class Plan(msgspec.Struct, frozen=True):
    """A pipeline whose models are known.

    Attributes:
        steps: in the order of the pipeline.
        outputs: the values that it gives, by the name of its output.
        signature: its inputs and its output.
        streams: the step whose yields are those of the pipeline; None if it gives one value.
    """

    steps: tuple[PlannedStep, ...]
    outputs: tuple[tuple[str, Value], ...]
    signature: Signature
    streams: int | None = None


class Given(msgspec.Struct, frozen=True):
    """An output of a step: its type, and its tensor in the view of the model."""

    type: TypeSpec
    spec: TensorSpec
    required: bool = True


def make_plan(pipeline: Pipeline, signatures: Sequence[Signature]) -> Plan:
    """Combine a pipeline with the signatures of the models of its steps, in their order.

    Raises `PipelineError`.
    """
    return _Planner(pipeline, [_declared(pipeline, index, each) for index, each in enumerate(signatures)]).plan()


def _declared(pipeline: Pipeline, index: int, signature: Signature) -> Signature:
    """Return the signature of a step with the tensors that its model declares. Raises `PipelineError` for none."""
    for what, is_open, tensors in (
        ("takes", signature.takes_tensors, signature.open_inputs),
        ("gives", signature.gives_tensors, signature.open_outputs),
    ):
        if is_open and not tensors:
            fix = "a step needs their names; declare them in the configuration of the model"
            raise PipelineError(f"{pipeline.describe(index)}: the model {what} any tensors, and {fix}")
    return with_declared(signature)


def with_declared(signature: Signature) -> Signature:
    """Return a signature in which the tensors that a model of any tensors declares are its inputs and its output."""
    inputs, output = signature.inputs, signature.output
    if signature.takes_tensors:
        inputs = tuple(
            InputField(each.name, _type_of(each), required=not each.optional) for each in signature.open_inputs
        )
    if signature.gives_tensors:
        fields = tuple(RecordField(each.name, _type_of(each)) for each in signature.open_outputs)
        output = OutputSpec(TypeSpec("record", fields=fields, title="Output"), output.mode)
    if (inputs, output) == (signature.inputs, signature.output):
        return signature
    return msgspec.structs.replace(signature, inputs=inputs, output=output, contract="")


def _type_of(tensor: DeclaredTensor) -> TypeSpec:
    return TypeSpec("tensor", datatype=tensor.datatype, shape=tensor.shape)


def output_types(spec: OutputSpec) -> dict[str, TypeSpec]:
    """Return the types of the fields of a record by name; empty for an output that is one value."""
    return {each.name: each.type for each in spec.type.fields} if spec.type.kind == "record" else {}


def whole_of(signature: Signature) -> OutputSpec:
    """Return the output of a model as it is when the run is over, of a stream without tensors as one value."""
    kind, mode = signature.output.type, signature.output.mode
    if mode == "concatenate":
        return OutputSpec(TypeSpec("string"))
    return OutputSpec(TypeSpec("array", items=kind)) if mode == "iterator" else signature.output


def outputs_of(signature: Signature, view: TensorView) -> dict[str, Given]:
    """Return the outputs of a model by name, each as it is when the run is over."""
    kind, mode = signature.output.type, signature.output.mode
    specs = {spec.name: spec for spec in view.outputs}
    fields = kind.fields if kind.kind == "record" else ()
    if mode == "iterator" and view.gives_tensors:
        return {spec.name: Given(_tensor_type(spec), spec) for spec in view.outputs}
    if mode != "value":  # the view of an iterator gives a tensor for each field, and its value is a list of records
        whole = whole_of(signature)
        return {OUTPUT: Given(whole.type, view_of(Signature((), whole)).outputs[0])}
    if not fields:
        return {OUTPUT: Given(kind, specs[OUTPUT])}
    return {each.name: Given(each.type, specs[each.name], each.required) for each in fields}


def _tensor_type(spec: TensorSpec) -> TypeSpec:
    return TypeSpec(
        "tensor", datatype=spec.datatype, shape=spec.shape, variadic=spec.variadic, variadic_at=spec.variadic_at
    )


class _Planner:
    """Combines one pipeline with its signatures."""

    def __init__(self, pipeline: Pipeline, signatures: Sequence[Signature]) -> None:
        self.pipeline = pipeline
        self.signatures = signatures
        self.views = [view_of(signature) for signature in signatures]
        self.given = [outputs_of(*each) for each in zip(signatures, self.views, strict=True)]
        self.names = [self._named_outputs(index) for index in range(len(signatures))]  # outputs by value
        self.fields: dict[str, InputField] = {}  # inputs of the pipeline
        self.specs: dict[str, tuple[TensorSpec, str]] = {}  # their tensors, and the step that takes it first

    def plan(self) -> Plan:
        if self.pipeline.is_ensemble:
            self._declare_inputs()
            self._check_once()
        steps = [self._step(index) for index in range(len(self.signatures))]
        outputs = self._outputs()
        self._check_cycles(steps)
        self._check_use(steps, outputs)
        streams = self._streams(outputs)
        spec = self._spec(outputs, streams)
        planned = tuple(self._with_uses(index, steps, outputs, spec=spec) for index in range(len(steps)))
        is_streaming = streams is not None and self.signatures[streams].streaming
        return Plan(planned, outputs, Signature(tuple(self.fields.values()), spec, is_streaming), streams)

    def _with_uses(
        self,
        index: int,
        steps: Sequence[PlannedStep],
        outputs: Iterable[tuple[str, Value]],
        *,
        spec: OutputSpec,
    ) -> PlannedStep:
        """Return a step with what is taken of it."""
        uses = [
            (value.name, field.type)
            for step, signature in zip(steps, self.signatures, strict=True)
            for name, value in step.inputs
            for field in signature.inputs
            if value.source == index and field.name == name
        ]
        kinds = output_types(spec)
        uses += [(value.name, kinds.get(name, spec.type)) for name, value in outputs if value.source == index]
        given = self.given[index]
        converted = {name for name, kind in uses if kind.kind == "tensor" and given[name].type.kind != "tensor"}
        return msgspec.structs.replace(
            steps[index], needed=frozenset(name for name, _ in uses), converted=frozenset(converted)
        )

    # outputs of steps

    def _named_outputs(self, index: int) -> dict[str, str]:
        """Return the outputs of a step by the names of their values."""
        step, given = self.pipeline.steps[index], self.given[index]
        _, key = self.pipeline.maps
        if step.output:
            if len(given) > 1:
                raise self._fault(
                    index,
                    f"`output` names one value, and the model gives {_listed(given)}; name them below `outputs`",
                )
            return {step.output: next(iter(given))}
        for name in step.outputs:
            if name not in given:
                raise self._fault(index, f"`{key}` names {name!r}, and the model gives {_listed(given)}")
        named = {value: name for name, value in step.outputs.items()}
        if len(named) < len(step.outputs):
            raise self._fault(index, f"`{key}` gives two outputs the same name")
        if self.pipeline.is_ensemble:
            return named
        kept = {name: name for name in given if name not in step.outputs}
        for name in kept:
            if name in named:
                what = f"`{key}` calls {named[name]!r} {name!r}, and the model has an output of that name"
                raise self._fault(index, f"{what}; name that one too")
        return {**named, **kept}

    def _check_once(self) -> None:
        """Refuse a value of an ensemble that two steps give, or that is an input as well."""
        seen: dict[str, int] = {}
        for index, names in enumerate(self.names):
            for value in names:
                if value in self.fields:
                    raise self._fault(index, f"`output_map` gives {value!r}, which is an input of the ensemble")
                if value in seen:
                    raise self._fault(
                        index, f"`output_map` gives {value!r}, as {self.pipeline.describe(seen[value])} does"
                    )
                seen[value] = index

    # inputs of steps

    def _declare_inputs(self) -> None:
        for each in self.pipeline.declared.inputs:
            kind = TypeSpec("tensor", datatype=each.datatype, shape=each.shape)
            self.fields[each.name] = InputField(each.name, kind, required=not each.optional)
            self.specs[each.name] = (TensorSpec(each.name, each.datatype, each.shape), "`input`")

    def _step(self, index: int) -> PlannedStep:
        step, signature = self.pipeline.steps[index], self.signatures[index]
        key, _ = self.pipeline.maps
        fields = {field.name: field for field in signature.inputs}
        for name in step.inputs:
            if name not in fields:
                raise self._fault(index, f"`{key}` names {name!r}, and the model takes {_listed(fields)}")
        found: list[tuple[str, Value]] = []
        for name, field in fields.items():
            kept = None if self.pipeline.is_ensemble else name
            wanted = step.inputs.get(name, kept)
            if wanted is None:
                if field.required:
                    raise self._fault(index, f"`{key}` leaves out {name!r}, which the model needs")
                continue
            value = self._find(index, wanted)
            if value.source == INPUT:
                self._take_input(index, field, wanted)
            else:
                self._check_fit(index, field, value, wanted=wanted)
            found.append((name, value))
        return PlannedStep(tuple(found), frozenset(value.source for _, value in found if value.source != INPUT))

    def _find(self, index: int, wanted: str) -> Value:
        """Return the source of a value that a step takes."""
        steps = range(len(self.names)) if self.pipeline.is_ensemble else range(index - 1, -1, -1)
        for source in steps:
            if wanted in self.names[source]:
                return Value(source, self.names[source][wanted])
        key, _ = self.pipeline.maps
        if self.pipeline.is_ensemble:
            if wanted not in self.fields:
                raise self._fault(index, f"`{key}` takes {wanted!r}, which is no `input` and which no step gives")
        elif wanted in self.pipeline.steps[index].inputs.values():
            later = next((at for at in range(index + 1, len(self.names)) if wanted in self.pipeline_names(at)), None)
            if later is not None:
                raise self._fault(
                    index, f"`{key}` takes {wanted!r}, which {self.pipeline.describe(later)} gives; move it behind that"
                )
        return Value(INPUT, wanted)

    def pipeline_names(self, index: int) -> Iterable[str]:
        """Return the values that a step names in the file."""
        step = self.pipeline.steps[index]
        return (*step.outputs.values(), step.output)

    def _take_input(self, index: int, field: InputField, wanted: str) -> None:
        """Have the pipeline take a value as an input; it is that of the first step that takes it."""
        spec = self._input_spec(index, field.name)
        if wanted not in self.specs:
            self.fields[wanted] = msgspec.structs.replace(field, name=wanted)
            self.specs[wanted] = (spec, self.pipeline.describe(index))
            return
        known, (given, taker) = self.fields[wanted], self.specs[wanted]
        fault = misfit((known.type, given), (field.type, spec), takes_any=self.signatures[index].takes_any)
        if fault:
            raise self._fault(index, f"input {field.name!r} takes {wanted!r} as {fault} (of {taker})")
        if field.required and not known.required and self.pipeline.is_ensemble:
            raise self._fault(index, f"input {field.name!r} takes {wanted!r}, which is `optional`; the model needs it")
        if field.required and not known.required:
            self.fields[wanted] = msgspec.structs.replace(known, required=True, has_default=False, default=None)

    def _check_fit(self, index: int, field: InputField, value: Value, *, wanted: str) -> None:
        given = self.given[value.source][value.name]
        fault = misfit(
            (given.type, given.spec),
            (field.type, self._input_spec(index, field.name)),
            takes_any=self.signatures[index].takes_any,
        )
        if fault:
            source = self.pipeline.describe(value.source)
            raise self._fault(index, f"input {field.name!r} takes {wanted!r} as {fault} (output of {source})")

    def _input_spec(self, index: int, name: str) -> TensorSpec:
        return next(spec for spec in self.views[index].inputs if spec.name == name)

    # the whole

    def _outputs(self) -> tuple[tuple[str, Value], ...]:
        """Return the outputs of the pipeline by name."""
        wanted = [each.name for each in self.pipeline.declared.outputs] or [*self.pipeline.outputs]
        last = len(self.names) - 1
        if not wanted:
            return tuple((value, Value(last, name)) for value, name in self.names[last].items())
        found: list[tuple[str, Value]] = []
        for name in wanted:
            source = next((at for at in range(last, -1, -1) if name in self.names[at]), None)
            if source is None:
                raise PipelineError(f"`output` {name!r} is given by no step; they give {_listed(self._values())}")
            found.append((name, Value(source, self.names[source][name])))
        for each, (_, value) in zip(self.pipeline.declared.outputs, found, strict=False):
            given = self.given[value.source][value.name]
            spec = TensorSpec(each.name, each.datatype, each.shape)
            kind = TypeSpec("tensor", datatype=each.datatype, shape=each.shape)
            fault = misfit((given.type, given.spec), (kind, spec))
            if fault:
                source_name = self.pipeline.describe(value.source)
                raise PipelineError(f"`output` {each.name!r} is declared as {fault} (output of {source_name})")
        return tuple(found)

    def _values(self) -> list[str]:
        return [value for names in self.names for value in names]

    def _check_cycles(self, steps: Sequence[PlannedStep]) -> None:
        cycle = find_cycle(range(len(steps)), lambda index: sorted(steps[index].after))
        if cycle:
            chain = " → ".join(self.pipeline.describe(index) for index in reversed(cycle))
            raise PipelineError(f"the steps wait for each other: {chain}")

    def _check_use(self, steps: Sequence[PlannedStep], outputs: Iterable[tuple[str, Value]]) -> None:
        """Refuse a step whose values nothing takes, and an input of an ensemble that no step takes."""
        used = {value for step in steps for _, value in step.inputs} | {value for _, value in outputs}
        for index, names in enumerate(self.names):
            if not any(Value(index, name) in used for name in names.values()):
                raise self._fault(index, f"nothing takes a value that it gives; it gives {_listed(names)}")
        if self.pipeline.is_ensemble:
            for name in self.fields:
                if Value(INPUT, name) not in used:
                    raise PipelineError(
                        f"`input` {name!r} is taken by no step; name it in an `input_map`, or remove it"
                    )

    def _streams(self, outputs: Sequence[tuple[str, Value]]) -> int | None:
        """Return the step that gives the one output of the pipeline as a stream; None if none does."""
        sources = {value.source for _, value in outputs}
        if len(sources) > 1 or self.pipeline.is_ensemble:
            return None
        (source,) = sources
        is_whole = {value.name for _, value in outputs} == set(self.given[source])
        keeps_names = all(name == value.name for name, value in outputs)
        streams = self.views[source].streams and is_whole and keeps_names
        return source if streams else None

    def _spec(self, outputs: Sequence[tuple[str, Value]], streams: int | None) -> OutputSpec:
        if streams is not None:
            return self.signatures[streams].output
        if self.pipeline.declared.outputs:
            fields = [
                RecordField(each.name, TypeSpec("tensor", datatype=each.datatype, shape=each.shape))
                for each in self.pipeline.declared.outputs
            ]
            return OutputSpec(TypeSpec("record", fields=tuple(fields), title="Output"))
        given = [(name, self.given[value.source][value.name]) for name, value in outputs]
        if [name for name, _ in given] == [OUTPUT]:
            return OutputSpec(given[0][1].type)
        fields = [RecordField(name, each.type, each.required) for name, each in given]
        return OutputSpec(TypeSpec("record", fields=tuple(fields), title="Output"))

    def _fault(self, index: int, what: str) -> PipelineError:
        return PipelineError(f"{self.pipeline.describe(index)}: {what}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


# cycles


def find_cycle(nodes: Iterable[NodeT], edges: Callable[[NodeT], Iterable[NodeT]]) -> list[NodeT]:
    """Return the nodes of a cycle, the first one again at its end; empty if there is none."""
    done: set[NodeT] = set()
    for node in nodes:
        path: list[NodeT] = [node]
        open_edges: list[Iterator[NodeT]] = [iter(edges(node))] if node not in done else []
        while open_edges:
            following = next(open_edges[-1], None)
            if following is None:
                done.add(path.pop())
                open_edges.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                open_edges.append(iter(edges(following)))
    return []


# types


_TEXTS: Final = frozenset({"string", "secret"})
_CHECKED_LATER: Final = frozenset({"object", "opaque", "union", "record"})

Typed = tuple[TypeSpec, TensorSpec]
"""A value, and its tensor."""


def misfit(given: Typed, wanted: Typed, *, takes_any: bool = False) -> str:
    """Return the difference between a value and the input that takes it, "" if it may fit.

    `takes_any`: the input takes numbers of any datatype. Sizes and values that are open are checked by each run.
    """
    kind, spec = given
    other, needed = wanted
    if kind.kind != "tensor" and other.kind != "tensor":
        return "" if _fits(kind, other) else f"{_describe_type(other)}, and it is {_describe_type(kind)}"
    same = spec.datatype == needed.datatype or (takes_any and "BYTES" not in (spec.datatype, needed.datatype))
    if same and _may_agree(spec, needed):
        return ""
    return f"{_describe_spec(needed)}, and it is {_describe_spec(spec)}"


def _fits(kind: TypeSpec, wanted: TypeSpec) -> bool:
    if kind.kind == "array" and wanted.kind == "array" and kind.items is not None and wanted.items is not None:
        return _fits(kind.items, wanted.items)
    if kind.kind in _CHECKED_LATER or wanted.kind in _CHECKED_LATER or kind.anything or wanted.anything:
        return True
    if wanted.kind in FILE_KINDS:
        return kind.kind in FILE_KINDS or kind.kind in _TEXTS  # a text that is a URL
    if kind.kind in _TEXTS:
        return wanted.kind in _TEXTS
    return kind.kind == wanted.kind or (kind.kind, wanted.kind) == ("integer", "number")


def _may_agree(spec: TensorSpec, wanted: TensorSpec) -> bool:
    if spec.variadic or wanted.variadic:
        return True
    if len(spec.shape) != len(wanted.shape):
        return False
    return all(VARIABLE in sizes or sizes[0] == sizes[1] for sizes in zip(spec.shape, wanted.shape, strict=True))


def _describe_type(kind: TypeSpec) -> str:
    if kind.kind == "array" and kind.items is not None:
        return f"list of {_describe_type(kind.items)}"
    return kind.title or kind.kind


def _describe_spec(spec: TensorSpec) -> str:
    return f"{spec.datatype} {describe_shape(spec)}"
