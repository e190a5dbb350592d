"""Inputs as forms and as files, from real clients to real models, and what is left of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from geartrain.domain.principal import ANYONE
from tests.support.folders import paths_below
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, eventually

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40_000  # some pieces of a body
DIGEST = hashlib.sha256(PICTURE).hexdigest()

MODEL = """
    import hashlib, pathlib, select
    from typing import Any
    from geartrain import BaseRunner, Input, Path

    class Runner(BaseRunner):
        def run(
            self,
            image: Path,
            more: list[Path] = Input(default=[]),
            times: int = Input(default=1, ge=1, le=9),
            gate: str = "",
        ) -> dict[str, Any]:
            print("running")
            if gate:
                with open(gate, "rb", buffering=0) as opened:
                    select.select([opened], [], [])
            files = [pathlib.Path(each) for each in (image, *more)]
            digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in files]
            return {"times": times, "digests": digests, "suffixes": [each.suffix for each in files]}
"""
ONE_FILE = """
    import pathlib
    from geartrain import Path

    def run(image: Path, times: int = 2) -> dict[str, int]:
        return {"size": len(pathlib.Path(image).read_bytes()) * times}
"""
TRAINED = """
    import pathlib
    from geartrain import Path

    def train(data: Path) -> Path:
        pathlib.Path("weights").write_bytes(pathlib.Path(data).read_bytes()[::-1])
        return Path("weights")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of the server and of its worker."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gates]:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


def inputs_in(temporary: Path) -> list[Path]:
    """The folders of predictions, and what is in them."""
    return [path for path in paths_below(temporary) if any(part.startswith("prediction-") for part in path.parts)]


async def post(server: LiveServer, path: str = "/predictions", *, status: int = 200, **given: Any) -> dict[str, Any]:
    response = await server.client.post(path, **given)
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    return body


async def curl(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec("curl", "-s", *arguments, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(40):
        return json.loads((await process.communicate())[0])


@pytest.mark.parametrize("prefix", ["", "/models/model"])
async def test_form(serve: Serve, temporary: Path, prefix: str) -> None:
    async with serve(MODEL) as server:
        files = {"image": ("three.png", PICTURE, "image/png")}
        body = await post(server, f"{prefix}/predictions", files=files, data={"times": "2"})
        assert body["status"] == "succeeded", body
        assert body["output"] == {"times": 2, "digests": [DIGEST], "suffixes": [".png"]}
        assert body["input"] == {"image": "three.png", "times": 2}
        assert inputs_in(temporary) == []  # at the moment of the answer


async def test_form_with_a_list_of_files_and_urls(serve: Serve) -> None:
    async with serve(MODEL) as server:
        files = [("image", ("a.jpg", b"1")), ("more", ("b.gif", b"22")), ("more", ("c.txt", b"333"))]
        body = await post(server, files=files, data={"more": "data:text/csv,4444"})
        wanted = [hashlib.sha256(each).hexdigest() for each in (b"1", b"4444", b"22", b"333")]
        assert body["output"]["digests"] == wanted  # httpx sends texts first
        assert body["input"]["more"] == ["data:text/csv,4444", "b.gif", "c.txt"]


async def test_file_alone(serve: Serve, temporary: Path) -> None:
    async with serve(ONE_FILE) as server:
        body = await post(server, content=PICTURE, headers={"content-type": "image/png"})
        assert (body["output"], body["input"]) == ({"size": 2 * len(PICTURE)}, {"image": "file.png"})
        assert inputs_in(temporary) == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_curl(serve: Serve, tmp_path: Path) -> None:
    picture = tmp_path / "three.png"
    picture.write_bytes(PICTURE)
    async with serve(MODEL) as server, serve(ONE_FILE, name="one") as other:
        url = f"{server.url}/predictions"
        form = await curl("-F", f"image=@{picture}", "-F", "times=2", url)
        assert form["output"] == {"times": 2, "digests": [DIGEST], "suffixes": [".png"]}
        type_ = "Content-Type: image/png"
        alone = await curl("--data-binary", f"@{picture}", "-H", type_, f"{other.url}/predictions")
        assert alone["output"] == {"size": 2 * len(PICTURE)}
        chunked = await curl("-H", "Transfer-Encoding: chunked", "-F", f"image=@{picture}", url)
        assert chunked["output"]["digests"] == [DIGEST]
        refused = await curl("-d", '{"input":{}}', url)
        assert "-H 'Content-Type: application/json'" in refused["error"]


async def test_id_of_the_url_and_an_answer_at_once(serve: Serve, temporary: Path, gates: Gates) -> None:
    async with serve(MODEL) as server:
        given: dict[str, Any] = {"files": {"image": ("a.png", b"1")}, "data": {"gate": str(gates["go"].path)}}
        started = await server.client.put("/predictions/mine", headers={"prefer": "respond-async"}, **given)
        assert (started.status_code, started.json()["id"]) == (202, "mine")
        assert started.json()["input"]["image"] == "a.png"
        await server.said("mine", "running")
        assert [path.suffix for path in inputs_in(temporary) if path.is_file()] == [".png"]
        again = await server.client.put("/predictions/mine", **given)
        assert (again.status_code, again.json()["status"]) == (202, "processing")
        gates["go"].open()
        assert (await server.ended("mine")).status == "succeeded"
        await eventually(lambda: inputs_in(temporary) == [])
        shown = (await server.client.get("/predictions/mine")).json()
        assert shown["output"]["digests"] == [hashlib.sha256(b"1").hexdigest()]


async def test_training(serve: Serve, temporary: Path) -> None:
    folder_yaml = "run: run.py:run\ntrain: train.py:train\n"
    folder = temporary.parent / "trained"
    folder.mkdir()
    (folder / "train.py").write_text("\n".join(line[4:] for line in TRAINED.splitlines()))
    async with serve(ONE_FILE, name="trained", cog_yaml=folder_yaml) as server:
        body = await post(server, "/trainings", files={"data": ("points.csv", b"abc")})
        assert (body["status"], body["input"]) == ("succeeded", {"data": "points.csv"})
        assert body["output"].endswith("Y2Jh")  # cba in base64
        assert inputs_in(temporary) == []


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"files": {"image": b"1"}, "data": {"times": "10"}}, 422, "10 is greater than the maximum of 9"),
        ({"files": {"image": b"1"}, "data": {"times": "x"}}, 422, "is not of type"),
        ({"files": {"picture": b"1"}}, 422, "Unexpected field"),
        ({"files": {"more": b"1"}}, 422, "Field required"),
        ({"files": {"image": b"1"}, "data": {"id": "mine"}}, 422, "Unexpected field"),
        ({"files": {"more": b"1"}, "data": {"image": "/etc/passwd"}}, 422, "expected a file or a URL"),
        ({"files": {"image": bytes(200_000)}}, 413, "--max-download-size"),
        ({"files": [("more", bytes(90_000))] * 11}, 413, "--max-body-size"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "last boundary"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"x", "headers": {"content-type": "image/png"}}, 415, "application/json"),
        ({"data": {"times": "1"}}, 415, "application/json"),
    ],
)
async def test_refused(serve: Serve, temporary: Path, given: dict[str, Any], status: int, said: str) -> None:
    async with serve(MODEL, max_download_bytes=100_000, max_body_bytes=900_000) as server:
        response = await server.client.post("/predictions", **given)
        assert (response.status_code, said in response.text) == (status, True), response.text
        await eventually(lambda: inputs_in(temporary) == [])


