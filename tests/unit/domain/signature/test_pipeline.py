"""Plans of pipelines: sources of inputs, order of steps, the signature of the whole, and every refusal."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.domain.signature.pipeline import INPUT, Pipeline, PipelineError, Plan, Step, Value, find_cycle, make_plan
from geartrain.domain.signature.types import (
    Declared,
    DeclaredTensor,
    InputField,
    OutputSpec,
    RecordField,
    Signature,
    TypeSpec,
)

IMAGE = TypeSpec("path")
TEXT = TypeSpec("string")
BOXES = TypeSpec("array", items=TypeSpec("array", items=TypeSpec("number")))


def tensor(*shape: int, datatype: str = "FP32") -> TypeSpec:
    return TypeSpec("tensor", datatype=datatype, shape=shape)


def signature(inputs: dict[str, TypeSpec], output: TypeSpec | dict[str, TypeSpec], mode: Any = "value") -> Signature:
    fields = tuple(InputField(name, kind) for name, kind in inputs.items())
    if isinstance(output, dict):
        output = TypeSpec("record", fields=tuple(RecordField(name, kind) for name, kind in output.items()))
    return Signature(fields, OutputSpec(output, mode))


DETECTOR = signature({"image": IMAGE}, BOXES)
READER = signature({"image": IMAGE, "boxes": BOXES}, TypeSpec("array", items=TEXT))


def refusal(pipeline: Pipeline, *signatures: Signature) -> str:
    with pytest.raises(PipelineError) as caught:
        make_plan(pipeline, signatures)
    return str(caught.value)


# plain pipelines


def test_two_stages_share_an_input() -> None:
    plan = make_plan(Pipeline((Step("detector", output="boxes"), Step("reader"))), (DETECTOR, READER))
    assert [field.name for field in plan.signature.inputs] == ["image"]
    assert plan.signature.inputs[0].type == IMAGE
    assert plan.signature.output == OutputSpec(TypeSpec("array", items=TEXT))
    assert plan.steps[1].inputs == (("image", Value(INPUT, "image")), ("boxes", Value(0, "output")))
    assert [step.after for step in plan.steps] == [frozenset(), frozenset({0})]
    assert plan.steps[0].needed == {"output"}
    assert plan.outputs == (("output", Value(1, "output")),)


def test_names_that_differ_are_mapped() -> None:
    pipeline = Pipeline(
        (
            Step("detector", inputs={"image": "photo"}, outputs={"output": "found"}),
            Step("reader", inputs={"boxes": "found", "image": "photo"}, output="texts"),
        ),
        outputs=("texts", "found"),
    )
    plan = make_plan(pipeline, (DETECTOR, READER))
    assert [field.name for field in plan.signature.inputs] == ["photo"]
    assert [field.name for field in plan.signature.output.type.fields] == ["texts", "found"]
    assert plan.outputs == (("texts", Value(1, "output")), ("found", Value(0, "output")))


def test_a_value_may_be_replaced_by_a_later_step_of_its_name() -> None:
    upper = signature({"text": TEXT}, TEXT)
    plan = make_plan(Pipeline((Step("a", output="text"), Step("b", output="text"))), (upper, upper))
    assert plan.steps[0].inputs == (("text", Value(INPUT, "text")),)
    assert plan.steps[1].inputs == (("text", Value(0, "output")),)
    assert plan.outputs == (("text", Value(1, "output")),)


def test_an_optional_input_stays_one_with_its_default_and_may_be_left_out() -> None:
    count = InputField("count", TypeSpec("integer"), required=False, has_default=True, default=3, ge=1)
    writer = Signature((InputField("text", TEXT), count), OutputSpec(TEXT))
    plan = make_plan(Pipeline((Step("writer"),)), (writer,))
    assert plan.signature.inputs == (InputField("text", TEXT), count)
    plan = make_plan(Pipeline((Step("writer", inputs={"count": None}),)), (writer,))
    assert plan.signature.inputs == (InputField("text", TEXT),)


def test_an_input_is_required_if_one_of_its_takers_needs_it() -> None:
    open_one = Signature((InputField("text", TEXT, required=False, has_default=True, default="x"),), OutputSpec(TEXT))
    needing = signature({"text": TEXT, "more": TEXT}, TEXT)
    plan = make_plan(Pipeline((Step("a", output="more"), Step("b"))), (open_one, needing))
    assert plan.signature.inputs == (InputField("text", TEXT, required=True),)


def test_a_stream_of_the_last_step_is_one_of_the_pipeline() -> None:
    writer = signature({"text": TEXT}, TEXT, "concatenate")
    plan = make_plan(Pipeline((Step("upper", output="text"), Step("writer"))), (signature({"raw": TEXT}, TEXT), writer))
    assert (plan.streams, plan.signature.output) == (1, OutputSpec(TEXT, "concatenate"))
    plan = make_plan(Pipeline((Step("writer", output="said"),)), (writer,))
    assert (plan.streams, plan.signature.output.mode) == (None, "value")


def test_a_stream_before_the_last_step_is_taken_as_a_whole() -> None:
    listing = signature({"text": TEXT}, TypeSpec("integer"), "iterator")
    total = signature({"numbers": TypeSpec("array", items=TypeSpec("number"))}, TypeSpec("number"))
    plan = make_plan(Pipeline((Step("listing", output="numbers"), Step("total"))), (listing, total))
    assert plan.steps[1].inputs == (("numbers", Value(0, "output")),)
    rows = signature({"x": tensor(3)}, tensor(1, 2), "iterator")
    wide = signature({"rows": tensor(-1, 2)}, tensor(1))
    make_plan(Pipeline((Step("rows", output="rows"), Step("wide"))), (rows, wide))


def test_steps_without_a_common_value_do_not_wait_for_each_other() -> None:
    both = signature({"a": TEXT, "b": TEXT}, TEXT)
    one = signature({"text": TEXT}, TEXT)
    pipeline = Pipeline((Step("one", output="a"), Step("two", output="b"), Step("both")))
    plan = make_plan(pipeline, (one, one, both))
    assert [step.after for step in plan.steps] == [frozenset(), frozenset(), frozenset({0, 1})]


@pytest.mark.parametrize(
    ("steps", "signatures", "sentence"),
    [
        (
            (Step("detector", inputs={"img": "x"}),),
            (DETECTOR,),
            "`pipeline[0]` (detector): `inputs` names 'img', and the model takes 'image'",
        ),
        (
            (Step("detector", inputs={"image": None}),),
            (DETECTOR,),
            "`pipeline[0]` (detector): `inputs` leaves out 'image', which the model needs",
        ),
        (
            (Step("detector", outputs={"found": "boxes"}), Step("reader")),
            (DETECTOR, READER),
            "`pipeline[0]` (detector): `outputs` names 'found', and the model gives 'output'",
        ),
        (
            (Step("detector"), Step("reader")),
            (DETECTOR, READER),
            "`pipeline[0]` (detector): nothing takes a value that it gives; it gives 'output'",
        ),
        (
            (Step("reader", inputs={"boxes": "found"}), Step("detector", output="found")),
            (READER, DETECTOR),
            "`pipeline[0]` (reader): `inputs` takes 'found', which `pipeline[1]` (detector) gives; move it behind that",
        ),
        (
            (Step("detector", output="boxes"), Step("upper", inputs={"text": "boxes"})),
            (DETECTOR, signature({"text": TEXT}, TEXT)),
            (
                "`pipeline[1]` (upper): input 'text' takes 'boxes' as string, and it is list of "
                "list of number (output of "
                "`pipeline[0]` (detector))"
            ),
        ),
        (
            (Step("both", output="z"),),
            (signature({"x": TEXT}, {"a": TEXT, "b": TEXT}),),
            "`pipeline[0]` (both): `output` names one value, and the model gives 'a', 'b'; name them below `outputs`",
        ),
        (
            (Step("both", outputs={"a": "b"}),),
            (signature({"x": TEXT}, {"a": TEXT, "b": TEXT}),),
            (
                "`pipeline[0]` (both): `outputs` calls 'a' 'b', and the model has an output of "
                "that name; name that one "
                "too"
            ),
        ),
        (
            (Step("both", outputs={"a": "c", "b": "c"}),),
            (signature({"x": TEXT}, {"a": TEXT, "b": TEXT}),),
            "`pipeline[0]` (both): `outputs` gives two outputs the same name",
        ),
        (
            (Step("one", output="a"), Step("two", inputs={"text": "n"})),
            (signature({"n": TypeSpec("integer")}, TEXT), signature({"text": TEXT, "a": TEXT}, TEXT)),
            "`pipeline[1]` (two): input 'text' takes 'n' as string, and it is integer (of `pipeline[0]` (one))",
        ),
    ],
)
def test_what_cannot_run_is_refused(steps: tuple[Step, ...], signatures: tuple[Signature, ...], sentence: str) -> None:
    assert refusal(Pipeline(steps), *signatures) == sentence


def test_outputs_that_no_step_gives_are_refused() -> None:
    sentence = refusal(Pipeline((Step("detector"),), outputs=("boxes",)), DETECTOR)
    assert sentence == "`output` 'boxes' is given by no step; they give 'output'"


# ensembles


def ensemble(*steps: Step, inputs: dict[str, TypeSpec], outputs: dict[str, TypeSpec]) -> Pipeline:
    def declared(kinds: dict[str, TypeSpec]) -> tuple[DeclaredTensor, ...]:
        return tuple(DeclaredTensor(name, kind.datatype, kind.shape) for name, kind in kinds.items())

    return Pipeline(
        steps,
        declared=Declared(inputs=declared(inputs), outputs=declared(outputs)),
        place="ensemble_scheduling.step",
        maps=("input_map", "output_map"),
        is_ensemble=True,
    )


SCALE = signature({"x": tensor(-1, 3)}, {"y": tensor(-1, 3), "norm": tensor(-1)})
CLASSIFY = signature({"rows": tensor(-1, 3)}, {"label": tensor(-1, datatype="INT64")})
FIRST = Step("scale", inputs={"x": "IN"}, outputs={"y": "scaled"})
SECOND = Step("classify", inputs={"rows": "scaled"}, outputs={"label": "OUT"})
IN = {"IN": tensor(-1, 3)}
OUT = {"OUT": tensor(-1, datatype="INT64")}


def test_an_ensemble_has_the_tensors_that_it_declares() -> None:
    plan = make_plan(ensemble(SECOND, FIRST, inputs=IN, outputs=OUT), (CLASSIFY, SCALE))
    assert [(field.name, field.type) for field in plan.signature.inputs] == [("IN", tensor(-1, 3))]
    assert [(each.name, each.type) for each in plan.signature.output.type.fields] == [*OUT.items()]
    assert [step.after for step in plan.steps] == [frozenset({1}), frozenset()]
    assert plan.steps[1].needed == {"y"}


def test_texts_are_tensors_in_an_ensemble() -> None:
    upper = signature({"text": TEXT}, TEXT)
    step = Step("upper", inputs={"text": "IN"}, outputs={"output": "OUT"})
    texts = {"IN": tensor(1, datatype="BYTES")}
    make_plan(ensemble(step, inputs=texts, outputs={"OUT": tensor(-1, datatype="BYTES")}), (upper,))
    assert "FP32 [1], and it is BYTES [1]" in refusal(ensemble(step, inputs=texts, outputs={"OUT": tensor(1)}), upper)


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (
            ensemble(
                FIRST, Step("classify", inputs={"rows": "sized"}, outputs={"label": "OUT"}), inputs=IN, outputs=OUT
            ),
            (
                "`ensemble_scheduling.step[1]` (classify): `input_map` takes 'sized', which is no `input` and which no "
                "step gives"
            ),
        ),
        (
            ensemble(FIRST, Step("classify", inputs={"rows": "IN"}, outputs={"label": "OUT"}), inputs=IN, outputs=OUT),
            "`ensemble_scheduling.step[0]` (scale): nothing takes a value that it gives; it gives 'scaled'",
        ),
        (
            ensemble(FIRST, SECOND, inputs={**IN, "MORE": tensor(1)}, outputs=OUT),
            "`input` 'MORE' is taken by no step; name it in an `input_map`, or remove it",
        ),
        (
            ensemble(FIRST, SECOND, inputs=IN, outputs={"LABEL": tensor(-1)}),
            "`output` 'LABEL' is given by no step; they give 'scaled', 'OUT'",
        ),
        (
            ensemble(FIRST, SECOND, inputs={"IN": tensor(-1, 4)}, outputs=OUT),
            (
                "`ensemble_scheduling.step[0]` (scale): input 'x' takes 'IN' as FP32 [-1, 3], "
                "and it is FP32 [-1, 4] (of "
                "`input`)"
            ),
        ),
        (
            ensemble(FIRST, SECOND, inputs=IN, outputs={"OUT": tensor(-1)}),
            (
                "`output` 'OUT' is declared as FP32 [-1], and it is INT64 [-1] (output of "
                "`ensemble_scheduling.step[1]` "
                "(classify))"
            ),
        ),
        (
            ensemble(
                FIRST, Step("classify", inputs={"rows": "scaled"}, outputs={"label": "IN"}), inputs=IN, outputs=OUT
            ),
            "`ensemble_scheduling.step[1]` (classify): `output_map` gives 'IN', which is an input of the ensemble",
        ),
        (
            ensemble(
                FIRST, Step("classify", inputs={"rows": "IN"}, outputs={"label": "scaled"}), inputs=IN, outputs=OUT
            ),
            (
                "`ensemble_scheduling.step[1]` (classify): `output_map` gives 'scaled', as "
                "`ensemble_scheduling.step[0]` "
                "(scale) does"
            ),
        ),
        (
            ensemble(Step("scale", outputs={"y": "OUT"}), SECOND, inputs=IN, outputs=OUT),
            "`ensemble_scheduling.step[0]` (scale): `input_map` leaves out 'x', which the model needs",
        ),
    ],
)
def test_an_ensemble_that_cannot_run_is_refused(pipeline: Pipeline, sentence: str) -> None:
    signatures = {"scale": SCALE, "classify": CLASSIFY}
    if pipeline.steps[0].inputs == {}:
        pipeline = ensemble(pipeline.steps[0], inputs=IN, outputs={"OUT": tensor(-1, 3)})
    assert refusal(pipeline, *(signatures[step.model] for step in pipeline.steps)) == sentence


def test_steps_that_wait_for_each_other_are_refused() -> None:
    add = signature({"a": tensor(3), "b": tensor(3)}, {"sum": tensor(3)})
    pipeline = ensemble(
        Step("one", inputs={"a": "IN", "b": "second"}, outputs={"sum": "first"}),
        Step("two", inputs={"a": "IN", "b": "first"}, outputs={"sum": "second"}),
        inputs={"IN": tensor(3)},
        outputs={"second": tensor(3)},
    )
    chain = "`ensemble_scheduling.step[0]` (one) → `ensemble_scheduling.step[1]` (two) → `ensemble_scheduling.step[0]`"
    assert refusal(pipeline, add, add) == f"the steps wait for each other: {chain} (one)"


# graphs


@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4), max_size=12))
def test_a_cycle_is_found_exactly_where_there_is_one(graph: dict[int, list[int]]) -> None:
    cycle = find_cycle(graph, lambda node: graph.get(node, []))
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(to in graph[of] for of, to in itertools.pairwise(cycle))
        return
    left = {node: set(graph.get(node, [])) for node in {*graph, *(each for to in graph.values() for each in to)}}
    while left:  # without a cycle, all of it can be taken away from its ends
        ends = {node for node, to in left.items() if not to}
        assert ends
        left = {node: to - ends for node, to in left.items() if node not in ends}


@given(st.integers(1, 6), st.data())
def test_the_steps_of_a_chain_wait_for_those_whose_values_they_take(count: int, data: st.DataObject) -> None:
    """Each step takes a value of any steps before it, or the input of the pipeline."""
    signatures, steps, expected = [], [], []
    for index in range(count):
        sources = data.draw(st.lists(st.integers(-1, index - 1), min_size=1, max_size=3, unique=True))
        names = ["in" if source < 0 else f"v{source}" for source in sources]
        signatures.append(signature({f"i{at}": TEXT for at in range(len(names))}, TEXT))
        steps.append(Step(f"m{index}", inputs={f"i{at}": name for at, name in enumerate(names)}, output=f"v{index}"))
        expected.append(frozenset(source for source in sources if source >= 0))
    pipeline = Pipeline(tuple(steps), outputs=tuple(f"v{index}" for index in range(count)))
    plan: Plan = make_plan(pipeline, signatures)
    assert [step.after for step in plan.steps] == expected


def opened(*inputs: DeclaredTensor, outputs: tuple[DeclaredTensor, ...]) -> Signature:
    output = OutputSpec(TypeSpec("object", form="tensors"))
    return Signature((), output, contract="tensors", open_inputs=inputs, open_outputs=outputs)


def test_a_model_of_any_tensors_takes_and_gives_those_that_it_declares() -> None:
    x, y = DeclaredTensor("x", "FP32", (-1, 4)), DeclaredTensor("y", "INT32", (-1,))
    steps = Pipeline((Step("a"), Step("b", inputs={"x": "y"})))
    after = signature({"x": tensor(-1, datatype="INT32")}, {"z": tensor(-1)})
    plan = make_plan(steps, [opened(x, outputs=(y,)), after])
    assert [field.name for field in plan.signature.inputs] == ["x"]
    assert plan.steps[1].inputs == (("x", Value(0, "y")),)
    assert "FP32 [-1, 4], and it is INT32 [-1]" in refusal(
        Pipeline((Step("a"), Step("b", inputs={"x": "y"}))), opened(x, outputs=(y,)), opened(x, outputs=(y,))
    )
    assert "the model takes any tensors" in refusal(steps, opened(outputs=(y,)), after)
    assert "the model gives any tensors" in refusal(steps, opened(x, outputs=()), after)
