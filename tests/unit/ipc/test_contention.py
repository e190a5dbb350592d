"""After which waits none should follow for a while."""

from __future__ import annotations

import pytest

from geartrain.ipc.waiting import Contention


def felt_after(waits: str) -> bool:
    """Note waits, of which each "-" lost the processor and each "." did not."""
    contention = Contention()
    for wait in waits:
        contention.note(100.0, is_loss=wait == "-")
    return contention.is_felt(100.5)


@pytest.mark.parametrize("waits", ["", "." * 1000, "--", "-" + ".", "-.....-.....-", ("-" + "." * 20) * 100])
def test_waits_go_on_that_lose_the_processor_now_and_then(waits: str) -> None:
    assert not felt_after(waits)


@pytest.mark.parametrize("waits", ["---", "-.-.-.-", "." * 1000 + "---", "--...--"])
def test_no_wait_follows_several_that_lost_the_processor(waits: str) -> None:
    assert felt_after(waits)


def test_waits_go_on_after_a_second() -> None:
    contention = Contention()
    for _ in range(3):
        contention.note(100.0, is_loss=True)
    assert [contention.is_felt(now) for now in (100.0, 101.0, 101.1)] == [True, True, False]
    contention.note(101.1, is_loss=True)
    assert not contention.is_felt(101.2), "it begins anew"
