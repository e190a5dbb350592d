"""`geartrain chat`: a conversation with a model at the terminal."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import typer

from geartrain.cli.bench import served
from geartrain.cli.call import Certificates, Insecure, Key, verification
from geartrain.cli.failure import INTERRUPTED, NO_READER, fail, silence_stdout
from geartrain.cli.typer_app import CommandApp

app = CommandApp(add_completion=False)

_PARAMETERS: Final = "Parameters of the model"
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
_AGAIN: Final = 0.1  # seconds


@app.command(
    context_settings={"allow_extra_args": True},
    examples=(
        "geartrain chat writer",
        "geartrain chat http://127.0.0.1:5000 -m writer --system 'Be brief.'",
        "echo 'good morning' | geartrain chat writer",
    ),
)
def chat(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|MODEL",
            help="A server of OpenAI's API, such as http://127.0.0.1:5000; or a model as of `geartrain serve`, for "
            "which a server is started. Options after -- go to that `geartrain serve`. The current folder by "
            "default.",
        ),
    ] = ".",
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Which model, of a server that has several."),
    ] = None,
    system: Annotated[str, typer.Option("--system", "-s", metavar="TEXT", help="The system prompt.")] = "",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The most tokens of an answer.", rich_help_panel=_PARAMETERS),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="T", help="0 for the likeliest tokens.", rich_help_panel=_PARAMETERS),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, metavar="P", help="The part of the likeliest.", rich_help_panel=_PARAMETERS),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="For the same answer again.", rich_help_panel=_PARAMETERS),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=VALUE",
            help="Any other: VALUE is JSON, or a text; @FILE reads a file, such as tools=@tools.json.",
            rich_help_panel=_PARAMETERS,
        ),
    ] = None,
    key: Key = None,
    cacert: Certificates = None,
    insecure: Insecure = False,
) -> None:
    """Chat with a model in the terminal.

    Answers come as they are made. Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists the commands.

    In a pipe, each line of stdin is a message: a text, or an object of JSON with a "content". Each answer is an object
    of JSON on a line, unless stdout is a terminal.

    Exit code: 0 in the end, 1 when there is no such model or an answer to a line failed, 130 when Ctrl-C ended a pipe.
    """
    is_url = target.startswith(("http://", "https://"))
    if context.args and is_url:
        fail(f"{' '.join(context.args)}: options of `geartrain serve` are for a MODEL, whose server is started")
    if context.args and not context.args[0].startswith("-"):
        fail(f"{context.args[0]!r} is one argument too many; options of `geartrain serve` follow --")
    verify = verification(cacert, insecure=insecure)
    named = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    given = {name: value for name, value in named.items() if value is not None}
    given |= dict(_parameter(text) for text in parameters or ())
    try:
        with _ended_by_signals(), served(target, context.args, is_url=is_url) as url:
            code = _chat(url, model, system=system, parameters=given, key=key, verify=verify)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        code = NO_READER
    raise typer.Exit(code)


def _chat(
    url: str, model: str | None, *, system: str, parameters: dict[str, Any], key: str | None, verify: bool | str
) -> int:
    from geartrain.cli.chat_answers import LinesView, TerminalView  # late: it imports httpx
    from geartrain.cli.chat_loop import Chat, read_lines, talk
    from geartrain.client.chats import ChatClient
    from geartrain.client.errors import ClientError

    view = TerminalView() if sys.stdout.isatty() else LinesView()
    with ChatClient(url, key=key, verify=verify) as client:
        try:
            name = _choose(client.models(), model)
        except ClientError as error:
            fail(str(error))
        chat = Chat(client, name, system=system, parameters=parameters, view=view)
        return talk(chat, view, name) if sys.stdin.isatty() else read_lines(chat)


def _choose(names: list[str], model: str | None) -> str:
    """Return the model to chat with; end the command if it is not there."""
    if model is not None:
        if model in names or model.partition("@")[0] in names:
            return model
        offer = f"there are {', '.join(names)}" if names else "none of the server's models chats"
        fail(f"there is no model {model} that chats; {offer}")
    if not names:
        fail("no model of the server chats: it needs an input `prompt` or `messages`, and a text as output")
    if len(names) > 1:
        fail(f"the server has several models that chat; name one with --model: {', '.join(names)}")
    return names[0]


def _parameter(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        fail(f"{text!r}: write a parameter as NAME=VALUE, such as temperature=0.2")
    if value.startswith("@"):
        try:
            value = pathlib.Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(f"{name}: cannot read {value[1:]}: {getattr(error, 'strerror', None) or error}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have other signals than Ctrl-C end the command in order: a server of its own must not outlive it."""
    is_heard = threading.Event()

    def leave(number: int, _: object) -> NoReturn:
        is_heard.set()
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in _ENDS}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    other = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_repeat_signals, args=(reader, threading.get_ident(), is_heard), daemon=True).start()
    try:
        yield
    finally:
        is_heard.set()
        signal.set_wakeup_fd(other)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)


def _repeat_signals(reader: int, thread: int, is_heard: threading.Event) -> None:
    """Send a signal to a thread again until it is heard: one that comes just before it waits for a key is not."""
    while numbers := os.read(reader, 64):
        for number in set(numbers).intersection(_ENDS):
            while not is_heard.wait(_AGAIN):
                signal.pthread_kill(thread, number)
    os.close(reader)
