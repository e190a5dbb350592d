"""Models served inside another server, as an ASGI application: what `geartrain.asgi` makes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Final, Unpack

from geartrain.project.errors import ProjectError
from geartrain.project.repository import Repository
from geartrain.project.served import check_watchable, find_served
from geartrain.project.source import ModelSource
from geartrain.server.app import App, build
from geartrain.server.asgi_options import AsgiOptions
from geartrain.server.option_kinds import DURATION, SECONDS
from geartrain.server.option_table import TABLE
from geartrain.server.options import ServeOptions, options_of
from geartrain.server.reloading import watching
from geartrain.service.workers.pool import RestartPolicy
from geartrain.transport.access_log import open_access_log
from geartrain.transport.asgi import AsgiApplication
from geartrain.transport.records import NOBODY, RequestCounts, RequestRecord, RequestRecords, RequestsObserver
from geartrain.transport.wire.exchange import Handler, Head, NewRecord, Records

_TIMES: Final = frozenset(option.name for option in TABLE if option.is_hosted and option.kind in {DURATION, SECONDS})


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
    taken = {
        option.name: option.kind.take(options[option.name])  # type: ignore[literal-required]
        for option in TABLE
        if option.is_hosted and option.name in options
    }
    _check_names(source, {*taken.get("load", ()), *([options["default_model"]] if "default_model" in options else [])})
    if options.get("lease") == 0:
        raise ValueError("`lease` is 0; write a number of seconds such as 15")
    restarts = RestartPolicy(limit=options.get("restart_limit", RestartPolicy().limit))
    fields = {
        "source": source,
        "target": target,
        "find_again": functools.partial(find_served, no_pickle=no_pickle, is_fetched=True),
        "load": taken.get("load"),
        "restarts": restarts if options.get("restart") == "on-crash" else None,
    }
    return options_of(taken, fields)


def _check_seconds(options: AsgiOptions) -> None:
    """Raise `ValueError` for a span of time that is negative, infinite or no number."""
    for name in options.keys() & _TIMES:
        value = options[name]  # type: ignore[literal-required]
        if type(value) not in {int, float} or not 0 <= value < float("inf"):
            raise ValueError(f"`{name}` is {value!r}; write a number of seconds, 0 or more")


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
        self._access_log: RequestsObserver = NOBODY
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
            from geartrain.server.http import (  # while the workers start
                large_bodies,
                make_handler,
                records_of,
                status_history,
            )

            await app.start()
            bodies = large_bodies(app)
            stack.callback(bodies.close)
            history = status_history(app)
            if history is not None:
                stack.callback(history.close)
            handler = make_handler(app, bodies, counts=self.requests, history=history)
            self._access_log = access_log = open_access_log(self._options.access_log)
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
        self._access_log = NOBODY

    def add_all(self, requests: Sequence[RequestRecord]) -> None:
        """Pass them on to the access log. See `RequestsObserver`."""
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
