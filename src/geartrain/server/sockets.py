"""Sockets that the server listens on.

They are its own, or those that systemd, or another supervisor with its protocol, has opened for it: sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, MutableMapping
from typing import Final, Literal, get_args

from geartrain.transport.routing import is_loopback

_BACKLOG: Final = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raise `OSError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def address_text(host: str, port: int) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(listener: socket.socket) -> str:
    """Return the numeric address that a socket is bound to, empty for a path in the file system."""
    name = listener.getsockname()
    return str(name[0]) if isinstance(name, tuple) else ""


def served_host(listeners: Iterable[socket.socket]) -> str:
    """Return the address of these sockets that most clients can reach, empty if none has one."""
    hosts = [host for host in map(host_of, listeners) if host]
    return next((host for host in hosts if not is_loopback(host)), hosts[0] if hosts else "")


def location(listener: socket.socket, host: str = "") -> str:
    """Return the address of a socket, for a URL or behind `unix:`; `host` counts before its address."""
    name = listener.getsockname()
    if isinstance(name, tuple):
        return address_text(host or str(name[0]), name[1])
    path = name if isinstance(name, str) else name.decode(errors="surrogateescape")
    return f"unix:{path.replace(chr(0), '@', 1)}"


def url_of(scheme: str, where: str) -> str:
    """Return the URL of a server at a location."""
    return where if where.startswith("unix:") else f"{scheme}://{where}"


Role = Literal["http", "admin", "grpc"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
_FIRST: Final = 3  # the descriptor of the first socket
_MOST: Final = 64  # sockets; more are a mistake
_DIGITS: Final = 9  # of that number
_SHOWN: Final = 40  # characters of a wrong number
_PID: Final = "LISTEN_PID"
_COUNT: Final = "LISTEN_FDS"
_NAMES: Final = "LISTEN_FDNAMES"
_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6, socket.AF_UNIX})

Sockets = dict[Role, tuple[socket.socket, ...]]


class ActivationError(Exception):
    """A socket that has been passed to the server cannot be used; the text says which, and why."""


def passed_sockets(environ: MutableMapping[str, str], first: int = _FIRST) -> Sockets:
    """Return the sockets that have been passed to this process, by what they are for; raise `ActivationError`.

    The names `http`, `admin` and `grpc` say what a socket is for. If no socket has one of them, all are for HTTP. The
    variables are removed, since they are not meant for workers. `first`: the descriptor of the first socket.
    """
    pid, count, names = (environ.pop(name, "") for name in (_PID, _COUNT, _NAMES))
    if pid != str(os.getpid()) or not count:
        return {}
    # The length first: `int` refuses thousands of digits with a ValueError.
    if not (count.isascii() and count.isdecimal() and len(count) <= _DIGITS and int(count) <= _MOST):
        raise ActivationError(f"{_COUNT} is {count[:_SHOWN]!r}; it has to be a number up to {_MOST}.")
    found: Sockets = {}
    for descriptor, role in enumerate(_roles(names, int(count)), start=first):
        found[role] = (*found.get(role, ()), _adopt(descriptor))
    return found


def _roles(text: str, count: int) -> list[Role]:
    names = text.split(":") if text else []
    if names and len(names) != count:
        raise ActivationError(f"{_NAMES} has {len(names)} names for {count} sockets.")
    if not set(names).intersection(ROLES):
        names = ["http"] * count
    roles: list[Role] = []
    for name in names:
        if name not in ROLES:
            known = ", ".join(ROLES)
            raise ActivationError(f"A socket has the name '{name}'; write FileDescriptorName= with one of {known}.")
        roles.append(name)
    return roles


def _adopt(descriptor: int) -> socket.socket:
    """Return the socket; raise `ActivationError` unless it is one that listens for connections."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ActivationError(f"Descriptor {descriptor}, which was passed as a socket, is none.")
        os.set_inheritable(descriptor, False)
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ActivationError(f"Socket {descriptor} cannot be used: {error.strerror}.") from error
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if found.family not in _FAMILIES or found.type != socket.SOCK_STREAM or not listens:
        found.detach()  # it is not ours to close
        raise ActivationError(
            f"Socket {descriptor} does not listen for connections; write ListenStream= and Accept=no in its unit."
        )
    return found
