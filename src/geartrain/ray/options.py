"""Options of models on Ray. Nothing of ray is imported here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from geartrain.project.errors import ProjectError
from geartrain.server.asgi import read_options
from geartrain.server.asgi_options import AsgiOptions
from geartrain.server.options import ClusterOptions, ServeOptions
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.wire.limits import WireLimits

_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://")
_RANGE: Final = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?", re.ASCII)
NO_ADMINISTRATION: Final = (
    "This server is one of several replicas on Ray Serve, and administration would reach this one only. "
    "Deploy with another user_config instead: `load` in it names the models that all replicas have."
)
_IDLE: Final = 0.0  # seconds: no limit. The proxies of Ray keep connections, and may use one at any time


class ReplicaOptions(AsgiOptions, total=False):
    """The options of a replica: those of `geartrain.asgi`, and who may come in.

    Replicas share a store in Postgres; a file of SQLite is one server's own. Files are named as they are on every node.

    Attributes:
        keys: the file of keys, on every node. Requests need one of them; see docs/security.md.
        cors_origins: origins whose pages may send requests.
        allowed_hosts: names that clients may call the server by; any by default.
        cluster_token_file: the file of the token by which replicas know each other, on every node. With it they hand
            requests over to the replica that runs a prediction; it needs a store in Postgres. See docs/scale.md.
    """

    keys: str | os.PathLike[str]
    cors_origins: Iterable[str]
    allowed_hosts: Iterable[str]
    cluster_token_file: str | os.PathLike[str]


_OWN: Final = ReplicaOptions.__annotations__.keys() - AsgiOptions.__annotations__.keys()
_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgres:", "postgresql:")
_NOT_HERE: Final = frozenset({"shared_memory", "wait_ready"})  # a replica is one of several, and always waits


class Scale(NamedTuple):
    """Least and most number of replicas."""

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        """True if their number never changes."""
        return self.least == self.most


ONE: Final = Scale(1, 1)


def read_scale(text: str | int) -> Scale:
    """Parse `MIN:MAX`, or one number; raise `ProjectError`."""
    match = _RANGE.fullmatch(str(text))
    if match is not None:
        least, most = int(match[1]), int(match[2] or match[1])
        if 1 <= least <= most:
            return Scale(least, most)
    raise ProjectError(f"{text!r} is no number of replicas; write one from 1 on, or MIN:MAX such as 1:4")


def check_options(options: Mapping[str, Any], scale: Scale = ONE) -> None:
    """Raise `ProjectError` for an option that is unknown, or useless on Ray or for so many replicas."""
    store = str(options.get("store", ""))
    if store.startswith(_SQLITE) and scale.most > 1:
        raise ProjectError(
            f"a store in SQLite is one server's own, and there are up to {scale.most} replicas; "
            "write postgres://USER@HOST/DATABASE"
        )
    if "cluster_token_file" in options and not store.startswith(_POSTGRES):
        msg = "cluster_token_file needs a store that replicas can share: store=postgres://USER@HOST/DATABASE"
        raise ProjectError(msg)
    known = sorted((AsgiOptions.__annotations__.keys() | _OWN) - _NOT_HERE)
    for name in options:
        if name not in known:
            raise ProjectError(f"geartrain.ray.app() knows no option {name}; it has {', '.join(known)}")


def absolute(models: str | os.PathLike[str]) -> str:
    """Return a path that names the same in every process, or a reference to models elsewhere as it is."""
    text = os.fspath(models)
    target, colon, runner = text.partition(":")
    if _REMOTE.match(text) or not Path(target).exists():
        return text
    return f"{Path(target).resolve()}{colon}{runner}"


def serve_options(models: str, options: Mapping[str, Any], labels: Mapping[str, str], *, node: str) -> ServeOptions:
    """Return the options of the server that is a replica; raises `ProjectError` for models that are not there.

    `node`: the address by which other nodes reach this one.
    """
    check_options(options)
    found = read_options(models, AsgiOptions(**{name: options[name] for name in options if name not in _OWN}))  # type: ignore[typeddict-item]
    return dataclasses.replace(
        found,
        host="0.0.0.0",  # noqa: S104 - as Ray: its proxies come from all nodes
        wire=WireLimits(max_buffered_size=found.wire.max_buffered_size, idle_timeout=_IDLE),
        grpc=GrpcOptions(port=None),
        access=AccessOptions(
            keys=Path(options["keys"]) if "keys" in options else None,
            cors_origins=tuple(options.get("cors_origins", ())),
            allowed_hosts=tuple(options.get("allowed_hosts", ())),
            no_administration=NO_ADMINISTRATION,
        ),
        cluster=_read_cluster(options, node),
        metric_labels=labels,
    )


def _read_cluster(options: Mapping[str, Any], node: str) -> ClusterOptions:
    """Return the connections of the replicas to each other, if any."""
    if "cluster_token_file" not in options:
        return ClusterOptions()
    return ClusterOptions(advertise=node, token_file=Path(options["cluster_token_file"]))
