"""Kinds of options: the types of their values, and readings of the command line and of programs.

Nothing of a server is imported here: the command line is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from geartrain.authoring.quantities import read_duration, read_seconds, read_size
from geartrain.domain.predictions.statistics import check_bounds
from geartrain.domain.signature.text_values import parse_boolean
from geartrain.project.errors import ProjectError
from geartrain.project.setting_values import Devices, read_devices
from geartrain.transport.access_log import AccessLogOptions, read_access_log

NO_LIMIT: Final = 1 << 62  # of what is counted; there is room for more, as readers go one beyond a limit
NO_PORT: Final = -1
OFF: Final = "off"

_PORTS: Final = range(65536)
_AS_IT_IS: Final = object()


def _same(value: Any) -> Any:
    return value


class Kind(NamedTuple):
    """Kind of value of an option.

    `type` is that of its values, `metavar` its name in the help. `read` parses the text of a command line and raises
    `ValueError` with a sentence; None where the type says enough. `take` converts the value that a program gives, whose
    annotation is `annotation`.
    """

    type: Any
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    take: Callable[[Any], Any] = _same
    annotation: str = ""
    shows_default: bool = True


class Option(NamedTuple):
    """One option of a server.

    `name` is that of `geartrain.asgi`; the command line has `--` and dashes. `default` None leaves the value to the
    field of `ServeOptions` that `to` names, such as `limits.queue`; None for the field of the option's own name, empty
    for an option that is no field alone. `zero` is what 0 means there.

    `metavar` and `shown` stand in the help for those of the kind, and for the default. `variable` is an environment
    variable that the command line reads for it. Those that are hosted are options of `geartrain.asgi`, too.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    to: str | None = None
    zero: Any = _AS_IT_IS
    metavar: str = ""
    shown: str = ""
    least: int | None = None
    most: int | None = None
    variable: str = ""
    panel: str = ""
    is_hosted: bool = False
    is_hidden: bool = False

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def field(self) -> str:
        """The field of `ServeOptions`; empty for none."""
        return self.name if self.to is None else self.to

    def stored(self, value: Any) -> Any:
        """Return the value of the field for the value of the option."""
        return self.zero if self.zero is not _AS_IT_IS and value == 0 else value


def panel(title: str, *options: Option) -> tuple[Option, ...]:
    """Put options under a title of `geartrain serve --help-all`."""
    return tuple(option._replace(panel=title) for option in options)


def port(name: str, about: str, **more: Any) -> Option:
    """Make an option for a port."""
    return Option(name, NUMBER, about, metavar="PORT", least=0, most=65535, **more)


def switch(name: str, about: str, **more: Any) -> Option:
    """Make an option without a value, which is off by default."""
    return Option(name, SWITCH, about, default=False, **more)


def _duration(text: str) -> float:
    try:
        return read_duration(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no span of time; write seconds, or a unit such as 500ms, 90s, 5m or 1h"
        ) from None


def _seconds(text: str) -> float:
    try:
        return read_seconds(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of seconds") from None


def _devices(text: str) -> Devices:
    try:
        return read_devices(text)
    except ValueError:
        raise ValueError(f"{text!r} is no device; write auto, cpu, or names such as cuda:0,cuda:1") from None


def _taken_devices(text: str) -> Devices:
    try:
        return read_devices(text)
    except ValueError:
        raise ProjectError(f"`devices` is {text!r}; write auto, cpu, or names such as cuda:0,cuda:1") from None


def _port(text: str) -> int:
    """Read a port, or the word for none, which becomes `NO_PORT`."""
    if text.strip().lower() == OFF:
        return NO_PORT
    if text.isascii() and text.isdecimal() and int(text) in _PORTS:
        return int(text)
    raise ValueError(f"{text!r} is no port; write a number from 0 to 65535, or {OFF}")


def _bounds(values: Iterable[float]) -> tuple[float, ...]:
    """Check the upper bounds of the buckets of a histogram; raise `ValueError`."""
    bounds = tuple(values)
    check_bounds(bounds)
    return bounds


def one_of(*words: str) -> Kind:
    """Create the kind of an option that takes one of these words."""
    choice: Any = Literal
    return Kind(choice[words], annotation="Literal[" + ", ".join(f'"{word}"' for word in words) + "]")


FOREIGN_APIS: Final = (
    "azure",
    "huggingface",
    "kserve",
    "litserve",
    "mlflow",
    "sagemaker",
    "sagemaker-models",
    "torchserve",
    "truss",
    "vertex",
)


def read_apis(text: str) -> str:
    """Check the names of endpoints. Raises `ValueError`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in FOREIGN_APIS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(FOREIGN_APIS)}")
    return ",".join(names)


TEXT: Final = Kind(str, annotation="str")
APIS: Final = Kind(str, "NAME,…", read_apis, annotation="str")
NAMES: Final = Kind(str, take=frozenset, annotation="Iterable[str]")
TEXTS: Final = Kind(list[str])
FILE: Final = Kind(Path, "FILE", take=Path, annotation="str | os.PathLike[str]")
NUMBER: Final = Kind(int, "N", annotation="int")
SWITCH: Final = Kind(bool, annotation="bool")
TRUTH: Final = Kind(str, "BOOL", parse_boolean)  # a word for true or false, which may be left out
SIZE: Final = Kind(int, "SIZE", read_size, annotation="int", shows_default=False)
SIZES: Final = Kind(
    Any,
    "SIZES",
    lambda text: _bounds(float(read_size(each.strip())) for each in text.split(",")),
    _bounds,
    "Iterable[float]",
    shows_default=False,
)
SECONDS: Final = Kind(float, "SECONDS", _seconds, annotation="float")
DURATION: Final = Kind(float, "TIME", _duration, annotation="float", shows_default=False)
DURATIONS: Final = Kind(
    Any,
    "TIMES",
    lambda text: _bounds(float(_duration(each.strip())) for each in text.split(",")),
    _bounds,
    "Iterable[float]",
    shows_default=False,
)
PORT_OR_OFF: Final = Kind(int, "PORT", _port)
DEVICES: Final = Kind(Devices, "auto|cpu|NAME,…", _devices, _taken_devices, "str")
ACCESS_LOG: Final = Kind(AccessLogOptions, "MODE", read_access_log, read_access_log, "str")
