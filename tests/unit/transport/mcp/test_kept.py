"""The files of MCP's results: kept as long as their predictions, never more than a bound, and shown to their owners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from geartrain.apis.mcp.tools import call_result
from geartrain.domain.predictions.prediction import Prediction, PredictionRecord
from geartrain.domain.principal import ANYONE, Principal
from geartrain.domain.signature.types import OutputSpec, Signature, TypeSpec
from geartrain.service.models.deployment import Deployment
from geartrain.service.models.predictions import MAX_RECENT, Predictions
from geartrain.transport.mcp import kept
from geartrain.transport.mcp.kept import KeptFiles, read_file

FILES = Signature((), OutputSpec(TypeSpec("path"), "iterator"))


def deployment(predictions: Predictions) -> Deployment:
    """The parts of a deployment that the files refer to."""
    interface = SimpleNamespace(signature=FILES)
    return cast("Deployment", SimpleNamespace(name="draw", predictions=predictions, interface=interface))


def call(files: KeptFiles, made: Deployment, name: str, *, count: int = 1, owner: str = "") -> list[str]:
    """End a call with so many files; return their URIs."""
    prediction = Prediction(PredictionRecord(name, 1.0, 1.0), b"{}", 1.0)
    prediction.principal = owner
    prediction.start(1.0)
    url = '"data:image/png;base64,QUJD"'
    prediction.succeed(f"[{','.join([url] * count)}]".encode(), at=2.0)
    made.predictions.recent.add(prediction)
    found = call_result(prediction.output, FILES, name, version="2026-07-28").files
    files.add(made, prediction, found)
    return [file.uri for file in found]


def uris(files: KeptFiles, principal: Principal = ANYONE) -> list[str]:
    found: list[str] = []
    page: dict[str, Any] = files.page(None, principal, lambda _model: True)
    while True:
        found += [each["uri"] for each in page["resources"]]
        if "nextCursor" not in page:
            return found
        page = files.page(page["nextCursor"], principal, lambda _model: True)


async def test_files_go_with_their_predictions() -> None:
    files, made = KeptFiles(), deployment(Predictions(keep=300.0))
    (first,) = call(files, made, "pred_0")
    for number in range(1, MAX_RECENT + 1):
        call(files, made, f"pred_{number}")
    assert files.count == MAX_RECENT
    assert first not in uris(files)
    with pytest.raises(LookupError, match="no longer kept"):
        files.find(first, ANYONE, lambda _model: True)


async def test_never_more_files_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 250)
    files, made = KeptFiles(), deployment(Predictions(keep=300.0))
    calls = [call(files, made, f"pred_{number}", count=100) for number in range(4)]
    assert files.count == 200
    assert uris(files) == [*calls[3], *calls[2]]
    large = call(files, made, "pred_4", count=300)  # the latest in any case
    assert uris(files) == large


async def test_files_of_predictions_that_are_not_kept_are_not_listed() -> None:
    files, made = KeptFiles(), deployment(Predictions(keep=0.0))
    call(files, made, "pred_0")
    assert (files.count, uris(files)) == (0, [])


async def test_a_file_is_its_owners() -> None:
    files, made = KeptFiles(), deployment(Predictions(keep=300.0))
    (own,) = call(files, made, "pred_0", owner="ada")
    assert uris(files, Principal("ada")) == [own]
    assert uris(files, Principal("bob")) == []
    with pytest.raises(LookupError):
        files.find(own, Principal("bob"), lambda _model: True)
    with pytest.raises(LookupError):
        files.find(own, Principal("ada"), lambda model: model != "draw")
    prediction, signature = files.find(own, Principal("ada"), lambda _model: True)
    answer = read_file(prediction, signature, own, version="2026-07-28")
    assert answer == {"contents": [{"uri": own, "mimeType": "image/png", "blob": "QUJD"}]}
