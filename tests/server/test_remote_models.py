"""Models and weights that lie elsewhere, fetched by real servers and commands."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from geartrain.server import build
from geartrain.server.asgi import read_options
from geartrain.service.workers.pool import ModelSetupError
from tests.support.cloud import Cloud, running_cloud
from tests.support.s3_server import S3Server, running_s3
from tests.support.servers import PATIENCE, ServerProcess, write_model

pytest.importorskip("obstore", reason="the extra `remote` is not installed")
pytest.importorskip("moto", reason="moto, which has the S3 server, is not installed")
pytest.importorskip("huggingface_hub", reason="the extra `remote` is not installed")

Start = Callable[..., ServerProcess]

CODE = b"""
from pathlib import Path

class Runner:
    def setup(self) -> None:
        self.size = Path("w/a.bin").stat().st_size

    def run(self, text: str) -> str:
        return f"{text} {self.size}"
"""
SIZE = 6_000_000
WEIGHTS = os.urandom(SIZE)
REFERENCE = "s3://bucket/models/cats"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        server.put(**{"models/cats/run.py": CODE, "models/cats/w/a.bin": WEIGHTS})
        yield server


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with running_cloud() as cloud:
        yield cloud


def ask(server: ServerProcess, path: str, **options: Any) -> httpx.Response:
    url = next(line["url"] for line in server.lines if line["message"] == "listening")
    return httpx.request("GET" if "json" not in options else "POST", url + path, trust_env=False, timeout=40, **options)


def predict(server: ServerProcess, text: str = "hello") -> Any:
    return ask(server, "/predictions", json={"input": {"text": text}}).json()["output"]


def metric(server: ServerProcess, name: str) -> float:
    (line,) = [line for line in ask(server, "/metrics").text.splitlines() if line.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def end(server: ServerProcess) -> int:
    server.popen.send_signal(signal.SIGTERM)
    return server.popen.wait(PATIENCE)


def test_first_start_downloads_and_the_second_does_not(s3: S3Server, tmp_path: Path, server_process: Start) -> None:
    with s3.line() as line:
        line.hold_at = SIZE // 2
        env = {**s3.environ(line.port), "GEARTRAIN_CACHE": str(tmp_path)}
        server = server_process(REFERENCE, env=env)
        server.wait_for("listening")
        until(lambda: "of 6.0 MB" in ask(server, "/health-check").json()["setup"]["logs"])
        health = ask(server, "/health-check").json()
        assert health["status"] == health["setup"]["status"].upper() == "STARTING"
        assert health["setup"]["logs"].startswith(f"Downloading {REFERENCE}: ")
        assert (ask(server, "/livez").status_code, ask(server, "/readyz").status_code) == (200, 503)
        assert f"Downloading {REFERENCE}" in ask(server, "/readyz").text
        refused = ask(server, "/predictions", json={"input": {"text": "x"}})
        assert (refused.status_code, f"Downloading {REFERENCE}" in refused.text) == (503, True)
        assert ask(server, "/v2/models/cats/infer", json={"inputs": []}).status_code == 503
        assert ask(server, "/v2/repository/index", json={}).json()[0]["state"] == "LOADING"
        assert metric(server, "geartrain_download_active") == 1
        assert 0 < metric(server, "geartrain_download_size_bytes") == SIZE + len(CODE)
        line.go_on()
        server.wait_for("ready")
        assert predict(server) == f"hello {SIZE}"
        assert metric(server, "geartrain_download_bytes_total") == SIZE + len(CODE)
        assert metric(server, "geartrain_download_files_total") == 2
        assert metric(server, "geartrain_download_active") == 0
        assert end(server) == 0
        lines = server.read_to_the_end()
        told = [each["text"] for each in lines if each["message"] == "downloading"]
        assert told[-1].startswith(f"Downloading {REFERENCE}: 6.0 MB of 6.0 MB (100 %), ")
        assert len(told) <= 12, "one for each tenth"
        assert "TOPSECRET" not in str(lines)
        had = line.received
        again = server_process(REFERENCE, env=env)
        again.wait_for("ready")
        assert predict(again) == f"hello {SIZE}"
        assert metric(again, "geartrain_download_bytes_total") == 0
        assert line.received - had < 10_000
        assert end(again) == 0


def test_two_servers_download_once_though_the_first_is_killed_at_it(
    s3: S3Server, tmp_path: Path, server_process: Start
) -> None:
    with s3.line() as line:
        line.hold_at = SIZE // 2
        env = {**s3.environ(line.port), "GEARTRAIN_CACHE": str(tmp_path)}
        first, second = server_process(REFERENCE, env=env), server_process(REFERENCE, env=env)
        for server in (first, second):
            server.wait_for("listening")
        servers = (first, second)
        until(lambda: any("of 6.0 MB" in ask(each, "/health-check").json()["setup"]["logs"] for each in servers))
        until(lambda: any("waiting for it" in ask(each, "/health-check").json()["setup"]["logs"] for each in servers))
        [loading] = [each for each in servers if "waiting" not in ask(each, "/health-check").json()["setup"]["logs"]]
        [waiting] = [each for each in servers if each is not loading]
        loading.popen.kill()
        loading.popen.wait(PATIENCE)
        line.go_on()
        waiting.wait_for("ready")
        assert predict(waiting) == f"hello {SIZE}"
        assert line.received < 2 * SIZE
        assert end(waiting) == 0


def test_cut_connections_do_not_matter(s3: S3Server, tmp_path: Path, server_process: Start) -> None:
    with s3.line() as line:
        line.cuts = [1_500_000, 3_000_000, 4_000_000]
        server = server_process(REFERENCE, "--cache-dir", str(tmp_path), env=s3.environ(line.port))
        server.wait_for("ready")
        assert predict(server) == f"hello {SIZE}"
        assert not line.cuts
        assert metric(server, "geartrain_download_bytes_total") == SIZE + len(CODE)
    (weights,) = tmp_path.rglob("a.bin")
    assert weights.read_bytes() == WEIGHTS


def test_sigterm_ends_a_download_and_the_next_start_goes_on(
    s3: S3Server, tmp_path: Path, server_process: Start
) -> None:
    with s3.line() as line:
        line.hold_at = 4_000_000
        env = {**s3.environ(line.port), "GEARTRAIN_CACHE": str(tmp_path)}
        server = server_process(REFERENCE, env=env)
        server.wait_for("listening")
        until(lambda: line.received > 3_500_000 and metric(server, "geartrain_download_present_bytes") > 2_000_000)
        assert end(server) == 0
        assert {each["level"] for each in server.read_to_the_end()} == {"info"}
        line.go_on()
        again = server_process(REFERENCE, env=env)
        again.wait_for("ready")
        assert predict(again) == f"hello {SIZE}"
        assert 0 < metric(again, "geartrain_download_bytes_total") <= SIZE + len(CODE) - 2_000_000
    (weights,) = tmp_path.rglob("a.bin")
    assert weights.read_bytes() == WEIGHTS


def test_wrong_checksum_is_refused(s3: S3Server, tmp_path: Path, server_process: Start) -> None:
    good, bad = hashlib.sha256(WEIGHTS).hexdigest(), "0" * 64
    folder = write_model(tmp_path / "model", CODE.decode())
    settings = folder / "geartrain.yaml"
    settings.write_text(f"weights:\n- {{source: {REFERENCE}/w/a.bin, dest: w/a.bin, sha256: '{bad}'}}\n")
    env = {**s3.environ(), "GEARTRAIN_CACHE": str(tmp_path / "cache")}
    server = server_process(str(folder), env=env)
    line = server.wait_for("setup-failed")
    assert (
        line["text"] == f"{REFERENCE}/w/a.bin: a.bin has the SHA-256 {good}, and it should have {bad}; it is not used"
    )
    health = ask(server, "/health-check").json()
    assert (health["status"], health["setup"]["status"]) == ("SETUP_FAILED", "failed")
    assert line["text"] in health["setup"]["logs"]
    assert ask(server, "/predictions", json={"input": {"text": "x"}}).status_code == 503
    assert metric(server, "geartrain_download_failures_total") == 1
    settings.write_text(f"weights:\n  w/a.bin: {{source: {REFERENCE}/w/a.bin, sha256: '{good}'}}\n")
    assert ask(server, "/v2/repository/models/model/load", json={}).status_code == 200
    assert predict(server) == f"hello {SIZE}"
    assert (folder / "w/a.bin").is_symlink()
    assert end(server) == 0


def test_failed_download_is_the_exit_code(s3: S3Server, tmp_path: Path, server_process: Start) -> None:
    server = server_process("s3://bucket/none", "--cache-dir", str(tmp_path), env=s3.environ())
    assert "there is no such object" in server.wait_for("setup-failed")["text"]
    assert end(server) == 1


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put a file system of 4 MB there."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_is_said(s3: S3Server, tmp_path: Path, server_process: Start) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        server = server_process(REFERENCE, "--cache-dir", str(disk), env=s3.environ())
        text = server.wait_for("setup-failed")["text"]
        assert text.startswith(f"{REFERENCE}: {SIZE + len(CODE)} bytes (6.0 MB) are needed, and ")
        assert f"are free in {disk}; make room, or choose another folder with --cache-dir" in text
        assert not list(disk.rglob("*.data")), "it would never fit"
        assert end(server) == 1


def geartrain(*arguments: str, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "geartrain", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        **options,
    )


def test_quota_is_said(s3: S3Server, tmp_path: Path) -> None:
    env = {**s3.environ(), "GEARTRAIN_CACHE": str(tmp_path)}
    limit = 2_000_000

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = geartrain("run", REFERENCE, "-i", "text=x", env=env, preexec_fn=limit_files)
    assert done.returncode == 1
    assert f"error: {REFERENCE}: File too large: " in done.stderr
    assert f"are still needed in {tmp_path}; make room" in done.stderr


PLAIN = CODE.replace(b'Path("w/a.bin").stat().st_size', b'len((Path(__file__).parent / "w/a.bin").read_bytes())')


@pytest.mark.parametrize("reference", ["gs://org/cats", "az://org/cats", "hf://org/cats@v1", "{url}/org/cats.tar.gz"])
def test_model_from_elsewhere(reference: str, cloud: Cloud, tmp_path: Path) -> None:
    weights = os.urandom(200_000)
    folder = write_model(tmp_path / "cats", PLAIN.decode())
    (folder / "w").mkdir()
    (folder / "w/a.bin").write_bytes(weights)
    shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "cats")
    cloud.files = {
        "org/cats/run.py": PLAIN,
        "org/cats/w/a.bin": weights,
        "org/cats.tar.gz": (tmp_path / "packed.tar.gz").read_bytes(),
    }
    cloud.cuts = {path: [1000] for path in cloud.files}
    text = reference.format(url=cloud.url)
    done = geartrain("run", text, "-i", "text=hello", "--cache-dir", str(tmp_path / "cache"), env=cloud.environ())
    assert (done.stdout, done.stderr, done.returncode) == ("hello 200000\n", "", 0)


def test_schema_of_a_model_from_elsewhere(s3: S3Server, tmp_path: Path) -> None:
    done = geartrain("schema", REFERENCE, "--cache-dir", str(tmp_path), env=s3.environ())
    assert '"title": "cats"' in done.stdout


def test_doctor_looks_at_a_model_from_elsewhere(s3: S3Server, tmp_path: Path) -> None:
    done = geartrain("doctor", REFERENCE, "--cache-dir", str(tmp_path), "--port", "1", env=s3.environ())
    assert "run.py: loads; it takes text: " in done.stdout
    wrong = geartrain("doctor", "s3://bucket/none", "--cache-dir", str(tmp_path), env=s3.environ())
    assert "s3://bucket/none: there is no such object" in wrong.stdout
    assert wrong.returncode == 1


def test_change_elsewhere_is_taken_up_by_a_load(cloud: Cloud, tmp_path: Path, server_process: Start) -> None:
    env = {"GOOGLE_BASE_URL": cloud.url, "GOOGLE_SKIP_SIGNATURE": "true", "GEARTRAIN_CACHE": str(tmp_path)}
    cloud.files = {"bucket/cats/run.py": b"class Runner:\n    def run(self, text: str) -> str:\n        return text\n"}
    server = server_process("gs://bucket/cats", "--model-name", "felis", env=env)
    server.wait_for("ready")
    assert predict(server) == "hello"
    started = metric(server, "geartrain_worker_start_time_seconds")
    assert ask(server, "/v2/repository/models/felis/load", json={}).status_code == 200
    assert metric(server, "geartrain_worker_start_time_seconds") == started, "nothing has changed"
    cloud.files = {"bucket/cats/run.py": cloud.files["bucket/cats/run.py"].replace(b"return text", b"return text * 2")}
    assert ask(server, "/v2/repository/models/felis/load", json={}).status_code == 200
    assert predict(server) == "hellohello"
    assert metric(server, "geartrain_worker_start_time_seconds") != started
    cloud.files = {}
    assert end(server) == 0


def test_weights_without_a_place_are_given_to_setup(cloud: Cloud, tmp_path: Path, server_process: Start) -> None:
    cloud.files = {"bucket/w.bin": b"12345", "bucket/more/a": b"a"}
    env = {"GOOGLE_BASE_URL": cloud.url, "GOOGLE_SKIP_SIGNATURE": "true", "GEARTRAIN_CACHE": str(tmp_path / "cache")}
    write_model(
        tmp_path / "models" / "cats",
        """
        from pathlib import Path

        class Runner:
            def setup(self, weights: Path) -> None:
                self.text = weights.read_text() + (Path(__file__).parent / "more/a").read_text()

            def run(self, text: str) -> str:
                return text + self.text
        """,
    )
    settings = tmp_path / "models/cats/geartrain.yaml"
    settings.write_text("weights:\n- gs://bucket/w.bin\n- {source: gs://bucket/more, dest: more}\n")
    server = server_process(str(tmp_path / "models"), env=env)
    server.wait_for("ready")
    assert predict(server) == "hello12345a"


def test_what_a_command_leaves_to_its_end_is_done(cloud: Cloud, tmp_path: Path) -> None:
    script = """
        import atexit, sys, threading, time
        from geartrain.cli.main import main

        def late():
            threading.main_thread().join()
            print("thread", flush=False)

        import geartrain.cli.run as command
        real = command.run_once

        def run_once(*arguments, **options):
            atexit.register(print, "exit")
            threading.Thread(target=late).start()
            real(*arguments, **options)

        command.run_once = run_once
        sys.argv = ["geartrain", "run", "gs://bucket/cats", "-i", *sys.argv[1:]]
        main()
    """
    cloud.files = {"bucket/cats/run.py": b"def run(text: str) -> str:\n    return {'a': 'b'}[text]\n"}
    env = {"GOOGLE_BASE_URL": cloud.url, "GOOGLE_SKIP_SIGNATURE": "true", "GEARTRAIN_CACHE": str(tmp_path)}
    for text, code, printed in (("a", 0, "b\nthread\nexit\n"), ("x", 1, "thread\nexit\n")):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), f"text={text}"],
            env={**os.environ, **env, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert (done.stdout, done.returncode) == (printed, code), done.stderr


async def test_model_from_elsewhere_inside_another_server(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GOOGLE_BASE_URL": cloud.url, "GOOGLE_SKIP_SIGNATURE": "true", "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    code = b"class Runner:\n    def run(self, text: str) -> str:\n        return text * 2\n"
    cloud.files = {"bucket/cats/run.py": code, "bucket/dogs/run.py": code}
    app = build(read_options("gs://bucket/cats", {"cache_dir": tmp_path}))
    app.spawn()
    await app.start()
    assert (await app.ready()).name == "cats"
    await app.stop()
    several = build(read_options("gs://bucket", {"cache_dir": tmp_path}))
    several.spawn()
    await several.start()
    with pytest.raises(ModelSetupError, match="gs://bucket: several models are there; name one of them"):
        await several.ready()
    await several.stop()
