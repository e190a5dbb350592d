"""Models that take batches, behind every API: single requests share calls, and only the figures show it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geartrain.service.models.deployment import Limits
from tests.support.gates import Gates
from tests.support.servers import LiveServer, Serve, eventually, write_model

TEXTS = """
    import select
    from pathlib import Path
    from geartrain import BaseRunner, Input, batch_item, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(
            self,
            text: list[str] = Input(description="What to shout", min_length=1),
            times: list[int] = Input(default=1, ge=1),
            gate: str = "",
        ) -> list[str]:
            print(f"{len(text)} together")
            if gate:
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            results = []
            for index, (each, count) in enumerate(zip(text, times)):
                with batch_item(index):
                    print(each)
                results.append(ValueError("no shouting") if each == "bad" else each.upper() * count)
            return results
"""
ROWS = """
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8, max_delay=0.001, preferred_sizes=(4, 8))
        def run(self, x: Float32[np.ndarray, "rows 2"]) -> Float32[np.ndarray, "rows"]:
            return x.sum(axis=1) + 1000 * len(x)
"""
RAGGED = """
    import select
    import numpy as np
    from jaxtyping import Float32
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(
            self, x: list[Float32[np.ndarray, "..."]], times: list[float] = 1.0, gate: str = ""
        ) -> list[Float32[np.ndarray, "..."]]:
            if gate:
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            x[0][...] += 0  # each array is its own
            return [each * factor + 1000 * len(x) for each, factor in zip(x, times)]
"""
FILLED = """
    import select
    from typing import NamedTuple
    import numpy as np
    from jaxtyping import Float32, Int64
    from geartrain import BaseRunner, batched

    class Result(NamedTuple):
        twice: Int64[np.ndarray, "batch length"]
        total: Int64[np.ndarray, "batch"]
        called: Int64[np.ndarray, "batch 2"]

    class Runner(BaseRunner):
        @batched(max_size=8, pad={"ids": -1})
        def run(
            self, ids: Int64[np.ndarray, "batch length"], lengths: Int64[np.ndarray, "batch"], gate: str = ""
        ) -> Result:
            if gate.startswith("/"):
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            assert all((row[own:] == -1).all() for row, own in zip(ids, lengths))
            total = [row[:own].sum() for row, own in zip(ids, lengths)]
            return Result(ids * 2, np.array(total, np.int64), np.tile(ids.shape, (len(ids), 1)))
"""
TOKENS = """
    from collections.abc import Iterator
    from geartrain import BaseRunner, batched, streaming

    class Runner(BaseRunner):
        @streaming
        @batched(max_size=8)
        def run(self, count: list[int], prompt: list[str] = "") -> Iterator[list[str | None]]:
            for number in range(max(count)):
                yield [f"{number} of {each}" if number < each else None for each in count]
"""
COSTLY = """
    import select
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8, cost="text + 2 * more", max_cost=12)
        def run(self, text: list[str], more: list[int] = 0, gate: str = "") -> list[str]:
            if gate:
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            return [",".join(text)] * len(text)
"""
SMALL = """
    import select
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched(max_size=8)
        def run(self, text: list[str], gate: str = "") -> list[str]:
            if gate:
                with open(gate, "rb", buffering=0) as file:
                    select.select([file], [], [])
            if len(text) > 2:
                raise MemoryError("only two have room")
            return [f"{each.upper()} of {len(text)}" for each in text]
"""
FILES = """
    from pathlib import Path
    from geartrain import BaseRunner, batched

    class Runner(BaseRunner):
        @batched
        def run(self, letter: list[Path], name: list[str]) -> list[Path]:
            answers = []
            for path, own in zip(letter, name):
                answer = Path(f"{own}.txt")
                answer.write_text(f"{own} got {path.read_text()}")
                answers.append(answer)
            return answers
