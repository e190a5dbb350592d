"""The command `geartrain serve`: a model over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from geartrain.cli import access, fetching, grpc, metrics, models, options, serving, store, wire
from geartrain.cli.declared import Option
from geartrain.cli.serving import Names, find, written_as
from geartrain.project.setting_values import AUTO
from geartrain.project.variables import DEFAULT_PORT

if TYPE_CHECKING:
    from geartrain.transport.wire.tls import TlsFiles


def serve(
    model: models.ServedTarget = None,
    *,
    host: wire.Host = wire.DEFAULT_HOST,
    port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            envvar="PORT",
            metavar="PORT",
            show_default=str(DEFAULT_PORT),
            help="The port to listen on; 0 for any free one.",
            rich_help_panel=options.CONNECTIONS,
        ),
    ] = None,
    admin_port: wire.AdminPort = None,
    upload_url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Upload output files to this URL instead of inlining them.",
            rich_help_panel=options.FILES,
        ),
    ] = None,
    await_explicit_shutdown: Annotated[
        str,
        Option(
            callback=options.check_switch,
            metavar="BOOL",
            help="Stay up after SIGTERM, until POST /shutdown or Ctrl-C. Without a value: true.",
            rich_help_panel=options.LIFECYCLE,
        ),
    ] = "false",
    max_head_size: wire.MaxHeadSize = wire.DEFAULTS.max_head_size,
    max_body_size: wire.MaxBodySize = options.DEFAULT_MAX_BYTES,
    max_buffered_size: wire.MaxBufferedSize = None,
    max_json_elements: wire.MaxJsonElements = wire.DEFAULT_MAX_JSON_ELEMENTS,
    max_connections: wire.MaxConnections = wire.DEFAULTS.max_connections,
    max_connections_per_client: wire.MaxConnectionsPerClient = wire.DEFAULTS.max_connections_per_client,
    head_timeout: wire.HeadTimeout = wire.DEFAULTS.head_timeout,
    body_timeout: wire.BodyTimeout = wire.DEFAULTS.body_timeout,
    idle_timeout: wire.IdleTimeout = wire.DEFAULTS.idle_timeout,
    send_timeout: wire.SendTimeout = wire.DEFAULTS.send_timeout,
    tls_cert: wire.TlsCert = None,
    tls_key: wire.TlsKey = None,
    tls_client_ca: wire.TlsClientCa = None,
    allow_private_urls: wire.AllowPrivateUrls = False,
    max_download_size: Annotated[
        int,
        Option(
            parser=options.parse_size,
            metavar="SIZE",
            show_default=False,
            help="The largest file behind an input URL; 100MiB by default. 0 disables this limit.",
            rich_help_panel=options.FILES,
        ),
    ] = options.DEFAULT_MAX_BYTES,
    setup_timeout: options.SetupTimeout = None,
    shared_memory: options.SharedMemory = False,
    health_body: options.HealthBody = False,
    grpc_port: grpc.Port = None,
    grpc_max_message_size: grpc.MaxMessageSize = None,
    grpc_tls_cert: grpc.TlsCert = None,
    grpc_tls_key: grpc.TlsKey = None,
    grpc_tls_ca: grpc.TlsCa = None,
    keys: access.Keys = None,
    jwt_issuer: access.JwtIssuer = None,
    jwt_audience: access.JwtAudience = None,
    jwt_jwks: access.JwtJwks = "",
    jwt_scope_claim: access.JwtScopeClaim = access.DEFAULT_SCOPE_CLAIM,
    jwt_models_claim: access.JwtModelsClaim = "",
    cors_origin: access.CorsOrigins = None,
    allowed_host: access.AllowedHosts = None,
    model_name: models.ModelName = "",
    default_model: models.DefaultModel = None,
    load: models.Load = "all",
    idle_unload: models.IdleUnload = 0.0,
    max_memory: models.MaxMemory = 0,
    replicas: models.Replicas = 1,
    devices: models.DeviceNames = None,
    inference_queue: models.InferenceQueue = models.DEFAULT_INFERENCE_QUEUE,
    reload: models.Reload = False,
    no_pickle: options.NoPickle = False,
    queue: options.Queue = 0,
    keep: options.Keep = 300.0,
    stream_grace: options.StreamGrace = 30.0,
    store_url: store.Store = None,
    store_key_file: store.StoreKeyFile = None,
    store_keep: store.StoreKeep = store.DEFAULT_KEEP,
    store_size: store.StoreSize = store.DEFAULT_MAX_BYTES,
    lease: store.Lease = store.DEFAULT_LEASE,
    attempts: store.Attempts = store.DEFAULT_ATTEMPTS,
    advertise: store.Advertise = "",
    cluster_token_file: store.ClusterTokenFile = None,
    cluster_ca: store.ClusterCa = None,
    restart: options.Restart = "never",
    restart_limit: options.RestartLimit = 5,
    cancel_grace: options.CancelGrace = 60.0,
    run_timeout: options.RunTimeout = 0.0,
    max_output_size: options.MaxOutputSize = options.DEFAULT_MAX_OUTPUT,
    wakeup: options.Wakeup = "adaptive",
    mirror_prints: options.MirrorPrints = "auto",
    latency_buckets: metrics.LatencyBuckets = None,
    size_buckets: metrics.SizeBuckets = None,
    drain_delay: options.DrainDelay = 0.0,
    shutdown_grace: options.ShutdownGrace = 30.0,
    cache_dir: fetching.CacheDir = None,
    verify_cache: fetching.VerifyCache = False,
    x_mode: options.XMode = "predict",
    threads: Annotated[int | None, Option(hidden=True, help="Accepted and ignored, as Cog does.")] = None,  # noqa: ARG001
    access_log: options.AccessLog = options.LOG_ALL,
    log_level: Annotated[
        str | None,
        Option(
            metavar="LEVEL",
            help="debug, info, warning or error. COG_LOG_LEVEL says the same.",
            rich_help_panel=options.LOGS,
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        Option(metavar="FORMAT", help="json or console. LOG_FORMAT says the same.", rich_help_panel=options.LOGS),
    ] = None,
    version: options.Version = False,  # noqa: ARG001  its callback has printed it
) -> None:
    """Serve MODEL over HTTP."""
    jwt = access.jwt_options(jwt_issuer, jwt_audience, jwt_jwks, scope=jwt_scope_claim, models=jwt_models_claim)
    tls, grpc_tls = _tls((tls_cert, tls_key, tls_client_ca), (grpc_tls_cert, grpc_tls_key, grpc_tls_ca))
    found = find(model, x_mode, load, names=Names(model_name, default_model), reload=reload, no_pickle=no_pickle)
    observer, form = serving.observe(found, log_level, log_format)
    from geartrain.server import NO_LIMIT, CacheOptions, ServeOptions  # after the checks: they take no time

    serve_options = ServeOptions(
        source=found.source,
        host=host,
        port=found.variables.port if port is None else port,
        admin_port=admin_port,
        tls=tls,
        wire=wire.limits(
            max_buffered_size,
            max_head_size=max_head_size,
            connections=(max_connections, max_connections_per_client),
            timeouts=(head_timeout, body_timeout, idle_timeout, send_timeout),
        ),
        upload_url=upload_url,
        await_explicit_shutdown=await_explicit_shutdown == "true",
        max_body_bytes=max_body_size or NO_LIMIT,
        max_json_elements=max_json_elements or NO_LIMIT,
        max_download_bytes=max_download_size or NO_LIMIT,
        setup_timeout=setup_timeout,
        drain_delay=drain_delay,
        shutdown_grace=shutdown_grace,
        limits=serving.limits(
            queue,
            keep,
            stream_grace=stream_grace,
            cancel_grace=cancel_grace,
            run_timeout=run_timeout,
            max_output_size=max_output_size,
        ),
        restarts=serving.restarts(restart, restart_limit),
        buckets=metrics.buckets(latency_buckets, size_buckets),
        allow_private_urls=allow_private_urls,
        shared_memory=shared_memory,
        health_body=health_body,
        wakeup=wakeup,
        mirror_prints="on" if mirror_prints == "auto" and form == "console" else mirror_prints,
        grpc=grpc.grpc_options(grpc_port, grpc_max_message_size, grpc_tls, has_administration=admin_port is None),
        access_log=written_as(access_log, form),
        access=access.access_options(keys, jwt, cors_origins=cors_origin, allowed_hosts=allowed_host),
        default_model=default_model,
        load=found.to_load,
        residency=serving.residency(load, idle_unload, max_memory),
        replicas=replicas,
        devices=devices or AUTO,
        inference_queue=inference_queue,
        reload=reload,
        cache=CacheOptions(cache_dir, verify_cache),
        store=store.read(store_url, store_key_file, found.variables, bounds=(store_keep, store_size, lease, attempts)),
        cluster=store.cluster(advertise, cluster_token_file, cluster_ca),
    )
    sys.exit(serving.run(serve_options, observer, model, mode=x_mode, no_pickle=no_pickle))


_Files = tuple[Path | None, Path | None, Path | None]  # a certificate, its key, and the CA of clients


def _tls(http: _Files, own_of_grpc: _Files) -> tuple[TlsFiles | None, TlsFiles | None]:
    """Return the files for TLS over HTTP, and those over gRPC, which are the same by default."""
    tls = wire.tls_files(*http)
    return tls, grpc.tls_files(*own_of_grpc) or tls
