"""Common part of `geartrain serve` and `geartrain dev`: the models, the reports, and the end."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from geartrain.cli import logs, models
from geartrain.cli.background_logs import JsonWriter, in_background
from geartrain.cli.failure import FAILURE, fail
from geartrain.cli.startup import ServeObserver
from geartrain.project.served import find_served
from geartrain.project.source import ProjectError
from geartrain.transport.access_lines import RequestWriter
from geartrain.transport.access_options import AccessLogOptions

if TYPE_CHECKING:
    from geartrain.project.repository import Repository
    from geartrain.project.source import Mode, ModelSource
    from geartrain.project.variables import Variables
    from geartrain.server import ServeOptions
    from geartrain.service.models.deployment import Limits
    from geartrain.service.models.residency import ResidencyPolicy
    from geartrain.service.models.restarts import RestartPolicy

logger = logging.getLogger(__name__)


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
        source = models.find_source(model, mode, reload=reload, no_pickle=no_pickle, name=names.own, load=load)
        to_load = models.read_load(load, source)
        models.check_name("--default-model", names.default, source)
    except ProjectError as error:
        fail(error.message)
    return Found(source, *models.variables_of(source), to_load)


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


def limits(
    queue: int, keep: float, *, stream_grace: float, cancel_grace: float, run_timeout: float, max_output_size: int
) -> Limits:
    """Return the limits of predictions, by the options of their names."""
    from geartrain.service.models.deployment import Limits

    return Limits(
        queue=queue,
        keep=keep,
        stream_grace=stream_grace,
        cancel_grace=cancel_grace or None,
        run_timeout=run_timeout or None,
        max_output_size=max_output_size or None,
    )


def restarts(restart: str, limit: int) -> RestartPolicy | None:
    """Return the policy for a crashed worker."""
    from geartrain.service.models.restarts import RestartPolicy

    return RestartPolicy(limit=limit) if restart == "on-crash" else None


def residency(load: str, idle_unload: float, max_memory: int) -> ResidencyPolicy:
    """Return which models stay loaded, or end the command."""
    try:
        return models.residency(load, idle_unload, max_memory)
    except ProjectError as error:
        fail(error.message)


def run(serve_options: ServeOptions, observer: ServeObserver, model: str | None, *, mode: Mode, no_pickle: bool) -> int:
    """Serve until the end; return the exit code, or end the command with what keeps it from serving."""
    from geartrain.server import ActivationError, PortInUseError, find_ready_file, run_server
    from geartrain.store.errors import StoreOptionError
    from geartrain.transport.access.errors import AccessError
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