"""


@pytest.fixture
def gates(tmp_path: Path) -> Any:
    gates = Gates(tmp_path / "gates")
    yield gates
    gates.remove()


@asynccontextmanager
async def _held(server: LiveServer, gates: Gates, output: str = "FIRST") -> AsyncIterator[None]:
    """Keep the only worker busy for as long as the block is, and see that it ends well."""
    body = {"input": {"text": "first", "gate": str(gates["go"].path)}}
    first = asyncio.ensure_future(server.client.post("/predictions", json=body))
    await eventually(lambda: server.workers.permits.idle == 0)
    yield
    gates["go"].open()
    answer = (await first).json()
    assert (answer["status"], answer["output"]) == ("succeeded", output)


def _infer(**values: Any) -> dict[str, Any]:
    kinds = {str: "BYTES", int: "INT64"}
    inputs = [
        {"name": name, "datatype": kinds[type(value)], "shape": [1], "data": [value]} for name, value in values.items()
    ]
    return {"inputs": inputs}


async def test_all_apis_feed_one_batch(serve: Serve, gates: Gates) -> None:
    async with serve(TEXTS) as server:
        client = server.client
        async with _held(server, gates):
            asked = [
                client.post("/predictions", json={"input": {"text": "a"}}),
                client.post("/predictions", json={"input": {"text": "bad", "times": 3}}),
                client.put("/predictions/mine", json={"input": {"text": "b", "times": 2}}),
                client.post("/v2/models/model/infer", json=_infer(text="c", times=3)),
                client.post("/v2/models/model/infer", json=_infer(text="bad")),
                client.post("/v2/models/model/generate", json={"text_input": "d"}),
            ]
            answers = [asyncio.ensure_future(each) for each in asked]
            await eventually(lambda: server.deployment.scheduler.waiting == len(asked))
        one, bad, two, three, bad_too, four = [(await answer).json() for answer in answers]
        assert (one["output"], two["output"], two["id"]) == ("A", "BB", "mine")
        assert one["metrics"]["batch_size"] == 6
        assert one["logs"] == "6 together\na\n"
        assert (bad["status"], bad["error"]) == ("failed", "ValueError: no shouting")
        assert three["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": [1], "data": ["CCC"]}]
        assert three["parameters"]["batch_size"] == 6
        assert bad_too == {"error": "ValueError: no shouting"}
        assert four["text_output"] == "D"
        counts = (await client.get("/v2/models/model/stats")).json()["model_stats"][0]
        assert (counts["inference_count"], counts["execution_count"]) == (5, 2)
        assert [(each["batch_size"], each["compute_infer"]["count"]) for each in counts["batch_stats"]] == [
            (1, 1),
            (6, 1),
        ]
        metrics = (await client.get("/metrics")).text
        assert 'geartrain_batch_size_sum{model="model",version="1"} 7' in metrics


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ("", [0, 0, 1, 2, 2]),
        ("{padded: true, max_cost: 11}", [0, 0, 1, 2, 3]),
        ("{max_cost: 100}", [0, 0, 0, 0, 0]),
        ("{padded: true, sort: 4}", [0, 1, 2, 0, 1]),
    ],
)
async def test_calls_by_cost(serve: Serve, gates: Gates, tmp_path: Path, settings: str, together: list[int]) -> None:
    """Over two protocols, with the operator's settings before those of the class."""
    folder = write_model(tmp_path / "model", COSTLY)
    (folder / "geartrain.yaml").write_text(f"batching: {settings}\n" if settings else "")
    async with serve(folder) as server:
        async with _held(server, gates, "first"):
            asked: list[Any] = [
                server.predict({"text": "aa"}),
                server.predict({"text": "bbb", "more": 1}),
                server.predict({"text": "c" * 20}),
                server.predict({"text": "d", "more": 0}),
                server.client.post("/v2/models/model/infer", json=_infer(text="eeee", more=1)),
            ]
            answers = [asyncio.ensure_future(each) for each in asked]
            await eventually(lambda: server.deployment.scheduler.waiting == len(asked))
        *cog, infer = [await answer for answer in answers]
        outputs = [*(answer["output"] for answer in cog), infer.json()["outputs"][0]["data"][0]]
        texts = [text[0] for text in ("a", "b", "c", "d", "e")]
        calls = [[text for text, place in zip(texts, together, strict=True) if place == each] for each in together]
        assert [sorted(each[0] for each in output.split(",")) for output in outputs] == calls


async def test_a_batch_without_room_in_memory_is_run_in_parts(serve: Serve, gates: Gates) -> None:
    """Nobody but the operator sees it: in the log, and in the figures."""
    async with serve(SMALL) as server:
        async with _held(server, gates, "FIRST of 1"):
            answers = [asyncio.ensure_future(server.predict({"text": text})) for text in "abcdef"]
            await eventually(lambda: server.deployment.scheduler.waiting == 6)
        assert [(await answer)["output"] for answer in answers] == [
            f"{text} of {of}" for text, of in zip("ABCDEF", "221221", strict=True)
        ]
        wanted = [
            'geartrain_batches_out_of_memory_total{model="model",version="1"} 3.0',
            'geartrain_batch_memory_limit_rows{model="model",version="1"} 2.0',
        ]
        metrics = ""
        while not all(line in metrics for line in wanted):  # the worker tells of them once a second
            metrics = (await server.client.get("/metrics")).text


