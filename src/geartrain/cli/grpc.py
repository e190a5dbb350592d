"""The options of `geartrain serve` for gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from geartrain.cli.declared import Option, unusable
from geartrain.cli.options import GRPC, parse_size
from geartrain.transport.grpc.options import DEFAULT_MAX_MESSAGE, DEFAULT_PORT, GrpcOptions
from geartrain.transport.wire.tls import TlsFiles, TlsOptions

_OFF: Final = "off"
_NO_PORT: Final = -1
_PORTS: Final = range(65536)
_TLS_OPTIONS: Final = TlsOptions(cert="--grpc-tls-cert", key="--grpc-tls-key", client_ca="--grpc-tls-ca")


def parse_port(text: str | int) -> int:
    """Read a port, or the word for none, which becomes -1."""
    if isinstance(text, int):
        return text
    if text.strip().lower() == _OFF:
        return _NO_PORT
    if text.isascii() and text.isdecimal() and int(text) in _PORTS:
        return int(text)
    raise unusable(f"{text!r} is no port; write a number from 0 to 65535, or {_OFF}")


Port = Annotated[
    int | None,
    Option(
        "--grpc-port",
        parser=parse_port,
        metavar="PORT",
        show_default=False,
        help=f"The port of gRPC, {_OFF} for none; {DEFAULT_PORT} by default, and none if that one is taken.",
        rich_help_panel=GRPC,
    ),
]
MaxMessageSize = Annotated[
    int | None,
    Option(
        "--grpc-max-message-size",
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="The largest message that is taken over gRPC; 256MiB by default, 0 disables this limit.",
        rich_help_panel=GRPC,
    ),
]
TlsCert = Annotated[
    Path | None,
    Option(
        "--grpc-tls-cert",
        metavar="FILE",
        help="Another certificate for gRPC than --tls-cert, or one for gRPC alone.",
        rich_help_panel=GRPC,
    ),
]
TlsKey = Annotated[
    Path | None,
    Option("--grpc-tls-key", metavar="FILE", help="The key of that certificate.", rich_help_panel=GRPC),
]
TlsCa = Annotated[
    Path | None,
    Option(
        "--grpc-tls-ca",
        metavar="FILE",
        help="Let in only clients whose certificate was signed by this CA; needs --grpc-tls-cert.",
        rich_help_panel=GRPC,
    ),
]


def tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """Put the options together; raises `typer.BadParameter` for a certificate without its key and the like."""
    if cert is not None and key is not None:
        return TlsFiles(cert=cert, key=key, client_ca=ca, options=_TLS_OPTIONS)
    if cert is not None or key is not None or ca is not None:
        raise unusable("TLS needs both --grpc-tls-cert and --grpc-tls-key")
    return None


def grpc_options(
    port: int | None, max_message_size: int | None, tls: TlsFiles | None, *, has_administration: bool = True
) -> GrpcOptions:
    """Combine the options; the default port may be busy."""
    chosen = DEFAULT_PORT if port is None else port
    return GrpcOptions(
        port=None if chosen == _NO_PORT else chosen,
        is_explicit=port is not None,
        max_message_bytes=DEFAULT_MAX_MESSAGE if max_message_size is None else max_message_size,
        tls=tls,
        has_administration=has_administration,
    )


def no_port() -> GrpcOptions:
    """Return the options of a server that takes gRPC on the port of HTTP alone."""
    return GrpcOptions(port=None)
