"""The environment variables that a server reads: their names, what they may hold, and which source of a value counts.

The value of a variable comes from the first of these that has one:

1. the environment of the server;
2. for `COG_MAX_CONCURRENCY`, `slots` of `geartrain.yaml` and `concurrency.max` of `cog.yaml`;
3. `environment` of `geartrain.yaml`, then of `cog.yaml`: in Cog it is the environment of the container;
4. the default.

A command-line option comes before all of them (`server.options.ServeOptions.variables_of`). An empty variable counts as
one that is not set. What a variable of the server's environment cannot hold is passed over with a warning, as Cog does;
in a model's file it is an error. Specification: container runtime, "Environment variables"; observed Cog, section 1.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from geartrain.authoring.quantities import read_seconds

PREDICT_STUB: Final = "COG_PREDICT_TYPE_STUB"
TRAIN_STUB: Final = "COG_TRAIN_TYPE_STUB"
CONCURRENCY: Final = "COG_MAX_CONCURRENCY"
PORT: Final = "PORT"

DEFAULT_PORT: Final = 5000
DEFAULT_STREAM_HISTORY: Final = 1024  # events
DEFAULT_WEBHOOK_INTERVAL: Final = 0.5  # seconds

LOG_LEVELS: Final[Mapping[str, int]] = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 10,
}
LOG_FORMATS: Final = ("json", "console")

_DEFAULT: Final = "default"
_ENVIRONMENT: Final = "environment"
_COUNT: Final = re.compile(r"0*[1-9]\d{0,5}", re.ASCII)
_EVENTS: Final = re.compile(r"\d{1,9}", re.ASCII)
_PORT: Final = re.compile(r"\d{1,5}", re.ASCII)
_LAST_PORT: Final = 65535


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variables:
    """Values of the variables for one model. `origins` has the source of each value that is no default.

    Times are in seconds; `setup_timeout` None is no limit. `max_concurrency` None leaves the number of slots to the
    model. `webhook_token` None sends webhooks without authorization. `port`, `log_level`, `log_format`, `store` and
    `store_key_file` count only where one model is served alone, or in the environment of the server; but for the port
    they are None if unset.
    """

    setup_timeout: float | None = None
    weights: str | None = None
    max_concurrency: int | None = None
    stream_history: int = DEFAULT_STREAM_HISTORY
    webhook_interval: float = DEFAULT_WEBHOOK_INTERVAL
    webhook_token: str | None = dataclasses.field(default=None, repr=False)
    user_agent: str | None = None
    port: int = DEFAULT_PORT
    log_level: str | None = None
    log_format: str | None = None
    store: str | None = dataclasses.field(default=None, repr=False)
    store_key_file: str | None = None
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def describe(self, *, defaults: bool = True) -> list[str]:
        """Return one line for each variable: its name, the value that counts, and where that is from.

        Without `defaults`, only the variables that are set.
        """
        return [each.describe(self) for each in _VARIABLES if defaults or each.name in self.origins]


class FileLayer(msgspec.Struct, frozen=True, kw_only=True):
    """Variables in one file of a model: the file's name, its `environment`, and its own keys for variables, by name."""

    file: str
    environment: Mapping[str, str]
    keys: Mapping[str, tuple[str, Any]] = {}


