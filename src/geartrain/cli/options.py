"""Option types that several commands share: sizes, yes or no, the version, and where the port comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from geartrain.cli.declared import Argument, Option, unusable
from geartrain.domain.signature.text_values import parse_boolean
from geartrain.project.quantities import read_duration, read_seconds
from geartrain.transport.access_options import AccessLogOptions, read_access_log

DEFAULT_MAX_BYTES: Final = 100 * 1024**2
DEFAULT_MAX_OUTPUT: Final = 256 * 1024**2

# The groups of options in `geartrain serve --help`.
CONNECTIONS: Final = "Connections"
SECURITY: Final = "Security"
GRPC: Final = "gRPC"
MODELS: Final = "Models"
PREDICTIONS: Final = "Predictions"
FILES: Final = "Files"
LIFECYCLE: Final = "Start and end"
LOGS: Final = "Logs"

_UNITS: Final = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?((?:[kmgt]i?)?)b?", re.IGNORECASE | re.ASCII)


def parse_size(text: str | int) -> int:
    """Read a number of bytes: `104857600`, `50MB` (powers of 1000), `100MiB` (powers of 1024), or 0."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    number = float(match[1]) if match and factor else None
    size = int(number * factor) if number is not None and factor else 0
    if number is None or (size < 1 and number > 0):
        raise unusable(f"{text!r} is no size; write bytes, or a unit such as 50MB or 100MiB")
    return size


def check_switch(text: str) -> str:
    """Turn an option's word for true or false into `true` or `false`, so that `false` means false (D24)."""
    try:
        return "true" if parse_boolean(text) else "false"
    except ValueError as error:
        raise unusable(str(error)) from None


def parse_access_log(text: str | AccessLogOptions) -> AccessLogOptions:
    """Read which requests have a line in the access log."""
    if isinstance(text, AccessLogOptions):
        return text
    try:
        return read_access_log(text)
    except ValueError as error:
        raise unusable(str(error)) from None


def parse_timeout(text: str | float) -> float:
    """Read a number of seconds, 0 or more."""
    try:
        return read_seconds(str(text))
    except ValueError:
        raise unusable(f"{text!r} is no number of seconds") from None


def parse_duration(text: str | float) -> float:
    """Read a span of time as seconds: `90`, `500ms`, `90s`, `5m`, `1h`."""
    if not isinstance(text, str):
        return text
    try:
        return read_duration(text)
    except ValueError:
        msg = f"{text!r} is no span of time; write seconds, or a unit such as 500ms, 90s, 5m or 1h"
        raise unusable(msg) from None


def print_version(wanted: bool) -> None:
    """Print the version and exit, when the option was given."""
    if wanted:
        import typer

        import geartrain

        typer.echo(f"geartrain {geartrain.__version__}")
        raise typer.Exit


def _complete_model(incomplete: str) -> Iterator[str]:
    from geartrain.cli.completion import complete_model  # late: it imports Typer

    return complete_model(incomplete)


