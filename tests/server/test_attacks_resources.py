"""Servers without disk or shared memory, with clocks that jump, hostile handshakes and wrong inherited sockets."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.certificates import make_party
from tests.support.disks import fill, small_disk
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="mounts, /proc"),
    pytest.mark.own_wire(reason="a process of its own"),
    pytest.mark.without_store(reason="each server has its own disk"),
    pytest.mark.one_server(reason="a process of its own"),
]
Start = Callable[..., ServerProcess]

ECHO = """
    def run(text: str = "", size: int = 0) -> str:
        return text + "x" * size
"""
SLOW = """
    import time

    def run(text: str = "", seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return text
"""
FILE = """
    import pathlib
    from geartrain import Path

    def run(size: int = 0) -> Path:
        path = pathlib.Path("out.bin")
        path.write_bytes(b"x" * size)
        return Path(path)
"""
INPUT_FILE = """
    from geartrain import Path

    def run(file: Path) -> int:
        return len(file.read_bytes())
"""
SCRIBBLE = """
    import ctypes, mmap, os, random

    def run(text: str = "") -> str:
        chance = random.Random(1)
        for line in open("/proc/self/maps"):
            if "geartrain-slot" in line and " rw-s " in line:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                noise = chance.randbytes(min(end - begin, 1 << 16))
                ctypes.memmove(begin, noise, len(noise))
                print("scribbled")
        return text
"""


def started(start: Start, model: Path, *arguments: str, **options: Any) -> tuple[ServerProcess, str]:
    process = start(str(model), *arguments, **options)
    url: str = process.wait_for("listening")["url"]
    process.wait_for("ready")
    return process, url


def test_full_disk_of_the_store_refuses_what_cannot_be_kept_and_recovers(server_process: Start, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk, httpx.Client(timeout=PATIENCE) as client:
        model = write_model(tmp_path / "model", ECHO)
        process, url = started(server_process, model, "--store", f"sqlite:///{disk}/store.db")
        body = {"input": {"text": "kept"}}
        first = client.put(f"{url}/predictions/first", json=body)
        assert (first.status_code, first.json()["output"]) == (200, "kept")
        filler = fill(disk)
        large = {"input": {"text": "x" * 600_000}}
        refused = client.put(f"{url}/predictions/large", json=large, headers={"prefer": "respond-async"})
        assert refused.status_code in {503, 507}, refused.text[:300]
        assert refused.json()["error"]
        plain = client.post(f"{url}/predictions", json={"input": {"text": "no id"}})
        assert (plain.status_code, plain.json()["output"]) == (200, "no id"), plain.text[:300]
        assert client.get(f"{url}/livez").status_code == 200
        filler.unlink()
        again = client.put(f"{url}/predictions/large", json=large)
        assert (again.status_code, again.json()["status"]) == (200, "succeeded"), again.text[:300]
        assert client.get(f"{url}/predictions/first").json()["output"] == "kept"
        process.popen.terminate()
        assert process.popen.wait(PATIENCE) == 0


def test_full_disk_of_temporary_files_fails_one_prediction_alone(server_process: Start, tmp_path: Path) -> None:
    with small_disk(tmp_path / "d", "4m") as disk, httpx.Client(timeout=PATIENCE) as client:
        model = write_model(tmp_path / "model", FILE)
        _, url = started(server_process, model, env={"TMPDIR": str(disk)}, cwd=tmp_path)
        filler = fill(disk)
        failed = client.post(f"{url}/predictions", json={"input": {"size": 200_000}})
        assert failed.json()["status"] == "failed", failed.text[:300]
        assert failed.json()["error"].endswith("which cannot be copied: No space left on device")
        assert [path for path in disk.rglob("*.bin") if path.is_file()] == []
        assert client.get(f"{url}/health-check").json()["status"] == "READY"
        filler.unlink()
        good = client.post(f"{url}/predictions", json={"input": {"size": 1000}})
        assert good.json()["status"] == "succeeded", good.text[:300]


def test_full_disk_of_temporary_files_fails_a_prediction_with_an_input_file_alone(
    server_process: Start, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "d", "4m") as disk, httpx.Client(timeout=PATIENCE) as client:
        model = write_model(tmp_path / "model", INPUT_FILE)
        _, url = started(server_process, model, env={"TMPDIR": str(disk)}, cwd=tmp_path)
        filler = fill(disk)
        text = base64.b64encode(bytes(600_000)).decode()
        body = {"input": {"file": f"data:application/octet-stream;base64,{text}"}}
        failed = client.post(f"{url}/predictions", json=body)
        assert failed.status_code in {200, 503, 507}, failed.text[:300]
        assert failed.json().get("status") in {None, "failed"}, failed.text[:300]
        assert "No space left on device" in failed.json()["error"], failed.text[:300]
        assert [path for path in disk.rglob("*") if path.is_file() and path != filler and path.stat().st_size] == []
        assert client.get(f"{url}/health-check").json()["status"] == "READY"
        filler.unlink()
        assert client.post(f"{url}/predictions", json=body).json()["output"] == 600_000


def test_full_disk_of_the_log_does_not_stop_the_server(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", ECHO)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "geartrain", "serve", str(model), "--port", str(port), "--grpc-port", "off"]
        server = subprocess.Popen(command, stdout=full, stderr=full)
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + PATIENCE
        with httpx.Client(timeout=PATIENCE) as client:
            while not _is_ready(client, url):
                assert server.poll() is None, "it has ended"
                assert time.monotonic() < until
            for number in range(20):
                answer = client.post(f"{url}/predictions", json={"input": {"text": str(number)}})
                assert answer.json()["output"] == str(number)
        server.terminate()
        assert server.wait(PATIENCE) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def _is_ready(client: httpx.Client, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return client.get(f"{url}/readyz").status_code == 200
    return False


def test_full_shared_memory_of_the_machine_changes_no_answer(server_process: Start, tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs a mount namespace of its own")
    script = 'mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full; exec "$@"'
    under = ("unshare", "-m", "sh", "-c", script, "sh")
    model = write_model(tmp_path / "model", ECHO)
    with httpx.Client(timeout=PATIENCE) as client:
        _, url = started(server_process, model, under=under)
        for size in (1, 100_000, 5_000_000):
            answer = client.post(f"{url}/predictions", json={"input": {"text": "a" * size, "size": size}})
            assert answer.json()["output"] == "a" * size + "x" * size


def test_worker_that_scribbles_over_its_slot_harms_its_own_predictions_alone(
    server_process: Start, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", SCRIBBLE)
    process = server_process(str(model), "--restart", "on-crash")
    url = process.wait_for("listening")["url"]
    process.wait_for("ready")
    with httpx.Client(timeout=PATIENCE) as client:
        logs = ""
        for size in (10, 3_000_000, 3_000_000, 100_000, 10):
            answer = client.post(f"{url}/predictions", json={"input": {"text": "b" * size}})
            logs += answer.json().get("logs", "")
            assert answer.status_code in {200, 409, 500, 503}, answer.text[:300]
            assert client.get(f"{url}/livez").status_code == 200
        assert "scribbled" in logs
        process.popen.terminate()
        assert process.popen.wait(PATIENCE) == 0


@pytest.mark.parametrize("jump", [3600, -3600])
def test_clock_that_jumps_an_hour_keeps_store_and_predictions(server_process: Start, tmp_path: Path, jump: int) -> None:
    moved = tmp_path / "moved"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, time\n"
        "_time, _ns = time.time, time.time_ns\n"
        f"_by = lambda: {jump} if os.path.exists({str(moved)!r}) else 0\n"
        "time.time = lambda: _time() + _by()\n"
        "time.time_ns = lambda: _ns() + _by() * 10**9\n"
    )
    model = write_model(tmp_path / "model", SLOW)
    store = ("--queue", "10", "--store", f"sqlite:///{tmp_path}/store.db", "--lease", "6s")
    with httpx.Client(timeout=PATIENCE) as client:
        process, url = started(server_process, model, *store, env={"PYTHONPATH": str(site)})
        assert put(client, f"{url}/predictions/before", "1").json()["output"] == "1"
        running = put(client, f"{url}/predictions/running", "0", seconds=3.0, prefer="respond-async")
        assert running.status_code == 202
        moved.touch()
        assert put(client, f"{url}/predictions/during", "2").json().get("output") == "2"
        assert client.get(f"{url}/predictions/before").json()["output"] == "1"
        moved.unlink()
        assert put(client, f"{url}/predictions/after", "3").json().get("output") == "3"
        until = time.monotonic() + PATIENCE
        while client.get(f"{url}/predictions/running").json()["status"] not in {"succeeded", "failed", "canceled"}:
            assert time.monotonic() < until, "it does not end"
        for name, output in (("before", "1"), ("running", "0"), ("during", "2"), ("after", "3")):
            assert client.get(f"{url}/predictions/{name}").json()["output"] == output
        assert client.get(f"{url}/readyz").status_code == 200
        process.popen.terminate()
        assert process.popen.wait(PATIENCE) == 0


def put(client: httpx.Client, url: str, text: str, seconds: float = 0.0, prefer: str = "wait") -> httpx.Response:
    return client.put(url, json={"input": {"text": text, "seconds": seconds}}, headers={"prefer": prefer})


def test_hostile_handshakes_leave_others_served_and_nothing_behind(server_process: Start, tmp_path: Path) -> None:
    authority = make_party("ca")
    cert, key = make_party("server", authority).write(tmp_path, "server")
    model = write_model(tmp_path / "model", ECHO)
    arguments = ("--tls-cert", str(cert), "--tls-key", str(key), "--head-timeout", "1s")
    process, url = started(server_process, model, *arguments)
    address = ("127.0.0.1", httpx.URL(url).port or 0)
    context = ssl.create_default_context(cadata=authority.cert.decode())
    hello = client_hello()
    with httpx.Client(verify=context, timeout=PATIENCE) as client:
        assert client.post(f"{url}/predictions", json={"input": {"text": "a"}}).json()["output"] == "a"
        before = psutil.Process(process.popen.pid).num_fds()
        starts = (
            b"",
            hello[:1],
            hello[:-1],
            hello,
            b"\x16\x03\x01\xff\xff" + b"\0" * 70_000,
            b"GET / HTTP/1.1\r\n\r\n",
        )
        with contextlib.ExitStack() as stack:
            held = []
            for number in range(200):
                each = stack.enter_context(socket.create_connection(address, timeout=PATIENCE))
                each.settimeout(PATIENCE)
                with contextlib.suppress(ConnectionError):  # the server has refused it already
                    each.sendall(starts[number % len(starts)])
                held.append(each)
            assert client.post(f"{url}/predictions", json={"input": {"text": "b"}}).json()["output"] == "b"
            for each in held:  # the server ends each of them
                with contextlib.suppress(ConnectionError):
                    while each.recv(65536):
                        pass
        assert client.post(f"{url}/predictions", json={"input": {"text": "c"}}).json()["output"] == "c"
        until = time.monotonic() + PATIENCE
        while psutil.Process(process.popen.pid).num_fds() > before + 2:
            assert time.monotonic() < until, "descriptors stay"
    process.popen.terminate()
    assert process.popen.wait(PATIENCE) == 0


def client_hello() -> bytes:
    """Make the first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"LISTEN_FDS": "many"}, "LISTEN_FDS is 'many'"),
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS is '-1'"),
        ({"LISTEN_FDS": "99999999999"}, "LISTEN_FDS is '99999999999'"),
        ({"LISTEN_FDS": "1" + "0" * 5000}, "LISTEN_FDS is"),
        ({"LISTEN_FDS": "1"}, "3"),
        ({"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a:b:c"}, "LISTEN_FDNAMES has 3 names for 1 sockets"),
    ],
)
def test_wrong_inherited_sockets_end_the_start_with_a_reason(
    tmp_path: Path, variables: dict[str, str], says: str
) -> None:
    model = write_model(tmp_path / "model", ECHO)
    script = 'export LISTEN_PID=$$; exec "$@" 3</dev/null'
    done = subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "geartrain", "serve", str(model)],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode not in {0, -6, -11}
    assert says in done.stderr
    assert "Traceback" not in done.stderr
