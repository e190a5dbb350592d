"""Cohere's official client, which reranks."""

from __future__ import annotations

import cohere
import pytest
from cohere.core.api_error import ApiError

from tests.clients.asking import Server, run

DOCUMENTS = ["xyz", "abd", "cba"]


def test_rerank(server: Server) -> None:
    client = cohere.ClientV2(api_key=server.key, base_url=server.url)
    answer = client.rerank(model="rank", query="abc", documents=DOCUMENTS, top_n=2)
    assert [(one.index, one.relevance_score) for one in answer.results] == [(2, 1.0), (1, 2 / 3)]
    assert answer.id
    older = cohere.Client(api_key=server.key, base_url=server.url)
    first = older.rerank(model="rank", query="abc", documents=DOCUMENTS, return_documents=True).results[0]
    assert first.document is not None
    assert first.document.text == "cba"


def test_asynchronous_client(server: Server) -> None:
    async def ask() -> list[int]:
        client = cohere.AsyncClientV2(api_key=server.key, base_url=server.url)
        answer = await client.rerank(model="rank", query="abc", documents=DOCUMENTS)
        return [one.index for one in answer.results]

    assert run(ask()) == [2, 1, 0]


@pytest.mark.parametrize(
    ("model", "query", "status", "requests"),
    [
        ("player", "abc", 400, 1),
        ("no such key", "abc", 401, 1),
        ("key for something else", "abc", 403, 1),
        ("nobody", "abc", 404, 1),
        ("rank", "x" * 1_200_000, 413, 1),
        ("rank-busy", "abc", 429, 3),
        ("rank", "fail", 500, 3),
        ("late", "abc", 503, 3),
        ("rank-slow", "wait NEVER", 504, 3),
    ],
    ids=lambda value: str(value)[:20],
)
def test_errors_and_their_requests(server: Server, model: str, query: str, status: int, requests: int) -> None:
    key = {"no such key": "gt_wrong", "key for something else": server.reading}.get(model, server.key)
    model, query = "rank" if " " in model else model, query.replace("NEVER", server.never)
    client = cohere.ClientV2(api_key=key, base_url=server.url)
    with server.counted() as counted, pytest.raises(ApiError) as caught:
        client.rerank(model=model, query=query, documents=DOCUMENTS)
    assert counted.requests == requests
    assert caught.value.status_code == status


def test_error_of_the_asynchronous_client(server: Server) -> None:
    async def ask() -> None:
        client = cohere.AsyncClientV2(api_key=server.key, base_url=server.url)
        await client.rerank(model="nobody", query="abc", documents=DOCUMENTS)

    with pytest.raises(ApiError) as caught:
        run(ask())
    assert caught.value.status_code == 404