Model = Annotated[
    str | None,
    Argument(
        autocompletion=_complete_model,
        metavar="MODEL",
        help="A model's folder, path/to/run.py, run.py:Runner, package.module:name, or a model file such as "
        "model.onnx or the folder of a language model; or a model elsewhere, such as s3://bucket/model, hf://org/name "
        "or an https:// URL. The current folder by default.",
    ),
]
NoPickle = Annotated[
    bool,
    Option(
        "--no-pickle",
        help="Refuse model files that can run code when they are loaded, such as pickles.",
        rich_help_panel=SECURITY,
    ),
]
SetupTimeout = Annotated[
    float | None,
    Option(
        parser=parse_timeout,
        metavar="SECONDS",
        help="Give up when setup takes longer; 0 for no limit. COG_SETUP_TIMEOUT says the same.",
        rich_help_panel=LIFECYCLE,
    ),
]
SharedMemory = Annotated[
    bool,
    Option(
        "--shared-memory",
        help="Let clients of the Open Inference Protocol pass tensors in system shared memory: they can then read and "
        "write every object of it that the server can.",
        rich_help_panel=SECURITY,
    ),
]
HealthBody = Annotated[
    bool,
    Option(
        "--health-body",
        help="Put what KServe's client reads into the health responses of the Open Inference Protocol, which are empty "
        "by default.",
        rich_help_panel=PREDICTIONS,
    ),
]
Queue = Annotated[
    int,
    Option(
        min=0,
        metavar="N",
        help="How many predictions may wait for a slot before the answer is 409.",
        rich_help_panel=PREDICTIONS,
    ),
]
Keep = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long a finished prediction can be asked for with GET; 5m by default, 0 for not at all.",
        rich_help_panel=PREDICTIONS,
    ),
]
StreamGrace = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long a stream that POST made runs on after its last reader has left; 30s by default, 0 to cancel it "
        "at once. One made by PUT runs to its end.",
        rich_help_panel=PREDICTIONS,
    ),
]
XMode = Annotated[
    Literal["predict", "train"],
    Option("--x-mode", help="What to serve: predictions, or trainings alone, set up at once.", rich_help_panel=MODELS),
]
Restart = Annotated[
    Literal["never", "on-crash"],
    Option(help="Whether a crashed worker is followed by another, with growing pauses.", rich_help_panel=MODELS),
]
Wakeup = Annotated[
    Literal["adaptive", "blocking"],
    Option(
        help="How server and workers wait for each other: adaptive stays awake for moments around predictions, which "
        "makes short ones faster; blocking always sleeps, for machines that are billed by processor time. With a CPU "
        "quota of one core or less, adaptive sleeps too.",
        rich_help_panel=PREDICTIONS,
    ),
]
MirrorPrints = Annotated[
    Literal["auto", "on", "off"],
    Option(
        help="Whether what runs print is in the server's log too, with the id of the prediction: auto on a terminal, "
        "and where the answer has no place for it (Open Inference Protocol, generate); on always; off never.",
        rich_help_panel=PREDICTIONS,
    ),
]
RestartLimit = Annotated[
    int,
    Option(min=1, metavar="N", help="How many crashes in a row are followed by a restart.", rich_help_panel=MODELS),
]
CancelGrace = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long a run may ignore a cancel before its worker is killed; 60s by default; 0 disables the limit.",
        rich_help_panel=PREDICTIONS,
    ),
]
MaxOutputSize = Annotated[
    int,
    Option(
        parser=parse_size,
        metavar="SIZE",
        show_default=False,
        help="The largest output of a run, all that a stream yields together; 256MiB by default. Beyond it the run is "
        "canceled and fails. 0 disables this limit.",
        rich_help_panel=PREDICTIONS,
    ),
]
RunTimeout = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long a run may take before it is canceled and fails, unless the model sets its own limit; 0, the "
        "default, disables the limit. Trainings may take as long as they need.",
        rich_help_panel=PREDICTIONS,
    ),
]
ShutdownGrace = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long running predictions have to end after SIGTERM; 30s by default.",
        rich_help_panel=LIFECYCLE,
    ),
]
DrainDelay = Annotated[
    float,
    Option(
        parser=parse_duration,
        metavar="TIME",
        show_default=False,
        help="How long requests are still served after SIGTERM, while /readyz says that the server is not ready; none "
        "by default. Give a balancer the time to notice.",
        rich_help_panel=LIFECYCLE,
    ),
]
Version = Annotated[
    bool, Option("--version", "-v", callback=print_version, is_eager=True, help="Print the version and exit.")
]


LOG_ALL: Final = AccessLogOptions()
AccessLog = Annotated[
    AccessLogOptions,
    Option(
        parser=parse_access_log,
        metavar="MODE",
        show_default="on",
        help="Which requests have a line in the log: on (all), sampled:N (one in N, and errors), errors, or off.",
        rich_help_panel=LOGS,
    ),
]
