"""`geartrain predictions`: what a server with a store knows of its predictions."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from geartrain.cli.failure import fail
from geartrain.cli.typer_app import CommandApp

app = CommandApp(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="List, show and cancel the predictions of a server that was started with --store.",
)

_TIMEOUT: Final = 30.0  # seconds
_HEADER: Final = ("ID", "STATUS", "CREATED", "COMPLETED", "ATTEMPTS", "ERROR")
_CALLS_HEADER: Final = ("MODEL", "STATUS", "AFTER", "TIME", "ERROR")
_LONGEST_ERROR: Final = 60

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The server, such as http://127.0.0.1:5000, or one of its models: …/models/NAME."
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the prediction.")]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="Which model, of a server that has several; all by default."),
]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="GEARTRAIN_KEY",
        metavar="KEY",
        help="A key of the server, where it asks for one: `list` needs the scope read, the others predict.",
    ),
]


@app.command(
    "list",
    examples=(
        "geartrain predictions list http://127.0.0.1:5000 --status failed",
        "geartrain predictions list http://127.0.0.1:5000 --model classify",
    ),
)
def list_(
    url: Url,
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help="Only those that are so, such as failed; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="How many.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind the page that has named it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's JSON.")] = False,
    model: Model = None,
    key: Key = None,
) -> None:
    """List the predictions of URL, the newest first."""
    bases = _bases(url, model, key)
    if cursor is not None and len(bases) > 1:
        fail(f"--cursor goes with --model NAME; there are {', '.join(bases)}")
    query = urlencode([("limit", limit), *(("status", each) for each in status or ()), *_given("cursor", cursor)])
    pages = {name: _ask("GET", f"{base}/predictions?{query}", key) for name, base in bases.items()}
    if as_json:
        whole: Any = pages if len(bases) > 1 else next(iter(pages.values()))
        typer.echo(json.dumps(whole, ensure_ascii=False))
        return
    found = [(name, entry) for name, page in pages.items() for entry in page["results"]]
    found.sort(key=lambda each: str(each[1]["created_at"]), reverse=True)
    rows = [_HEADER, *(_row(entry) for _, entry in found[:limit])]
    if len(bases) > 1:
        names = ["MODEL", *(name for name, _ in found[:limit])]
        rows = [(name, *row) for name, row in zip(names, rows, strict=True)]
    _echo_table(rows)
    if len(bases) > 1 and (len(found) > limit or any(page["next"] for page in pages.values())):
        typer.echo("There are more: --limit N, or --model NAME", err=True)
    elif len(bases) == 1 and pages[next(iter(bases))]["next"]:
        typer.echo(f"There are more: --cursor {pages[next(iter(bases))]['next']}", err=True)


@app.command("show", examples=("geartrain predictions show http://127.0.0.1:5000 job1",))
def show(url: Url, prediction_id: Id, *, model: Model = None, key: Key = None) -> None:
    """Print how a prediction stands, as JSON, and a table of its calls of models."""
    base, found = _ask_each("GET", url, _path(prediction_id), model=model, key=key)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    try:
        calls = _answer_of("GET", f"{base}/{_path(prediction_id)}/calls", key)
    except _RefusedError:  # an older server has none, and no server those of a run that it cannot reach
        return
    if calls["calls"]:
        _echo_table([_CALLS_HEADER, *(_call_row(call, calls["created_at"]) for call in calls["calls"])], err=True)
    if calls["left_out"]:
        typer.echo(f"and {calls['left_out']} more", err=True)


@app.command("cancel", examples=("geartrain predictions cancel http://127.0.0.1:5000 job1",))
def cancel(url: Url, prediction_id: Id, *, model: Model = None, key: Key = None) -> None:
    """Cancel a prediction that has not ended."""
    _ask_each("POST", url, f"{_path(prediction_id)}/cancel", model=model, key=key)
    typer.echo(f"Canceling '{prediction_id}'.", err=True)


def _echo_table(rows: Sequence[tuple[str, ...]], *, err: bool = False) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip(), err=err)


def _given(name: str, value: str | None) -> list[tuple[str, str]]:
    return [] if value is None else [(name, value)]


def _base(url: str) -> str:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise typer.BadParameter(f"{url!r} is no URL of a server; write one such as http://127.0.0.1:5000")
    return url.rstrip("/")


def _bases(url: str, model: str | None, key: str | None) -> dict[str, str]:
    """Return the addresses of a server's predictions by model: all of them, or the named one."""
    base = _base(url)
    if model is not None:
        return {model: f"{base}/models/{quote(model, safe='')}"}
    if "/models/" in urlsplit(base).path:
        return {"": base}
    try:
        names = [str(each["name"]) for each in _answer_of("GET", f"{base}/models", key)["models"]]
    except (_RefusedError, KeyError, TypeError):  # a server without a list, or a key that may not read it
        names = []
    return {name: f"{base}/models/{quote(name, safe='')}" for name in names} if len(names) > 1 else {"": base}


