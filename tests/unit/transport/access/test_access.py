"""The parts of access put together: keys and tokens side by side."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from geartrain.domain.errors import GeartrainError
from geartrain.transport.access.access import Access
from geartrain.transport.access.guard import EVERYTHING
from geartrain.transport.access.options import AccessError, AccessOptions, JwtOptions
from tests.unit.transport.access.parts import line, write_keys

ISSUER = "https://issuer.example"


def jwt_options(jwks: Path) -> JwtOptions:
    return JwtOptions(issuer=ISSUER, audience=("models",), jwks=str(jwks))


def test_access_without_options_is_for_everybody() -> None:
    assert Access(AccessOptions(), "0.0.0.0").authorizer.authorize([]) is EVERYTHING  # noqa: S104


async def test_keys_and_tokens_are_taken_side_by_side(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public]}))
    keys = write_keys(tmp_path / "keys", line("one"))
    access = Access(AccessOptions(keys=keys, jwt=jwt_options(jwks)), "127.0.0.1")
    claims = {"iss": ISSUER, "aud": "models", "exp": 4_000_000_000, "scope": "read"}
    bearer = f"Bearer {jwt.encode(claims, private, 'ES256')}"
    with pytest.raises(GeartrainError, match="its key is not one that the issuer is known to have"):
        access.authorizer.authorize([bearer])
    fetched = asyncio.Event()
    access.on_change(fetched.set)
    access.start()
    async with asyncio.timeout(40):
        await fetched.wait()
    assert access.authorizer.authorize([bearer]).scopes == {"read"}
    assert access.authorizer.authorize(["Bearer one"]).holder == "key 'ada'"
    await access.close()


@pytest.mark.parametrize("package", ["jwt", "cryptography"])
def test_tokens_without_their_packages_end_the_start(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for module in [name for name in sys.modules if name.startswith("geartrain.transport.access.")]:
        if module.endswith(("issuer", "tokens")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AccessError, match=r"a package that is not installed .*: pip install 'geartrain\[jwt\]'"):
        Access(AccessOptions(jwt=jwt_options(Path("jwks"))), "127.0.0.1")


def test_server_does_not_start_without_its_keys(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="it cannot be read"):
        Access(AccessOptions(keys=tmp_path / "none"), "127.0.0.1")
