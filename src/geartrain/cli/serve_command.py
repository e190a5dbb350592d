"""The command `geartrain serve`: a model over HTTP. Typer is not imported here: that takes longer than all of a start.

Only a command line that is plainly right is read, by the table of options; all else is left to Typer, whose options are
made of the same table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, get_args, get_origin

from geartrain.cli import serving
from geartrain.cli.failure import UnclearError, fail
from geartrain.cli.options import unusable
from geartrain.server.option_kinds import NO_PORT, SWITCH, TEXTS, TRUTH, Option
from geartrain.server.option_table import BY_FLAG, DEFAULTS, TABLE
from geartrain.transport.access.options import JwtOptions
from geartrain.transport.wire.tls import TlsFiles, TlsOptions

if TYPE_CHECKING:
    from geartrain.project.variables import Variables

_LONGEST_NUMBER: Final = 9  # digits

GRPC_TLS: Final = TlsOptions(cert="--grpc-tls-cert", key="--grpc-tls-key", client_ca="--grpc-tls-ca")


def read(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str | None, dict[str, Any]]:
    """Read the model and the options of `geartrain serve`, by name. Raises `UnclearError`."""
    models: list[str] = []
    given: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            models.append(word)
            continue
        name, equals, text = word.partition("=")
        option = BY_FLAG.get(name)
        if option is None or option.kind is TRUTH or (option.kind is SWITCH and equals):
            raise UnclearError
        value = True if option.kind is SWITCH else _value(option, text if equals else next(left, ""))
        if option.kind is TEXTS:
            given.setdefault(option.name, []).append(value)
        elif option.name in given:
            raise UnclearError
        else:
            given[option.name] = value
    if len(models) > 1 or "" in models:
        raise UnclearError
    for option in TABLE:
        text = environ.get(option.variable, "")
        if text and option.name not in given:
            given[option.name] = _value(option, text)
    return (models[0] if models else None), given


def _value(option: Option, text: str) -> Any:
    """Return the value of an option that a word stands for. Raises `UnclearError`."""
    kind = option.kind
    if not text or text.startswith("-"):
        raise UnclearError
    if kind.read is not None:
        try:
            return kind.read(text)
        except ValueError as error:  # Typer tells what is wrong
            raise UnclearError from error
    if kind.type is str or kind is TEXTS or (get_origin(kind.type) is Literal and text in get_args(kind.type)):
        return text
    if kind.type is int and text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER:
        number = int(text)
        if (option.least or 0) <= number and (option.most is None or number <= option.most):
            return number
    if kind.type is Path and (os.access(text, os.R_OK) or not Path(text).exists()):
        return Path(text)
    raise UnclearError


def serve(model: str | None, given: Mapping[str, Any]) -> NoReturn:
    """Serve MODEL over HTTP."""
    values = {**DEFAULTS, **given}
    fields: dict[str, Any] = {"access.jwt": _jwt(values), **_tls(values)}  # checked before the model is looked for
    mode, no_pickle = values["x_mode"], values["no_pickle"]
    names = serving.Names(values["model_name"], values["default_model"])
    found = serving.find(model, mode, values["load"], names=names, reload=values["reload"], no_pickle=no_pickle)
    observer, form = serving.observe(found, values["log_level"], values["log_format"])
    from geartrain.server.options import options_of  # after the checks: they take no time

    fields |= {
        "source": found.source,
        "load": found.to_load,
        "port": found.variables.port if values["port"] is None else values["port"],
        **grpc_port(values["grpc_port"]),
        "grpc.has_administration": values["admin_port"] is None,
        **_access(values),
        **_store(values, found.variables),
        "access_log": serving.written_as(values["access_log"], form),
        "residency.on_demand": values["load"] == serving.ON_DEMAND,
        "restarts": serving.restarts(values["restart"], values["restart_limit"]),
    }
    if values["mirror_prints"] == "auto" and form == "console":
        fields["mirror_prints"] = "on"
    if values["max_memory"]:
        _check_measurable()
    sys.exit(serving.run(options_of(values, fields), observer, model, mode=mode, no_pickle=no_pickle))


def tls_files(cert: Path | None, key: Path | None, ca: Path | None, *, options: TlsOptions) -> TlsFiles | None:
    """Return the files for TLS; raises `typer.BadParameter` for a certificate without its key and the like."""
    if cert is not None and key is not None:
        return TlsFiles(cert=cert, key=key, client_ca=ca, options=options)
    if cert is not None or key is not None or ca is not None:
        raise unusable(f"TLS needs both {options.cert} and {options.key}")
    return None


def _tls(values: Mapping[str, Any]) -> dict[str, TlsFiles | None]:
    """Return the files for TLS over HTTP, and those over gRPC, which are the same by default."""
    tls = tls_files(values["tls_cert"], values["tls_key"], values["tls_client_ca"], options=TlsOptions())
    own = tls_files(values["grpc_tls_cert"], values["grpc_tls_key"], values["grpc_tls_ca"], options=GRPC_TLS)
    return {"tls": tls, "grpc.tls": own or tls}


def grpc_port(port: int | None) -> dict[str, Any]:
    """Return the fields of the port of gRPC. The default one may be busy."""
    return {} if port is None else {"grpc.port": None if port == NO_PORT else port, "grpc.is_explicit": True}


def _jwt(values: Mapping[str, Any]) -> JwtOptions | None:
    """Return the options of tokens; raises `typer.BadParameter` for some of them without the others."""
    issuer, audience = values["jwt_issuer"], values["jwt_audience"]
    others = {name: values[f"jwt_{name}"] for name in ("jwks", "scope_claim", "models_claim")}
    if issuer is None:
        if audience or any(value != DEFAULTS[f"jwt_{name}"] for name, value in others.items()):
            raise unusable("the options of tokens need --jwt-issuer")
        return None
    if not issuer.startswith(("https://", "http://")):
        raise unusable(f"--jwt-issuer: {issuer!r} is no URL; write it as in the claim `iss` of the tokens")
    if not audience:
        msg = "--jwt-issuer needs --jwt-audience: tokens that the issuer made for other services would pass"
        raise unusable(msg)
    return JwtOptions(issuer=issuer, audience=tuple(audience), **others)


def _access(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origins and the names of the server; raises `typer.BadParameter` for what is none."""
    from geartrain.transport.access.origins import (
        read_name,  # late: most servers have no such options
        read_origin,
    )

    return {
        "access.cors_origins": tuple(_read_all("--cors-origin", values["cors_origin"] or (), read_origin)),
        "access.allowed_hosts": tuple(_read_all("--allowed-host", values["allowed_host"] or (), read_name)),
    }


def _read_all(option: str, texts: Iterable[str], read: Callable[[str], str]) -> Iterable[str]:
    for text in texts:
        try:
            yield read(text)
        except ValueError as error:
            raise unusable(f"{option}: {error}") from None


def _store(values: Mapping[str, Any], variables: Variables) -> dict[str, Any]:
    """Return the place of stored predictions: an option comes before its variable. Raises `typer.BadParameter`."""
    if not values["lease"]:
        raise unusable("--lease is 0; write a time such as 15s")
    named = values["store_key_file"] or variables.store_key_file
    return {
        "store.url": values["store"] or variables.store or "",
        "store.key_file": None if named is None else Path(named),
    }


def _check_measurable() -> None:
    """End the command where the memory of workers cannot be measured."""
    from geartrain.bridge.resources import is_measurable  # late: few servers have a limit

    if not is_measurable():
        fail("--max-memory needs /proc, which this system does not have; leave it out")