class _Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable. `read` raises ValueError for a text with a `fault`; `fix` is the remedy."""

    name: str
    field: str
    read: Callable[[str], Any]
    fault: str = ""
    fix: str = ""
    show: Callable[[Any], str] = str
    is_secret: bool = False
    if_wrong: Literal["passed over", "refused", "kept"] = "passed over"  # in the environment of the server

    def parse(self, text: str) -> Any:
        """Return the value; raises ValueError for a wrong one, unless another part of the server judges it."""
        try:
            return self.read(text)
        except ValueError:
            if self.if_wrong != "kept":
                raise
            return text

    def quote(self, text: str) -> str:
        """Return the assignment for a message; a secret is left out."""
        return self.name if self.is_secret else f"{self.name}={text if text.isprintable() else repr(text)}"

    def describe(self, variables: Variables) -> str:
        """Return the name, the value that counts, and where it is from."""
        value = getattr(variables, self.field)
        shown = "set" if self.is_secret and value is not None else self.show(value)
        return f"{self.name}: {shown} ({variables.origins.get(self.name, _DEFAULT)})"


def _read_limit(text: str) -> float | None:
    return read_seconds(text) or None


def _read_number(pattern: re.Pattern[str], largest: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        if pattern.fullmatch(text) is None or (largest is not None and int(text) > largest):
            raise ValueError
        return int(text)

    return read


def _read_header(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError
    return text


def _read_word(words: Mapping[str, object] | Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text

    return read


def _or(default: str) -> Callable[[Any], str]:
    return lambda value: default if value is None else str(value)


def _show_seconds(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g} s"


_VARIABLES: Final = (
    _Variable(
        name="COG_LOG_LEVEL",
        field="log_level",
        read=_read_word(LOG_LEVELS),
        fault="it is no log level",
        fix=f"write one of {', '.join(LOG_LEVELS)}",
        show=_or("info"),
        if_wrong="kept",  # the set-up of the logs judges it
    ),
    _Variable(
        name=CONCURRENCY,
        field="max_concurrency",
        read=_read_number(_COUNT),
        fault="it is not a whole number of at least 1",
        fix=f"write for example {CONCURRENCY}=4",
        show=_or("1, or what @concurrent says"),
    ),
    _Variable(
        name="COG_SETUP_TIMEOUT",
        field="setup_timeout",
        read=_read_limit,
        fault="it is no number of seconds",
        fix="write for example COG_SETUP_TIMEOUT=300, or 0 for no limit",
        show=_show_seconds,
    ),
    _Variable(
        name="COG_STREAM_HISTORY_CAPACITY",
        field="stream_history",
        read=_read_number(_EVENTS),
        fault="it is no number of events",
        fix=f"write for example COG_STREAM_HISTORY_CAPACITY={DEFAULT_STREAM_HISTORY}",
        show=lambda events: f"{events} events",
    ),
    _Variable(
        name="COG_THROTTLE_RESPONSE_INTERVAL",
        field="webhook_interval",
        read=read_seconds,
        fault="it is no number of seconds",
        fix=f"write for example COG_THROTTLE_RESPONSE_INTERVAL={DEFAULT_WEBHOOK_INTERVAL}",
        show=_show_seconds,
    ),
    _Variable(
        name="COG_USER_AGENT",
        field="user_agent",
        read=_read_header,
        fault="it has characters that a header cannot hold",
        fix="write printable ASCII characters",
        show=_or("geartrain"),
    ),
    _Variable(name="COG_WEIGHTS", field="weights", read=str, show=_or("none")),
    _Variable(
        name="GEARTRAIN_STORE",
        field="store",
        read=str,
        show=_or("none"),
        is_secret=True,  # it may hold a password
    ),
    _Variable(name="GEARTRAIN_STORE_KEY_FILE", field="store_key_file", read=str, show=_or("none")),
    _Variable(
        name="LOG_FORMAT",
        field="log_format",
        read=_read_word(LOG_FORMATS),
        fault="it is no log format",
        fix=f"write {' or '.join(LOG_FORMATS)}",
        show=_or("console on a terminal, else json"),
        if_wrong="kept",  # see above
    ),
    _Variable(
        name=PORT,
        field="port",
        read=_read_number(_PORT, _LAST_PORT),
        fault="it is no port",
        fix=f"write a number from 0 to {_LAST_PORT}, such as {PORT}={DEFAULT_PORT}",
        if_wrong="refused",  # by the command line
    ),
    _Variable(
        name="WEBHOOK_AUTH_TOKEN",
        field="webhook_token",
        read=_read_header,
        fault="it has characters that a header cannot hold",
        fix="write printable ASCII characters",
        show=_or("none"),
        is_secret=True,
    ),
)
_BY_NAME: Final = {variable.name: variable for variable in _VARIABLES}

NAMES: Final = frozenset(_BY_NAME) | {"RUST_LOG", PREDICT_STUB, TRAIN_STUB}
"""Every variable that the server reads, for a model or for itself."""


def check(name: str, text: str) -> tuple[str, str] | None:
    """Return the fault of a variable's value, which is not repeated if it is secret, and the fix."""
    variable = _BY_NAME.get(name)
    text = text.strip()
    if variable is None or not text:
        return None
    try:
        variable.read(text)
    except ValueError:
        return f"{variable.quote(text)}: {variable.fault}", variable.fix
    return None


