"""Clients in a process of their own, so that their work is not measured as the server's.

Tests serve in their own process. A client of the same process shares its interpreter lock and its processor time, which
`LoopProbe` measures. Bodies travel through files: a pipe of a process pool would copy them in this process too.
"""

from __future__ import annotations

import atexit
import functools
import http.client
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

SERVICE: Final = "/inference.GRPCInferenceService/"
PATIENCE: Final = 60.0  # seconds


def ask_http(url: str, method: str, path: str, body: bytes | None, *, accepted: str = "*/*") -> tuple[int, bytes]:
    """Send a JSON request; return the status and the body of the answer."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, body)
        status = _client().submit(_ask_http, (folder, url, method, path, accepted)).result()
        return status, Path(folder, "answer").read_bytes()


def ask_grpc(url: str, method: str, message: bytes, *, gzip: bool = False) -> bytes | tuple[str, str]:
    """Send a message of the Open Inference Protocol; return the answers joined, or status and text of an error."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, message)
        error = _client().submit(_ask_grpc, (folder, url, method, gzip)).result()
        return error or Path(folder, "answer").read_bytes()


@functools.cache
def _client() -> ProcessPoolExecutor:
    """Start the client's process, once."""
    client = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    atexit.register(client.shutdown, cancel_futures=True)
    return client


def _write(folder: str, body: bytes | None) -> None:
    if body is not None:
        Path(folder, "body").write_bytes(body)


def _read(folder: str) -> bytes | None:
    path = Path(folder, "body")
    return path.read_bytes() if path.exists() else None


# In the client's process


def _ask_http(asked: tuple[str, str, str, str, str]) -> int:
    folder, url, method, path, accepted = asked
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.request(method, path, _read(folder), {"content-type": "application/json", "accept": accepted})
        answer = connection.getresponse()
        Path(folder, "answer").write_bytes(answer.read())
        return answer.status
    finally:
        connection.close()


def _ask_grpc(asked: tuple[str, str, str, bool]) -> tuple[str, str] | None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    folder, url, method, gzip = asked
    message = _read(folder)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    opened: Any = cast("Any", grpc.insecure_channel(url.removeprefix("http://"), options=options))
    with opened as channel:
        try:
            if method == "ModelStreamInfer":
                answers = channel.stream_stream(SERVICE + method)(
                    iter([message]), timeout=PATIENCE, compression=compression
                )
                answer = b"".join(answers)
            else:
                answer = channel.unary_unary(SERVICE + method)(message, timeout=PATIENCE, compression=compression)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().name, failed.details()
        Path(folder, "answer").write_bytes(answer)
        return None
