"""Where the keys of an issuer come from."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import httpx
import pytest

from geartrain.outbound import network
from geartrain.outbound.issuer_keys import IssuerKeysError, fetch_issuer_keys

ISSUER = "https://issuer.example/realm/"
JWKS = b'{"keys": []}'
DISCOVERY = "https://issuer.example/realm/.well-known/openid-configuration"


class Web:
    """Answers what an issuer is asked."""

    def __init__(self) -> None:
        self.pages: dict[str, httpx.Response | Exception] = {}
        self.asked: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        self.asked.append(url)
        page = self.pages.get(url, httpx.Response(404))
        if isinstance(page, Exception):
            raise page
        return page


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Web:
    web = Web()

    def open_client(*, tls: ssl.SSLContext, timeout: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(web.answer), timeout=timeout)

    monkeypatch.setattr(network, "open_upload_client", open_client)
    return web


def configuration(issuer: str = ISSUER) -> httpx.Response:
    return httpx.Response(200, content=json.dumps({"issuer": issuer, "jwks_uri": "https://keys.example/"}))


async def test_issuer_says_where_its_keys_are(web: Web) -> None:
    web.pages = {DISCOVERY: configuration(), "https://keys.example/": httpx.Response(200, content=JWKS)}
    assert await fetch_issuer_keys(ISSUER, "") == JWKS
    assert web.asked == [DISCOVERY, "https://keys.example/"]


async def test_named_url_is_asked_alone(web: Web) -> None:
    web.pages = {"http://keys.example/jwks": httpx.Response(200, content=JWKS)}
    assert await fetch_issuer_keys(ISSUER, "http://keys.example/jwks") == JWKS
    assert web.asked == ["http://keys.example/jwks"]


async def test_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(JWKS)
    assert await fetch_issuer_keys(ISSUER, str(tmp_path / "jwks.json")) == JWKS
    with pytest.raises(IssuerKeysError, match=r"cannot read .*: No such file or directory"):
        await fetch_issuer_keys(ISSUER, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (httpx.Response(500), "openid-configuration answered 500"),
        (httpx.Response(302, headers={"location": "https://keys.example/"}), "answered 302"),
        (httpx.Response(200, content=b"<html>"), "is no OpenID configuration"),
        (httpx.Response(200, content=b"{}"), "is no OpenID configuration"),
        (configuration("https://other.example"), "is that of another issuer, https://other.example: write it exactly"),
        (httpx.Response(200, content=b" " * 2_000_000), "has more than 1048576 bytes"),
        (httpx.ConnectError("no route"), "the keys of https://issuer.example/realm/ cannot be fetched: no route"),
        (httpx.ReadTimeout(""), "cannot be fetched: ReadTimeout"),
    ],
)
async def test_what_cannot_be_fetched_is_one_sentence(web: Web, page: httpx.Response | Exception, said: str) -> None:
    web.pages = {DISCOVERY: page, "https://keys.example/": httpx.Response(200, content=JWKS)}
    with pytest.raises(IssuerKeysError) as caught:
        await fetch_issuer_keys(ISSUER, "")
    assert said in str(caught.value)
