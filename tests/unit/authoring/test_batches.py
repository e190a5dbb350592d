"""What an author writes for batches: the decorator, the error of single requests, and the scope of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import geartrain
from geartrain import ItemError, Scope, batch_item, batched, concurrent, current_scope, streaming
from geartrain.authoring.batches import check_settings
from geartrain.authoring.decorators import BATCHED_ATTRIBUTE, CONCURRENT_ATTRIBUTE, STREAMING_ATTRIBUTE
from geartrain.authoring.scope import use_scope
from geartrain.worker.loading import cog_alias


def settings_of(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(function, BATCHED_ATTRIBUTE)
    return found


def test_decorator_with_and_without_settings() -> None:
    @batched
    def bare() -> None: ...

    @batched()
    def called() -> None: ...

    @batched(max_size=8, max_delay=0.01, learn_delay=False, preferred_sizes=[4, 8], pad_to=(4, 8), retry_singly=True)
    def full() -> None: ...

    default = {"max_size": 32, "max_delay": 0.0, "learn_delay": True, "preferred_sizes": (), "pad_to": ()}
    without_cost = {"cost": "", "max_cost": 0, "padded": False, "sort": 0, "pad": {}}
    assert settings_of(bare) == settings_of(called) == {**default, "retry_singly": False, **without_cost}
    assert settings_of(full) == {
        **without_cost,
        "max_size": 8,
        "max_delay": 0.01,
        "learn_delay": False,
        "preferred_sizes": (4, 8),
        "pad_to": (4, 8),
        "retry_singly": True,
    }


def test_decorator_goes_with_the_others_and_changes_nothing_by_itself() -> None:
    @batched(max_size=4)
    @streaming
    @concurrent(max=3)
    async def run() -> Any:
        yield 1

    assert getattr(run, STREAMING_ATTRIBUTE)
    assert getattr(run, CONCURRENT_ATTRIBUTE) == 3
    assert settings_of(run)["max_size"] == 4
    assert not hasattr(batched(lambda: 1), STREAMING_ATTRIBUTE)
    assert batched(lambda: 1)() == 1


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_size": 0}, ValueError, "max_size=0: it is 1 or more"),
    ({"max_size": True}, TypeError, "max_size=True: it is a whole number, such as 32"),
    ({"max_size": 2.5}, TypeError, "max_size=2.5: it is a whole number"),
    ({"max_size": "32"}, TypeError, "max_size='32': it is a whole number"),
    ({"max_delay": -1}, ValueError, "max_delay=-1: it is a number of seconds, 0 or more"),
    ({"max_delay": float("nan")}, ValueError, "max_delay=nan: it is"),
    ({"max_delay": "5ms"}, TypeError, "max_delay='5ms': it is a number of seconds, such as 0.005"),
    ({"max_delay": False}, TypeError, "max_delay=False: it is a number"),
    ({"preferred_sizes": 8}, TypeError, "preferred_sizes=8: it is a tuple of sizes"),
    ({"preferred_sizes": (8, 4)}, ValueError, r"preferred_sizes=\(8, 4\): name each size once, the smallest first"),
    ({"preferred_sizes": (4, 4)}, ValueError, "name each size once"),
    ({"preferred_sizes": (0, 4)}, ValueError, "each size is 1 or more"),
    ({"preferred_sizes": (4, "8")}, TypeError, "'8' is no whole number"),
    ({"preferred_sizes": (64,)}, ValueError, "64 is above max_size=32"),
    ({"pad_to": (8, 16)}, ValueError, "no size of it holds max_size=32 rows; add 32 to it, or set max_size to 16"),
    ({"pad_to": ("8",)}, TypeError, "'8' is no whole number"),
    ({"learn_delay": 0}, TypeError, "learn_delay=0: it is True or False"),
    ({"retry_singly": 1}, TypeError, "retry_singly=1: it is True or False"),
    ({"cost": 5, "max_cost": 8}, TypeError, 'cost=5: it is the name of an input, such as "text"'),
    ({"cost": "text", "max_cost": "8"}, TypeError, "max_cost='8': it is a number, such as 16_384"),
    ({"cost": "text", "max_cost": "most"}, TypeError, "max_cost='most': it is a number, such as 16_384, or \"auto\""),
    ({"max_cost": "auto"}, ValueError, "max_cost='auto' needs the cost of a request: add cost="),
    ({"cost": "text", "max_cost": -1}, ValueError, "max_cost=-1: it is a number above 0"),
    ({"cost": "text", "max_cost": float("inf")}, ValueError, "max_cost=inf: it is a number above 0"),
    ({"pad": ["ids"]}, TypeError, "pad=.*: it is a dict of inputs"),
    ({"pad": {"ids": "0"}}, TypeError, "'ids' is filled up with a number"),
    ({"pad": {"ids": True}}, TypeError, "'ids' is filled up with a number"),
    ({"cost": "text", "sort": "yes"}, TypeError, "sort='yes': it is True or False, or the number of calls"),
    ({"cost": "text", "sort": 1}, ValueError, "sort=1: the number of calls to sort among is 2 to 64"),
    ({"cost": "text", "sort": 65}, ValueError, "sort=65: the number of calls"),
    ({"cost": "text", "sort": True, "padded": 1}, TypeError, "padded=1: it is True or False"),
    ({"cost": "text"}, ValueError, "cost='text' changes nothing by itself: add max_cost=, sort=True, or both"),
    ({"max_cost": 8}, ValueError, "max_cost=8 needs the cost of a request: add cost="),
    ({"sort": True}, ValueError, "sort=.* needs the cost of a request"),
    ({"padded": True}, ValueError, "padded=True needs the cost of a request"),
]


def test_costs() -> None:
    @batched(cost=["text", "tokens"], max_cost=100, sort=True)
    def several() -> None: ...

    @batched(cost="text", sort=8, padded=True)
    def padded() -> None: ...

    assert {name: settings_of(several)[name] for name in ("cost", "max_cost", "padded", "sort")} == {
        "cost": "text + tokens",
        "max_cost": 100,
        "padded": False,
        "sort": 2,
    }
    assert (settings_of(padded)["sort"], settings_of(padded)["padded"]) == (8, True)


@pytest.mark.parametrize(("settings", "kind", "text"), WRONG, ids=lambda value: str(value)[:30])
def test_settings_that_cannot_be_meant(settings: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=f"^@batched: .*{text}"):
        batched(**settings)
    with pytest.raises(kind, match=text):
        check_settings(settings)


def test_decorator_on_something_that_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"write @batched or @batched\(max_size=32\), not @batched\(8\)"):
        batched(8)  # type: ignore[call-overload]


def test_operators_settings_are_checked_the_same_way() -> None:
    check_settings({"max_size": 64, "refuse_larger": False})
    with pytest.raises(TypeError, match="refuse_larger='no': it is True or False"):
        check_settings({"refuse_larger": "no"})


class Index:
    def __index__(self) -> int:
        return 7


def test_item_error() -> None:
    assert ItemError(2, "too dark").reasons == {2: "too dark"}
    assert ItemError(2).reasons == {2: "the model refused it"}
    error = ItemError({1: "too dark", 3: ValueError("no face")})
    assert list(error.reasons) == [1, 3]
    assert str(error) == "request 1: too dark; request 3: no face"
    assert ItemError(Index()).reasons == {7: "the model refused it"}
    for wrong in ("2", True, 2.0, None):
        with pytest.raises(TypeError, match="ItemError takes the index of a request"):
            ItemError(wrong)  # type: ignore[arg-type]


def test_batch_item_outside_of_a_batch_has_no_effect() -> None:
    with batch_item(5) as scope:
        scope.record_metric("faces", 2)
        assert current_scope().prediction_id == ""


def test_batch_item_is_what_the_scope_of_the_batch_gives() -> None:
    opened = []

    @contextmanager
    def open_item(index: int) -> Iterator[Scope]:
        opened.append(index)
        with use_scope(Scope(prediction_id=f"p{index}", open_item=open_item)) as scope:
            yield scope

    with use_scope(Scope(prediction_id="batch", open_item=open_item)):
        with batch_item(1):
            assert current_scope().prediction_id == "p1"
            with batch_item(2):
                assert current_scope().prediction_id == "p2"
            assert current_scope().prediction_id == "p1"
        assert current_scope().prediction_id == "batch"
    assert opened == [1, 2]


def test_forgotten_metrics_are_deleted() -> None:
    heard: list[tuple[str, Any, str]] = []
    scope = Scope(emit=lambda *args: heard.append(args))
    scope.forget_metrics()
    scope.record_metric("a", 1)
    scope.record_metric("b.c", "x")
    scope.forget_metrics()
    assert heard[2:] == [("a", None, "delete"), ("b.c", None, "delete")]
    assert dict(scope.metrics) == {}
    scope.record_metric("a", "of another type now")


@pytest.mark.parametrize("name", ["batched", "batch_item", "ItemError"])
def test_names_are_those_of_geartrain_and_not_of_cog(name: str) -> None:
    assert name in geartrain.__all__
    assert callable(getattr(geartrain, name))
    assert name not in cog_alias.COG_NAMES.split(", ")
