"""The two state machines: every pair of states, allowed or refused as the documents' diagrams say."""

from __future__ import annotations

import itertools

import pytest

from geartrain.domain.lifecycle import Health, IllegalStepError, Status, next_health, next_status

S, H = Status, Health

STATUS_STEPS = {
    (S.STARTING, S.PROCESSING),
    (S.STARTING, S.FAILED),
    (S.STARTING, S.CANCELED),
    (S.PROCESSING, S.SUCCEEDED),
    (S.PROCESSING, S.FAILED),
    (S.PROCESSING, S.CANCELED),
}
HEALTH_STEPS = {
    (H.UNKNOWN, H.STARTING),
    (H.STARTING, H.READY),
    (H.STARTING, H.SETUP_FAILED),
    (H.STARTING, H.DEFUNCT),
    (H.READY, H.DEFUNCT),
    (H.READY, H.STARTING),
}


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(Status, Status)))
def test_status(current: Status, wanted: Status) -> None:
    if (current, wanted) in STATUS_STEPS:
        assert next_status(current, wanted) is wanted
    else:
        with pytest.raises(IllegalStepError):
            next_status(current, wanted)


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(Health, Health)))
def test_health(current: Health, wanted: Health) -> None:
    if (current, wanted) in HEALTH_STEPS:
        assert next_health(current, wanted) is wanted
    else:
        with pytest.raises(IllegalStepError):
            next_health(current, wanted)
