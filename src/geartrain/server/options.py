"""Options of a server, and reporters of its start."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from geartrain.bridge.borrowing import Lender
from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.predictions.statistics import DEFAULT_BUCKETS, Buckets
from geartrain.domain.printed.text import PrintedLines
from geartrain.outbound.retries import Retries
from geartrain.project.repository import Repository
from geartrain.project.setting_values import AUTO, Devices
from geartrain.project.source import ModelSource
from geartrain.project.variables import Variables
from geartrain.server.memory import default_limits
from geartrain.server.option_table import TABLE
from geartrain.service.mirror import MirrorMode
from geartrain.service.models.deployment import Limits
from geartrain.service.models.residency import STAY, ResidencyPolicy
from geartrain.service.scheduling.pending import DEFAULT_QUEUE
from geartrain.service.workers.pool import RestartPolicy
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.access_log import AccessLogOptions
from geartrain.transport.grpc.options import GrpcOptions
from geartrain.transport.wire.limits import WireLimits
from geartrain.transport.wire.tls import TlsFiles

logger = logging.getLogger("geartrain.server")

DEFAULT_LEASE: Final = 15.0  # seconds
DEFAULT_STORE_KEEP: Final = 86_400.0  # seconds
DEFAULT_STORE_BYTES: Final = 1_000_000_000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the start, or of a model's life after it, to be shown to the operator."""

    # "listening", "listening-admin", "listening-grpc", "watching", "downloading", "setup-output", "ready",
    # "setup-failed", "settled" (each model of the start is ready, or has failed), "reload-failed", "unloaded",
    # "stopping"
    stage: str
    model: str = ""
    version: str = ""  # of a server with several models
    url: str = ""
    slots: int = 0
    text: str = ""  # of setup-output: what was printed; of a failure: the reason; of a download: a sentence
    source: str = ""  # of a download
    bytes: int = 0  # of a download, that are there
    total_bytes: int = 0  # of a download; 0 where that is not known


def log_progress(progress: Progress) -> None:
    """Log a step: the stage as the message, the rest as fields."""
    fields = {name: value for name, value in msgspec.structs.asdict(progress).items() if value and name != "stage"}
    logger.log(logging.ERROR if progress.stage.endswith("failed") else logging.INFO, progress.stage, extra=fields)


class ProgressLines:
    """Makes whole lines of what the setups of models print, for those who cannot take back what they have shown."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], PrintedLines] = {}  # by model and version

    def of(self, progress: Progress) -> list[Progress]:
        """Return the steps to show in place of one: the output of a setup in whole lines, before what follows it."""
        key = (progress.model, progress.version)
        if progress.stage == "setup-output":
            lines = self._lines.setdefault(key, PrintedLines()).add(progress.text)
            return [_output(progress, lines)] if lines else []
        rest = self._lines.pop(key).end() if key in self._lines else []
        return [_output(progress, rest), progress] if rest else [progress]


def _output(progress: Progress, lines: list[str]) -> Progress:
    text = "".join([f"{line}\n" for line in lines])
    return Progress(stage="setup-output", model=progress.model, version=progress.version, text=text)


class DownloadLines:
    """Lets few steps of downloads through: the first of each source, one for each tenth of it, and the last."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int]] = {}  # source and tenth, by model

    def is_due(self, progress: Progress) -> bool:
        """True if a step is to be told."""
        if progress.stage != "downloading":
            return True
        tenth = progress.bytes * 10 // progress.total_bytes if progress.total_bytes else 0
        told = self._told.get(progress.model)
        self._told[progress.model] = (progress.source, tenth)
        return told != (progress.source, tenth)


class ProgressLog:
    """Logs the steps of a server, what setups print in whole lines."""

    def __init__(self) -> None:
        self._lines = ProgressLines()
        self._downloads = DownloadLines()

    def __call__(self, progress: Progress) -> None:
        """Log one step, as `log_progress`."""
        if progress.stage != "settled" and self._downloads.is_due(progress):
            for step in self._lines.of(progress):
                log_progress(step)


