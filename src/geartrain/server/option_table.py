"""The options of a server, in one table.

Of it are made: the command line of `geartrain serve` and its help (`cli/serve.py`), the fields of `ServeOptions`
(`server/options.py`), and the options of `geartrain.asgi` (`server/asgi_options.py`, by `tools/make_options.py`).
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from geartrain.project.variables import DEFAULT_PORT
from geartrain.server.option_kinds import (
    ACCESS_LOG,
    APIS,
    DEVICES,
    DURATION,
    DURATIONS,
    FILE,
    NAMES,
    NO_LIMIT,
    NUMBER,
    PORT_OR_OFF,
    SECONDS,
    SIZE,
    SIZES,
    TEXT,
    TEXTS,
    TRUTH,
    Option,
    one_of,
    panel,
    port,
    switch,
)
from geartrain.transport.access_log import AccessLogOptions

KIB: Final = 1024
MIB: Final = 1024**2

TABLE: Final = (
    *panel(
        "Connections",
        Option(
            "host",
            TEXT,
            "The address to listen on; 0.0.0.0 for all addresses of the machine, as in a container.",
            default="127.0.0.1",
            metavar="ADDRESS",
            variable="HOST",
        ),
        port(
            "port",
            "The port to listen on; 0 for any free one.",
            variable="PORT",
            shown=str(DEFAULT_PORT),
        ),
        port(
            "admin_port",
            "A port of their own for administration (load, unload, shared memory, shutdown) and metrics; 0 for "
            "any free one.",
        ),
        Option(
            "max_head_size",
            SIZE,
            "The largest head of a request, and the largest trailers; 32KiB by default. 0 disables this limit.",
            default=32 * KIB,
            to="wire.max_head_size",
        ),
        Option(
            "max_body_size",
            SIZE,
            "The largest body of a request; 100MiB by default. 0 disables this limit.",
            default=100 * MIB,
            to="max_body_bytes",
            zero=NO_LIMIT,
            is_hosted=True,
        ),
        Option(
            "max_buffered_size",
            SIZE,
            "What the bodies of all connections may take together; by default a quarter of the memory that the "
            "server may use. 0 disables this limit.",
            to="wire.max_buffered_size",
        ),
        Option(
            "max_json_elements",
            NUMBER,
            "How many elements a JSON body may have besides the data of tensors. 0 disables this limit.",
            default=2_000_000,
            zero=NO_LIMIT,
            least=0,
        ),
        Option(
            "max_connections",
            NUMBER,
            "How many connections may be open at once. 0 disables this limit.",
            default=10_000,
            to="wire.max_connections",
            least=0,
        ),
        Option(
            "max_connections_per_client",
            NUMBER,
            "How many of them may come from one address; 0, the default, disables this limit. All clients of a "
            "proxy share its address.",
            default=0,
            to="wire.max_connections_per_client",
            least=0,
        ),
        Option(
            "head_timeout",
            DURATION,
            "How long the head of a request may take to come; 10s by default. 0 disables this limit.",
            default=10.0,
            to="wire.head_timeout",
        ),
        Option(
            "body_timeout",
            DURATION,
            "The time in which 10 KiB of a body, or its rest, have to come; 10s by default. 0 disables this limit.",
            default=10.0,
            to="wire.body_timeout",
        ),
        Option(
            "idle_timeout",
            DURATION,
            "How long a connection may be without a request; 75s by default. 0 disables this limit.",
            default=75.0,
            to="wire.idle_timeout",
        ),
        Option(
            "send_timeout",
            DURATION,
            "How long a client may take nothing of its answer; 60s by default. 0 disables this limit.",
            default=60.0,
            to="wire.send_timeout",
        ),
    ),
    *panel(
        "Files",
        Option(
            "upload_url",
            TEXT,
            "Upload output files to this URL instead of inlining them.",
            metavar="URL",
            is_hosted=True,
        ),
        Option(
            "max_download_size",
            SIZE,
            "The largest file behind an input URL; 100MiB by default. 0 disables this limit.",
            default=100 * MIB,
            to="max_download_bytes",
            zero=NO_LIMIT,
            is_hosted=True,
        ),
    ),
    *panel(
        "Start and end",
        Option(
            "await_explicit_shutdown",
            TRUTH,
            "Stay up after SIGTERM, until POST /shutdown or Ctrl-C. Without a value: true.",
            default=False,
            shown="false",
        ),
        Option(
            "setup_timeout",
            SECONDS,
            "Give up when setup takes longer; 0 for no limit. COG_SETUP_TIMEOUT says the same.",
            is_hosted=True,
        ),
        Option(
            "drain_delay",
            DURATION,
            "How long requests are still served after SIGTERM, while /readyz says that the server is not ready; "
            "none by default. Give a balancer the time to notice.",
            default=0.0,
        ),
        Option(
            "shutdown_grace",
            DURATION,
            "How long running predictions have to end after SIGTERM; 30s by default.",
            default=30.0,
            is_hosted=True,
        ),
    ),
    *panel(
        "Security",
        Option(
            "tls_cert",
            FILE,
            "Serve over TLS with this certificate, PEM. A renewed one is taken up without a restart.",
            to="",
        ),
        Option("tls_key", FILE, "The key of that certificate.", to=""),
        Option("tls_client_ca", FILE, "Let in only clients whose certificate was signed by this CA.", to=""),
        switch(
            "allow_private_urls",
            "Let clients' URLs (inputs, webhooks, output_file_prefix) point into the server's own networks.",
            is_hosted=True,
        ),
        switch(
            "shared_memory",
            "Let clients of the Open Inference Protocol pass tensors in system shared memory: they can then "
            "read and write every object of it that the server can.",
            is_hosted=True,
        ),
        Option(
            "keys",
            FILE,
            "Ask clients for a key of this file, over HTTP and gRPC; `geartrain keys new` adds one.",
            to="access.keys",
        ),
        Option("jwt_issuer", TEXT, "Take the tokens (JWT) of this issuer, beside the keys.", to="", metavar="URL"),
        Option("jwt_audience", TEXTS, "Take only tokens for this audience; may be repeated.", to="", metavar="NAME"),
        Option(
            "jwt_jwks",
            TEXT,
            "Where the issuer's public keys are; without it the issuer is asked.",
            default="",
            to="",
            metavar="URL|FILE",
        ),
        Option(
            "jwt_scope_claim",
            TEXT,
            "The claim of a token that lists its scopes.",
            default="scope",
            to="",
            metavar="NAME",
        ),
        Option(
            "jwt_models_claim",
            TEXT,
            "The claim of a token that lists patterns of models; without it a token is for all models.",
            default="",
            to="",
            metavar="NAME",
        ),
        Option(
            "cors_origin",
            TEXTS,
            "Let pages of this origin, such as https://app.example.com, use the server; * for any; may be repeated.",
            to="",
            metavar="ORIGIN",
        ),
        Option(
            "allowed_host",
            TEXTS,
            "A name that clients may call the server by, such as models.example.com or *.example.com; may be "
            "repeated. By default any, and on a loopback address those of the loopback alone.",
            to="",
            metavar="NAME",
        ),
        switch(
            "no_pickle",
            "Refuse model files that can run code when they are loaded, such as pickles.",
            to="",
            is_hosted=True,
        ),
    ),
    *panel(
        "Predictions",
        Option(
            "api",
            APIS,
            "Endpoints of other servers and platforms beside those of this one: sagemaker, sagemaker-models, mlflow, "
            "kserve (version 1), vertex, torchserve, huggingface, litserve, truss, azure; several with commas between "
            "them. A script that was written for another server and is served alone has its own without this option.",
            default="",
            variable="GEARTRAIN_API",
            is_hosted=True,
        ),
        switch(
            "health_body",
            "Put what KServe's client reads into the health responses of the Open Inference Protocol, which are "
            "empty by default.",
            is_hosted=True,
        ),
        Option(
            "inference_queue",
            NUMBER,
            "How many requests of the Open Inference Protocol may wait for a slot of a model.",
            default=1024,
            least=0,
            is_hosted=True,
        ),
        Option(
            "queue",
            NUMBER,
            "How many predictions may wait for a slot before the answer is 409.",
            default=0,
            to="limits.queue",
            least=0,
            is_hosted=True,
        ),
        Option(
            "keep",
            DURATION,
            "How long a finished prediction can be asked for with GET; 5m by default, 0 for not at all.",
            default=300.0,
            to="limits.keep",
            is_hosted=True,
        ),
        Option(
            "stream_grace",
            DURATION,
            "How long a stream that POST made runs on after its last reader has left; 30s by default, 0 to "
            "cancel it at once. One made by PUT runs to its end.",
            default=30.0,
            to="limits.stream_grace",
            is_hosted=True,
        ),
        Option(
            "cancel_grace",
            DURATION,
            "How long a run may ignore a cancel before its worker is killed; 60s by default; 0 disables the limit.",
            default=60.0,
            to="limits.cancel_grace",
            zero=None,
            is_hosted=True,
        ),
        Option(
            "run_timeout",
            DURATION,
            "How long a run may take before it is canceled and fails, unless the model sets its own limit; 0, "
            "the default, disables the limit. Trainings may take as long as they need.",
            default=0.0,
            to="limits.run_timeout",
            zero=None,
            is_hosted=True,
        ),
        Option(
            "max_output_size",
            SIZE,
            "The largest output of a run, all that a stream yields together; 256MiB by default. Beyond it the "
            "run is canceled and fails. 0 disables this limit.",
            default=256 * MIB,
            to="limits.max_output_size",
            zero=None,
            is_hosted=True,
        ),
        Option(
            "wakeup",
            one_of("adaptive", "blocking"),
            "How server and workers wait for each other: adaptive stays awake for moments around predictions, "
            "which makes short ones faster; blocking always sleeps, for machines that are billed by processor "
            "time. With a CPU quota of one core or less, adaptive sleeps too.",
            default="adaptive",
            is_hosted=True,
        ),
        Option(
            "mirror_prints",
            one_of("auto", "on", "off"),
            "Whether what runs print is in the server's log too, with the id of the prediction: auto on a "
            "terminal, and where the answer has no place for it (Open Inference Protocol, generate); on always; "
            "off never.",
            default="auto",
            is_hosted=True,
        ),
    ),
    *panel(
        "gRPC",
        Option(
            "grpc_port",
            PORT_OR_OFF,
            "The port of gRPC, off for none; 8081 by default, and none if that one is taken.",
            to="",
        ),
        Option(
            "grpc_max_message_size",
            SIZE,
            "The largest message that is taken over gRPC; 256MiB by default, 0 disables this limit.",
            to="grpc.max_message_bytes",
        ),
        Option("grpc_tls_cert", FILE, "Another certificate for gRPC than --tls-cert, or one for gRPC alone.", to=""),
        Option("grpc_tls_key", FILE, "The key of that certificate.", to=""),
        Option(
            "grpc_tls_ca",
            FILE,
            "Let in only clients whose certificate was signed by this CA; needs --grpc-tls-cert.",
            to="",
        ),
    ),
    *panel(
        "Models",
        Option(
            "model_name",
            TEXT,
            "The name of a model that is served alone; by default that of its folder or file.",
            default="",
            to="",
            metavar="NAME",
        ),
        Option(
            "default_model",
            TEXT,
            "Of several models, the one whose Cog API is at the root.",
            metavar="NAME",
            is_hosted=True,
        ),
        Option(
            "load",
            NAMES,
            "Of several models, those to load at the start; on-demand: each when a request needs it.",
            default="all",
            to="",
            metavar="all|none|on-demand|NAME,…",
            is_hosted=True,
        ),
        Option(
            "idle_unload",
            DURATION,
            "Unload a model that has had no work for so long; the next request loads it again. Off by default.",
            default=0.0,
            to="residency.idle",
            zero=inf,
        ),
        Option(
            "max_memory",
            SIZE,
            "The memory of all workers together, beyond which models without work are unloaded, the least "
            "recently used first; the next request loads them again. Off by default.",
            default=0,
            to="residency.max_memory",
            zero=inf,
        ),
        Option(
            "replicas",
            NUMBER,
            "Equal workers of each model that does not set its own number.",
            default=1,
            least=1,
            is_hosted=True,
        ),
        Option(
            "devices",
            DEVICES,
            "The devices of each model that does not say itself: auto divides the GPUs that the server sees "
            "among the replicas of a model, cpu hides them, and names such as cuda:0,cuda:1 choose some. auto "
            "by default.",
            is_hosted=True,
        ),
        switch(
            "reload",
            "Reload a model when its code, settings or model file change, and follow the models of a folder as "
            "they come and go; for development.",
            is_hosted=True,
        ),
        Option(
            "restart",
            one_of("never", "on-crash"),
            "Whether a crashed worker is followed by another, with growing pauses.",
            default="never",
            to="",
            is_hosted=True,
        ),
        Option(
            "restart_limit",
            NUMBER,
            "How many crashes in a row are followed by a restart.",
            default=5,
            to="",
            least=1,
            is_hosted=True,
        ),
        Option(
            "cache_dir",
            FILE,
            "Where models and weights are kept that come from elsewhere. GEARTRAIN_CACHE says the same; by "
            "default it is geartrain in the user's cache folder.",
            metavar="FOLDER",
            to="cache.folder",
            is_hosted=True,
        ),
        switch(
            "verify_cache",
            "Compare what is in the cache with its checksums before it is used; by default only sizes are compared.",
            to="cache.verify",
            is_hosted=True,
        ),
        Option(
            "x_mode",
            one_of("predict", "train"),
            "What to serve: predictions, or trainings alone, set up at once.",
            default="predict",
            to="",
        ),
    ),
    *panel(
        "Store",
        Option(
            "store",
            TEXT,
            "Where predictions are kept that have an id or are answered with 202, so that they outlive the "
            "server: sqlite:///PATH, or postgres://USER@HOST/DATABASE. GEARTRAIN_STORE says the same.",
            metavar="URL",
            to="store.url",
            is_hosted=True,
        ),
        Option(
            "store_key_file",
            FILE,
            "Keys that stored inputs are encrypted with, 32 bytes in base64 on each line; the first one "
            "encrypts. GEARTRAIN_STORE_KEY_FILE says the same.",
            to="store.key_file",
            is_hosted=True,
        ),
        Option(
            "store_keep",
            DURATION,
            "How long a finished prediction stays in the store; 24h by default.",
            default=86400.0,
            to="store.keep",
            is_hosted=True,
        ),
        Option(
            "store_size",
            SIZE,
            "How large finished predictions may be together; the oldest go first. 1GB by default.",
            default=1_000_000_000,
            to="store.max_bytes",
            is_hosted=True,
        ),
        Option(
            "lease",
            DURATION,
            "After how long without a sign of life another server takes up what this one had accepted; 15s by default.",
            default=15.0,
            to="store.lease",
            is_hosted=True,
        ),
        Option(
            "attempts",
            NUMBER,
            "How often an accepted prediction is run at most when its server is lost each time.",
            default=3,
            to="store.attempts",
            least=1,
            is_hosted=True,
        ),
        Option(
            "advertise",
            TEXT,
            "Where servers that share the store reach this one, so that each of them answers for the "
            "predictions of all; without :PORT its own port. Needs a store in Postgres and "
            "--cluster-token-file.",
            default="",
            metavar="HOST:PORT",
            to="cluster.advertise",
        ),
        Option(
            "cluster_token_file",
            FILE,
            "The token by which these servers know each other, 32 characters or more; of several lines the "
            "first one is sent, and all of them are taken.",
            to="cluster.token_file",
        ),
        Option(
            "cluster_ca",
            FILE,
            "The CA that the certificates of these servers are checked against, where they have TLS; by default "
            "those of the machine.",
            to="cluster.ca",
        ),
    ),
    *panel(
        "Metrics",
        Option(
            "latency_buckets",
            DURATIONS,
            "The upper bounds of the buckets of all histograms of times in /metrics, such as 10ms,100ms,1s,10s. "
            "By default there are 16, from 1ms to 5m.",
            to="buckets.seconds",
            is_hosted=True,
        ),
        Option(
            "size_buckets",
            SIZES,
            "The upper bounds of the buckets of all histograms of sizes in /metrics, such as 1KiB,1MiB,100MiB. "
            "By default there are 10, from 256 bytes to 64MiB.",
            to="buckets.bytes",
            is_hosted=True,
        ),
    ),
    *panel(
        "Logs",
        Option("threads", NUMBER, "Accepted and ignored, as Cog does.", to="", is_hidden=True),
        Option(
            "access_log",
            ACCESS_LOG,
            "Which requests have a line in the log: on (all), sampled:N (one in N, and errors), errors, or off.",
            default=AccessLogOptions(),
            shown="on",
            is_hosted=True,
        ),
        Option(
            "log_level", TEXT, "debug, info, warning or error. COG_LOG_LEVEL says the same.", to="", metavar="LEVEL"
        ),
        Option("log_format", TEXT, "json or console. LOG_FORMAT says the same.", to="", metavar="FORMAT"),
    ),
)

BY_NAME: Final = {option.name: option for option in TABLE}
BY_FLAG: Final = {option.flag: option for option in TABLE}
DEFAULTS: Final[dict[str, Any]] = {option.name: option.default for option in TABLE}
