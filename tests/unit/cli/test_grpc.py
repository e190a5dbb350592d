"""The options of `geartrain serve` for gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from geartrain.cli.serve_command import GRPC_TLS, grpc_port, tls_files
from geartrain.project.source import ModelSource
from geartrain.server.option_table import BY_NAME
from geartrain.server.options import options_of
from geartrain.transport.grpc.options import DEFAULT_PORT, GrpcOptions
from geartrain.transport.wire.tls import TlsFiles, TlsOptions

CERT, KEY, CA = Path("cert.pem"), Path("key.pem"), Path("ca.pem")


def parse_port(text: str) -> int:
    read = BY_NAME["grpc_port"].kind.read
    assert read is not None
    port: int = read(text)
    return port


def grpc_options(port: int | None, max_message_size: int | None) -> GrpcOptions:
    source = ModelSource(name="pets", root=Path(), runner="run.py")
    fields: dict[str, Any] = {"source": source, **grpc_port(port)}
    return options_of({"grpc_max_message_size": max_message_size}, fields).grpc


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("8081", 8081), ("65535", 65535), ("off", -1), (" OFF ", -1)])
def test_port_is_a_number_or_off(text: str, port: int) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize("text", ["", "none", "-1", "65536", "80 81", "²", "8081x"])
def test_other_words_are_no_port(text: str) -> None:
    with pytest.raises(ValueError, match="write a number from 0 to 65535, or off"):
        parse_port(text)


def test_port_that_nobody_named_is_not_insisted_on() -> None:
    assert grpc_options(None, None) == GrpcOptions(port=DEFAULT_PORT, is_explicit=False)
    assert grpc_options(DEFAULT_PORT, None) == GrpcOptions(port=DEFAULT_PORT, is_explicit=True)
    assert grpc_options(parse_port("off"), 5) == GrpcOptions(port=None, is_explicit=True, max_message_bytes=5)
    assert grpc_options(None, 0).max_message_bytes == 0
    assert grpc_options(None, None).max_message_bytes == 256 * 1024**2


def test_tls_needs_a_certificate_and_its_key() -> None:
    options = TlsOptions(cert="--grpc-tls-cert", key="--grpc-tls-key", client_ca="--grpc-tls-ca")
    assert tls_files(CERT, KEY, CA, options=GRPC_TLS) == TlsFiles(cert=CERT, key=KEY, client_ca=CA, options=options)
    assert tls_files(CERT, KEY, None, options=GRPC_TLS) == TlsFiles(cert=CERT, key=KEY, options=options)
    assert tls_files(None, None, None, options=GRPC_TLS) is None


@pytest.mark.parametrize(("cert", "key", "ca"), [(CERT, None, None), (None, KEY, None), (None, None, CA)])
def test_half_of_tls_is_refused(cert: Path | None, key: Path | None, ca: Path | None) -> None:
    with pytest.raises(typer.BadParameter, match="both --grpc-tls-cert and --grpc-tls-key"):
        tls_files(cert, key, ca, options=GRPC_TLS)
