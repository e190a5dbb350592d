"""What has to be loaded and unloaded, by what is on disk and what has been loaded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.project.changes import Attempt, Attempts, Differences, Sight, Survey, differences

NONE = Differences()
LOAD = Differences(load=("cats",))
REMOVE = Differences(remove=("cats",))


@pytest.mark.parametrize(
    ("sight", "attempt", "expected"),
    [
        (None, None, NONE),
        (None, Attempt("a", 1), NONE),  # not looked at yet
        (Sight("a", 2, is_settled=True), None, LOAD),
        (Sight("a", 2, is_settled=False), None, NONE),
        (Sight("a", 2, is_settled=True), Attempt("a", 1), NONE),
        (Sight("b", 2, is_settled=True), Attempt("a", 1), LOAD),
        (Sight("b", 2, is_settled=False), Attempt("a", 1), NONE),
        (Sight("a", 2, is_settled=True), Attempt("b", 3), NONE),  # loaded since
        (Sight("a", 2, is_settled=True), Attempt("b", 2), NONE),
        (Sight(None, 2, is_settled=True), Attempt("a", 1), REMOVE),
        (Sight(None, 2, is_settled=False), Attempt("a", 1), NONE),
        (Sight(None, 2, is_settled=True), Attempt("a", 3), NONE),
        (Sight(None, 2, is_settled=True), None, NONE),
    ],
)
def test_what_one_model_needs(sight: Sight | None, attempt: Attempt | None, expected: Differences) -> None:
    disk = {} if sight is None else {"cats": sight}
    assert differences(disk, {} if attempt is None else {"cats": attempt}) == expected


def test_models_are_given_in_the_order_of_their_names() -> None:
    disk = {name: Sight("new", 2, is_settled=True) for name in ("dogs", "cats")}
    gone = {name: Sight(None, 2, is_settled=True) for name in ("lions", "birds")}
    attempts = {name: Attempt("old", 1) for name in ("birds", "lions", "dogs")}
    assert differences({**disk, **gone}, attempts) == Differences(("cats", "dogs"), ("birds", "lions"))


def test_a_later_attempt_is_not_forgotten_for_an_earlier_one() -> None:
    attempts = Attempts()
    attempts.note("cats", Attempt("new", 2))
    attempts.note("cats", Attempt("old", 1))
    assert attempts.all() == {"cats": Attempt("new", 2)}
    attempts.forget("cats")
    attempts.forget("cats")
    assert attempts.all() == {}


class Disk:
    """Digests by name; those in `plain` are of folders without a model."""

    def __init__(self, **digests: str) -> None:
        self.digests = digests
        self.plain: set[str] = set()
        self.opened: list[str] = []

    def candidates(self) -> list[str]:
        return sorted(self.digests)

    def digest(self, name: str) -> str:
        return self.digests.get(name, "")

    def holds_model(self, name: str) -> bool:
        self.opened.append(name)
        return name not in self.plain


def seen(survey: Survey, *names: str) -> dict[str, tuple[str | None, bool]]:
    return {name: (sight.digest, sight.is_settled) for name, sight in survey.look(names or None).items()}


def test_a_model_is_settled_when_it_was_the_same_the_look_before() -> None:
    disk = Disk(cats="a", dogs="a")
    survey = Survey(disk, Attempts())
    assert seen(survey) == {"cats": ("a", False), "dogs": ("a", False)}
    assert survey.unsettled() == {"cats", "dogs"}
    disk.digests["dogs"] = "b"
    assert seen(survey) == {"cats": ("a", True), "dogs": ("b", False)}
    assert seen(survey, "dogs") == {"cats": ("a", True), "dogs": ("b", True)}
    assert survey.unsettled() == set()


def test_a_model_that_has_gone_is_seen_as_gone_until_it_is_forgotten() -> None:
    attempts = Attempts()
    attempts.note("cats", Attempt("a", 0))
    disk = Disk()
    survey = Survey(disk, attempts)  # it has gone before the first look
    assert seen(survey) == {"cats": (None, False)}
    assert seen(survey) == {"cats": (None, True)}
    assert differences(survey.look(), attempts.all()) == REMOVE
    attempts.forget("cats")
    assert seen(survey) == {}


def test_a_folder_that_cannot_be_read_keeps_no_other_from_being_seen() -> None:
    class Locked(Disk):
        def holds_model(self, name: str) -> bool:
            if name == "lost+found":
                raise PermissionError
            return True

    survey = Survey(Locked(**{"cats": "a", "lost+found": "a"}), Attempts())
    assert seen(survey) == {"cats": ("a", False), "lost+found": (None, False)}


def test_whether_a_folder_holds_a_model_is_found_out_again_when_it_has_changed() -> None:
    disk = Disk(cats="a", notes="a")
    disk.plain = {"notes"}
    survey = Survey(disk, Attempts())
    for _ in range(3):
        survey.look()
    assert sorted(disk.opened) == ["cats", "notes"]
    disk.plain = set()
    disk.digests["notes"] = "b"
    assert seen(survey)["notes"] == ("b", False)
    assert disk.opened[2:] == ["notes"]


@given(st.lists(st.tuples(st.sampled_from(["cats", "dogs"]), st.sampled_from(["", "a", "b"]), st.booleans())))
def test_whatever_happens_in_the_end_it_is_what_lies_on_disk(steps: list[tuple[str, str, bool]]) -> None:
    disk, attempts, served = Disk(), Attempts(), dict[str, str]()
    survey = Survey(disk, attempts)

    def reload() -> None:
        sights = survey.look()
        found = differences(sights, attempts.all())
        for name in found.remove:
            attempts.forget(name)
            del served[name]
        for name in found.load:
            attempts.note(name, Attempt(disk.digest(name), time.monotonic()))
            served[name] = disk.digest(name)

    for name, digest, is_looked_at in steps:
        disk.digests.pop(name, None)
        disk.digests |= {name: digest} if digest else {}
        if is_looked_at:
            reload()
    for _ in range(3):
        reload()
    assert served == disk.digests
