"""The guides for those who come from other servers: what they show is there, and geartrain answers as they say.

`tools/try_guides.py` asks the other servers as well.
"""

from __future__ import annotations

import importlib.util
import re

import httpx
import pytest

from geartrain.testing import serve
from tests.support.servers import PATIENCE
from tools import guides


def asked(url: str, guide: str, heading: str = "After") -> None:
    shown = guides.requests(guide, heading)
    assert shown
    for each in shown:
        response = httpx.post(url + each.path, json=each.body, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        assert guides.comparable(response.json()) == guides.comparable(each.answer)


@pytest.mark.parametrize("guide", guides.GUIDES)
def test_page_shows_the_files_as_they_are(guide: str) -> None:
    shown = guides.files(guide)
    folder = guides.MODELS / guide
    assert {name: (folder / name).read_text(encoding="utf-8") for name in shown} == shown
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.*") if "__pycache__" not in path.parts}
    assert {name for name in there if not name.endswith("centroids.json")} == set(shown)


@pytest.mark.parametrize("guide", guides.GUIDES)
def test_files_are_copied_with_one_command(guide: str) -> None:
    copied = re.findall(r"^cp -r \.\./geartrain/(\S+) iris && cd iris$", guides.page(guide), re.MULTILINE)
    assert copied == [str((guides.MODELS / guide).relative_to(guides.ROOT))]


@pytest.mark.parametrize("guide", guides.GUIDES)
def test_both_servers_are_asked_for_the_same(guide: str) -> None:
    assert len(guides.requests(guide, "Before")) == 1
    assert "setosa" in str(guides.requests(guide, "Before")[0].answer)
    assert "setosa" in str(guides.requests(guide, "After")[0].answer)


@pytest.mark.parametrize("guide", ["cog", "triton", "mlserver"])
def test_after_answers_as_shown(guide: str) -> None:
    with serve(guides.MODELS / guide, ready_within=120) as server:
        asked(server.url, guide)


def test_after_of_those_with_a_path_of_their_own_answers_as_shown() -> None:
    names = ("litserve", "bentoml", "fastapi")
    assert len({(guides.MODELS / name / "run.py").read_text() for name in names}) == 1  # so one server answers for all
    with serve(guides.MODELS / "litserve", ready_within=120) as server:
        for name in names:
            asked(server.url, name)


async def test_old_path_is_kept_as_shown() -> None:
    spec = importlib.util.spec_from_file_location("mounted", guides.MODELS / "fastapi/mounted.py")
    assert spec is not None
    assert spec.loader is not None
    mounted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mounted)
    transport = httpx.ASGITransport(mounted.app)
    async with mounted.models.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        (shown,) = guides.requests("fastapi", "Keep the old path")
        response = await client.post(shown.path, json=shown.body)
        assert (response.status_code, response.json()) == (200, shown.answer)
        assert shown == guides.requests("fastapi", "Before")[0]
        response = await client.post(shown.path, json={"petal": "long"})
        assert response.status_code == 422
        assert response.json()["detail"][0]["loc"] == ["body", "input", "petal"]
        response = await client.post(shown.path, json={"petal": [1.0]})
        assert response.status_code == 500
        assert "both points must have the same number of dimensions" in response.json()["detail"]
    await mounted.inside.aclose()
