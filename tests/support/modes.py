"""How the servers of tests are served, and how their clients come in: `pytest --wire`, and the name of a mode.

Fixtures and clients ask `current()`, so the same tests run in each mode.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import re
import secrets
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from geartrain.server.options import StoreOptions
from geartrain.transport.access.guard import SCOPES
from geartrain.transport.access.keys import Key, add_key, digest_of, new_key
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.wire.tls import TlsContext, TlsFiles

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

_METHODS = b"GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS"
REQUEST_LINE = re.compile(rb"((?:%b) )([^ \r\n]+ HTTP/1\.[01]\r\n)" % _METHODS)  # right behind a body too


class Credentials(NamedTuple):
    """What a client needs: whom it trusts, and a key for everything."""

    authority: Path
    trust: ssl.SSLContext
    key: str


class Own:
    """The server's own connections, plain, and nobody is asked for a key."""

    is_hosted = False  # by a server of others, in the test's own process
    has_store = False  # each server has one of its own
    is_fronted = False  # by HAProxy, as Ray Serve has it
    is_replicated = False  # three replicas on Ray Serve, which share a store
    scheme = "http"

    def __init__(self) -> None:
        self.arguments: tuple[str, ...] = ()  # of `geartrain serve`
        self.tls: TlsContext | None = None  # of the server
        self.credentials: Credentials | None = None
        self.headers: dict[str, str] = {}  # that let a client in
        self.client_options: dict[str, Any] = {}  # of httpx
        self.lasting = contextlib.ExitStack()  # what all tests of a run share

    def access(self, options: AccessOptions) -> AccessOptions:
        """Return who may come in."""
        return options

    def store(self) -> StoreOptions:
        """Return where one more server keeps its predictions."""
        return StoreOptions()

    def trust(self, url: str) -> ssl.SSLContext | None:
        """Return what a client opens a connection to `url` with."""
        return None

    def authorize(self, data: bytes) -> bytes:
        """Return requests as they are sent."""
        return data

    def close(self) -> None:
        """Remove what was made for the tests."""
        self.lasting.close()


class Hosted(Own):
    """The ASGI application inside uvicorn."""

    is_hosted = True


class Stored(Own):
    """The server's own connections, and a store for each server."""

    has_store = True

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(self.lasting.enter_context(tempfile.TemporaryDirectory(prefix="stored-")))
        self._numbers = itertools.count()
        self._keys = self._folder / "keys"
        self._keys.write_bytes(base64.b64encode(secrets.token_bytes(32)))
        self._keys.chmod(0o600)

    def store(self) -> StoreOptions:
        """Return where one more server keeps its predictions."""
        return StoreOptions(url=self._another(f"s{next(self._numbers)}"), key_file=self._keys)

    def _another(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"


class StoredInPostgres(Stored):
    """The same in a Postgres of the tests' own, where each server has a database."""

    def _another(self, name: str) -> str:
        return self._postgres.another(name)

    @functools.cached_property
    def _postgres(self) -> Postgres:
        from tests.support.postgres import running_postgres  # late: not every environment has psycopg

        return self.lasting.enter_context(running_postgres())


class Fronted(Own):
    """The server's own connections, which are those of HAProxy: clients reach that."""

    is_fronted = True


class Replicated(Own):
    """Applications of Ray Serve, each with three replicas and a store that they share: `tests/support/replicas.py`."""

    has_store = True
    is_fronted = True
    is_replicated = True


class Secured(Own):
    """The server's own connections, with TLS, for clients with a key."""

    scheme = "https"

    def __init__(self) -> None:
        super().__init__()
        folder = Path(self.lasting.enter_context(tempfile.TemporaryDirectory(prefix="secured-")))
        from tests.support.certificates import make_party  # late: not every environment has cryptography

        authority = make_party("authority")
        trusted, _ = authority.write(folder, "authority")
        cert, private = make_party("server", authority).write(folder, "server")
        key = new_key()
        self._keys = folder / "keys"
        add_key(self._keys, Key("tests", tuple(SCOPES), digest_of(key)))
        self._trust = ssl.create_default_context(cafile=str(trusted))
        self.arguments = ("--tls-cert", str(cert), "--tls-key", str(private), "--keys", str(self._keys))
        self.tls = TlsContext(TlsFiles(cert=cert, key=private))
        self.credentials = Credentials(trusted, self._trust, key)
        self.headers = {"authorization": f"Bearer {key}"}
        self.client_options = {"verify": self._trust, "headers": self.headers}

    def access(self, options: AccessOptions) -> AccessOptions:
        """Return who may come in: of those, who has the key."""
        return msgspec.structs.replace(options, keys=self._keys)

    def trust(self, url: str) -> ssl.SSLContext | None:
        """Return what a client opens a connection to `url` with."""
        return self._trust if url.startswith("https:") else None

    def authorize(self, data: bytes) -> bytes:
        """Return requests with the key in each of them."""
        field = f"authorization: {self.headers['authorization']}\r\n".encode()
        return REQUEST_LINE.sub(lambda line: line[0] + field, data)


MODES: dict[str, type[Own]] = {
    "own": Own,
    "secured": Secured,
    "asgi": Hosted,
    "stored": Stored,
    "stored-postgres": StoredInPostgres,
    "haproxy": Fronted,
    "ray": Replicated,
}

_chosen: list[Own] = [Own()]


def current() -> Own:
    """Return the mode of this run."""
    return _chosen[-1]


def use(name: str) -> None:
    """Have the tests run in the mode of that name."""
    _chosen.append(MODES[name]())