class CacheOptions(msgspec.Struct, frozen=True):
    """Cache of models and weights from elsewhere; `folder` None: by the environment.

    `verify`: cached files are compared with their checksums before use.
    """

    folder: pathlib.Path | None = None
    verify: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Options of webhooks. Times in seconds. `interval` and `token` None: by the variables of the model."""

    interval: float | None = None  # the least time between two of output and logs
    token: str | None = dataclasses.field(default=None, repr=False)
    retries: Retries = dataclasses.field(default_factory=Retries)
    grace: float = 10.0  # at the end, for what predictions that have ended still have to tell


class DebugOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Debugging aids for an author."""

    lender: Lender | None = None  # of the terminal, for debuggers in workers
    port: int = 0  # debugpy's port in the first worker; further ones have the following ports. 0: none
    waits: bool = False  # for an editor, before a model is loaded
    profiles: pathlib.Path | None = None  # the folder for a profile of each call
    profile_format: Literal["speedscope", "html"] = "speedscope"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of the store of predictions that outlive the server. Times in seconds."""

    url: str = dataclasses.field(default="", repr=False)  # it may hold a password; empty: nowhere
    key_file: pathlib.Path | None = None  # keys that inputs are encrypted with
    keep: float = DEFAULT_STORE_KEEP  # time that finished predictions are kept
    max_bytes: int = DEFAULT_STORE_BYTES  # that they may have in all
    lease: float = DEFAULT_LEASE  # without a sign of life, after which others take over
    attempts: int = 3  # most runs of an accepted prediction


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connections between servers that share a store."""

    advertise: str = ""  # `HOST:PORT` where others ask this one, or `HOST` for its own port; empty: it is alone
    token_file: pathlib.Path | None = None  # the token that all of them share
    ca: pathlib.Path | None = None  # that their certificates are checked against; None: those of the machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of a server. Sizes in bytes, times in seconds; None means no limit.

    `NO_LIMIT` is none for `max_body_bytes`, `max_json_elements` and `max_download_bytes`.

    `setup_timeout` and `stream_history` None, and two fields of `webhooks`, leave the decision to the variables of each
    model: see `variables_of`.
    """

    source: ModelSource | Repository
    host: str = "127.0.0.1"
    port: int = 5000
    admin_port: int | None = None  # of administration and metrics; None: they are on `port` like the rest
    tls: TlsFiles | None = None
    wire: WireLimits = dataclasses.field(default_factory=default_limits)
    upload_url: str | None = None
    await_explicit_shutdown: bool = False
    max_body_bytes: int = 100 * 1024**2
    max_json_elements: int = 2_000_000  # of a body, but for the data of tensors
    max_download_bytes: int = 100 * 1024**2
    setup_timeout: float | None = None  # 0 is no limit
    shutdown_grace: float | None = 30.0
    drain_delay: float = 0.0  # after SIGTERM: how long requests are still taken, by a server that is no longer ready
    training_idle: float | None = 300.0  # time that the worker of a training stays without work
    limits: Limits = dataclasses.field(default_factory=Limits)
    buckets: Buckets = DEFAULT_BUCKETS  # of the histograms in the metrics
    inference_queue: int = DEFAULT_QUEUE  # requests of the Open Inference Protocol that may wait for a slot
    replicas: int = 1  # workers of a model that does not say itself how many
    devices: Devices = AUTO  # that replicas are put on, of a model that does not say itself
    restarts: RestartPolicy | None = None  # after a crash of the worker; None: it stays DEFUNCT
    allow_private_urls: bool = False  # true if URLs of clients may lead into the server's own networks
    webhooks: WebhookOptions = WebhookOptions()
    store: StoreOptions = StoreOptions()
    cluster: ClusterOptions = dataclasses.field(default_factory=ClusterOptions)
    grpc: GrpcOptions = dataclasses.field(default_factory=GrpcOptions)
    access: AccessOptions = dataclasses.field(default_factory=AccessOptions)
    access_log: AccessLogOptions = dataclasses.field(default_factory=AccessLogOptions)
    stream_history: int | None = None  # events of a prediction that are kept for late readers
    default_model: str | None = None  # the one whose API is at the root, where there are several
    load: frozenset[str] | None = None  # the models of a repository to load at the start; None: all
    residency: ResidencyPolicy = STAY  # which models stay loaded
    reload: bool = False  # when files change
    shared_memory: bool = False  # true if clients may register regions of it
    wakeup: WakeupMode = "adaptive"  # waiting of server and workers for each other
    mirror_prints: MirrorMode = "auto"  # which runs' prints are in the server's log as well
    metric_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of every metric, beside its own
    api: str = ""  # the names of other servers whose endpoints there are, with commas between them
    health_body: bool = False  # true if health responses of the Open Inference Protocol have a body
    ready_file: pathlib.Path | None = None  # written when all models are ready that are loaded at the start
    debugging: DebugOptions = dataclasses.field(default_factory=DebugOptions)
    # For a reload of a model that is served alone: what it was found by, and how that, or the place that it has been
    # fetched to, is looked up again.
    target: str | None = None
    find_again: Callable[[str | None], ModelSource | Repository] | None = dataclasses.field(default=None, compare=False)
    cache: CacheOptions = dataclasses.field(default_factory=CacheOptions)
    on_progress: Callable[[Progress], None] = dataclasses.field(default_factory=ProgressLog, compare=False)
    on_download: Callable[[str, int, int | None], None] | None = None  # of an input; see `InputFiles`

    @property
    def model(self) -> ModelSource:
        """The model that is served alone."""
        if isinstance(self.source, Repository):
            msg = "there is a repository of models, not one"
            raise TypeError(msg)
        return self.source

    def limits_of(self, source: ModelSource) -> Limits:
        """Return the limits of a model: its own `timeout` comes before that of the options, and it has `priorities`.

        A training has neither.
        """
        if source.mode == "train":
            return msgspec.structs.replace(self.limits, run_timeout=None)
        run_timeout = self.limits.run_timeout if source.timeout is None else source.timeout or None
        return msgspec.structs.replace(self.limits, run_timeout=run_timeout, priorities=source.priorities)

    def variables_of(self, source: ModelSource) -> Variables:
        """Return the variables of a model: the options come before them."""
        given = {
            "setup_timeout": self.setup_timeout,
            "stream_history": self.stream_history,
            "webhook_interval": self.webhooks.interval,
            "webhook_token": self.webhooks.token,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.setup_timeout == 0:
            changes["setup_timeout"] = None
        return dataclasses.replace(source.variables, **changes)


def options_of(given: Mapping[str, Any], fields: Mapping[str, Any]) -> ServeOptions:
    """Make the options of a server: those of `TABLE` that are `given`, by name, and further `fields`.

    `fields` have names such as `target` and `access.jwt`, and come before those of the table. An option that is None,
    and all else, has its default.
    """
    values = {
        option.field: option.stored(given[option.name])
        for option in TABLE
        if option.field and given.get(option.name) is not None
    } | dict(fields)
    parts: dict[str, dict[str, Any]] = {}
    for place, value in values.items():
        part, _, name = place.rpartition(".")
        parts.setdefault(part, {})[name] = value
    own = parts.pop("", {})
    return ServeOptions(**own, **{part: _replaced(_default_of(part), changes) for part, changes in parts.items()})


def _default_of(field: str) -> Any:
    found = ServeOptions.__dataclass_fields__[field]
    return found.default if found.default_factory is dataclasses.MISSING else found.default_factory()


def _replaced(part: Any, changes: Mapping[str, Any]) -> Any:
    return (dataclasses if dataclasses.is_dataclass(part) else msgspec.structs).replace(part, **changes)
