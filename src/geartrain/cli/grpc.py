"""The options of `geartrain serve` for gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from geartrain.cli.options import parse_size
from geartrain.transport.grpc.options import DEFAULT_PORT, GrpcOptions, TlsFiles

_OFF: Final = "off"
_NO_PORT: Final = -1
_PORTS: Final = range(65536)


def parse_port(text: str | int) -> int:
    """Read a port, or the word for none, which becomes -1."""
    if isinstance(text, int):
        return text
    if text.strip().lower() == _OFF:
        return _NO_PORT
    if text.isascii() and text.isdecimal() and int(text) in _PORTS:
        return int(text)
    raise typer.BadParameter(f"{text!r} is no port; write a number from 0 to 65535, or {_OFF}")


Port = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        parser=parse_port,
        metavar="PORT",
        show_default=False,
        help=f"The port of gRPC, {_OFF} for none; {DEFAULT_PORT} by default, and none if that one is taken.",
    ),
]
MaxMessageSize = Annotated[
    int | None,
    typer.Option(
        "--grpc-max-message-size",
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="The largest message over gRPC, in or out; no limit by default.",
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option("--grpc-tls-cert", metavar="FILE", help="The server's certificate: gRPC with TLS.")
]
TlsKey = Annotated[Path | None, typer.Option("--grpc-tls-key", metavar="FILE", help="The key of that certificate.")]
TlsCa = Annotated[
    Path | None,
    typer.Option("--grpc-tls-ca", metavar="FILE", help="Let only clients in whose certificate this CA has signed."),
]


def grpc_options(
    port: int | None, max_message_size: int | None, cert: Path | None, *, key: Path | None, ca: Path | None
) -> GrpcOptions:
    """Put the options together; raises `typer.BadParameter` for a certificate without its key and the like."""
    tls = None
    if cert is not None and key is not None:
        tls = TlsFiles(cert=cert, key=key, ca=ca)
    elif cert is not None or key is not None or ca is not None:
        raise typer.BadParameter("TLS needs both --grpc-tls-cert and --grpc-tls-key")
    chosen = DEFAULT_PORT if port is None else port
    return GrpcOptions(
        port=None if chosen == _NO_PORT else chosen,
        is_explicit=port is not None,
        max_message_bytes=max_message_size,
        tls=tls,
    )
