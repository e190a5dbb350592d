"""Figures of models that call models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from geartrain.domain.predictions.calls import ModelCallPort
from geartrain.service.models import nested
from geartrain.service.models.nested import ModelCaller
from geartrain.service.scheduling.nested import Caller

if TYPE_CHECKING:
    import pytest

    from geartrain.domain.tensors.tensor import Tensor


class Call:
    """A call that is answered at once: it may not be."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.version = ""
        self.input = b"{}"
        self.tensors: tuple[Tensor, ...] | None = None
        self.errors: list[str] = []
        self.on_end: Callable[[], None] = lambda: None

    def give(self, output: object, **_: object) -> None:
        raise AssertionError(output)

    def end(self, output: object, mode: object, **_: object) -> None:
        raise AssertionError(output)

    def fail(self, model: str, code: str, error: str) -> None:
        self.errors.append(f"{model} {code} {error}")


def test_figures_of_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MAX_EDGES", 3)
    caller = ModelCaller()
    for number in range(6):
        call = Call(f"m{number}")
        port: ModelCallPort = call
        caller.begin(port, Caller("one", allowed=frozenset()))
        assert call.errors == [f"m{number} forbidden the model 'one' may not call 'm{number}'; its `calls` are: none"]
    found = {(name, model): counts.outcomes for name, model, counts in caller.edges()}
    assert found.pop(("", "")) == {"forbidden": 3}
    assert found == {("one", f"m{number}"): {"forbidden": 1} for number in range(3)}
