"""Models served inside another server, as an ASGI application: what `geartrain.asgi` makes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

from geartrain.bridge.wakeup import WakeupMode
from geartrain.domain.predictions.histograms import DEFAULT_BUCKETS, Buckets, check_bounds
from geartrain.project.device_settings import Devices, read_devices
from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import check_watchable, find_served
from geartrain.project.source import ModelSource
from geartrain.server.app import App, build
from geartrain.server.options import NO_LIMIT, CacheOptions, ServeOptions, StoreOptions
from geartrain.server.reloading import watching
from geartrain.server.tracing import records_of
from geartrain.service.mirror import MirrorMode
from geartrain.service.models.deployment import Limits
from geartrain.service.models.restarts import RestartPolicy
from geartrain.transport.access_log import AccessLog, read_access_log
from geartrain.transport.asgi import AsgiApplication
from geartrain.transport.records import RequestCounts, RequestRecord, RequestRecords, RequestsObserver
from geartrain.transport.wire.exchange import Handler, Head, NewRecord, Records


class AsgiOptions(TypedDict, total=False):
    """The options of `geartrain serve` that mean something inside another server, all of them optional.

    Sizes are in bytes, times in seconds; where the command line takes 0 for no limit, so do these. docs/asgi.md lists
    the defaults.

    Attributes:
        wait_ready: whether the start lasts until the models are ready. It then fails if a model that is served alone
            cannot become so. Otherwise requests get 503 until their model is ready.
    """

    wait_ready: bool
    default_model: str
    load: Iterable[str]
    replicas: int
    devices: str
    reload: bool
    no_pickle: bool
    queue: int
    inference_queue: int
    keep: float
    run_timeout: float
    cancel_grace: float
    stream_grace: float
    max_output_size: int
    setup_timeout: float
    shutdown_grace: float
    restart: Literal["never", "on-crash"]
    restart_limit: int
    max_body_size: int
    max_download_size: int
    upload_url: str
    allow_private_urls: bool
    shared_memory: bool
    health_body: bool
    latency_buckets: Iterable[float]
    size_buckets: Iterable[float]
    cache_dir: str | os.PathLike[str]
    verify_cache: bool
    store: str
    store_key_file: str | os.PathLike[str]
    store_keep: float
    store_size: int
    lease: float
    attempts: int
    wakeup: WakeupMode
    mirror_prints: MirrorMode
    access_log: str


_READ_HERE: Final = frozenset(
    {"cache_dir", "devices", "load", "no_pickle", "restart", "restart_limit", "wait_ready"}
    | {"latency_buckets", "size_buckets", "verify_cache"}
    | {"store", "store_key_file", "store_keep", "store_size", "lease", "attempts"}
)
_RENAMED: Final = {"max_body_size": "max_body_bytes", "max_download_size": "max_download_bytes"}
_SECONDS: Final = (
    *("keep", "run_timeout", "cancel_grace", "stream_grace", "setup_timeout", "shutdown_grace"),
    *("store_keep", "lease"),
)
_ZERO_IS_NO_LIMIT: Final = ("cancel_grace", "run_timeout", "max_output_size")  # same reading as in `geartrain serve`


def make_application(model: str | os.PathLike[str] | None, **options: Unpack[AsgiOptions]) -> AsgiApplication:
    """Return the application that serves a model or a folder of models; raises `ProjectError`."""
    hosted = _Hosted(read_options(model, options), wait_ready=options.get("wait_ready", False))
    return AsgiApplication(hosted.start, hosted.stop, hosted.records)


def read_options(model: str | os.PathLike[str] | None, options: AsgiOptions) -> ServeOptions:
    """Return the meaning of the options; raise `ProjectError` for missing models."""
    unknown = sorted(options.keys() - AsgiOptions.__annotations__.keys())
    if unknown:
        msg = f"asgi() knows no option {', '.join(unknown)}; it has {', '.join(AsgiOptions.__annotations__)}"
        raise TypeError(msg)
    _check_seconds(options)
    target = None if model is None else os.fspath(model)
    no_pickle = options.get("no_pickle", False)
    if options.get("reload", False):
        check_watchable(target)
    source = find_served(target, no_pickle=no_pickle)
    load = None if "load" not in options else frozenset(options["load"])
    _check_names(source, {*(load or ()), *([options["default_model"]] if "default_model" in options else [])})
    values: dict[str, Any] = {"allow_private_urls": False, **options}
    if "access_log" in options:
        values["access_log"] = read_access_log(options["access_log"])
    unlimited = {name: None for name in _ZERO_IS_NO_LIMIT if values.get(name) == 0}
    limits = {name: value for name, value in {**values, **unlimited}.items() if name in Limits.__struct_fields__}
    for name in _RENAMED:
        if values.get(name) == 0:
            values[name] = NO_LIMIT
    fields = {_RENAMED.get(name, name): value for name, value in values.items() if name not in {*limits, *_READ_HERE}}
    restarts = RestartPolicy(limit=options.get("restart_limit", RestartPolicy().limit))
    return ServeOptions(
        source=source,
        target=target,
        find_again=functools.partial(find_served, no_pickle=no_pickle, is_fetched=True),
        limits=Limits(**limits),
        restarts=restarts if options.get("restart") == "on-crash" else None,
        load=load,
        devices=_devices(options.get("devices", "auto")),
        buckets=_read_buckets(options),
        cache=_read_cache(options),
        store=_read_store(options),
        **fields,
    )


def _check_seconds(options: AsgiOptions) -> None:
    """Raise `ValueError` for a span of time that is negative, infinite or no number."""
    for name in options.keys() & set(_SECONDS):
        value = options[name]  # type: ignore[literal-required]
        if type(value) not in {int, float} or not 0 <= value < float("inf"):
            raise ValueError(f"`{name}` is {value!r}; write a number of seconds, 0 or more")


def _read_cache(options: AsgiOptions) -> CacheOptions:
    folder = Path(options["cache_dir"]) if "cache_dir" in options else None
    return CacheOptions(folder, options.get("verify_cache", False))


def _read_store(options: AsgiOptions) -> StoreOptions:
    """Return the place of stored predictions. The variables of `geartrain serve` do not count here."""
    if options.get("lease") == 0:
        raise ValueError("`lease` is 0; write a number of seconds such as 15")
    usual = StoreOptions()
    return StoreOptions(
        url=options.get("store", ""),
        key_file=Path(options["store_key_file"]) if "store_key_file" in options else None,
        keep=options.get("store_keep", usual.keep),
        max_bytes=options.get("store_size", usual.max_bytes),
        lease=options.get("lease", usual.lease),
        attempts=options.get("attempts", usual.attempts),
    )


def _devices(text: str) -> Devices:
    try:
        return read_devices(text)
    except ValueError:
        raise ProjectError(f"`devices` is {text!r}; write auto, cpu, or names such as cuda:0,cuda:1") from None


def _read_buckets(options: AsgiOptions) -> Buckets:
    """Return the buckets of histograms; raises `ValueError` for bounds that do not rise."""
    seconds = tuple(options.get("latency_buckets", DEFAULT_BUCKETS.seconds))
    sizes = tuple(options.get("size_buckets", DEFAULT_BUCKETS.bytes))
    for bounds in (seconds, sizes):
        check_bounds(bounds)
    return Buckets(seconds, sizes)


def _check_names(source: ModelSource | Repository, wanted: set[str]) -> None:
    there = source.names() if isinstance(source, Repository) else [source.name]
    missing = sorted(wanted.difference(there))
    if missing:
        raise ProjectError(f"there is no model {missing[0]!r}; there are {', '.join(there)}")


class _Hosted:
    """Builds the app anew for each start, because one that has been stopped is of no more use."""

    def __init__(self, options: ServeOptions, *, wait_ready: bool) -> None:
        self._options = options
        self._wait_ready = wait_ready
        self.requests = RequestCounts(self)
        self._access_log: RequestsObserver | None = None
        self._open: contextlib.AsyncExitStack
        self._records: Records = RequestRecords(self.requests).of  # until it is started

    def records(self, head: Head) -> NewRecord:
        """Create the factory of the records for requests with a head. See `Records`."""
        return self._records(head)

    async def start(self) -> Handler:
        """Start the workers; return what answers requests."""
        async with contextlib.AsyncExitStack() as stack:
            app = build(self._options)
            stack.push_async_callback(_stop, app)
            app.spawn()
            from geartrain.server.http import large_bodies, make_handler, status_history  # while the workers start

            await app.start()
            bodies = large_bodies(app)
            stack.callback(bodies.close)
            history = status_history(app)
            if history is not None:
                stack.callback(history.close)
            handler = make_handler(app, bodies, counts=self.requests, history=history)
            self._access_log = access_log = AccessLog(self._options.access_log)
            stack.enter_context(access_log)
            stack.enter_context(self.requests)
            self._records = records_of(self.requests, app.outbound.tracer, handler)
            await stack.enter_async_context(watching(app))
            if self._wait_ready:
                await _ready(app)
            self._open = stack.pop_all()
        return handler

    async def stop(self) -> None:
        """End what `start` has started."""
        await self._open.aclose()
        self._access_log = None

    def add_all(self, requests: Sequence[RequestRecord]) -> None:
        """Pass them on to the access log. See `RequestsObserver`."""
        if self._access_log is not None:
            self._access_log.add_all(requests)


async def _stop(app: App) -> None:
    options = app.options
    try:
        await app.stop(grace=options.shutdown_grace, webhook_grace=lambda: options.webhooks.grace)
    except BaseException:
        await app.kill()
        await app.outbound.close()
        raise


async def _ready(app: App) -> None:
    """Wait until no model is being loaded. Raises `ModelSetupError` for one that is served alone and has failed."""
    if not isinstance(app.options.source, Repository):
        await app.ready()
        return
    loads = {load for name in app.catalogue.names() for load in app.catalogue.entry(name).loading.tasks}
    if loads:
        await asyncio.wait(loads)