async def test_wrong_input_is_refused_before_it_runs_as_ever(serve: Serve) -> None:
    async with serve(TEXTS) as server:
        answer = await server.client.post("/predictions", json={"input": {"text": ["a"], "times": 0}})
        assert answer.status_code == 422
        assert {each["loc"][-1] for each in answer.json()["detail"]} == {"text", "times"}
        schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]["properties"]
        assert (schema["text"]["type"], schema["times"]["default"]) == ("string", 1)


async def test_there_is_room_for_as_many_as_may_wait(serve: Serve, gates: Gates) -> None:
    async with serve(TEXTS, limits=Limits(queue=2)) as server:
        async with _held(server, gates):
            waiting = [asyncio.ensure_future(server.predict({"text": text})) for text in "ab"]
            await eventually(lambda: server.deployment.scheduler.waiting == 2)
            refused = await server.client.post("/predictions", json={"input": {"text": "c"}})
            assert (refused.status_code, refused.json()["error"]) == (
                409,
                "At capacity - all prediction slots busy (--queue lets requests wait)",
            )
            assert (await server.health())["status"] == "BUSY"
        assert [(await answer)["output"] for answer in waiting] == ["A", "B"]
        assert (await server.health())["status"] == "READY"


async def test_who_leaves_while_waiting_is_never_run(serve: Serve, gates: Gates) -> None:
    async with serve(TEXTS) as server:
        async with _held(server, gates):
            stays = asyncio.ensure_future(server.predict({"text": "stays"}))
            leaves = asyncio.ensure_future(server.predict({"text": "leaves"}))
            canceled = asyncio.ensure_future(server.predict({"text": "no"}, id="mine"))
            await eventually(lambda: server.deployment.scheduler.waiting == 3)
            leaves.cancel()
            assert (await server.client.post("/predictions/mine/cancel")).status_code == 200
            assert (await canceled)["status"] == "canceled"
            await eventually(lambda: server.deployment.scheduler.waiting == 1)
        assert (await stays)["logs"] == "1 together\nstays\n"


async def test_rows_of_several_requests(serve: Serve) -> None:
    async with serve(ROWS) as server:

        async def ask(*rows: tuple[float, float]) -> tuple[int, list[float]]:
            data = [value for row in rows for value in row]
            body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": data}]}
            answer = (await server.client.post("/v2/models/model/infer", json=body)).json()
            values = answer["outputs"][0]["data"]
            return int(values[0] // 1000), [value % 1000 for value in values]

        answers = await asyncio.gather(*(ask(*[(number, row) for row in range(number % 3 + 1)]) for number in range(9)))
        for number, (size, sums) in enumerate(answers):
            assert sums == [number + row for row in range(number % 3 + 1)]
            assert len(sums) <= size <= 8
        together = await asyncio.gather(ask((1, 2)), server.predict({"x": [[1, 2], [3, 4]]}))
        assert (together[0][1], [value % 1000 for value in together[1]["output"]]) == ([3], [3, 7])
        config = (await server.client.get("/v2/models/model/config")).json()
        assert (config["max_batch_size"], config["input"][0]["dims"], config["output"][0]["dims"]) == (8, [2], [])
        assert config["dynamic_batching"]["preferred_batch_size"] == [4, 8]
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
        metadata = (await server.client.get("/v2/models/model")).json()
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]


async def test_more_rows_than_fit_are_refused_by_every_api(serve: Serve) -> None:
    async with serve(ROWS) as server:
        rows = [[0.0, 0.0]] * 9
        answer = await server.client.post("/predictions", json={"input": {"x": rows}})
        assert answer.status_code == 422
        assert "9 rows, and the model takes at most 8" in answer.json()["detail"][0]["msg"]
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [9, 2], "data": rows}]}
        answer = await server.client.post("/v2/models/model/infer", json=body)
        assert answer.status_code == 400
        assert "9 rows, and the model takes at most 8" in answer.json()["error"]


