"""A measurement at the terminal: what is sent is found out, the load is put on, and the results are written."""

from __future__ import annotations

import asyncio
import math
import os
import pathlib
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
import uvloop

from geartrain.authoring import __version__
from geartrain.bench.advice import advise
from geartrain.bench.inputs import default_input, read_many
from geartrain.bench.page import to_html
from geartrain.bench.prepared import Prepared, Way, prepare
from geartrain.bench.results import Report, to_csv, to_json
from geartrain.bench.server_figures import ask
from geartrain.bench.sweep import Plan, Sweep
from geartrain.bench.work import InputsError, ProtocolName
from geartrain.cli import values
from geartrain.cli.bench_view import BenchView, print_report
from geartrain.cli.failure import FAILURE, INTERRUPTED, NO_READER, complain, fail, silence_stdout
from geartrain.cli.remote import offer
from geartrain.cli.values import Request
from geartrain.client import Client, ClientError, NotFoundError
from geartrain.domain.signature.types import Signature

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a measurement; the figures so far are shown."""

_STDOUT = pathlib.Path("-")
_REFUSED = range(400, 500)
_BUSY = frozenset({409, 429})


class Asked(NamedTuple):
    """Requests of a benchmark. `model` None: the server's only one; `verify`: see `Client`."""

    request: Request
    many: pathlib.Path | None
    model: str | None
    protocol: ProtocolName
    key: str | None
    verify: bool | str


class Outputs(NamedTuple):
    """The files that are written in the end; `-` is stdout."""

    html: pathlib.Path | None
    csv: pathlib.Path | None
    results: pathlib.Path | None

    def check(self) -> None:
        """End the command if one of them cannot be written."""
        for path in self:
            if path is not None and not path.parent.is_dir():
                fail(f"cannot write {path}: there is no folder {path.parent}")
        if self.csv == self.results == _STDOUT:
            fail("--csv and --results cannot both go to stdout")

    @property
    def takes_stdout(self) -> bool:
        """True if one of them is what stdout is for."""
        return _STDOUT in self

    def write(self, report: Report) -> None:
        """Write them. Raises `OSError`."""
        forms: tuple[Callable[[Report], bytes], ...] = (to_html, to_csv, to_json)
        for path, form in zip(self, forms, strict=True):
            if path == _STDOUT:
                sys.stdout.write(form(report).decode())
                sys.stdout.flush()
            elif path is not None:
                path.write_bytes(form(report))


def measure(url: str, asked: Asked, plan: Plan, *, outputs: Outputs) -> int:
    """Measure, show and write what was found, and return the exit code; what is wrong has been said on stderr."""
    try:
        prepared = prepare_asked(url, asked)
    except (ClientError, InputsError, values.InputError, OSError, ValueError) as error:
        complain(str(error))
        return FAILURE
    began = datetime.now(UTC).isoformat(timespec="seconds")
    sweep = Sweep(prepared.target, prepared.model, work=prepared.work, plan=plan)
    view = BenchView(plan)
    trouble = ""
    with view, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            is_interrupted = runner.run(_run(sweep, prepared, view, timeout=plan.limits.timeout))
        except (_RefusedError, OSError) as error:
            is_interrupted, trouble = False, str(error) or "the server does not answer"
    report = Report(
        geartrain=__version__,
        url=url,
        model=prepared.model,
        protocol=asked.protocol,
        inputs=len(prepared.work.requests),
        began=began,
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        seconds=plan.limits.seconds,
        requests=plan.limits.requests,
        warmup=plan.warmup,
        slots=sweep.slots,
        silence=sweep.silence,
        levels=tuple(sweep.results),
    )
    report = msgspec.structs.replace(report, advice=advise(report))
    if trouble:
        complain(trouble)
    code = _show(report, outputs) if report.levels else 0
    if is_interrupted:
        return INTERRUPTED
    return code or (FAILURE if trouble or report.failed else 0)


def _show(report: Report, outputs: Outputs) -> int:
    """Print and write it; return an exit code, 0 if that went well."""
    try:
        print_report(report, to_stderr=outputs.takes_stdout)
        outputs.write(report)
    except BrokenPipeError:
        silence_stdout()
        return NO_READER
    except OSError as error:
        complain(f"cannot write {error.filename}: {error.strerror}")
        return FAILURE
    return 0


def prepare_asked(url: str, asked: Asked) -> Prepared:
    """Ask the server what its model takes, and make the requests.

    Raises `ClientError`, `InputsError`, `InputError`, `OSError` and `ValueError`.
    """
    way = Way(asked.model, asked.protocol, asked.key, asked.verify)
    try:
        return prepare(url, partial(_inputs, asked), way)
    except NotFoundError as error:
        with Client(url, key=asked.key, verify=asked.verify) as client:
            raise ClientError(f"{error}{offer(client, asked.model)}") from error


def _inputs(asked: Asked, document: Mapping[str, Any], signature: Signature) -> list[dict[str, Any]]:
    """Return the inputs that are sent. Raises `InputsError`, `InputError` and `OSError`."""
    request = asked.request
    if asked.many is not None:
        return read_many(asked.many.read_bytes(), str(asked.many))
    if request.document is not None:
        return [request.document]
    if request.texts:
        return [values.build_input(signature, request.texts)]
    return [default_input(document)]


class _RefusedError(Exception):
    """The server does not take such requests."""


async def _run(sweep: Sweep, prepared: Prepared, view: BenchView, *, timeout: float) -> bool:  # noqa: ASYNC109 - of one request
    """Measure; return whether it was interrupted. Raises `OSError`, and `_RefusedError` if requests are refused."""
    loop = asyncio.get_running_loop()
    is_interrupted, has_begun = False, False
    task = asyncio.current_task()

    def interrupt() -> None:
        nonlocal is_interrupted
        if task is not None and (is_interrupted or not has_begun):
            task.cancel()  # there is nothing to show yet; or it is the second time
        is_interrupted = True
        sweep.stop()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        async with asyncio.timeout(None if timeout == math.inf else timeout):
            await _try_once(prepared)
        has_begun = True
        await sweep.run(view)
    except asyncio.CancelledError:
        if not is_interrupted:
            raise
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    return is_interrupted


async def _try_once(prepared: Prepared) -> None:
    """Send one request. Raises `_RefusedError` if all others would be refused as well."""
    status, content = await ask(prepared.target, prepared.work.requests[0])
    fault = prepared.work.judge(status, content)
    if fault is not None and status in _REFUSED and status not in _BUSY:
        raise _RefusedError(f"the server refuses the requests with {fault.kind}: {fault.example}")
