"""Types of an author's own with a `cog.coder.Coder`: in signatures, as inputs, as outputs, as defaults."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any, Optional

import pytest

from geartrain import BaseModel, Input
from geartrain.authoring.coders import Coder
from geartrain.domain.signature.types import InputField, OutputSpec, TypeSpec
from geartrain.worker.loading import coders
from geartrain.worker.loading.signature import UnsupportedAnnotationError, read_parameters, read_signature
from geartrain.worker.values.arguments import ArgumentBinder, ArgumentError
from geartrain.worker.values.outputs import OutputEncoder, OutputError

CODED = TypeSpec("object", anything=True)  # what a coder makes of an output is not checked
OBJECT = TypeSpec("object")


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class Point3(Point):
    pass


class Other:
    pass


class Shape(BaseModel):
    corners: list[Point]
    center: Optional[Point] = None  # noqa: UP045 - the older form is among what is tested


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coder, "_coders", {})
    monkeypatch.setattr(coders, "_encoders", {})

    class PointCoder(Coder):
        @staticmethod
        def factory(tpe: Any) -> Coder | None:
            return PointCoder() if issubclass(tpe, Point) else None

        def encode(self, x: Point) -> dict[str, Any]:
            return {"at": [x.x, x.y]}

        def decode(self, x: dict[str, Any]) -> Point:
            return Point(*x["at"])


def encoded(value: Any, spec: OutputSpec) -> Any:
    return json.loads(OutputEncoder(spec).encode(value, pathlib.Path).json)


def test_c3_signature() -> None:
    def run(point: Point, points: list[Point], perhaps: Point | None, plain: dict[str, int]) -> Iterator[Point]:
        yield point

    found = read_signature(run, owner_name="run()")
    assert found.inputs == (
        InputField("point", OBJECT),
        InputField("points", TypeSpec("array", items=OBJECT)),
        InputField("perhaps", TypeSpec("object", nullable=True), required=False),
        InputField("plain", OBJECT),
    )
    assert found.output == OutputSpec(CODED, "iterator")


def test_c3_inputs_are_decoded() -> None:
    def run(
        point: Point,
        points: list[Point],
        perhaps: Point | None,
        usual: Point = Input(default=Point(5, 6)),  # noqa: B008 - the default of Cog's style
    ) -> None: ...

    parameters = read_parameters(run, owner_name="run()")
    assert parameters[3].field.default == {"at": [5, 6]}
    binder = ArgumentBinder(parameters)
    given = binder.bind(b'{"point": {"at": [1, 2]}, "points": [{"at": [3, 4]}]}')
    assert (given["point"].x, given["point"].y) == (1, 2)
    assert [type(each) for each in given["points"]] == [Point]
    assert given["perhaps"] is None
    assert (given["usual"].x, given["usual"].y) == (5, 6)
    with pytest.raises(ArgumentError, match=r"^input\.point: KeyError: 'at'$"):
        binder.bind(b'{"point": {}, "points": []}')


def test_c3_outputs_are_encoded() -> None:
    def run() -> dict[str, Point]:
        return {}

    output = read_signature(run, owner_name="run()").output
    assert output.type.values == CODED
    assert encoded(Point(1, 2), output) == {"at": [1, 2]}
    assert encoded([Point3(1, 2), {"a": Point(3, 4)}], output) == [{"at": [1, 2]}, {"a": {"at": [3, 4]}}]


def test_c3_fields_of_records() -> None:
    def run(shape: Shape) -> Shape:
        return shape

    parameters = read_parameters(run, owner_name="run()")
    given = ArgumentBinder(parameters).bind(b'{"shape": {"corners": [{"at": [1, 2]}]}}')
    assert given["shape"].corners[0].y == 2
    output = read_signature(run, owner_name="run()").output
    assert encoded(given["shape"], output) == {"corners": [{"at": [1, 2]}], "center": None}


def test_c3_a_type_that_no_coder_knows() -> None:
    def run(other: Other) -> None: ...

    with pytest.raises(UnsupportedAnnotationError, match="is annotated Other, which is not supported"):
        read_signature(run, owner_name="run()")


def test_c3_a_factory_that_fails_is_named() -> None:
    class Broken(Coder):
        @staticmethod
        def factory(tpe: Any) -> Coder | None:
            raise ValueError("no idea")

    def run(other: Other) -> None: ...

    with pytest.raises(UnsupportedAnnotationError, match=r"Broken\.factory\(\) fails for Other: ValueError: no idea"):
        read_signature(run, owner_name="run()")


def test_c3_an_encoder_that_fails() -> None:
    class Failing(Coder):
        @staticmethod
        def factory(tpe: Any) -> Coder | None:
            return Failing() if tpe is Other else None

        def encode(self, x: Any) -> Any:
            raise KeyError("size")

    def run(other: Other = Other()) -> Other:  # noqa: B008 - the default of Cog's style
        return other

    with pytest.raises(
        UnsupportedAnnotationError, match=r"the parameter 'other': its default cannot be encoded: KeyError: 'size'"
    ):
        read_signature(run, owner_name="run()")
    with pytest.raises(
        OutputError, match=r"output\[1\] is of type Other, and its coder's encode\(\) raised KeyError: 'size'"
    ):
        encoded([1, Other()], OutputSpec(CODED))


def test_c3_an_encoder_that_gives_back_what_it_was_given() -> None:
    class Same(Coder):
        @staticmethod
        def factory(tpe: Any) -> Coder | None:
            return Same() if tpe is Other else None

        def encode(self, x: Any) -> Any:
            return x

    def run() -> Other:
        return Other()

    output = read_signature(run, owner_name="run()").output
    with pytest.raises(
        OutputError, match=r"output is of type Other, and its coder's encode\(\) returned the same type"
    ):
        encoded(Other(), output)


def test_c3_the_first_coder_that_was_registered_is_asked_first() -> None:
    class Late(Coder):
        @staticmethod
        def factory(tpe: Any) -> Coder | None:
            return Late()

    assert type(Coder.lookup(Point)).__name__ == "PointCoder"
    assert type(Coder.lookup(Other)) is Late
    Coder.register(Late)
    assert [each.__name__ for each in Coder.all()] == ["PointCoder", "Late"]


@pytest.mark.parametrize("name", ["encode", "decode"])
def test_c3_a_coder_without_its_methods(name: str) -> None:
    class Half(Coder):
        pass

    with pytest.raises(NotImplementedError, match=rf"Half has no {name}\(\)"):
        getattr(Half(), name)({})
    assert Half.factory(Other) is None
