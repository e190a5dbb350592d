"""The options of `geartrain serve` for connections: addresses, limits, and TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from geartrain.cli.declared import Option, unusable
from geartrain.cli.options import CONNECTIONS, SECURITY, parse_duration, parse_size
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.tls import TlsFiles

DEFAULTS: Final = WireLimits()
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_MAX_JSON_ELEMENTS: Final = 2_000_000


def _size(text: str) -> Option:
    option: Option = Option(
        parser=parse_size, metavar="SIZE", show_default=False, help=text, rich_help_panel=CONNECTIONS
    )
    return option


def _time(text: str) -> Option:
    option: Option = Option(
        parser=parse_duration, metavar="TIME", show_default=False, help=text, rich_help_panel=CONNECTIONS
    )
    return option


Host = Annotated[
    str,
    Option(
        envvar="HOST",
        metavar="ADDRESS",
        help="The address to listen on; 0.0.0.0 for all addresses of the machine, as in a container.",
        rich_help_panel=CONNECTIONS,
    ),
]
AdminPort = Annotated[
    int | None,
    Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="A port of their own for administration (load, unload, shared memory, shutdown) and metrics; 0 for any "
        "free one.",
        rich_help_panel=CONNECTIONS,
    ),
]
MaxBodySize = Annotated[int, _size("The largest body of a request; 100MiB by default. 0 disables this limit.")]
MaxHeadSize = Annotated[
    int, _size("The largest head of a request, and the largest trailers; 32KiB by default. 0 disables this limit.")
]
MaxBufferedSize = Annotated[
    int | None,
    _size(
        "What the bodies of all connections may take together; by default a quarter of the memory that the server may "
        "use. 0 disables this limit."
    ),
]
MaxJsonElements = Annotated[
    int,
    Option(
        min=0,
        metavar="N",
        help="How many elements a JSON body may have besides the data of tensors. 0 disables this limit.",
        rich_help_panel=CONNECTIONS,
    ),
]
MaxConnections = Annotated[
    int,
    Option(
        min=0,
        metavar="N",
        help="How many connections may be open at once. 0 disables this limit.",
        rich_help_panel=CONNECTIONS,
    ),
]
MaxConnectionsPerClient = Annotated[
    int,
    Option(
        min=0,
        metavar="N",
        help="How many of them may come from one address; 0, the default, disables this limit. All clients of a "
        "proxy share its address.",
        rich_help_panel=CONNECTIONS,
    ),
]
HeadTimeout = Annotated[
    float, _time("How long the head of a request may take to come; 10s by default. 0 disables this limit.")
]
BodyTimeout = Annotated[
    float,
    _time("The time in which 10 KiB of a body, or its rest, have to come; 10s by default. 0 disables this limit."),
]
IdleTimeout = Annotated[
    float, _time("How long a connection may be without a request; 75s by default. 0 disables this limit.")
]
SendTimeout = Annotated[
    float,
    _time("How long a client may take nothing of its answer; 60s by default. 0 disables this limit."),
]
TlsCert = Annotated[
    Path | None,
    Option(
        "--tls-cert",
        metavar="FILE",
        help="Serve over TLS with this certificate, PEM. A renewed one is taken up without a restart.",
        rich_help_panel=SECURITY,
    ),
]
TlsKey = Annotated[
    Path | None,
    Option("--tls-key", metavar="FILE", help="The key of that certificate.", rich_help_panel=SECURITY),
]
TlsClientCa = Annotated[
    Path | None,
    Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Let in only clients whose certificate was signed by this CA.",
        rich_help_panel=SECURITY,
    ),
]
AllowPrivateUrls = Annotated[
    bool,
    Option(
        "--allow-private-urls",
        help="Let clients' URLs (inputs, webhooks, output_file_prefix) point into the server's own networks.",
        rich_help_panel=SECURITY,
    ),
]


def tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Put the options together; raises `typer.BadParameter` for a certificate without its key and the like."""
    if cert is not None and key is not None:
        return TlsFiles(cert=cert, key=key, client_ca=client_ca)
    if cert is not None or key is not None or client_ca is not None:
        raise unusable("TLS needs both --tls-cert and --tls-key")
    return None


def limits(
    max_buffered_size: int | None,
    *,
    max_head_size: int,
    connections: tuple[int, int],
    timeouts: tuple[float, float, float, float],
) -> WireLimits:
    """Put the limits together, which have the names of the options; without a size for all bodies the usual one.

    `connections`: how many there may be, and how many of one client. `timeouts`: of a head, of a body, of a connection
    without a request, and of an answer that is not taken.
    """
    if max_buffered_size is None:
        from geartrain.server.memory import default_limits  # late: the server is imported after the checks

        max_buffered_size = default_limits().max_buffered_size
    total, per_client = connections
    head, body, idle, send = timeouts
    return WireLimits(
        max_head_size=max_head_size,
        max_buffered_size=max_buffered_size,
        max_connections=total,
        max_connections_per_client=per_client,
        head_timeout=head,
        body_timeout=body,
        idle_timeout=idle,
        send_timeout=send,
    )
