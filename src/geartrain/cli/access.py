"""The options of `geartrain serve` about who may come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final

from geartrain.cli.declared import Option, unusable
from geartrain.cli.options import SECURITY
from geartrain.transport.access.options import AccessOptions, JwtOptions

DEFAULT_SCOPE_CLAIM: Final = "scope"

Keys = Annotated[
    Path | None,
    Option(
        "--keys",
        metavar="FILE",
        help="Ask clients for a key of this file, over HTTP and gRPC; `geartrain keys new` adds one.",
        rich_help_panel=SECURITY,
    ),
]
JwtIssuer = Annotated[
    str | None,
    Option(
        "--jwt-issuer",
        metavar="URL",
        help="Take the tokens (JWT) of this issuer, beside the keys.",
        rich_help_panel=SECURITY,
    ),
]
JwtAudience = Annotated[
    list[str] | None,
    Option(
        "--jwt-audience",
        metavar="NAME",
        help="Take only tokens for this audience; may be repeated.",
        rich_help_panel=SECURITY,
    ),
]
JwtJwks = Annotated[
    str,
    Option(
        "--jwt-jwks",
        metavar="URL|FILE",
        show_default=False,
        help="Where the issuer's public keys are; without it the issuer is asked.",
        rich_help_panel=SECURITY,
    ),
]
JwtScopeClaim = Annotated[
    str,
    Option(
        "--jwt-scope-claim",
        metavar="NAME",
        help="The claim of a token that lists its scopes.",
        rich_help_panel=SECURITY,
    ),
]
JwtModelsClaim = Annotated[
    str,
    Option(
        "--jwt-models-claim",
        metavar="NAME",
        show_default=False,
        help="The claim of a token that lists patterns of models; without it a token is for all models.",
        rich_help_panel=SECURITY,
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    Option(
        "--cors-origin",
        metavar="ORIGIN",
        help="Let pages of this origin, such as https://app.example.com, use the server; * for any; may be repeated.",
        rich_help_panel=SECURITY,
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    Option(
        "--allowed-host",
        metavar="NAME",
        help="A name that clients may call the server by, such as models.example.com or *.example.com; may be "
        "repeated. By default any, and on a loopback address those of the loopback alone.",
        rich_help_panel=SECURITY,
    ),
]


def jwt_options(
    issuer: str | None, audience: list[str] | None, jwks: str, *, scope: str, models: str
) -> JwtOptions | None:
    """Put the options of tokens together; raises `typer.BadParameter` for some of them without the others.

    `scope` and `models` name claims.
    """
    if issuer is None:
        if audience or jwks or models or scope != DEFAULT_SCOPE_CLAIM:
            raise unusable("the options of tokens need --jwt-issuer")
        return None
    if not issuer.startswith(("https://", "http://")):
        raise unusable(f"--jwt-issuer: {issuer!r} is no URL; write it as in the claim `iss` of the tokens")
    if not audience:
        msg = "--jwt-issuer needs --jwt-audience: tokens that the issuer made for other services would pass"
        raise unusable(msg)
    return JwtOptions(issuer=issuer, audience=tuple(audience), jwks=jwks, scope_claim=scope, models_claim=models)


def access_options(
    keys: Path | None, jwt: JwtOptions | None, *, cors_origins: list[str] | None, allowed_hosts: list[str] | None
) -> AccessOptions:
    """Put the options together; raises `typer.BadParameter` for what is no origin or no name of a host."""
    from geartrain.transport.access.origins import (
        read_name,  # late: most servers have no such options
        read_origin,
    )

    return AccessOptions(
        keys=keys,
        jwt=jwt,
        cors_origins=tuple(_read_all("--cors-origin", cors_origins or (), read_origin)),
        allowed_hosts=tuple(_read_all("--allowed-host", allowed_hosts or (), read_name)),
    )


def _read_all(option: str, texts: Iterable[str], read: Callable[[str], str]) -> Iterable[str]:
    for text in texts:
        try:
            yield read(text)
        except ValueError as error:
            raise unusable(f"{option}: {error}") from None
