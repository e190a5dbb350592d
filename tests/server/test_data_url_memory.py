"""Memory that large `data:` URLs take, in all processes of a server together."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.attacks import resident
from tests.support.processes import children
from tests.support.servers import PATIENCE, ServerProcess, write_model

MODEL: Final = """
    import hashlib
    from cog import BaseRunner, Path

    class Runner(BaseRunner):
        def run(self, files: list[Path]) -> list[str]:
            return [self.digest(file) for file in files]

        def digest(self, path: Path) -> str:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while piece := file.read(65_536):
                    digest.update(piece)
            return digest.hexdigest()
"""
CONTENT: Final = bytes(range(256)) * 73_728  # 18 MiB
URL: Final = b"data:;base64," + base64.b64encode(CONTENT)  # 24 MiB
MOST: Final = 3 * len(URL)
PIECE: Final = 65_536


class Server:
    """A server process, the memory of its family, and a client that keeps nothing."""

    def __init__(self, process: ServerProcess) -> None:
        self._pid = process.popen.pid
        parts = urlsplit(process.wait_for("listening")["url"])
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
        process.wait_for("ready")

    def close(self) -> None:
        self._connection.close()

    def ask(self, path: str, body: bytes) -> bytes:
        """Return the first and the last bytes of an answer."""
        self._connection.request("POST", path, body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        begin = end = response.read(PIECE)
        while piece := response.read(PIECE):
            end = (end + piece)[-2000:]
        return begin[:2000] + end

    def growth(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return by how much the peaks of all processes lie above what they took before, and the end of the answer."""
        family = family_of(self._pid)
        before = dict.fromkeys(family, 0)
        for pid in family:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # resets the peak
            before[pid] = resident(pid)
        end = self.ask(path, body)
        peaks = {pid: resident(pid, "VmHWM") for pid in family_of(self._pid)}
        return sum(peak - before.get(pid, 0) for pid, peak in peaks.items()), end


def family_of(pid: int) -> list[int]:
    """Return a process, and all that descend from it."""
    family = [pid]
    for member in family:  # grows meanwhile
        family += children(member)
    return family


def predict(*urls: bytes) -> bytes:
    return b'{"input":{"files":["%b"]}}' % b'","'.join(urls)


@pytest.mark.parametrize("limit", ["100MiB", "10MiB"])
@pytest.mark.parametrize("kind", ["plain", "escaped", "two"])
def test_s14_a_data_url_takes_at_most_three_times_its_size(
    server_process: Callable[..., ServerProcess], tmp_path: Path, limit: str, kind: str
) -> None:
    process = server_process(str(write_model(tmp_path / "model", MODEL)), "--max-download-size", limit)
    contents = [CONTENT] if kind != "two" else [CONTENT[: len(CONTENT) // 2]] * 2
    urls = [b"data:;base64," + base64.b64encode(content) for content in contents]
    if kind == "escaped":
        urls = [url.replace(b"/", b"\\/") for url in urls]
    with contextlib.closing(Server(process)) as server:
        for _ in range(2):  # what is imported, started and allocated once
            server.ask("/predictions", predict(b"data:;base64," + b"AAAA" * 500_000))
            server.ask("/predictions", predict(*[b"data:;base64," + b"AAAA" * 4_000_000]))
        growth, end = server.growth("/predictions", predict(*urls))
    if limit == "10MiB" and kind != "two":
        assert b"the file is larger than the limit of 10 MiB" in end
        assert b'"status":"failed"' in end
    else:
        digests = [hashlib.sha256(content).hexdigest().encode() for content in contents]
        assert all(digest in end for digest in digests)
    assert growth <= MOST
