"""The token that the servers of a cluster share: by it one knows a request that another hands over."""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from pathlib import Path
from typing import Final

from geartrain.domain.principal import ANYONE, Principal
from geartrain.transport.wire.exchange import Head

OPTION: Final = "--cluster-token-file"
TOKEN_FIELD: Final = b"geartrain-cluster-token"
KEY_FIELD: Final = b"geartrain-cluster-key"  # the name of the client's key, for the log
PRINCIPAL_FIELD: Final = b"geartrain-cluster-principal"

_EVERYTHING: Final = b"*"
_LEAST: Final = 32  # characters
_MAKE: Final = "head -c 32 /dev/urandom | base64"


class ClusterOptionError(Exception):
    """The options of a cluster cannot be used; the text names the option and says what to do."""


class Sender(StrEnum):
    """Sender of a request, by its token."""

    CLIENT = "client"  # it has none
    SERVER = "server"  # of the cluster
    STRANGER = "stranger"  # it has one that is not right


class ClusterToken:
    """The tokens of an operator's file: the first is sent, and all of them are taken."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self.value = tokens[0]
        self._digests = tuple(hashlib.sha256(token).digest() for token in tokens)

    def sender(self, head: Head) -> Sender:
        """Return the sender of a request. How long it takes tells nothing of the tokens."""
        values = [value for name, value in head.headers if name == TOKEN_FIELD]
        if not values:
            return Sender.CLIENT
        digest = hashlib.sha256(values[0]).digest()
        found = [hmac.compare_digest(digest, each) for each in self._digests]
        return Sender.SERVER if len(values) == 1 and any(found) else Sender.STRANGER


def write_principal(principal: Principal) -> bytes:
    """Return the value of `PRINCIPAL_FIELD`: a name, or `*` for a client that sees every prediction."""
    return _EVERYTHING if principal.sees_all else principal.name.encode("ascii")


def read_principal(head: Head) -> Principal:
    """Return the principal of a relayed request. Without the field it sees no prediction of another one."""
    value = head.header(PRINCIPAL_FIELD) or b""
    return ANYONE if value == _EVERYTHING else Principal(value.decode("latin-1"))


def read_token(path: Path) -> ClusterToken:
    """Return the tokens of a file, one in each line; raise `ClusterOptionError` with the reason."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ClusterOptionError(f"{OPTION}: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ClusterOptionError(f"{OPTION}: {path} is not ASCII. Make a token with: {_MAKE} > {path}") from error
    tokens = [line.strip() for line in lines]
    tokens = [token for token in tokens if token and not token.startswith("#")]
    if not tokens:
        raise ClusterOptionError(f"{OPTION}: {path} has no token. Make one with: {_MAKE} > {path}")
    for token in tokens:
        if len(token) < _LEAST or not token.isprintable() or " " in token:
            msg = f"{OPTION}: a token is {_LEAST} characters or more without spaces, and {path} has another one"
            raise ClusterOptionError(f"{msg}. Make one with: {_MAKE} > {path}")
    return ClusterToken(tuple(token.encode() for token in tokens))
