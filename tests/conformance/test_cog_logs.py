"""Observed Cog, section 10: what a run writes lands in its own `logs`, whoever writes it and however; and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Runs the statements it is given.
MODEL = """
    import concurrent.futures, contextlib, ctypes, io, logging, os, subprocess, sys, textwrap, threading, warnings
    from geartrain import BaseRunner, current_scope

    libc = ctypes.CDLL(None)
    pool = concurrent.futures.ThreadPoolExecutor(1)

    class Runner(BaseRunner):
        def setup(self) -> None:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
            self.stdout_of_setup = sys.stdout
            pool.submit(int).result()

        def run(self, code: str) -> str:
            namespace = {**globals(), "self": self}
            exec(code, namespace)
            return str(namespace.get("result", ""))
"""
ASYNC = """
    import asyncio, os, subprocess, sys
    from geartrain import concurrent

    together = None

    @concurrent(max=2)
    async def run(name: str, partners: int = 1, code: str = "") -> str:
        global together
        together = together or asyncio.Barrier(2)
        for i in range(3):
            if partners > 1:
                await together.wait()
            print(name, i)
            sys.stderr.write(f"{name} ")
        await asyncio.create_task(in_a_task(name))
        await asyncio.to_thread(print, name, "thread")
        exec(code)
        if partners > 1:
            await together.wait()
        return name

    async def in_a_task(name: str) -> None:
        print(name, "task")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def concurrent(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(ASYNC, name="concurrent") as server:
        yield server


async def logs(server: LiveServer, code: str) -> str:
    body = await server.predict({"code": code})
    assert body["status"] == "succeeded", body
    text: str = body["logs"]
    return text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", ""),
        ("print('hello')", "hello\n"),
        ("print('a', 'b', sep='-', end='!\\n')", "a-b!\n"),
        ("print('é 語 🙂')", "é 語 🙂\n"),
        ("print()", "\n"),
        ("print('out'); print('err', file=sys.stderr); print('out')", "out\nerr\nout\n"),
        # a change of stream lets a partial line out
        ("sys.stdout.write('nonl'); sys.stderr.write('e-nonl\\n')", "nonle-nonl\n"),
        ("print('a', end=''); print('b')", "ab\n"),
        ("print('a', end='', flush=True); print('b')", "ab\n"),
        ("print('10%\\r', end=''); print('20%\\r', end=''); print('done')", "done\n"),  # as a terminal shows it
        ("print('two\\nlines')", "two\nlines\n"),
        ("print('nul \\0 tab \\t bell \\a')", "nul \0 tab \t bell \a\n"),
        ("print('half \\ud800')", "half \\ud800\n"),
        ("sys.stdout.writelines(['a\\n', 'b\\n'])", "a\nb\n"),
        ("sys.stdout.buffer.write('né\\n'.encode())", "né\n"),
        ("sys.stdout.buffer.write(b'\\xff\\n')", "\ufffd\n"),
        # other ways of Python
        ("logging.info('told')", "INFO told\n"),
        ("logging.getLogger('x').warning('told %d', 5)", "WARNING told 5\n"),
        ("print('kept', file=self.stdout_of_setup)", "kept\n"),
        ("with contextlib.redirect_stdout(sys.stderr): print('redirected')", "redirected\n"),
        ("with contextlib.redirect_stdout(io.StringIO()): print('caught')", ""),
        ("t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()", "thread\n"),
        ("pool.submit(print, 'pooled').result()", "pooled\n"),
        ("print(sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.fileno())", "False utf-8 1\n"),
    ],
)
async def test_what_python_writes(server: LiveServer, code: str, expected: str) -> None:
    assert await logs(server, code) == expected


async def test_warnings(server: LiveServer) -> None:
    text = await logs(server, "warnings.warn('careful', stacklevel=1)")
    assert "UserWarning: careful\n" in text


