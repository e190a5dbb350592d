"""Services that keep files elsewhere, on the loopback: a web server, the hub, and the protocols of three clouds.

What they answer is what `obstore`, `huggingface_hub` and `httpx` ask for to list and read; of everything else they know
nothing. A real S3 server is in `s3_server`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

COMMIT = "c0ffee" * 6 + "c0ff"
_MODIFIED = "Mon, 02 Nov 2026 10:00:00 GMT"


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    range: str
    authorization: str


class Cloud:
    """Files by path, such as `bucket/models/a.bin`. It is told what shall go wrong."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.cuts: dict[str, list[int]] = {}  # by file: after so many bytes of a body the connection is cut, each once
        self.has_ranges = True
        self.has_validators = True
        self.has_lengths = True
        self.statuses: list[int] = []  # of the next answers, in place of what was asked for
        self.gate = threading.Event()  # what is in `held` stands still until it is set
        self.held: set[str] = set()
        self.reached = threading.Event()  # somebody stands still
        self.url = ""

    def environ(self) -> dict[str, str]:
        """The variables by which a program takes it for each of the services."""
        return {
            "GOOGLE_BASE_URL": self.url,
            "GOOGLE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ENDPOINT": self.url,
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_SKIP_SIGNATURE": "true",
            "HF_ENDPOINT": self.url,
            "NO_PROXY": "127.0.0.1",
        }

    def etag(self, path: str) -> str:
        """The validator of a file."""
        return f'"{hashlib.md5(self.files[path], usedforsecurity=False).hexdigest()}"'

    def bodies(self) -> list[Asked]:
        """The requests for files, without those that look how large one is."""
        return [
            each for each in self.asked if "?" not in each.path and each.method == "GET" and each.range != "bytes=0-0"
        ]


@contextlib.contextmanager
def running_cloud() -> Iterator[Cloud]:
    """Serve a cloud until the end of the block."""
    cloud = Cloud()
    handler = type("Handler", (_Handler,), {"cloud": cloud})
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    cloud.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        cloud.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(40)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_arguments: Any) -> None:
        """Say nothing of clients that have left."""


class _Handler(BaseHTTPRequestHandler):
    cloud: Cloud
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = self.headers
        asked = Asked(self.command, self.path, headers.get("range", ""), headers.get("authorization", ""))
        self.cloud.asked.append(asked)
        url = urlsplit(self.path)
        path, query = unquote(url.path).strip("/"), parse_qs(url.query)
        if self.cloud.statuses:
            self._answer(self.cloud.statuses.pop(0), b"")
        elif "list-type" in query:
            self._list_s3(path, query)
        elif query.get("comp") == ["list"]:
            self._list_azure(path, query)
        elif path.startswith(("api/models/", "api/datasets/")):
            self._describe(path)
        elif found := re.fullmatch(r"((?:datasets/)?[^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path):
            self._redirect(f"/{found[1]}/{found[3]}")
        elif path in self.cloud.files:
            self._send(path)
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _answer(self, status: int, body: bytes, content_type: str = "application/xml") -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("location", self.cloud.url + target)
        self.send_header("content-length", "0")
        self.end_headers()

    def _below(self, bucket: str, prefix: str) -> list[str]:
        start = f"{bucket}/{prefix}"
        return [path for path in sorted(self.cloud.files) if path.startswith(start)]

    def _list_s3(self, bucket: str, query: dict[str, list[str]]) -> None:
        contents = "".join(
            f"<Contents><Key>{escape(path.partition('/')[2])}</Key><Size>{len(self.cloud.files[path])}</Size>"
            f"<LastModified>2026-11-02T10:00:00.000Z</LastModified><ETag>{escape(self.cloud.etag(path))}</ETag></Contents>"
            for path in self._below(bucket, query.get("prefix", [""])[0])
        )
        self._answer(200, f"<ListBucketResult><Name>{bucket}</Name>{contents}</ListBucketResult>".encode())

    def _list_azure(self, container: str, query: dict[str, list[str]]) -> None:
        blobs = "".join(
            f"<Blob><Name>{escape(path.partition('/')[2])}</Name><Properties><Last-Modified>{_MODIFIED}</Last-Modified>"
            f"<Content-Length>{len(self.cloud.files[path])}</Content-Length><Content-Type>x/y</Content-Type>"
            f"<Etag>{escape(self.cloud.etag(path))}</Etag></Properties></Blob>"
            for path in self._below(container, query.get("prefix", [""])[0])
        )
        body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>"
        self._answer(200, body.encode())

    def _describe(self, path: str) -> None:
        """Tell what is in a repository, as the hub does."""
        found = re.fullmatch(r"api/(models/|datasets/)([^/]+/[^/]+)(?:/revision/(.+))?", path)
        repository = f"{found[1].removeprefix('models/')}{found[2]}" if found else ""
        files = self._below(repository, "")
        if not files or (found and found[3] not in {None, "main", "v1", COMMIT}):
            self.send_response(404)
            self.send_header("x-error-code", "RevisionNotFound" if files else "RepoNotFound")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        siblings = [self._sibling(repository, each) for each in files]
        body = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        self._answer(200, json.dumps(body).encode(), "application/json")

    def _sibling(self, repository: str, path: str) -> dict[str, Any]:
        content, name = self.cloud.files[path], path[len(repository) + 1 :]
        found: dict[str, Any] = {"rfilename": name, "size": len(content)}
        found["blobId"] = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        if name.endswith(".bin"):
            checksum = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"sha256": checksum, "size": len(content), "pointerSize": 100}
        return found

    def _send(self, path: str) -> None:
        content, cloud = self.cloud.files[path], self.cloud
        ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")) if cloud.has_ranges else None
        condition = self.headers.get("if-range", "")
        if condition and condition not in {cloud.etag(path), _MODIFIED}:
            ranged = None
        if self.headers.get("if-match", cloud.etag(path)) != cloud.etag(path):
            self._answer(412, b"")
            return
        start, end = (int(ranged[1]), min(int(ranged[2]) + 1, len(content))) if ranged else (0, len(content))
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(content)}")
        if cloud.has_validators:
            self.send_header("etag", cloud.etag(path))
            self.send_header("last-modified", _MODIFIED)
        body = content[start:end]
        if cloud.has_lengths:
            self.send_header("content-length", str(len(body)))
        else:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "GET":
            self._write(path, body)

    def _write(self, path: str, body: bytes) -> None:
        cuts = self.cloud.cuts.get(path, [])
        is_look = len(body) <= 1
        if path in self.cloud.held and not is_look:
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.cloud.reached.set()
            self.cloud.gate.wait(40)
            body = body[half:]
        if not cuts or is_look:
            with contextlib.suppress(ConnectionError):  # who asked may have been ended
                self.wfile.write(body)
            return
        self.wfile.write(body[: cuts.pop(0)])
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