async def test_large_rows_travel_in_shared_memory(serve: Serve) -> None:
    source = (
        ROWS.replace('"rows 2"', '"rows n"')
        .replace("x.sum(axis=1) + 1000 * len(x)", "x * 2")
        .replace('"rows"]', '"rows n"]')
    )
    async with serve(source) as server:
        # One at a time, and together: each with rows of its own length.
        async def ask(number: int) -> None:
            given = np.arange(number, number + 2 * 30_000, dtype=np.float32).reshape(2, 30_000)
            head = {
                "inputs": [
                    {
                        "name": "x",
                        "datatype": "FP32",
                        "shape": list(given.shape),
                        "parameters": {"binary_data_size": given.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
            text = json.dumps(head).encode()
            headers = {"Inference-Header-Content-Length": str(len(text))}
            answer = await server.client.post("/v2/models/model/infer", content=text + given.tobytes(), headers=headers)
            begin = int(answer.headers["Inference-Header-Content-Length"])
            result = np.frombuffer(answer.content[begin:], dtype=np.float32).reshape(2, -1)
            assert np.array_equal(result, given * 2)

        await asyncio.gather(*(ask(number) for number in range(12)))


async def test_tensors_of_any_shape_share_a_run(serve: Serve, gates: Gates) -> None:
    """As a list, however they come: as nested lists, as numbers of an infer request, or as bytes."""
    async with serve(RAGGED) as server:

        async def infer(given: np.ndarray) -> np.ndarray:
            """Send bytes, and read bytes."""
            tensor = {"name": "x", "datatype": "FP32", "shape": given.shape}
            head = {
                "inputs": [{**tensor, "parameters": {"binary_data_size": given.nbytes}}],
                "parameters": {"binary_data_output": True},
            }
            text = json.dumps(head).encode()
            headers = {"Inference-Header-Content-Length": str(len(text))}
            answer = await server.client.post("/v2/models/model/infer", content=text + given.tobytes(), headers=headers)
            begin = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
            (output,) = json.loads(answer.content[:begin])["outputs"]
            return np.frombuffer(answer.content[begin:], dtype=np.float32).reshape(output["shape"])

        async def plain(values: list[float]) -> Any:
            tensor = {"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}
            answer = await server.client.post("/v2/models/model/infer", json={"inputs": [tensor]})
            return answer.json()["outputs"][0]["data"]

        large = np.arange(90_000, dtype=np.float32).reshape(300, 300)
        assert await plain([1.0, 2.0]) == [1001, 1002]
        body = {"input": {"x": [7], "gate": str(gates["go"].path)}}
        first = asyncio.ensure_future(server.client.post("/predictions", json=body))
        await eventually(lambda: server.workers.permits.idle == 0)
        asked: list[Any] = [
            server.predict({"x": [[1, 2], [3, 4]], "times": 2}),
            infer(large),
            plain([1.0]),
            infer(np.zeros((0, 3), np.float32)),
            server.predict({"x": 5}),
        ]
        answers = [asyncio.ensure_future(each) for each in asked]
        await eventually(lambda: server.deployment.scheduler.waiting == len(asked))
        gates["go"].open()
        nested, of_bytes, of_numbers, empty, single = [await answer for answer in answers]
        assert (await first).json()["output"] == [1007]
        assert nested["output"] == [[5002, 5004], [5006, 5008]]
        assert np.array_equal(of_bytes, large + 5000)
        assert (of_numbers, empty.shape, single["output"]) == ([5001], (0, 3), 5005)
        assert single["metrics"]["batch_size"] == 5


async def test_calls_without_rows_end(serve: Serve) -> None:
    async with serve(ROWS.replace("max_delay=0.001, ", "")) as server:
        empty = {"name": "x", "datatype": "FP32", "shape": [0, 2], "data": []}
        for _ in range(3):
            asked = [server.client.post("/v2/models/model/infer", json={"inputs": [empty]}) for _ in range(3)]
            answers = await asyncio.gather(*asked)
            assert [answer.json()["outputs"][0]["shape"] for answer in answers] == [[0]] * 3


async def test_short_rows_are_filled_up_and_cut_again(serve: Serve, gates: Gates) -> None:
    async with serve(FILLED) as server:
        metadata = (await server.client.get("/v2/models/model")).json()
        assert [each["name"] for each in metadata["inputs"]] == ["ids", "gate"]

        async def infer(*rows: list[int], gate: str = "") -> list[Any]:
            shape = [len(rows), len(rows[0])]
            inputs = [{"name": "ids", "datatype": "INT64", "shape": shape, "data": rows}]
            parameters = {"gate": gate} if gate else {}
            body = {"inputs": inputs, "parameters": parameters}
            answer = (await server.client.post("/v2/models/model/infer", json=body)).json()
            assert "outputs" in answer, answer
            return [np.array(each["data"]).reshape(each["shape"]).tolist() for each in answer["outputs"]]

        assert await infer([1, 2, 3]) == [[[2, 4, 6]], [6], [[1, 3]]]
        gate = str(gates["go"].path)
        first = asyncio.ensure_future(server.predict({"ids": [[1]], "gate": gate}))
        await eventually(lambda: server.workers.permits.idle == 0)
        asked: list[Any] = [
            infer([1, 2]),
            infer([1, 2, 3], [4, 5, 6]),
            server.predict({"ids": [[7, 8, 9, 10]]}),
            infer([]),
        ]
        answers = [asyncio.ensure_future(each) for each in asked]
        await eventually(lambda: server.deployment.scheduler.waiting == len(asked))
        gates["go"].open()
        short, two, nested, empty = [await answer for answer in answers]
        assert (await first)["output"] == {"twice": [[2]], "total": [1], "called": [[1, 1]]}
        assert short == [[[2, 4]], [3], [[5, 4]]]
        assert two == [[[2, 4, 6], [8, 10, 12]], [6, 15], [[5, 4], [5, 4]]]
        assert nested["output"] == {"twice": [[14, 16, 18, 20]], "total": [34], "called": [[5, 4]]}
        assert empty == [[[]], [0], [[5, 4]]]


async def test_one_long_row_does_not_make_all_others_as_long(serve: Serve, gates: Gates) -> None:
    """A call is at most four times as large as what its requests have brought."""
    async with serve(FILLED) as server:
        gate = str(gates["go"].path)
        first = asyncio.ensure_future(server.predict({"ids": [[1]], "gate": gate}))
        await eventually(lambda: server.workers.permits.idle == 0)
        asked = [server.predict({"ids": [[1] * length]}) for length in (100_000, 1, 2, 3, 4, 5)]
        answers = [asyncio.ensure_future(each) for each in asked]
        await eventually(lambda: server.deployment.scheduler.waiting == len(asked))
        gates["go"].open()
        assert (await first)["status"] == "succeeded"
        outputs = [(await answer)["output"] for answer in answers]
        assert [output["total"] for output in outputs] == [[100_000], [1], [2], [3], [4], [5]]
        sizes = sorted({tuple(output["called"][0]) for output in outputs})
        assert sum(rows for rows, _ in sizes) == 6
        assert all(rows * length <= 4 * 100_015 for rows, length in sizes)
        assert max(rows for rows, length in sizes if length == 100_000) <= 4


async def test_streams_share_a_run(serve: Serve) -> None:
    async with serve(TOKENS) as server:

        async def ask(count: int) -> list[str]:
            body = {"input": {"count": count}}
            headers = {"accept": "text/event-stream"}
            async with server.client.stream("POST", "/predictions", json=body, headers=headers) as stream:
                lines = [line async for line in stream.aiter_lines()]
            datas = [
                json.loads(after.removeprefix("data: "))
                for before, after in itertools.pairwise(lines)
                if before == "event: output"
            ]
            return [data["chunk"] for data in datas]

        counts = [3, 1, 5, 2, 4]
        answers = await asyncio.gather(*map(ask, counts))
        assert answers == [[f"{number} of {count}" for number in range(count)] for count in counts]
        body = {"text_input": "", "count": 2}
        events = (await server.client.post("/v2/models/model/generate_stream", json=body)).text.splitlines()
        assert [json.loads(line[6:])["text_output"] for line in events if line] == ["0 of 2", "1 of 2"]


async def test_files_of_each_are_its_own(serve: Serve) -> None:
    async with serve(FILES) as server:
        answers = await asyncio.gather(
            *(
                server.predict({"letter": f"data:text/plain,for%20{name}", "name": name})
                for name in ("ann", "ben", "cem")
            )
        )
        for name, answer in zip(("ann", "ben", "cem"), answers, strict=True):
            kind, _, content = answer["output"].partition(",")
            assert kind == "data:text/plain;base64"
            assert base64.b64decode(content).decode() == f"{name} got for {name}"
