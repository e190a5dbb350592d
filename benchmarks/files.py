"""Requests a second of a trained model in a file: geartrain on scikit-learn and ONNX, beside MLServer's runtime.

`python benchmarks/files.py --help`. The model tells handwritten digits apart; it is trained here, written with joblib,
and exported to ONNX. Every server takes turns with the library itself, called in a loop: what a request takes longer is
the price of serving. Needs wrk, scikit-learn, skl2onnx and onnxruntime. Prints markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import peer_servers
from load import Load, Summary, connections_text, drive, summary, version
from report import conditions, peers_environment, table, version_of
from servers import Running, Server, running

WARM_UP = 1  # seconds of load before the first round
PATH = "/v2/models/digits/infer"
FILES = {"digits.joblib": ("FP64", "predict"), "digits.onnx": ("FP32", "label")}  # what they take, and give
LIBRARIES = {"digits.joblib": "scikit-learn", "digits.onnx": "onnxruntime"}
TYPES = {"FP64": np.float64, "FP32": np.float32}
SINGLES = 200  # single rows whose answers are looked at

Array = np.ndarray[Any, np.dtype[Any]]
Predict = Callable[[Array], Array]


@dataclasses.dataclass(frozen=True)
class Request:
    """A body as it is sent; `header` is the length of the JSON in front of binary tensors."""

    body: bytes
    content_type: str = "application/json"
    header: int | None = None


@dataclasses.dataclass(frozen=True)
class Contender:
    """A server on one of the files, asked in JSON or in binary. `make` may write into the folder it is given."""

    name: str
    program: str
    file: str
    make: Callable[[pathlib.Path, pathlib.Path], Server]
    binary: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """So many rows in a request, over so many connections."""

    rows: int
    connections: int

    @property
    def title(self) -> str:
        """In words."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{rows}, {connections_text(self.connections)}"


CASES = (Case(1, 1), Case(1, 16), Case(1000, 1))


# the model


def train(folder: pathlib.Path) -> tuple[Array, dict[str, Predict]]:
    """Write the files; return the rows of the data set, and what each file's library says of some rows."""
    import joblib
    import onnxruntime
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    rows, labels = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=5000).fit(rows, labels)
    joblib.dump(model, folder / "digits.joblib")
    exported = to_onnx(model, rows[:1].astype(np.float32), options={"zipmap": False})
    (folder / "digits.onnx").write_bytes(exported.SerializeToString())
    loaded = joblib.load(folder / "digits.joblib")
    session = onnxruntime.InferenceSession(folder / "digits.onnx", providers=["CPUExecutionProvider"])
    return rows, {
        "digits.joblib": loaded.predict,
        "digits.onnx": lambda some: session.run(["label"], {"X": some})[0],
    }


def in_a_loop(predict: Predict, rows: Array, seconds: float) -> Load:
    """Call a library on the same rows again and again."""
    times = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        predict(rows)
        times.append(time.perf_counter() - begin)
    percentiles = statistics.quantiles(times, n=100)
    return Load(len(times), 0, seconds, percentiles[49], percentiles[98])


# requests


def request(rows: Array, contender: Contender) -> Request:
    """Ask for the digit of each row."""
    datatype, answer = FILES[contender.file]
    name = "X" if contender.file == "digits.onnx" else "input"
    tensor = {"name": name, "shape": rows.shape, "datatype": datatype}
    if not contender.binary:
        body = {"inputs": [tensor | {"data": rows.ravel().tolist()}], "outputs": [{"name": answer}]}
        return Request(json.dumps(body, separators=(",", ":")).encode())
    data = rows.astype(TYPES[datatype]).tobytes()
    head = {
        "inputs": [tensor | {"parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": answer, "parameters": {"binary_data": True}}],
    }
    header = json.dumps(head, separators=(",", ":")).encode()
    return Request(header + data, "application/octet-stream", len(header))


def check(contender: Contender, server: Running, rows: Array, expected: Sequence[int]) -> None:
    """Ask for all of the rows at once; raise RuntimeError if the answers are not those of the library."""
    asked = request(rows, contender)
    headers = {"Content-Type": asked.content_type}
    if asked.header is not None:
        headers["Inference-Header-Content-Length"] = str(asked.header)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", PATH, asked.body, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    said = None
    if answer.status == http.client.OK:
        length = int(answer.headers.get("Inference-Header-Content-Length", len(body)))
        tensor = json.loads(body[:length])["outputs"][0]
        said = (
            np.frombuffer(body[length:], np.int64).tolist() if contender.binary else np.ravel(tensor["data"]).tolist()
        )
    if said != list(expected):
        raise RuntimeError(f"{contender.name} answered {answer.status} {body[:200]!r}")


# servers


def geartrain(file: pathlib.Path, folder: pathlib.Path) -> Server:  # noqa: ARG001 - as of mlserver
    """The server of this work tree on the file as it is."""
    script = pathlib.Path(sys.executable).with_name("geartrain")
    address = ("--host", "127.0.0.1", "--port", "{port}", "--grpc-port", "off")
    return Server(name="geartrain", command=(str(script), "serve", str(file), *address))