async def test_lines_of_threads_stay_whole(server: LiveServer) -> None:
    code = """
def write(name):
    for i in range(50):
        print(name * 20, i)
threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    lines = (await logs(server, code)).splitlines()
    assert sorted(lines) == sorted(f"{name * 20} {i}" for name in "abcd" for i in range(50))


async def test_many_lines(server: LiveServer) -> None:
    text = await logs(server, "for i in range(20_000): print(i)")
    assert text == "".join(f"{i}\n" for i in range(20_000))


async def test_very_long_line_is_cut(server: LiveServer) -> None:
    text = await logs(server, "print('x' * (5 * 1024 * 1024)); print('next')")
    assert text == "x" * (4 * 1024 * 1024) + "[**** LOG LINE TRUNCATED AT 4 MiB ****]\nnext\n"


async def test_very_long_line_in_pieces_is_cut(server: LiveServer) -> None:
    text = await logs(server, "for _ in range(5): print('x' * 1024 * 1024, end='')\nprint('end'); print('next')")
    assert text == "x" * (4 * 1024 * 1024) + "[**** LOG LINE TRUNCATED AT 4 MiB ****]\nnext\n"


async def test_d2_last_line_without_an_end_stays_with_its_prediction(server: LiveServer) -> None:
    for _ in range(3):
        assert await logs(server, "print('last', end='')") == "last"
        assert await logs(server, "print('py')") == "py\n"
        assert await logs(server, "sys.stderr.write('e')") == "e"
        assert await logs(server, "pass") == ""


@pytest.mark.parametrize(
    "code",
    [
        "os.write(1, b'raw')",
        "libc.printf(b'raw')",
        "sys.stdout.buffer.write(b'raw')",
        "sys.__stdout__.write('raw')",
        "sys.__stderr__.write('raw')",
        "subprocess.run(['printf', 'raw'])",
        "print('raw', end=''); raise SystemExit",
        "os.write(2, b'raw'); raise ValueError",
    ],
)
async def test_d2_whichever_way_it_was_written(server: LiveServer, code: str) -> None:
    body = await server.predict({"code": code})
    assert body["logs"].count("raw") == 1
    assert await logs(server, "print('next')") == "next\n"


@pytest.mark.parametrize(
    "code",
    [
        "sys.stdout = io.StringIO(); sys.stderr = sys.stdout",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = open(os.devnull, 'w'); sys.stderr = sys.stdout",
        "sys.stdout.close()",
        "sys.stdout.detach()",
        "del sys.stdout",
    ],
)
async def test_d31_replaced_streams_are_back_for_the_next_prediction(server: LiveServer, code: str) -> None:
    await server.predict({"code": code})
    assert await logs(server, "print('out'); print('err', file=sys.stderr)") == "out\nerr\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.write(1, b'written\\n')", "written\n"),
        ("os.write(2, b'written\\n')", "written\n"),
        ("os.write(1, b'partial')", "partial"),
        ("os.write(1, 'né'.encode()[:2]); os.write(1, 'né'.encode()[2:] + b'\\n')", "né\n"),
        ("os.write(1, b'\\xff\\n')", "\ufffd\n"),
        ("os.system('echo system; echo err >&2')", "err\nsystem\n"),
        ("subprocess.run(['echo', 'child'])", "child\n"),
        ("subprocess.run('echo child', shell=True, stdout=sys.stdout, stderr=sys.stderr)", "child\n"),
        ("libc.printf(b'printf %d\\n', 5)", "printf 5\n"),
        ("libc.puts(b'puts')", "puts\n"),
        ("libc.printf(b'no end')", "no end"),
        ("libc.perror(b'perror')", "perror: "),
        ("os.write(1, b'x' * 300_000 + b'\\n')", "x" * 300_000 + "\n"),
        ("print('python'); os.write(1, b'raw\\n')", "python\nraw\n"),
        ("sys.__stdout__.write('original\\n')", "original\n"),
        ("print('original', file=sys.__stderr__)", "original\n"),
    ],
)
async def test_what_passes_python_by(server: LiveServer, code: str, expected: str) -> None:
    text = await logs(server, code)
    lines = sorted(text.splitlines(keepends=True))
    assert lines == sorted(expected.splitlines(keepends=True)) or text.startswith("perror: ")


async def test_output_of_a_crashing_library_call_is_kept(server: LiveServer) -> None:
    body = await server.predict({"code": "libc.printf(b'before '); raise ValueError('bad')"})
    assert "before " in body["logs"]
    assert "ValueError: bad" in body["logs"]


# several slots


@pytest.mark.one_server(reason="both predictions have to be in one worker")
async def test_logs_of_concurrent_predictions_are_told_apart(concurrent: LiveServer) -> None:
    bodies = await asyncio.gather(*(concurrent.predict({"name": name, "partners": 2}) for name in "ab"))
    for body in bodies:
        name = body["output"]
        assert body["logs"] == f"{name} 0\n{name} {name} 1\n{name} {name} 2\n{name} {name} task\n{name} thread\n"


async def test_raw_output_of_the_only_running_prediction_is_its_own(concurrent: LiveServer) -> None:
    body = await concurrent.predict({"name": "a", "code": "os.write(1, b'raw'); subprocess.run(['echo', 'child'])"})
    assert body["logs"].endswith("rawchild\n")


@pytest.mark.one_server(reason="both predictions have to be in one worker")
async def test_raw_output_beside_another_prediction_goes_to_the_servers_log(
    concurrent: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="geartrain.model"):
        bodies = await asyncio.gather(
            *(concurrent.predict({"name": name, "partners": 2, "code": "os.write(1, b'whose?\\n')"}) for name in "ab")
        )
    assert not any("whose?" in body["logs"] for body in bodies)
    assert [record.message for record in caplog.records if record.name == "geartrain.model"] == ["whose?"] * 2


@pytest.mark.one_server(reason="it reads the log of the server's own process")
async def test_what_is_printed_between_predictions_is_nobodys(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    code = """
def later():
    while not os.path.exists("later"):
        pass
    print("late words")
    open("said", "w").close()
