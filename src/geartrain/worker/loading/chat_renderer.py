"""The program that renders a chat template: a process of its own, because a template may run for ever.

It reads requests from its standard input and writes answers to its standard output: frames of JSON, each after its
length in four bytes. The first request has the template. The process ends itself when a template takes too long, so a
worker that dies leaves none behind. It imports nothing of geartrain, and starts in about 0.1 s.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from datetime import datetime
from typing import IO, Any, Final

MOST_SECONDS: Final = 2.0
MOST_MEMORY: Final = 1024**3  # bytes of address space
LEAST_OUTPUT: Final = 1024**2  # characters that any chat may become
MOST_GROWTH: Final = 4  # growth of the text, in multiples of its size
_HEAD: Final = struct.Struct(">I")


class RefusedError(Exception):
    """The chat does not fit the template, which says why."""


def read_frame(file: IO[bytes]) -> bytes | None:
    """Read a frame; None at the end of the file."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    (size,) = _HEAD.unpack(head)
    frame = file.read(size)
    return frame if len(frame) == size else None


def write_frame(file: IO[bytes], frame: bytes) -> None:
    """Write a frame."""
    file.write(_HEAD.pack(len(frame)) + frame)
    file.flush()


def compile_template(text: str) -> Any:
    """Compile a template, with the filters and functions that those of `transformers` have."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Block `{% generation %}`: marks text of the assistant for training; here it is text like any other."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 - as there
    return environment.from_string(text)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: FBT001, FBT002 - as of transformers
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: Any) -> None:
    raise RefusedError(str(message))


def render(template: Any, values: dict[str, Any], size: int) -> dict[str, str]:
    """Render a chat that has come in `size` bytes; return the answer: its text, or why there is none."""
    most = LEAST_OUTPUT + MOST_GROWTH * size
    parts: list[str] = []
    length = 0
    try:
        for part in template.generate(**values):
            parts.append(part)
            length += len(part)
            if length > most:
                return {"error": f"it gives more than {most} characters"}
    except RefusedError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"error": f"it needs more than {MOST_MEMORY} bytes of memory"}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": "".join(parts)}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    template = None
    while (frame := read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)  # ends the process, whatever it does at that time
        request = json.loads(frame)
        if template is None:
            try:
                template, answer = compile_template(request["template"]), {"text": ""}
            except ImportError:
                answer = {"error": "it needs jinja2: pip install 'geartrain[chat]'"}
            except Exception as error:  # noqa: BLE001 - likewise
                answer = {"error": f"{type(error).__name__}: {error}"}
        else:
            answer = render(template, request, len(frame))
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(answers, json.dumps(answer).encode())


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