def mlserver(file: pathlib.Path, folder: pathlib.Path, *, processes: int) -> Server:
    """Its runtime for scikit-learn, in so many processes of its own; with none, in the one that serves."""
    shutil.copy(file, folder)
    (folder / "settings.json").write_text(json.dumps({"parallel_workers": processes}))
    settings = {
        "name": "digits",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": f"./{file.name}"},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings))
    return peer_servers.mlserver(folder, model="digits", package="mlserver-sklearn")


CONTENDERS = (
    Contender("geartrain, joblib, JSON", "geartrain", "digits.joblib", geartrain),
    Contender("geartrain, joblib, binary", "geartrain", "digits.joblib", geartrain, binary=True),
    Contender("geartrain, ONNX, JSON", "geartrain", "digits.onnx", geartrain),
    Contender("geartrain, ONNX, binary", "geartrain", "digits.onnx", geartrain, binary=True),
    Contender("mlserver, joblib, JSON", "mlserver", "digits.joblib", lambda *where: mlserver(*where, processes=1)),
    Contender(
        "mlserver in one process, joblib, JSON",
        "mlserver",
        "digits.joblib",
        lambda *where: mlserver(*where, processes=0),
    ),
)


# measuring


def load(contender: Contender, server: Running, body: pathlib.Path, case: Case, *, rows: Array, seconds: int) -> Load:
    """Ask for the digits of the same rows again and again."""
    asked = request(rows, contender)
    body.write_bytes(asked.body)
    arguments = [str(body), asked.content_type, *([] if asked.header is None else [str(asked.header)])]
    return drive(server, PATH, "infer.lua", arguments, connections=case.connections, seconds=seconds)


def measure(case: Case, contenders: Sequence[Contender], *, rounds: int, seconds: int) -> str:
    """Measure one case; a markdown table."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        digits, libraries = train(folder)
        inputs = {file: digits.astype(TYPES[datatype]) for file, (datatype, _) in FILES.items()}
        rows = {file: table[: case.rows] for file, table in inputs.items()}
        started: list[tuple[Contender, Running, list[Load]]] = []
        for number, contender in enumerate(contenders):
            own = folder / str(number)
            own.mkdir()
            server = stack.enter_context(running(contender.make(folder / contender.file, own)))
            started.append((contender, server, []))
        check_all(started, inputs, libraries, case)
        loops: dict[str, list[Load]] = {file: [] for file in FILES}
        for turn in range(rounds + 1):
            length = seconds if turn else WARM_UP
            for file, predict in libraries.items():
                loops[file].append(in_a_loop(predict, rows[file], length))
            for contender, server, loads in started:
                chosen = rows[contender.file]
                loads.append(load(contender, server, folder / "body", case, rows=chosen, seconds=length))
        check_all(started, inputs, libraries, case)
    alone = {file: summary(loads[1:]) for file, loads in loops.items()}
    return report(case, alone, {contender: loads[1:] for contender, _, loads in started})


def check_all(
    started: Sequence[tuple[Contender, Running, list[Load]]],
    inputs: Mapping[str, Array],
    libraries: Mapping[str, Predict],
    case: Case,
) -> None:
    """Compare every server's answers with its library's."""
    for contender, server, _ in started:
        rows = inputs[contender.file]
        expected = libraries[contender.file](rows).tolist()
        last = SINGLES if case.rows == 1 else len(rows)
        for begin in range(0, last, case.rows):
            some = slice(begin, begin + case.rows)
            check(contender, server, rows[some], expected[some])


def report(case: Case, alone: Mapping[str, Summary], measured: Mapping[Contender, Sequence[Load]]) -> str:
    """A table, with the libraries by themselves first."""
    ours = next((loads for contender, loads in measured.items() if contender.program == "geartrain"), [])
    single = case.connections == 1  # with more, requests wait for each other, and several are one call
    rows = []
    for file, seen in alone.items():
        rows.append([LIBRARIES[file], f"{seen.rate:,.0f}", f"{seen.p50 * 1e6:,.0f}", "", "", "", ""])
    for contender, loads in measured.items():
        seen, library = summary(loads), alone[contender.file]
        row = [contender.name, f"{seen.rate:,.0f}", f"{seen.p50 * 1e6:,.0f}"]
        row += [f"{(seen.p50 - library.p50) * 1e6:,.0f}", f"{1 - library.p50 / seen.p50:.0%}"] if single else ["", ""]
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(ours, loads, strict=True) if theirs.rate]
        is_peer = contender.program != "geartrain" and ratios
        rows.append([*row, str(seen.bad), f"{statistics.median(ratios):.1f} ×" if is_peer else ""])
    head = ["", "requests/s", "p50 µs", "over the library, µs", "outside the library", "bad", "geartrain: requests/s"]
    return f"#### {case.title}\n\n{table(head, rows)}"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that every server takes (default: 5)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a turn (default: 3)")
    programs = ("geartrain", "mlserver")
    parser.add_argument("--servers", nargs="+", choices=programs, default=programs, help="whom to measure (all)")
    parser.add_argument("--cases", nargs="+", type=int, choices=range(len(CASES)), default=range(len(CASES)))
    options = parser.parse_args()
    wrk = version(parser)
    environment = peers_environment("mlserver-sklearn")
    peers = {"mlserver-sklearn": version_of("mlserver-sklearn", environment)} if "mlserver" in options.servers else {}
    own = pathlib.Path(sys.prefix)
    print(conditions(peers | {name: version_of(name, own) for name in LIBRARIES.values()}, wrk))
    print(f"{options.rounds} rounds, {options.seconds} s for each server in each.\n")
    contenders = [contender for contender in CONTENDERS if contender.program in options.servers]
    for number in options.cases:
        print(measure(CASES[number], contenders, rounds=options.rounds, seconds=options.seconds), flush=True)


if __name__ == "__main__":
    main()
