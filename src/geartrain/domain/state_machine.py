"""Machines whose steps are a table: for each state those that may follow. A step that is not in it raises.

To change a machine, change its table. A terminal state has no way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=StrEnum)


class IllegalStepError(RuntimeError):
    """A state machine was asked for a step that its table does not have: a bug in the server."""

    def __init__(self, what: str, current: StrEnum, wanted: StrEnum) -> None:
        super().__init__(f"{what} cannot go from {current} to {wanted}")


class StepsTo(dict[StateT, StateT]):
    """The steps to one state: each state that may come before it, with that state.

    To look up the present state is the check and the step in one, as in `self.state = _TO_RUNNING[self.state]`: the
    cheapest way there is, for what is on the path of each prediction. Raises `IllegalStepError`.
    """

    __slots__ = ("_wanted", "_what")

    def __init__(self, what: str, steps: Mapping[StateT, frozenset[StateT]], wanted: StateT) -> None:
        """`what` names the machine in errors, such as "a slot"."""
        super().__init__({state: wanted for state, following in steps.items() if wanted in following})
        self._what = what
        self._wanted = wanted

    def __missing__(self, current: StateT) -> StateT:
        """Refuse the step."""
        raise IllegalStepError(self._what, current, self._wanted)


def steps_to(what: str, steps: Mapping[StateT, frozenset[StateT]]) -> dict[StateT, StepsTo[StateT]]:
    """Return the steps of a table by the state that they lead to; `what` names the machine in errors."""
    states = type(next(iter(steps)))  # also those that no step leads to or from
    return {wanted: StepsTo(what, steps, wanted) for wanted in states}


class StateMachine(Generic[StateT]):
    """A state and the table of its steps, for what is not on the path of each prediction."""

    def __init__(self, what: str, steps: Mapping[StateT, frozenset[StateT]], state: StateT) -> None:
        """`what` names it in errors, such as "a slot"."""
        self.state = state
        self._to = steps_to(what, steps)

    def step(self, wanted: StateT) -> StateT:
        """Go to another state, and return the one before; raise `IllegalStepError` if there is no such step."""
        before = self.state
        self.state = self._to[wanted][before]
        return before
