"""`geartrain serve`: a model over HTTP."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from geartrain.cli import grpc, logs, models, options
from geartrain.cli.failure import FAILURE, fail
from geartrain.cli.startup import ServeObserver
from geartrain.project.source import ProjectError, find_model
from geartrain.project.variables import DEFAULT_PORT

if TYPE_CHECKING:
    from geartrain.server import ServeOptions

logger = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=options.BareSwitchCommand)
def serve(
    model: models.Target = None,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",  # noqa: S104  as Cog's server
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            envvar="PORT",
            metavar="PORT",
            show_default=str(DEFAULT_PORT),
            help="The port to listen on; 0 for any free one.",
        ),
    ] = None,
    upload_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Upload output files to this URL instead of inlining them.")
    ] = None,
    await_explicit_shutdown: Annotated[
        str,
        typer.Option(
            callback=options.check_switch,
            metavar="BOOL",
            help="Stay up after SIGTERM, until POST /shutdown or Ctrl-C. Without a value: true.",
        ),
    ] = "false",
    max_body_size: Annotated[
        int,
        typer.Option(
            parser=options.parse_size,
            metavar="SIZE",
            show_default=False,
            help="The largest body of a request; 100MiB by default.",
        ),
    ] = options.DEFAULT_MAX_BYTES,
    max_download_size: Annotated[
        int,
        typer.Option(
            parser=options.parse_size,
            metavar="SIZE",
            show_default=False,
            help="The largest file behind an input URL; 100MiB by default.",
        ),
    ] = options.DEFAULT_MAX_BYTES,
    setup_timeout: options.SetupTimeout = None,
    allow_private_urls: Annotated[
        bool | None,
        typer.Option(
            "--allow-private-urls/--no-allow-private-urls",
            show_default=False,
            help="Whether clients' URLs (inputs, webhooks, output_file_prefix) may point into the server's own "
            "networks; by default if --host is a loopback.",
        ),
    ] = None,
    shared_memory: options.SharedMemory = False,
    health_body: options.HealthBody = False,
    grpc_port: grpc.Port = None,
    grpc_max_message_size: grpc.MaxMessageSize = None,
    grpc_tls_cert: grpc.TlsCert = None,
    grpc_tls_key: grpc.TlsKey = None,
    grpc_tls_ca: grpc.TlsCa = None,
    default_model: models.DefaultModel = None,
    load: models.Load = "all",
    replicas: models.Replicas = 1,
    inference_queue: models.InferenceQueue = models.DEFAULT_INFERENCE_QUEUE,
    reload: models.Reload = False,
    no_pickle: options.NoPickle = False,
    queue: options.Queue = 0,
    keep: options.Keep = 300.0,
    restart: options.Restart = "never",
    restart_limit: options.RestartLimit = 5,
    cancel_grace: options.CancelGrace = 60.0,
    run_timeout: options.RunTimeout = 0.0,
    wakeup: options.Wakeup = "adaptive",
    shutdown_grace: options.ShutdownGrace = 30.0,
    x_mode: options.XMode = "predict",
    threads: Annotated[int | None, typer.Option(hidden=True, help="Accepted and ignored, as Cog does.")] = None,  # noqa: ARG001
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. COG_LOG_LEVEL says the same.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="json or console. LOG_FORMAT says the same.")
    ] = None,
    version: options.Version = False,  # noqa: ARG001  its callback has printed it
) -> None:
    """Serve MODEL over HTTP."""
    try:
        source = models.find_source(model, x_mode, reload=reload, no_pickle=no_pickle)
        to_load = models.read_load(load, source)
        models.check_name("--default-model", default_model, source)
    except ProjectError as error:
        fail(error.message)
    variables, warnings = models.variables_of(source)
    form = logs.configure(log_level or variables.log_level, log_format or variables.log_format)
    for sentence in warnings:
        logger.warning(sentence)
    from geartrain.server import ServeOptions, find_ready_file  # after the checks: they take no time
    from geartrain.service.models.deployment import Limits
    from geartrain.service.models.restarts import RestartPolicy

    observer = ServeObserver(source, for_person=form == "console" and logs.is_terminal(sys.stderr))
    serve_options = ServeOptions(
        source=source,
        host=host,
        port=variables.port if port is None else port,
        upload_url=upload_url,
        await_explicit_shutdown=await_explicit_shutdown == "true",
        max_body_bytes=max_body_size,
        max_download_bytes=max_download_size,
        setup_timeout=setup_timeout,
        shutdown_grace=shutdown_grace,
        limits=Limits(queue=queue, keep=keep, cancel_grace=cancel_grace or None, run_timeout=run_timeout or None),
        restarts=RestartPolicy(limit=restart_limit) if restart == "on-crash" else None,
        allow_private_urls=allow_private_urls,
        shared_memory=shared_memory,
        health_body=health_body,
        wakeup=wakeup,
        grpc=grpc.grpc_options(grpc_port, grpc_max_message_size, grpc_tls_cert, key=grpc_tls_key, ca=grpc_tls_ca),
        default_model=default_model,
        load=to_load,
        replicas=replicas,
        inference_queue=inference_queue,
        reload=reload,
        ready_file=find_ready_file(os.environ),
        target=model,
        find_again=lambda: find_model(model, mode=x_mode, no_pickle=no_pickle),
        on_progress=observer,
    )
    code = _run(serve_options)
    raise typer.Exit(code or (FAILURE if observer.has_failed else 0))


def _run(serve_options: ServeOptions) -> int:
    from geartrain.server import PortInUseError, run_server
    from geartrain.transport.grpc.options import GrpcOptionsError

    try:
        return run_server(serve_options)
    except (PortInUseError, GrpcOptionsError) as error:
        fail(str(error))
