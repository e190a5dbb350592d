"""The pages of the reference that are made: of the docstrings of what users import, and of `--help-all`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from geartrain.cli.commands import app

_WIDTH: Final = 100
_AUTHOR: Final = (
    ("Models", ("BaseRunner", "BasePredictor", "Input", "BaseModel", "Opaque")),
    ("Files and secrets", ("Path", "File", "Secret")),
    ("Streams", ("streaming", "ConcatenateIterator", "AsyncConcatenateIterator")),
    ("Many requests at once", ("concurrent", "batched", "batch_item", "ItemError")),
    ("The run at hand", ("current_scope", "Scope", "CancelationException", "CancellationException")),
)
_CLIENT: Final = (
    ("The clients", ("Client", "AsyncClient")),
    ("Models of a server", ("Model", "AsyncModel")),
    ("Predictions", ("Prediction", "Handle", "AsyncHandle", "OutputFile")),
    ("Streams", ("Stream", "AsyncStream", "Event")),
    (
        "Errors",
        (
            "ClientError",
            "PredictionFailedError",
            "PredictionCanceledError",
            "InvalidInputError",
            "BusyError",
            "NotFoundError",
            "AccessError",
            "RefusedError",
            "TimedOutError",
            "UnreachableError",
        ),
    ),
)
_TESTING: Final = (
    ("In the process of the test", ("call", "runner", "runs.Run")),
    ("Real servers", ("serve", "server.Server", "pytest.geartrain_server")),
    ("Errors", ("OutputError", "RequestFailedError", "CanceledError", "ServerError")),
)
_METRICS: Final = (
    ("Definitions", ("counter", "gauge", "histogram")),
    ("Metrics", ("Counter", "Gauge", "Histogram")),
)
_BACKENDS: Final = (("What a backend is", ("Backend", "BackendError", "TensorSpec")),)
_ASGI: Final = (("The application", ("asgi",)), ("Its options", ("server.asgi_options.AsgiOptions",)))

MODULES: Final = {
    "api-geartrain": ("What a model imports", "geartrain", _AUTHOR),
    "api-metrics": ("Metrics of a model", "geartrain.authoring.metrics", _METRICS),
    "api-client": ("Clients", "geartrain.client", _CLIENT),
    "api-testing": ("Tests", "geartrain.testing", _TESTING),
    "api-asgi": ("The ASGI application", "geartrain", _ASGI),
    "api-backends": ("Backends", "geartrain.backends.interface", _BACKENDS),
}
"""Pages of the reference: their title, the module, and the names in each of their parts."""
_FUNCTIONS: Final = ("counter", "gauge", "histogram", "call", "runner", "serve", "asgi", "geartrain_server")


def module_page(page: str) -> str:
    """Return the source of a page of `MODULES`, in reStructuredText: docstrings are read when the site is built."""
    title, module, parts = MODULES[page]
    text = f"{title}\n{'=' * len(title)}\n\n"
    if page not in {"api-asgi", "api-geartrain"}:
        text += f".. automodule:: {module}\n   :no-members:\n   :no-index:\n\n"
    for part, names in parts:
        text += f"{part}\n{'-' * len(part)}\n\n"
        text += "".join(f".. {_directive(name)}:: {module}.{name}\n\n" for name in names)
    return text


def _directive(name: str) -> str:
    last = name.rpartition(".")[2]
    if last in _FUNCTIONS or last[0].islower():
        return "autofunction"
    return "autoexception" if last.endswith(("Error", "Exception")) else "autoclass"


def commands_page() -> str:
    """Return the source of the page of what each command says of itself."""
    guide = "[The command line](command-line.md) says how to use it."
    text = f"# All commands and options\n\nWhat `--help-all` says. {guide}\n\n"
    for words in _commands():
        title = " ".join(("geartrain", *words))
        text += f"## `{title}`\n\n```text\n{help_of(*words)}\n```\n\n"
    return text


def help_of(*words: str) -> str:
    """Return the text that `geartrain … --help-all` prints on a terminal."""
    environ = {"COLUMNS": str(_WIDTH), "TERMINAL_WIDTH": str(_WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner(env=environ).invoke(app, [*words, "--help-all"], prog_name="geartrain")
    if result.exit_code:
        raise RuntimeError(f"geartrain {' '.join(words)} --help-all: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines())


def _commands() -> Iterator[tuple[str, ...]]:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)  # noqa: S101 - for mypy
    context = typer.Context(root)
    yield ()
    for name in root.list_commands(context):
        yield (name,)
        command = root.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from ((name, inner) for inner in command.list_commands(context))
