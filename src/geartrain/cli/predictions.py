"""`geartrain predictions`: what a server with a store knows of its predictions."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from geartrain.cli.failure import fail

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="List, show and cancel the predictions of a server that was started with --store.",
)

_TIMEOUT: Final = 30.0  # seconds
_HEADER: Final = ("ID", "STATUS", "CREATED", "COMPLETED", "ATTEMPTS", "ERROR")
_LONGEST_ERROR: Final = 60

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The server, such as http://127.0.0.1:5000, or one of its models: …/models/NAME."
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the prediction.")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="GEARTRAIN_KEY",
        metavar="KEY",
        help="A key of the server, where it asks for one: `list` needs the scope read, the others predict.",
    ),
]


@app.command("list")
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
    key: Key = None,
) -> None:
    """List the predictions of URL, the newest first."""
    query = urlencode([("limit", limit), *(("status", each) for each in status or ()), *_given("cursor", cursor)])
    page = _ask("GET", f"{_base(url)}/predictions?{query}", key)
    if as_json:
        typer.echo(json.dumps(page))
        return
    rows = [_HEADER, *(_row(entry) for entry in page["results"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    if page["next"]:
        typer.echo(f"There are more: --cursor {page['next']}", err=True)


@app.command("show")
def show(url: Url, prediction_id: Id, *, key: Key = None) -> None:
    """Print how a prediction stands, as JSON."""
    typer.echo(json.dumps(_ask("GET", _path(url, prediction_id), key), indent=2))


@app.command("cancel")
def cancel(url: Url, prediction_id: Id, *, key: Key = None) -> None:
    """Ask for the end of a prediction that has not ended."""
    _ask("POST", f"{_path(url, prediction_id)}/cancel", key)
    typer.echo(f"Asked for the end of '{prediction_id}'.", err=True)


def _given(name: str, value: str | None) -> list[tuple[str, str]]:
    return [] if value is None else [(name, value)]


def _base(url: str) -> str:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise typer.BadParameter(f"{url!r} is no URL of a server; write one such as http://127.0.0.1:5000")
    return url.rstrip("/")


def _path(url: str, prediction_id: str) -> str:
    return f"{_base(url)}/predictions/{quote(prediction_id, safe='')}"


def _ask(method: str, url: str, key: str | None) -> Any:
    """Return the JSON that a server answers with, or end the command with what it says is wrong."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - `_base` has looked at it
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            fail(_reason(error.code, error.read()))
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
    error = " ".join(entry.get("error", "").split())
    return (
        entry["id"],
        entry["status"],
        entry["created_at"][:19],
        entry.get("completed_at", "-")[:19],
        str(entry.get("attempts", 1)),
        error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…",
    )
