"""Asks TorchServe and geartrain for the same, and prints where their answers differ: statuses, types, bodies.

    PYTHONPATH=benchmarks python -m tools.try_torchserve [--all]

TorchServe is installed into `.cache/peers`, and needs Java. Both serve the same handlers. Bodies of JSON are compared
by their values, and content types where TorchServe sends one: it has none for outputs, and geartrain has one always.
Ends with 1 if an answer differs that `EXPECTED` does not name, or if one that it names does not.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import pathlib
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from peer_servers import torchserve
from servers import running, serving

HANDLER: Final = """
import json
import time

from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException


class Handler(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [self.one(item, number, context) for number, item in enumerate(data)]

    def one(self, item, number, context):
        body = item.get("body", item.get("data"))
        what = body.get("do") if isinstance(body, dict) else None
        if what is None:
            shown = {name: type(value).__name__ for name, value in sorted(item.items())}
            return {"types": shown, "body": body if isinstance(body, (str, dict, list)) else None}
        if what == "refuse":
            raise PredictionException(body.get("message", "not this one"), body["code"])
        if what == "status":
            context.set_response_status(code=body["code"], phrase=body.get("phrase", "so"), idx=number)
            return body.get("output", "done")
        if what == "type":
            context.set_response_content_type(number, body["type"])
            context.set_response_header(number, "x-own", "own")
            return body["output"]
        if what == "asked":
            return context.get_request_header(number, body["name"])
        if what == "raise":
            raise {"value": ValueError, "memory": MemoryError, "key": KeyError, "exit": SystemExit}[body["what"]]("why")
        if what == "none":
            return None
        if what == "bytes":
            return body["output"].encode()
        if what == "number":
            return 7
        if what == "sleep":
            time.sleep(body["seconds"])
            return "slept"
        return body["output"]
"""
SHORT: Final = "def handle(data, context):\n    if data is not None:\n        return []\n"
WRONG: Final = "def handle(data, context):\n    if data is not None:\n        return 'text'\n"
BATCHED: Final = """
def handle(data, context):
    if data is None:
        return
    if len(data) != 1:
        raise ValueError("a batch")
    if data[0].get("body") == "bad":
        raise ValueError("bad")
    return [f"{data[0].get('body')} alone"]
"""
MODELS: Final[Mapping[str, str]] = {"net": HANDLER, "short": SHORT, "wrong": WRONG, "batched": BATCHED}
JSON: Final = {"content-type": "application/json"}
TEXT: Final = {"content-type": "text/plain"}
ASKED: Final = b'{"do": "asked", "name": "X-Asked"}'
FORM: Final = {"content-type": "multipart/form-data; boundary=cut"}


class Request(NamedTuple):
    """A request, and the name of its case."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Answer(NamedTuple):
    """An answer. `fields`: those header fields that clients may read."""

    status: int
    content_type: str
    body: str
    fields: tuple[tuple[str, str], ...]


def does(case: str, **what: object) -> Request:
    """Return a request that has the handler do something."""
    return Request(case, "POST", "/predictions/net", json.dumps(what).encode(), JSON)


def form(name: str, *parts: tuple[str, str]) -> Request:
    """Return a request with parts of a form: the rest of the disposition with further header lines, and the content."""
    text = "".join(f"--cut\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n" for head, content in parts)
    return Request(name, "POST", "/predictions/net", f"{text}--cut--\r\n".encode(), FORM)


def bodies() -> Iterator[Request]:
    """Yield requests of different paths and bodies."""
    yield Request("ping", "GET", "/ping")
    yield Request("JSON", "POST", "/predictions/net", b'{"a": [1, 2.5, null]}', JSON)
    yield Request(
        "JSON with a charset",
        "POST",
        "/predictions/net",
        b'{"a": 1}',
        {"content-type": "application/json; charset=utf-8"},
    )
    yield Request("a list of JSON", "POST", "/predictions/net", b"[1]", JSON)
    yield Request("JSON that is none", "POST", "/predictions/net", b"{", JSON)
    yield Request("text", "POST", "/predictions/net", "grün".encode(), TEXT)
    yield Request("bytes without a type", "POST", "/predictions/net", b"\xff\x00")
    yield Request("PUT of bytes", "PUT", "/predictions/net", b"\xff\x00")
    yield Request("an empty body", "POST", "/predictions/net")
    yield Request("GET", "GET", "/predictions/net")
    yield Request("GET with a query", "GET", "/predictions/net?data=x&b=2")
    yield Request("POST with a query", "POST", "/predictions/net?b=2", b"x", TEXT)
    yield Request(
        "a form in a query's style",
        "POST",
        "/predictions/net",
        b"data=x&b=%C3%BC",
        {"content-type": "application/x-www-form-urlencoded"},
    )
    yield form("a form", ('name="data"', "x"), ('name="b"', "2"))
    yield form("a form with a file", ('name="data"; filename="a.txt"\r\nContent-Type: text/plain', "x"))
    yield form(
        "a form with a file of JSON", ('name="data"; filename="a.json"\r\nContent-Type: application/json', '{"a": 1}')
    )
    yield Request("a form that is none", "POST", "/predictions/net", b"x", FORM)
    yield Request("its version", "POST", "/predictions/net/1.0", b"x", TEXT)
    yield Request("another version", "POST", "/predictions/net/2.0", b"x", TEXT)
    yield Request("no such model", "POST", "/predictions/none", b"x", TEXT)
    yield Request("no name", "POST", "/predictions", b"x", TEXT)
    yield Request("DELETE", "DELETE", "/predictions/net")
    yield Request("no such path", "GET", "/nothing")


def outcomes() -> Iterator[Request]:
    """Yield requests whose handlers answer, refuse and fail in different ways."""
    for code in (400, 404, 413, 429, 500, 503, 507, 599):
        yield does(f"PredictionException with {code}", do="refuse", code=code)
    yield does("PredictionException in other letters", do="refuse", code=400, message='"größer"\n')
    for code in (200, 201, 204, 301, 400, 418, 422, 500, 503):
        yield does(f"status {code}", do="status", code=code)
    yield does("status with an object", do="status", code=422, output={"a": 1})
    for what in ("value", "key", "memory"):
        yield does(f"raises {what}", do="raise", what=what)
    yield does("returns None", do="none")
    yield does("returns a number", do="number")
    yield does("returns bytes", do="bytes", output="abc")
    for output in ("text", "", {"a": 1}, [1, "ü"], True, 1.5):
        yield does(f"returns {output!r}", do="output", output=output)
    yield does("a type of its own", do="type", type="text/x-own", output="abc")
    yield does("a type of its own, with an object", do="type", type="application/json", output={"a": "ü"})
    yield Request("a header field", "POST", "/predictions/net", ASKED, {**JSON, "X-Asked": "yes"})
    yield Request("a header field in other letters", "POST", "/predictions/net", ASKED, {**JSON, "x-asked": "yes"})
    yield does("a header field that is not there", do="asked", name="X-Other")
    yield Request("a list that is too short", "POST", "/predictions/short", b"x", TEXT)
    yield Request("no list", "POST", "/predictions/wrong", b"x", TEXT)
    yield Request("a batch of one", "POST", "/predictions/batched", b"x", TEXT)
    yield Request("a batch that fails", "POST", "/predictions/batched", b"bad", TEXT)


_COG: Final = "Cog's API is at this path"
_WHY: Final = "geartrain says why"
_LOSES: Final = "TorchServe has 507 in the place of 413"
EXPECTED: Final[Mapping[str, str]] = {
    "GET": _COG,
    "GET with a query": _COG,
    "DELETE": _COG,
    "no name": _COG,
    "no such path": "geartrain has other protocols beside this one",
    "a form that is none": "TorchServe gives the handler an empty item",
    "PredictionException with 413": _LOSES,
    "PredictionException with 599": "599 has no name, and the status is 500",
    "a header field in other letters": "names of header fields have no case",
    "raises value": _WHY,
    "raises key": _WHY,
    "a batch that fails": _WHY,
    "a list that is too short": _WHY,
    "no list": _WHY,
}
"""The reasons for which answers to the requests of these names differ."""


def write(folder: pathlib.Path) -> None:
    """Write the archives, and the folders of geartrain with the same."""
    for name, text in MODELS.items():
        model: dict[str, str] = {"modelName": name, "handler": "handler.py", "modelVersion": "1.0"}
        if name != "net":
            model["handler"] = "handler.py:handle"
        files = {"handler.py": text}
        if name == "batched":
            files["model-config.yaml"] = "batchSize: 4\nmaxBatchDelay: 20\nminWorkers: 1\nmaxWorkers: 1\n"
            model["configFile"] = "model-config.yaml"
        about = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
        files["MAR-INF/MANIFEST.json"] = json.dumps(about)
        with zipfile.ZipFile(folder / f"{name}.mar", "w") as archive:
            for file, content in files.items():
                archive.writestr(file, content)
                (folder / "models" / name / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / "models" / name / file).write_text(content)


def ask(port: int, request: Request) -> Answer | str:
    """Send a request; return the answer, or the fault of the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request.method, request.path, request.body or None, dict(request.headers))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
    fields = tuple((name, value) for name in ("x-own", "allow", "retry-after") if (value := answer.headers.get(name)))
    return Answer(answer.status, answer.headers.get("content-type", ""), body.decode(errors="replace"), fields)


def compared(answer: Answer | str, theirs: Answer | str) -> object:
    """Return the parts of an answer that count: bodies of JSON by their values, content types where theirs has one."""
    if isinstance(answer, str):
        return answer
    has_type = isinstance(theirs, Answer) and bool(theirs.content_type)
    with contextlib.suppress(ValueError):
        return answer._replace(content_type=answer.content_type if has_type else "", body=repr(json.loads(answer.body)))
    return answer._replace(content_type=answer.content_type if has_type else "")


def main() -> None:
    """Ask both, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print the answers that are the same, too")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="torchserve-") as temporary:
        folder = pathlib.Path(temporary)
        write(folder)
        own = serving(folder / "models", "--api", "torchserve")
        with running(torchserve(folder, *MODELS)) as there, running(own) as here:
            for request in (*bodies(), *outcomes()):
                theirs, ours = ask(there.port, request), ask(here.port, request)
                is_expected = request.name in EXPECTED
                is_same = compared(theirs, theirs) == compared(ours, theirs)
                wrong += is_same == is_expected
                if not is_same or given.all or is_expected:
                    note = "the same" if is_same else EXPECTED.get(request.name, "differs")
                    print(f"{request.name}: {note}\n  torchserve {theirs}\n  geartrain  {ours}")
    print(f"{wrong} unexpected.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
