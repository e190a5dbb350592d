"""Common part of `geartrain serve` and `geartrain dev`: the models, the reports, and the end."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from geartrain.cli import logs
from geartrain.cli.background_logs import JsonWriter, in_background
from geartrain.cli.failure import FAILURE, fail
from geartrain.cli.startup import ServeObserver
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import check_watchable, find_served
from geartrain.project.variables import Variables, resolve
from geartrain.transport.access_log import AccessLogOptions, RequestWriter

if TYPE_CHECKING:
    from geartrain.project.source import Mode, ModelSource
    from geartrain.server import ServeOptions
    from geartrain.service.workers.pool import RestartPolicy

logger = logging.getLogger(__name__)


NONE: Final = "none"
ON_DEMAND: Final = "on-demand"
RESTARTS: Final = 5  # in a row, of a crashed worker


class Names(NamedTuple):
    """Names of models in the options: `own` is that of a single one, empty for the usual one."""

    own: str = ""
    default: str | None = None


class Found(NamedTuple):
    """Models to serve, their variables, and those to load at the start."""

    source: ModelSource | Repository
    variables: Variables
    warnings: tuple[str, ...]
    to_load: frozenset[str] | None


def find(model: str | None, mode: Mode, load: str, *, names: Names, reload: bool, no_pickle: bool) -> Found:
    """Find what the options name, or end the command."""
    try:
        source = find_source(model, mode, reload=reload, no_pickle=no_pickle, name=names.own, load=load)
        to_load = read_load(load, source)
        check_name("--default-model", names.default, source)
    except ProjectError as error:
        fail(error.message)
    return Found(source, *variables_of(source), to_load)


def find_source(
    target: str | None,
    mode: Mode,
    *,
    reload: bool,
    no_pickle: bool = False,
    name: str = "",
    load: str = "all",
    environ: Mapping[str, str] = os.environ,
) -> ModelSource | Repository:
    """Return the model or the folder of models to serve; raise ProjectError.

    `name` is that of a single model. The folder may be empty if `load` says that models are loaded later.
    """
    if mode == "train" and reload:
        raise ProjectError("--reload does not go with --x-mode train: a training must not change while it runs")
    if reload:
        check_watchable(target)
    may_be_empty = load in {NONE, ON_DEMAND}
    return find_served(target, mode, no_pickle=no_pickle, name=name, may_be_empty=may_be_empty, environ=environ)


def read_load(text: str, source: ModelSource | Repository) -> frozenset[str] | None:
    """Return the models that `--load` names, None for all of them; raises ProjectError for one that is not there."""
    if text == "all":
        return None
    if text == ON_DEMAND:
        if not isinstance(source, Repository):
            raise ProjectError(f"--load {ON_DEMAND} is for a folder of models; --idle-unload is for one model, too")
        return frozenset()
    wanted = frozenset() if text == NONE else frozenset(filter(None, map(str.strip, text.split(","))))
    for name in sorted(wanted):
        check_name("--load", name, source)
    return wanted


def check_name(option: str, name: str | None, source: ModelSource | Repository) -> None:
    """Raise ProjectError when an option names a model that is not there."""
    there = source.names() if isinstance(source, Repository) else [source.name]
    if name is not None and name not in there:
        raise ProjectError(f"{option}: there is no model {name!r}; there are {', '.join(there) or 'none yet'}")


def variables_of(source: ModelSource | Repository) -> tuple[Variables, tuple[str, ...]]:
    """Return the variables of the server as a whole, and the warnings about ignored ones.

    With several models only the environment counts: the files of one model decide nothing for the others.
    """
    return resolve(os.environ) if isinstance(source, Repository) else (source.variables, source.warnings)


def observe(
    found: Found,
    level: str | None,
    form: str | None,
    *,
    on_listening: Callable[[str], object] = lambda _url: None,
) -> tuple[ServeObserver, logs.Format]:
    """Set up the logs and say what was passed over; return what shows the start, and the form of the logs.

    `on_listening` is called with the URL of the server.
    """
    configured = logs.configure(level or found.variables.log_level, form or found.variables.log_format)
    if configured == "console":
        from geartrain.cli.dev_lines import DevFormatter  # late: rich takes 40 ms

        logs.write_as(DevFormatter())
    for sentence in found.warnings:
        logger.warning(sentence)
    is_for_person = configured == "console" and logs.is_terminal(sys.stderr)
    return ServeObserver(found.source, for_person=is_for_person, on_listening=on_listening), configured


def written_as(options: AccessLogOptions, form: logs.Format) -> AccessLogOptions:
    """Return the options with lines in this form, on stderr."""
    return msgspec.structs.replace(options, new_writer=functools.partial(new_writer, form))


def new_writer(form: logs.Format) -> RequestWriter[Any]:
    """Create the writer of lines in this form."""
    if form == "json":
        return JsonWriter()
    from geartrain.cli.dev_lines import PersonWriter  # late: rich takes 40 ms

    return PersonWriter()


def restarts(restart: str = "on-crash", limit: int = RESTARTS) -> RestartPolicy | None:
    """Return the policy for a crashed worker."""
    from geartrain.service.workers.pool import RestartPolicy

    return RestartPolicy(limit=limit) if restart == "on-crash" else None


def run(serve_options: ServeOptions, observer: ServeObserver, model: str | None, *, mode: Mode, no_pickle: bool) -> int:
    """Serve until the end; return the exit code, or end the command with what keeps it from serving."""
    from geartrain.server import ActivationError, PortInUseError, find_ready_file, run_server
    from geartrain.store.errors import StoreOptionError
    from geartrain.transport.access.options import AccessError
    from geartrain.transport.grpc.options import GrpcOptionsError
    from geartrain.transport.relay.token import ClusterOptionError
    from geartrain.transport.wire.tls import TlsFilesError

    unusable = (AccessError, ActivationError, ClusterOptionError, GrpcOptionsError, StoreOptionError, TlsFilesError)
    try:
        with in_background():
            code = run_server(
                dataclasses.replace(
                    serve_options,
                    target=model,
                    find_again=functools.partial(find_served, mode=mode, no_pickle=no_pickle, is_fetched=True),
                    ready_file=find_ready_file(os.environ),
                    on_progress=observer,
                )
            )
    except (PortInUseError, *unusable) as error:
        fail(str(error))
    return code or (FAILURE if observer.has_failed else 0)