threading.Thread(target=later).start()
"""
    with caplog.at_level(logging.INFO, logger="geartrain.model"):
        assert await logs(server, code) == ""
        server.open_gate("later")
        async with asyncio.timeout(40):
            while "late words" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    assert await logs(server, "print('mine')") == "mine\n"


# metrics


async def metrics(server: LiveServer, code: str) -> dict[str, Any]:
    body = await server.predict({"code": code})
    found: dict[str, Any] = body["metrics"]
    assert found.pop("predict_time") > 0
    return found


async def test_metrics_of_every_kind(server: LiveServer) -> None:
    code = """
m = self.record_metric
m("i", 42); m("f", 1.5); m("b", True); m("s", "x"); m("l", [1]); m("d", {"a": 1})
m("cnt", 1, mode="incr"); m("cnt", 2, mode="incr")
m("arr", "a", mode="append"); m("arr", "b", mode="append")
m("timing.a.b", 1.0); self.scope.metrics["timing.c"] = 2
current_scope().record_metric("gone", 1); del current_scope().metrics["gone"]
"""
    assert await metrics(server, code) == {
        "arr": ["a", "b"],
        "b": True,
        "cnt": 3,
        "d": {"a": 1},
        "f": 1.5,
        "i": 42,
        "l": [1],
        "s": "x",
        "timing": {"a": {"b": 1.0}, "c": 2},
    }


async def test_metrics_are_there_on_failure_too(server: LiveServer) -> None:
    assert await metrics(server, "self.record_metric('n', 1); raise ValueError") == {"n": 1}


async def test_metrics_of_one_prediction_are_not_the_nexts(server: LiveServer) -> None:
    assert await metrics(server, "self.record_metric('n', 1, mode='incr')") == {"n": 1}
    assert await metrics(server, "self.record_metric('n', 'text')") == {"n": "text"}
    assert await metrics(server, "pass") == {}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("'predict_time', 1", "ValueError: 'predict_time' is reserved"),
        ("'cog.x', 1", "ValueError: the 'cog.' prefix is reserved"),
        *((f"{name!r}, 1", "ValueError: metric name ") for name in ("", ".a", "a.", "a..b", "1a", "a_", "a__b", "a-b")),
        ("'a.b.c.d.e', 1", "ValueError: metric name "),
        ("'a' * 129, 1", "ValueError: metric name "),
        ("'t', 1); self.record_metric('t', 'x'", "TypeError: Metric 't' has type int, cannot set to str"),
        ("'t', 1); self.record_metric('t', 1.5", "TypeError: Metric 't' has type int, cannot set to float"),
        ("'t', 1, mode='bogus'", "TypeError: Invalid metric mode: 'bogus'"),
        ("'t', 'x', mode='incr'", "TypeError: Increment mode requires int or float, got str"),
        ("'t', object()", "TypeError: Unsupported metric value type: object"),
        ("'t', None", "TypeError: Unsupported metric value type: NoneType"),
    ],
)
async def test_bad_metric_raises_in_the_model(server: LiveServer, call: str, error: str) -> None:
    body = await server.predict({"code": f"self.record_metric({call})"})
    assert body["status"] == "failed"
    assert body["error"].startswith(error)


async def test_metric_deleted_by_none(server: LiveServer) -> None:
    """By `scope.metrics[k] = None`, not through `record_metric`."""
    assert await metrics(server, "self.record_metric('n', 1); self.scope.metrics['n'] = None") == {}
