"""Connections between this server and those that share its store."""

from __future__ import annotations

import dataclasses
import math
import socket
import ssl
from typing import TYPE_CHECKING

import msgspec

from geartrain.server.sockets import address_text
from geartrain.transport.relay.relay import PeerPool, Relay, RelayCounts, split_address
from geartrain.transport.relay.token import OPTION, ClusterOptionError, read_token

if TYPE_CHECKING:
    from geartrain.server.options import ServeOptions


def open_relay(options: ServeOptions, counts: RelayCounts) -> Relay | None:
    """Open the relay to the other servers, which reports its outcomes to `counts`; None for a server that is alone.

    Raises `ClusterOptionError` for options that do not fit together.
    """
    cluster = options.cluster
    if not cluster.advertise:
        if cluster.token_file is not None or cluster.ca is not None:
            raise ClusterOptionError(f"{OPTION} and --cluster-ca need --advertise HOST:PORT")
        return None
    if not options.store.url.startswith(("postgres://", "postgresql://")):
        msg = "--advertise needs a store that servers can share: --store postgres://USER@HOST/DATABASE"
        raise ClusterOptionError(msg)
    if cluster.token_file is None:
        raise ClusterOptionError(f"--advertise needs {OPTION} FILE: a token that all servers share")
    token = read_token(cluster.token_file)
    retry_after = max(1, math.ceil(options.store.lease / 3))
    return Relay(token, PeerPool(_tls(options)), retry_after=retry_after, counts=counts)


def with_address(options: ServeOptions, listener: socket.socket) -> ServeOptions:
    """Return the options with the whole address that others are told: a host alone gets the port of `listener`.

    Raises `ClusterOptionError` for what is no address.
    """
    cluster, text = options.cluster, options.cluster.advertise
    if not text:
        return options
    name = listener.getsockname()
    for candidate in (text, address_text(text, name[1]) if isinstance(name, tuple) else text):
        try:
            host, port = split_address(candidate)
        except ValueError:
            continue
        address = address_text(host, port)
        return dataclasses.replace(options, cluster=msgspec.structs.replace(cluster, advertise=address))
    raise ClusterOptionError(f"--advertise: {text!r} is no address; write HOST:PORT, or HOST for the port of --port")


def _tls(options: ServeOptions) -> ssl.SSLContext | None:
    """Return the TLS context for connections to the others: they have TLS if this server has it."""
    files, ca = options.tls, options.cluster.ca
    if files is None:
        if ca is not None:
            raise ClusterOptionError("--cluster-ca needs --tls-cert: without it the servers do not use TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        context.load_cert_chain(files.cert, files.key)  # for servers with --tls-client-ca
    except (OSError, ssl.SSLError) as error:
        raise ClusterOptionError(f"--cluster-ca: {ca} has no certificate: {error}") from error
    return context
