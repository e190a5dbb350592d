"""The cache of answers: keys, ages, bounds, and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from geartrain.domain.predictions.caching import NO_CACHE, CacheSettings, effective_cache, read_cache_control
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.predictions.request_context import RequestContext
from geartrain.domain.principal import Principal
from geartrain.domain.tensors.tensor import Tensor
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import read_cache
from geartrain.service.models.admission import NewPrediction
from geartrain.service.models.cached import MAX_JSON, MAX_TENSORS, key_of
from geartrain.service.scheduling.answers import MAX_SHARING, Answers, SharedRun
from geartrain.service.scheduling.context import TimeLimit


def prediction(size: int = 10) -> Prediction:
    found = Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0)
    found.start(1.0)
    found.add_metric("tokens.completion", 3, "replace")
    found.succeed(memoryview(b"x" * size), at=2.0, predict_time=1.0)
    return found


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def answers(clock: Clock | None = None, **settings: Any) -> Answers:
    return Answers(CacheSettings(**settings), history=1024, clock=clock or Clock())


def test_keys_are_those_of_equal_inputs() -> None:
    tensor = Tensor("x", "FP32", (2,), b"12345678")
    requests = [
        NewPrediction(input=b'{"a": 1, "b": {"c": 2, "d": 3}}'),
        NewPrediction(input=b'{"a": 2, "b": {"c": 2, "d": 3}}'),
        NewPrediction(input=b"{}", tensors=(tensor,)),
        NewPrediction(input=b"{}", tensors=(msgspec.structs.replace(tensor, shape=(1, 2)),)),
        NewPrediction(input=b"{}", tensors=(msgspec.structs.replace(tensor, data=b"12345679"),)),
        NewPrediction(input=b"{}", tensors=()),
        NewPrediction(input=b"{}"),
        NewPrediction(input=b"{}", context={"a": "b"}),
        NewPrediction(input=b"{}", parameters={"a": 1}),
        NewPrediction(input=b"{}", inline=True),
        NewPrediction(input=b"{}", principal=Principal("ada")),
        NewPrediction(input=b"{}", principal=Principal("bob")),
    ]
    keys = [key_of(each, share=False) for each in requests]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key_of(NewPrediction(input=b'{"b":{"d":3,"c":2},"a":1}'), share=False) == keys[0]
    shared = {key_of(each, share=True) for each in (*requests[-2:], NewPrediction(input=b"{}"))}
    assert len(shared) == 1


def test_inputs_that_are_left_out_count_as_their_defaults() -> None:
    def key(text: bytes) -> bytes | None:
        return key_of(NewPrediction(input=text), share=False, defaults={"steps": 5, "scale": 2.0, "note": None})

    assert len({key(b"{}"), key(b'{"steps": 5}'), key(b'{"scale": 2, "note": null}'), key(b'{"scale": 2.0}')}) == 1
    assert len({key(b"{}"), key(b'{"steps": 6}'), key(b'{"scale": 3}'), key(b'{"note": ""}')}) == 4
    assert key(b'{"scale": %d}' % (2**53 + 1)) != key(b'{"scale": %d}' % 2**53)


def test_files_count_by_their_places_and_digests() -> None:
    def key(local: bytes, **digests: str) -> bytes | None:
        return key_of(NewPrediction(input=b"{}"), share=False, local=local, digests=digests)

    first = key(b'{"a": "t1", "b": ["t2", "x"]}', t1="d1", t2="d2")
    assert first == key(b'{"b": ["t8", "x"], "a": "t9"}', t8="d2", t9="d1")
    others = [
        key(b'{"a": "t1", "b": ["t2", "x"]}', t1="d2", t2="d1"),
        key(b'{"a": "t1", "b": ["x", "t2"]}', t1="d1", t2="d2"),
        key(b'{"a": "t1", "b": ["t2", "t1"]}', t1="d1", t2="d2"),
        key(b'{"a": null, "b": [null, "x"]}'),
        key(b'{"a": "d1", "b": ["d2", "x"]}'),
        key(b'{"a": "t1", "b": ["t2", "x"]}'),
    ]
    assert len({first, *others}) == 7
    assert (
        key_of(NewPrediction(output_prefix="http://127.0.0.1/"), share=False, local=b"{}", digests={"t": "d"}) is None
    )


@pytest.mark.parametrize(
    "new",
    [
        NewPrediction(request=RequestContext("", "", cache="no-store")),
        NewPrediction(nested=True),
        NewPrediction(output_prefix="http://127.0.0.1/up/"),
        NewPrediction(input=b'"%b"' % (b"x" * MAX_JSON)),
        NewPrediction(tensors=(Tensor("x", "UINT8", (MAX_TENSORS + 1,), bytes(MAX_TENSORS + 1)),)),
    ],
)
def test_some_have_no_key(new: NewPrediction) -> None:
    assert key_of(new, share=False) is None


def test_answers_grow_old() -> None:
    clock = Clock()
    cache = answers(clock, ttl=60.0)
    cache.keep(b"k", prediction())
    clock.now += 59.0
    found = cache.find(b"k")
    assert found is not None
    assert found[1] == 59.0
    assert found[0].single_output == b"x" * 10
    assert type(found[0].single_output) is bytes
    assert found[0].metrics == {"tokens": {"completion": 3}}
    clock.now += 1.0
    assert cache.find(b"k") is None
    assert (len(cache), cache.size) == (0, 0)


def test_expired_answers_go_first_when_room_is_needed() -> None:
    clock = Clock()
    cache = answers(clock, ttl=60.0, max_bytes=100_000)
    for number in range(6):
        cache.keep(b"old %d" % number, prediction(10_000))
    clock.now += 30.0
    cache.keep(b"young", prediction(10_000))
    for number in range(6):
        assert cache.find(b"old %d" % number) is not None  # the young one was asked for longest ago
    clock.now += 30.0
    for number in range(2):
        cache.keep(b"new %d" % number, prediction(10_000))
    assert len(cache) == 3
    assert cache.find(b"young") is not None


def test_expired_answers_go_without_being_asked_for() -> None:
    timers: list[tuple[float, Callable[[], None]]] = []

    class Timer(TimeLimit):
        def __init__(self, seconds: float, on_expiry: Callable[[], None]) -> None:
            timers.append((seconds, on_expiry))

        def cancel(self) -> None:
            timers.clear()

    clock = Clock()
    cache = Answers(CacheSettings(ttl=60.0), history=1024, clock=clock, start_timer=Timer)
    for number in range(1500):
        cache.keep(b"%d" % number, prediction())
    clock.now += 1.0
    cache.keep(b"last", prediction())
    assert [seconds for seconds, _ in timers] == [60.0]  # one timer for all
    clock.now += 59.0
    left = []
    while timers:
        ((_, on_expiry),) = timers
        timers.clear()
        on_expiry()
        left.append(len(cache))
        clock.now += timers[0][0] if timers else 0.0
    assert left == [501, 1, 0]  # a thousand at a time
    assert cache.size == 0
    cache.keep(b"again", prediction())
    cache.clear()
    assert (len(cache), timers) == (0, [])


def test_memory_is_bounded() -> None:
    cache = answers(max_bytes=100_000)
    for number in range(1000):
        cache.keep(b"%d" % number, prediction(10_000))
        assert cache.size <= 100_000
    assert 5 <= len(cache) <= 10
    cache.keep(b"large", prediction(200_000))
    assert cache.find(b"large") is None
    assert cache.find(b"999") is not None
    before = cache.size
    cache.keep(b"999", prediction(10_000))
    assert cache.size == before


def test_streams_that_are_longer_than_late_readers_get_are_not_kept() -> None:
    cache = answers()
    found = Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0)
    found.start(1.0)
    for _ in range(1025):
        found.add_output(b"1")
    found.succeed(None, at=2.0)
    cache.keep(b"k", found)
    assert cache.find(b"k") is None


def test_predictions_that_share_a_run_are_bounded() -> None:
    class Member:
        is_kept = False

        def __init__(self) -> None:
            self.prediction = Prediction(PredictionRecord("id", 0.0, 0.0), b"{}", 0.0)

        def share(self, run: SharedRun) -> None:
            """Take it."""

    def execution() -> Any:
        return Member()

    cache = answers()
    run = SharedRun(cache, b"k", execution())
    for _ in range(MAX_SHARING):
        assert cache.join(b"k") is run
        run.add(execution())
    assert cache.join(b"k") is None


@pytest.mark.parametrize(
    ("value", "wish"),
    [
        (b"no-cache", "no-cache"),
        (b"max-age=0, NO-STORE", "no-store"),
        (b"no-cache=x, no-store", "no-store"),
        (b"max-age=3", ""),
        (b"", ""),
        (b"\xff,,", ""),
    ],
)
def test_cache_control(value: bytes, wish: str) -> None:
    assert read_cache_control(value) == wish


def test_settings() -> None:
    assert read_cache(True) == CacheSettings()
    declared = CacheSettings(ttl=5.0)
    assert effective_cache(read_cache(False), declared) is None
    assert effective_cache(None, None) is None
    assert effective_cache(None, declared) is declared
    assert effective_cache(CacheSettings(), declared) == CacheSettings()
    assert read_cache(False) == NO_CACHE
    assert read_cache({"ttl": "10m", "max_bytes": "1MiB", "share": True}) == CacheSettings(600.0, 1024**2, share=True)
    for value, message in (
        ("yes", "`cache` has to be `true`"),
        ({"time": 3}, "there is no key `cache.time`; there are ttl, max_bytes, share, folder"),
        ({"ttl": 0}, "`cache.ttl` is 0; write seconds"),
        ({"ttl": "soon"}, "`cache.ttl` is 'soon'; write seconds"),
        ({"max_bytes": "much"}, "`cache.max_bytes` is 'much'; write a size"),
        ({"share": 1}, "`cache.share` is 1; write true or false"),
        ({"folder": "answers"}, "`cache.folder` is 'answers'; write an absolute path"),
        ({"folder": 1}, "`cache.folder` is 1; write an absolute path"),
    ):
        with pytest.raises(ProjectError, match=message.replace("(", r"\(")):
            read_cache(value)