def effective_environment(environ: Mapping[str, str], files: Sequence[FileLayer]) -> dict[str, str]:
    """Return the variables that the files of a model add to the environment of its worker.

    Of the variables that the server reads, those that are set in its own environment are left out, so that the model
    has the same value.
    """
    merged = {name: value for layer in reversed(files) for name, value in layer.environment.items()}
    return {name: value for name, value in merged.items() if name not in NAMES or not environ.get(name, "").strip()}


def resolve(environ: Mapping[str, str], files: Sequence[FileLayer] = ()) -> tuple[Variables, tuple[str, ...]]:
    """Return the values for one model, and a warning for each ignored variable of `environ`.

    `files` are the files of the model, the more important first; their values have been checked.
    """
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    for variable in _VARIABLES:
        value, origin, warning = _resolve_one(variable, environ, files)
        if warning is not None:
            warnings.append(warning)
        if origin is not None:
            found[variable.field], origins[variable.name] = value, origin
    return Variables(**found, origins=origins), tuple(warnings)


def _resolve_one(
    variable: _Variable, environ: Mapping[str, str], files: Sequence[FileLayer]
) -> tuple[Any, str | None, str | None]:
    """Return the value, where it is from (None: there is none), and what is to be said of the environment."""
    warning = None
    if text := _text_of(variable, environ):
        try:
            return variable.parse(text), _origin(variable, environ, _ENVIRONMENT), None
        except ValueError:
            if variable.if_wrong == "passed over":
                warning = f"{variable.quote(text)} is passed over: {variable.fault}"
    for layer in files:
        if variable.name in layer.keys:
            key, value = layer.keys[variable.name]
            return value, f"{layer.file} {key}", warning
    for layer in files:
        if text := _text_of(variable, layer.environment):
            origin = _origin(variable, layer.environment, f"{layer.file} {_ENVIRONMENT}")
            return variable.parse(text), origin, warning
    return None, None, warning


def _text_of(variable: _Variable, environ: Mapping[str, str]) -> str:
    if variable.field == "log_level":
        return log_level(environ) or ""
    return environ.get(variable.name, "").strip()


def _origin(variable: _Variable, environ: Mapping[str, str], place: str) -> str:
    """Name the place, and the variable where another one than itself says it."""
    return f"{place}: RUST_LOG" if variable.field == "log_level" and environ.get("RUST_LOG", "").strip() else place


def log_level(environ: Mapping[str, str]) -> str | None:
    """Return the log level that an environment asks for; `COG_LOG_LEVEL` is passed over if `RUST_LOG` is set.

    `RUST_LOG` is a list such as `warn,coglet=debug,hyper`: a level for all, or for the targets that it names. What it
    says of coglet is meant for the server, and so for this one.
    """
    if not (directives := environ.get("RUST_LOG", "").strip()):
        return environ.get("COG_LOG_LEVEL", "").strip() or None
    levels: dict[str, str] = {}
    for directive in directives.split(","):
        target, separator, level = directive.strip().lower().rpartition("=")
        if separator:
            levels[target.strip()] = level.strip()
        elif level in LOG_LEVELS:
            levels["*"] = level
        else:
            levels[level] = "trace"  # a target alone: all of it
    return next((levels[target] for target in ("geartrain", "coglet", "*") if target in levels), None)
