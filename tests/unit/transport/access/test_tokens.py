"""Tokens of an issuer, and the keys that they are verified with."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from geartrain.domain.errors import Code, GeartrainError
from geartrain.domain.principal import Principal
from geartrain.outbound.issuer_keys import IssuerKeysError
from geartrain.transport.access import tokens
from geartrain.transport.access.guard import Grant
from geartrain.transport.access.options import JwtOptions
from geartrain.transport.access.tokens import IssuerKeys, TokenVerifier, read_keys
from tests.unit.transport.access.parts import Clock

ISSUER = "https://issuer.example"
OPTIONS = JwtOptions(issuer=ISSUER, audience=("models",))
EC, OTHER_EC = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
ED = ed25519.Ed25519PrivateKey.generate()
NOW = 2_000_000_000.0

_ALGORITHMS: dict[str, Any] = {
    "ES256": jwt.algorithms.ECAlgorithm,
    "RS256": jwt.algorithms.RSAAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}


def public(private: Any, key_id: str = "", algorithm: str = "ES256", **fields: Any) -> dict[str, Any]:
    """The public key of a private one, as an issuer shows it."""
    found = _ALGORITHMS[algorithm].to_jwk(private.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return {**found, **({"kid": key_id} if key_id else {}), **fields}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def token(private: Any = EC, key_id: str = "e", algorithm: str = "ES256", **claims: Any) -> str:
    headers = {"kid": key_id} if key_id else {}
    standard = {"iss": ISSUER, "aud": "models", "exp": 4_000_000_000, "scope": "openid predict"}
    given = {name: value for name, value in {**standard, **claims}.items() if value is not None}
    return jwt.encode(given, private, algorithm, headers)


class Keys:
    """The keys of an issuer, fetched once."""

    def __init__(self, text: bytes) -> None:
        self.keys = read_keys(text)
        self.asked = 0

    def find(self, key_id: str) -> jwt.PyJWK | None:
        self.asked += 1
        return self.keys.get(key_id)


def make_verifier(options: JwtOptions = OPTIONS) -> TokenVerifier:
    keys = Keys(
        jwks(public(EC, "e"), public(RSA, "r", "RS256", use="sig", alg="RS256"), public(ED, "d", "EdDSA", use="sig"))
    )
    return TokenVerifier(options, keys.find, now=Clock(NOW))


def refusal(verifier: TokenVerifier, text: str) -> str:
    with pytest.raises(GeartrainError) as caught:
        verifier.find(text)
    assert caught.value.code is Code.UNAUTHENTICATED
    assert len(caught.value.message) < 300
    return caught.value.message


@pytest.mark.parametrize(
    ("private", "key_id", "algorithm"), [(EC, "e", "ES256"), (RSA, "r", "RS256"), (ED, "d", "EdDSA")]
)
def test_valid_token_is_a_grant_that_does_not_last(private: Any, key_id: str, algorithm: str) -> None:
    grant = make_verifier().find(token(private, key_id, algorithm))
    assert grant is not None
    expected = Grant("token", frozenset({"predict"}), ("*",), is_lasting=False, principal=grant.principal)
    assert grant == expected


def principal_of(text: str, options: JwtOptions = OPTIONS) -> Principal:
    grant = make_verifier(options).find(text)
    assert grant is not None
    return grant.principal


def test_s5_tokens_of_one_subject_are_one_client() -> None:
    ada = principal_of(token(sub="ada"))
    assert ada == principal_of(token(sub="ada", exp=3_900_000_000))
    assert not ada.sees_all
    others = [token(sub="bob"), token(sub="Ada"), token(sub=""), token(), token(exp=3_900_000_000)]
    assert len({ada.name, *(principal_of(text).name for text in others)}) == 6
    assert principal_of(token(sub="ada", scope="predict admin")) == Principal(ada.name, sees_all=True)
    assert all(name.isascii() and name.isprintable() for name in [principal_of(token(sub="a\r\né: *")).name])


def test_s5_tokens_without_a_subject_are_clients_of_their_own() -> None:
    first, second = token(jti="1"), token(jti="2")
    assert principal_of(first) == principal_of(first) != principal_of(second)


@pytest.mark.parametrize("text", ["gt_abc", "a.b", "a.b.c.d", ""])
def test_what_is_no_token_is_left_to_others(text: str) -> None:
    assert make_verifier().find(text) is None


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": 1_000_000_000}, "Signature has expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"nbf": 3_900_000_000}, "not yet valid"),
        ({"iss": "https://other.example"}, "Invalid issuer"),
        ({"iss": None}, 'missing the "iss" claim'),
        ({"aud": "other"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"key_id": "unknown"}, "its key is not one that the issuer is known to have"),
        ({"key_id": ""}, "its key is not one"),
        ({"private": OTHER_EC}, "Signature verification failed"),
        ({"private": RSA, "algorithm": "RS256"}, "The token is not valid"),  # the algorithm of another key
        ({"private": RSA, "algorithm": "PS256", "key_id": "r"}, "The token is not valid"),
        ({"private": "x" * 64, "algorithm": "HS256"}, "The token is not valid"),
        ({"private": None, "algorithm": "none"}, "The token is not valid"),
    ],
)
def test_token_that_is_not_valid_is_refused(claims: dict[str, Any], said: str) -> None:
    assert said in refusal(make_verifier(), token(**claims))


def encoded(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_public_key_is_no_shared_secret() -> None:
    """A token that is signed with the text of the public key, by an algorithm of shared secrets."""
    import hashlib
    import hmac

    signed = f"{encoded({'alg': 'HS256', 'kid': 'e'})}.{encoded({'iss': ISSUER, 'aud': 'models', 'exp': 4e9})}"
    secret = json.dumps(public(EC, "e")).encode()
    signature = encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())
    refusal(make_verifier(), f"{signed}.{signature}")


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        "é.é.é",
        f"{encoded({'alg': 'ES256', 'kid': 7})}.{encoded({})}.AAAA",
        f"{encoded({'alg': ['ES256'], 'kid': 'e'})}.{encoded({})}.AAAA",
        f"{encoded([])}.{encoded([])}.AAAA",
        f"{encoded({'alg': 'ES256', 'kid': 'e', 'crit': ['x']})}.{encoded({})}.AAAA",
        f"{encoded(b'[' * 20_000)}.{encoded({})}.AAAA",
        f"{encoded(b'{' + b'1' * 20_000)}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'ES256', 'kid': 'e'})}.{encoded(b'[' * 20_000)}.AAAA",
    ],
)
def test_malformed_token_is_refused(text: str) -> None:
    refusal(make_verifier(), text)


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), 1e308, -1e308, float("inf"), float("-inf"), float("nan"), True, "7", "x", [], {}, 2**63, -1],
)
def test_s9_number_that_is_no_time_is_refused_or_taken(claim: str, value: object) -> None:
    """No value is an error of the server; what has expired, or is no number of seconds, is refused."""
    payload = {"iss": ISSUER, "aud": "models", "exp": 4_000_000_000, "scope": "predict", claim: value}
    text = jwt.api_jws.encode(json.dumps(payload).encode(), EC, "ES256", {"kid": "e"})
    verifier = make_verifier()
    codes = set()
    for _ in range(2):  # the second time, a valid token is remembered
        try:
            verifier.find(text)
        except GeartrainError as error:
            codes.add(error.code)
    assert codes <= {Code.UNAUTHENTICATED}


@pytest.mark.parametrize("exp", [10**400, float("inf"), float("nan")])
def test_s9_token_that_never_expires_is_refused(exp: float) -> None:
    refusal(make_verifier(), token(exp=exp))


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        ("predict read", {"predict", "read"}),
        ("geartrain:predict email", {"predict"}),
        (["geartrain:admin", "read", 7], {"admin", "read"}),
        ("other:predict", set()),
        (None, set()),
        (7, set()),
        ({"predict": True}, set()),
    ],
)
def test_scopes_come_from_a_claim(claim: object, scopes: set[str]) -> None:
    options = JwtOptions(issuer=ISSUER, audience=("a", "models"), scope_claim="roles")
    grant = make_verifier(options).find(token(roles=claim))
    assert grant is not None
    assert grant.scopes == scopes


@pytest.mark.parametrize(("claim", "models"), [("ec* pets", ("ec*", "pets")), (["ec*"], ("ec*",)), (None, ())])
def test_models_come_from_a_claim_and_there_are_none_without_it(claim: object, models: tuple[str, ...]) -> None:
    options = JwtOptions(issuer=ISSUER, audience=("models",), models_claim="models")
    grant = make_verifier(options).find(token(models=claim))
    assert grant is not None
    assert grant.models == models


def test_known_token_is_not_verified_again_until_it_expires_or_is_forgotten() -> None:
    keys = Keys(jwks(public(EC, "e")))
    now = Clock(NOW)
    verifier = TokenVerifier(OPTIONS, keys.find, now=now)
    text = token()
    for _ in range(3):
        verifier.find(text)
    assert keys.asked == 1
    verifier.forget()
    verifier.find(text)
    assert keys.asked == 2
    now.time = 4_000_000_031.0
    verifier.find(text)
    assert keys.asked == 3
    keys.keys.clear()
    refusal(verifier, text)


def test_few_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are forgotten when there would be more."""
    keys = Keys(jwks(public(EC, "e")))
    verifier = TokenVerifier(OPTIONS, keys.find, now=Clock(NOW))
    monkeypatch.setattr(tokens, "MAX_REMEMBERED", 20)
    signed = [token(sub=str(number)) for number in range(21)]
    for each in (*signed[:20], *signed[:20]):
        verifier.find(each)
    assert keys.asked == 20
    verifier.find(signed[20])
    for each in (*signed[:20], signed[20]):
        verifier.find(each)
    assert keys.asked == 42