def _path(prediction_id: str) -> str:
    return f"predictions/{quote(prediction_id, safe='')}"


def _ask_each(method: str, url: str, path: str, *, model: str | None, key: str | None) -> tuple[str, Any]:
    """Ask each of the models for a prediction until one has it; end the command if none does.

    Returns the address of the model, and its answer.
    """
    *others, last = _bases(url, model, key).values()
    for base in others:
        try:
            return base, _answer_of(method, f"{base}/{path}", key)
        except _RefusedError as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                fail(str(refused))
    return last, _ask(method, f"{last}/{path}", key)


class _RefusedError(Exception):
    """The answer of a server that refuses a request, with its status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _ask(method: str, url: str, key: str | None) -> Any:
    """Return the JSON that a server answers with, or end the command with what it says is wrong."""
    try:
        return _answer_of(method, url, key)
    except _RefusedError as refused:
        fail(str(refused))


def _answer_of(method: str, url: str, key: str | None) -> Any:
    """Return the JSON that a server answers with. Raises `_RefusedError`; ends the command if there is no answer."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - `_base` has looked at it
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise _RefusedError(error.code, _reason(error.code, error.read())) from error
    except (OSError, ValueError) as error:
        fail(f"{url}: {getattr(error, 'reason', error)}")


def _reason(status: int, body: bytes) -> str:
    if status == 405:  # noqa: PLR2004 - what a server without a store answers
        return "The server keeps no list of predictions; start it with --store."
    try:
        found = json.loads(body)
    except ValueError:
        found = {}
    if not found:
        return "There is no such prediction, or it has ended." if status == 404 else f"The server answers {status}."  # noqa: PLR2004
    if "detail" in found:
        return "; ".join(f"{'.'.join(each['loc'])}: {each['msg']}" for each in found["detail"])
    return str(found.get("error", found))


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["id"],
        entry["status"],
        entry["created_at"][:19],
        entry.get("completed_at", "-")[:19],
        str(entry.get("attempts", 1)),
        _short_error(entry),
    )


def _call_row(call: dict[str, Any], begin: str) -> tuple[str, ...]:
    """Return the row of a call of a model, indented by its depth, with its begin in seconds after `begin`."""
    created = datetime.fromisoformat(call["created_at"])
    after = (created - datetime.fromisoformat(begin)).total_seconds()
    ended = call.get("completed_at")
    time = "-" if ended is None else f"{(datetime.fromisoformat(ended) - created).total_seconds():.3f} s"
    status = f"{call['status']}, for {call['shared']}" if "shared" in call else call["status"]
    return "  " * (call["depth"] - 1) + call["model"], status, f"{after:.3f} s", time, _short_error(call)


def _short_error(entry: dict[str, Any]) -> str:
    error = " ".join(entry.get("error", "").split())
    return error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…"
