"""Outputs of other models that are mapped: private to the author, passed on untouched, and let go of."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geartrain.domain.tensors.tensor import Tensor, pack, unpack
from geartrain.ipc.memory import Region
from geartrain.ipc.messages import Handle
from geartrain.worker import arrays
from geartrain.worker.values import mapped
from geartrain.worker.values.mapped import MappedAnswers, can_map

RUN = (0, 7)
COUNT = 200_000  # numbers

pytestmark = pytest.mark.skipif(not can_map(), reason="the system maps no memory as it is needed")


class Server:
    """The other side: it has an output in a region."""

    def __init__(self) -> None:
        self.region = Region.create()

    def write(self, json: bytes = b"{}", **values: Any) -> Handle:
        tensors = [arrays.any_tensor(name, value) for name, value in values.items()]
        return Handle(self.region.path, 0, self.region.write(pack(json, tensors, room=1024)))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.region.close()


def arrays_of(answers: MappedAnswers, number: int, place: Handle) -> dict[str, Any]:
    view = answers.map(number, place, RUN)
    assert view is not None
    return {tensor.name: arrays.array_from(tensor, is_own=True) for tensor in unpack(view)[1]}


def tensor(name: str, array: Any) -> Tensor:
    found: Tensor = arrays.any_tensor(name, array)
    return found


def test_array_is_private_and_known_until_it_is_changed(server: Server) -> None:
    answers = MappedAnswers()
    place = server.write(y=np.arange(COUNT, dtype=np.float32))
    y = arrays_of(answers, 1, place)["y"]
    assert y.sum(dtype=np.float64) == COUNT * (COUNT - 1) / 2
    assert answers.place_of(b"{}", [tensor("y", y)]) == place
    contents = answers.place_of_contents(tensor("x", y).data)
    assert contents is not None
    assert server.region.view(contents.offset + contents.size)[contents.offset :] == y.tobytes()
    y[COUNT // 2] = 7
    assert answers.place_of(b"{}", [tensor("y", y)]) is None
    assert answers.place_of_contents(tensor("x", y).data) is None
    assert np.frombuffer(server.region.view(place.size)[-4 * COUNT :], np.float32)[COUNT // 2] == COUNT // 2


def test_another_output_than_that_of_the_model_has_no_place(server: Server) -> None:
    answers = MappedAnswers()
    place = server.write(b'{"name":"a"}', y=np.zeros(COUNT, np.float32), z=np.ones(3, np.float32))
    found = arrays_of(answers, 1, place)
    y, z = tensor("y", found["y"]), tensor("z", found["z"])
    assert answers.place_of(b'{"name":"a"}', [y, z]) == place
    assert answers.place_of(b'{"name":"b"}', [y, z]) is None
    assert answers.place_of(b'{"name":"a"}', [y]) is None
    assert answers.place_of(b'{"name":"a"}', [tensor("other", found["y"]), z]) is None
    assert answers.place_of(b'{"name":"a"}', [tensor("y", found["y"].reshape(2, -1)), z]) is None
    assert answers.place_of(b'{"name":"a"}', [tensor("y", found["y"].view(np.int32)), z]) is None
    assert answers.place_of(b'{"name":"a"}', [tensor("y", found["y"].copy()), z]) is None
    found["z"][0] = 5
    assert answers.place_of(b'{"name":"a"}', [y, tensor("z", found["z"])]) is None
    assert answers.place_of_contents(tensor("x", found["y"][1:]).data) is None


def test_what_has_no_view_is_let_go_of_once(server: Server) -> None:
    answers = MappedAnswers()
    y = arrays_of(answers, 1, server.write(y=np.zeros(COUNT, np.float32)))["y"]
    part = y[5:9]
    del y
    assert answers.take_over() == []
    del part
    assert (answers.take_over(), answers.take_over(), len(answers)) == ([1], [], 0)


def test_array_that_outlives_its_run_is_a_copy(server: Server) -> None:
    answers = MappedAnswers()
    kept = arrays_of(answers, 1, server.write(y=np.ones(COUNT, np.float32)))["y"]
    kept[0] = 3
    assert answers.end_run((0, 8)) == ()
    assert len(answers) == 1
    assert answers.end_run(RUN) == ()
    server.region.free()
    server.write(y=np.zeros(COUNT, np.float32))
    assert kept[0] == 3
    assert (kept[1:] == 1).all()
    del kept
    assert answers.take_over() == []


def test_array_without_memory_for_a_copy_stays_the_servers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = MappedAnswers()
    kept = arrays_of(answers, 1, server.write(y=np.ones(COUNT, np.float32)))["y"]
    monkeypatch.setattr(mapped._Mapping, "make_own", lambda _: False)
    assert answers.end_run(RUN) == (1,)
    del kept
    assert answers.take_over() == [1]


def test_mappings_are_few_and_leave_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "MOST", 3)
    gc.collect()
    place = server.write(y=np.ones(COUNT, np.float32))
    maps, opened = _maps(), len([*Path("/proc/self/fd").iterdir()])
    answers = MappedAnswers()
    for _ in range(5):
        views = [answers.map(number, place, RUN) for number in range(5)]
        assert [view is None for view in views] == [False, False, False, True, True]
        views.clear()
        assert sorted(answers.take_over()) == [0, 1, 2]
    assert _maps() == maps
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


@pytest.mark.parametrize("place", [Handle("/proc/self/fd/99999", 0, 10**6), Handle("", 0, 100)])
def test_what_cannot_be_mapped_is_copied(place: Handle) -> None:
    assert MappedAnswers().map(1, place, RUN) is None


def _maps() -> int:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum("memfd:geartrain-slot" in line for line in lines if line.split()[1] == "rw-p")