def test_unusable_keys_of_an_issuer_are_passed_over() -> None:
    secret = {"kty": "oct", "kid": "s", "k": encoded(b"x" * 32)}
    keys = read_keys(jwks(public(EC, "e"), public(RSA, "x", "RS256", use="enc"), secret, {"kty": "new"}))
    assert list(keys) == ["e"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"keys": 5}', b'{"keys": []}', b'{"keys": [{}]}'])
def test_what_is_no_set_of_keys_is_refused(text: bytes) -> None:
    with pytest.raises(IssuerKeysError):
        read_keys(text)


def test_set_without_a_key_that_signs_is_refused() -> None:
    with pytest.raises(IssuerKeysError, match="no key that signs"):
        read_keys(jwks({"kty": "oct", "kid": "s", "k": encoded(b"x" * 32)}))


class Issuer:
    """An issuer under test: what it answers, and how often it was asked."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.fetches = 0
        self.fetched = asyncio.Event()
        self.changes = 0
        self.clock = Clock()
        self.keys = IssuerKeys(self._fetch, self._count, clock=self.clock)

    async def _fetch(self) -> bytes:
        answer = self.answers[min(self.fetches, len(self.answers) - 1)]
        self.fetches += 1
        self.fetched.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _count(self) -> None:
        self.changes += 1


async def test_keys_are_fetched_at_the_start() -> None:
    issuer = Issuer(jwks(public(EC, "e")))
    assert issuer.keys.find("e") is None
    assert await issuer.keys.fetch()
    assert issuer.keys.find("e") is not None
    assert issuer.keys.find("other") is None
    assert issuer.changes == 1


async def test_only_key_needs_no_id() -> None:
    issuer = Issuer(jwks(public(EC)), jwks(public(EC, "e")), jwks(public(EC, "e"), public(RSA, "r", "RS256")))
    for expected in (True, True, False):
        await issuer.keys.fetch()
        assert (issuer.keys.find("") is not None) is expected


async def test_same_keys_are_no_change() -> None:
    issuer = Issuer(jwks(public(EC, "e")))
    for _ in range(2):
        await issuer.keys.fetch()
    assert issuer.changes == 1


async def test_withdrawn_key_is_known_no_longer() -> None:
    issuer = Issuer(jwks(public(EC, "e")), jwks(public(OTHER_EC, "f")))
    await issuer.keys.fetch()
    await issuer.keys.fetch()
    assert issuer.keys.find("e") is None
    assert issuer.changes == 2


@pytest.mark.parametrize("answer", [IssuerKeysError("it is away"), b"{}"])
async def test_issuer_that_is_away_changes_nothing(answer: bytes | Exception, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(jwks(public(EC, "e")), answer)
    await issuer.keys.fetch()
    assert not await issuer.keys.fetch()
    assert issuer.keys.find("e") is not None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].endswith("The keys of the issuer stay as they were.")


async def test_unknown_key_is_looked_for_once_a_minute() -> None:
    issuer = Issuer(jwks(public(EC, "e")))
    issuer.keys.start()
    try:
        async with asyncio.timeout(40):
            await issuer.fetched.wait()
            issuer.fetched.clear()
            for _ in range(5):
                assert issuer.keys.find("new") is None
            issuer.clock.time += 59.0
            assert issuer.keys.find("new") is None
            for _ in range(5):
                await asyncio.sleep(0)  # the task would run now
            assert issuer.fetches == 1
            issuer.answers = [jwks(public(EC, "new"))]
            issuer.clock.time += 1.0
            assert issuer.keys.find("new") is None
            await issuer.fetched.wait()
        assert issuer.fetches == 2
        assert issuer.keys.find("new") is not None
    finally:
        await issuer.keys.close()


async def test_issuer_that_was_never_asked_can_be_closed() -> None:
    await Issuer(b"").keys.close()
