"""The values of one run of a pipeline: inputs of its steps made of outputs of others, as JSON or as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from geartrain.domain.predictions.calls import ItemInput
from geartrain.domain.predictions.prediction import json_array
from geartrain.domain.signature.pipeline import INPUT, Pipeline, Plan, Value, output_types, whole_of, with_declared
from geartrain.domain.signature.tensor_view import OUTPUT, TensorView, view_of
from geartrain.domain.signature.types import InputField, Signature
from geartrain.domain.tensors.tensor import Buffer, Tensor, pack, unpack
from geartrain.service.models.admission import Interface

_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_encode: Final = msgspec.json.Encoder().encode
NULL: Final = b"null"


class WiredStep(NamedTuple):
    """A step with what its runs need of its model."""

    interface: Interface
    fields: Mapping[str, InputField]
    is_record: bool  # true if its output is an object of named outputs

    @property
    def view(self) -> TensorView:
        """The inputs and outputs of the model as tensors."""
        return self.interface.view


class Wiring(msgspec.Struct, frozen=True, eq=False):
    """A plan with the interfaces that it was made for; the runs of a pipeline share it.

    `direct`: the step whose output, as it is, is that of the pipeline; None if the output is put together.
    """

    pipeline: Pipeline
    plan: Plan
    steps: tuple[WiredStep, ...]
    fields: Mapping[str, InputField]
    view: TensorView
    direct: int | None

    @classmethod
    def of(cls, pipeline: Pipeline, plan: Plan, interfaces: Sequence[Interface]) -> Wiring:
        """Wire a plan."""
        signatures = [with_declared(each.signature) for each in interfaces]
        steps = tuple(
            WiredStep(each, {field.name: field for field in signature.inputs}, _is_record(signature))
            for each, signature in zip(interfaces, signatures, strict=True)
        )
        fields = {field.name: field for field in plan.signature.inputs}
        return cls(pipeline, plan, steps, fields, view_of(plan.signature), _direct(plan, signatures))


def _is_record(signature: Signature) -> bool:
    return signature.output.mode == "value" and bool(output_types(signature.output))


def _direct(plan: Plan, signatures: Sequence[Signature]) -> int | None:
    sources = {value.source for _, value in plan.outputs}
    (source,) = sources if len(sources) == 1 else (INPUT,)
    if source == INPUT or plan.streams is not None or plan.steps[source].converted:
        return None
    signature = signatures[source]
    names = output_types(signature.output) or {OUTPUT: signature.output.type}
    same = all(name == value.name for name, value in plan.outputs) and len(names) == len(plan.outputs)
    is_same = same and _is_record(plan.signature) == _is_record(signature) and signature.output.mode == "value"
    return source if is_same else None


class Arguments(NamedTuple):
    """The input of a step: see `ModelCallPort`."""

    json: bytes
    tensors: tuple[Tensor, ...] | None


class Values:
    """The values that are there. Its methods take no step of a run, and may be called in a thread."""

    __slots__ = ("_item", "_json", "_tensors", "_wiring")

    def __init__(self, wiring: Wiring, item: ItemInput) -> None:
        self._wiring = wiring
        self._item = item
        self._json: dict[Value, bytes] = {}
        self._tensors: dict[Value, Tensor] = {}

    def read_input(self) -> None:
        """Take the values of the request."""
        for name, raw in (_decode_members(self._item.input) or {}).items():
            self._json[Value(INPUT, name)] = bytes(raw)
        for tensor in self._item.tensors or ():
            self._tensors[Value(INPUT, tensor.name)] = tensor

    def _tensor(self, value: Value) -> Tensor | None:
        """Return a value as a tensor; None if it is absent."""
        tensor = self._tensors.get(value)
        if tensor is not None or value.source != INPUT:
            return tensor
        raw = self._json.get(value)
        if raw is None or raw == NULL:
            return None
        field = self._wiring.fields[value.name]
        if field.type.kind == "tensor":
            from geartrain.domain.tensors import array_json  # late: most requests with tensors bring them as such

            kind = field.type
            tensor = array_json.tensor_of(value.name, kind.datatype, raw, shape=kind.shape)
        else:
            tensor = self._wiring.view.from_json(value.name, _decode(raw))
        self._tensors[value] = tensor
        return tensor

    def read_outputs(self, index: int, output: Buffer, chunks: Sequence[Buffer]) -> None:
        """Take the values of a step that has ended."""
        step, needed = self._wiring.steps[index], self._wiring.plan.steps[index].needed
        json, tensors = self._whole_stream(index, chunks) if step.view.streams else self._value(index, output)
        if step.is_record:
            for name, member in (_decode_members(json) or {}).items():
                if name in needed:
                    self._json[Value(index, name)] = bytes(member)
        elif json:
            self._json[Value(index, OUTPUT)] = json
        for tensor in tensors:
            if tensor.name in needed:
                self._tensors[Value(index, tensor.name)] = tensor

    def _value(self, index: int, output: Buffer) -> tuple[bytes, Sequence[Tensor]]:
        """Return the JSON and the tensors of an output that is one value; no JSON where it is a tensor."""
        step = self._wiring.steps[index]
        json, tensors = unpack(output) if step.view.gives_tensors else (bytes(output), [])
        if self._wiring.plan.steps[index].converted:
            tensors = step.view.whole(output, ())
        is_tensor = step.view.gives_tensors and not step.is_record
        return b"" if is_tensor else bytes(json), tensors

    def _whole_stream(self, index: int, chunks: Sequence[Buffer]) -> tuple[bytes, Sequence[Tensor]]:
        """Return all that a stream has yielded, as JSON or as tensors."""
        step = self._wiring.steps[index]
        if step.view.gives_tensors:
            return b"", step.view.whole(b"", chunks)
        spec = whole_of(step.interface.signature)
        json = _encode("".join(map(_decode, chunks))) if spec.type.kind == "string" else json_array(chunks)
        if not self._wiring.plan.steps[index].converted:
            return json, ()
        return json, view_of(Signature((), spec)).whole(json, ())

    def arguments(self, index: int) -> Arguments:
        """Return the input of a step; raise `GeartrainError`."""
        step = self._wiring.steps[index]
        members: dict[str, bytes] = {}
        tensors: list[Tensor] = []
        for name, value in self._wiring.plan.steps[index].inputs:
            field = step.fields[name]
            raw = self._json.get(value)
            if field.type.kind == "tensor" or raw is None:
                tensor = self._tensor(value)
                if tensor is not None:
                    tensors.append(tensor if tensor.name == name else msgspec.structs.replace(tensor, name=name))
            elif raw != NULL or field.required:
                members[name] = raw
        passed: Sequence[Tensor] = ()
        if step.interface.signature.takes_any:
            passed = step.view.bind(tensors).tensors
        elif tensors:
            values, passed = step.view.divide(tensors)
            members |= {name: _encode(value) for name, value in values.items()}
        return Arguments(_object(members), tuple(passed) if step.view.has_tensors else None)

    def output(self) -> Buffer:
        """Put the output of the pipeline together."""
        plan = self._wiring.plan
        kinds = output_types(plan.signature.output)
        members: dict[str, bytes] = {}
        tensors: list[Tensor] = []
        for name, value in plan.outputs:
            if kinds.get(name, plan.signature.output.type).kind == "tensor":
                tensor = self._tensor(value)
                if tensor is not None:
                    tensors.append(tensor if tensor.name == name else msgspec.structs.replace(tensor, name=name))
            else:
                members[name] = self._json.get(value, NULL)
        json = _object(members)
        if self._item.tensors is not None and self._wiring.view.gives_tensors:
            return b"".join(pack(json, tensors))
        return as_json(plan, json, tensors)

    def size_of(self, index: int) -> int:
        """Return the bytes of JSON that a step takes."""
        return sum(len(self._json.get(value, b"")) for _, value in self._wiring.plan.steps[index].inputs)

    @property
    def tensor_size(self) -> int:
        """The bytes of all tensors."""
        return sum(len(tensor.data) for tensor in self._tensors.values())

    def clear(self) -> None:
        """Let go of all values."""
        self._json, self._tensors = {}, {}


def _object(members: Mapping[str, bytes]) -> bytes:
    """Return the JSON text of an object of JSON texts."""
    return b"{%b}" % b",".join([b"%b:%b" % (_encode(name), raw) for name, raw in members.items()])


def as_json(plan: Plan, json: bytes, tensors: Sequence[Tensor]) -> bytes:
    """Return an output as JSON alone."""
    members: dict[str, bytes] = {name: bytes(raw) for name, raw in (_decode_members(json) or {}).items()}
    if tensors:
        from geartrain.domain.tensors import array_json  # late: as above

        members |= {tensor.name: array_json.text_of(tensor) for tensor in tensors}
    if not output_types(plan.signature.output):
        return members.get(OUTPUT, NULL)
    return _object({name: members.get(name, NULL) for name in output_types(plan.signature.output)})