async def test_names_of_files_lead_nowhere(serve: Serve, tmp_path: Path) -> None:
    async with serve(MODEL) as server:
        (tmp_path / "secret").write_bytes(b"secret")
        body = await post(server, files={"image": (f"../../../../../../../..{tmp_path}/secret", b"mine")})
        assert body["output"]["digests"] == [hashlib.sha256(b"mine").hexdigest()]
        assert body["input"] == {"image": "secret"}
        again = await post(server, status=422, json={"input": body["input"]})
        assert "is not a URL" in again["detail"][0]["msg"]


async def test_nothing_is_left_of_a_client_that_leaves(serve: Serve, temporary: Path) -> None:
    async with serve(MODEL) as server:
        for disconnect_after in (1_000, 300_000, 3_000_000):
            reader, writer = await asyncio.open_connection(*urlsplit(server.url).netloc.split(":"))
            body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + PICTURE
            head = "POST /predictions HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            writer.write(f"{head}Content-Length: {len(body) + 9}\r\n\r\n".encode() + body[:disconnect_after])
            await writer.drain()
            await eventually(lambda: any(path.is_file() for path in inputs_in(temporary)))
            writer.close()
            await eventually(lambda: inputs_in(temporary) == [])
            assert await reader.read() == b""
        assert not server.predictions.live


STUBBORN = """
    import os, time
    from geartrain import CancelationException, Path

    def run(image: Path, gate: str) -> int:
        try:
            print("running")  # in here: the cancel may come as soon as it is read
            while not os.path.exists(gate):
                time.sleep(0.002)
        except CancelationException:
            while not os.path.exists("may end"):
                time.sleep(0.002)
            raise
        return len(image.read_bytes())
"""


async def test_a2_form_put_after_a_dropped_connection_runs(serve: Serve, temporary: Path) -> None:
    async with serve(STUBBORN) as server:
        given: dict[str, Any] = {"files": {"image": ("a.png", b"1")}, "data": {"gate": "never"}}
        asking = asyncio.ensure_future(server.client.put("/predictions/a", **given))
        await server.said("a", "running")
        asking.cancel()
        await eventually(lambda: server.predictions.find_abandoned("a", ANYONE) is not None)
        (server.root / "open").touch()
        again: dict[str, Any] = {"files": {"image": ("b.png", b"22")}, "data": {"gate": "open"}}
        asking = asyncio.ensure_future(server.client.put("/predictions/a", **again))
        assert (await server.client.get("/predictions/a")).json()["input"]["image"] == "a.png"
        server.open_gate("may end")
        answer = await asking
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "succeeded", 2)
        assert inputs_in(temporary) == []
        assert (await server.client.put("/predictions/a", **given)).json() == answer.json()


async def test_a2_form_joins_what_began_while_it_came(serve: Serve, temporary: Path) -> None:
    async with serve(STUBBORN) as server:
        reader, writer = await asyncio.open_connection(*urlsplit(server.url).netloc.split(":"))
        field = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        file = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n1\r\n'
        body = file + field % (b"gate", b"open") + b"--x--\r\n"
        head = b"PUT /predictions/a HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-9])
        await eventually(lambda: any(path.is_file() for path in inputs_in(temporary)))
        wish = {"input": {"image": "data:,22", "gate": "open"}}
        begun = await server.client.put("/predictions/a", json=wish, headers={"prefer": "respond-async"})
        assert begun.status_code == 202
        writer.write(body[-9:])
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 202 Accepted\r\n"
        writer.close()
        server.open_gate("open")
        assert (await server.ended("a")).status == "succeeded"
        shown = (await server.client.get("/predictions/a")).json()
        assert shown["output"] == 2
        await eventually(lambda: inputs_in(temporary) == [])
