"""Machines whose steps are a table: for each state those that may follow. A step that is not in it raises.

To change a machine, change its table. A terminal state has no way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=StrEnum)


class IllegalStepError(RuntimeError):
    """A state machine was asked for a step that its table does not have: a bug in the server."""

    def __init__(self, what: str, current: StrEnum, wanted: StrEnum) -> None:
        super().__init__(f"{what} cannot go from {current} to {wanted}")


Step = Callable[[StateT], StateT]
"""Takes the present state and returns the one that it is made for; raises `IllegalStepError` if there is no such step.

As in `self.state = _to_running(self.state)`.
"""


class _StepsTo(dict[StateT, StateT]):
    """The steps to one state: each state that may come before it, with that state."""

    __slots__ = ("_wanted", "_what")

    def __init__(self, what: str, steps: Mapping[StateT, frozenset[StateT]], wanted: StateT) -> None:
        super().__init__({state: wanted for state, following in steps.items() if wanted in following})
        self._what = what
        self._wanted = wanted

    def __missing__(self, current: StateT) -> StateT:
        raise IllegalStepError(self._what, current, self._wanted)


def steps_to(what: str, steps: Mapping[StateT, frozenset[StateT]]) -> dict[StateT, Step[StateT]]:
    """Return the step to each state of a table. `what` names the machine in errors, such as "a slot".

    A step is one look into a `dict`, written in C, as it is on the path of each prediction.
    """
    states = type(next(iter(steps)))  # also those that no step leads to or from
    return {wanted: _StepsTo(what, steps, wanted).__getitem__ for wanted in states}


class StateMachine(Generic[StateT]):
    """A state and the table of its steps, for what is not on the path of each prediction."""

    def __init__(self, what: str, steps: Mapping[StateT, frozenset[StateT]], state: StateT) -> None:
        """`what` names it in errors, such as "a slot"."""
        self.state = state
        self._to = steps_to(what, steps)

    def step(self, wanted: StateT) -> StateT:
        """Go to another state, and return the one before; raise `IllegalStepError` if there is no such step."""
        before = self.state
        self.state = self._to[wanted](before)
        return before
